"""Where the store is, as messages name it: no more than host and database."""

import pytest

from openclaw_mcp.store.engine import redact_location


@pytest.mark.parametrize(
    ("where", "redacted"),
    [
        ("postgresql://h/db", "postgresql://h/db"),
        ("postgresql://me@h:5433/db", "postgresql://h:5433/db"),
        ("postgresql://me:hush@h/db", "postgresql://h/db"),
        ("postgresql+psycopg://me:hush@h/db?sslmode=require", "postgresql://h/db"),
        ("postgresql://h/db?user=u&password=hush", "postgresql://h/db"),
        ("postgresql://h/db?sslpassword=hush&options=-c%20hush", "postgresql://h/db"),
        ("postgresql:///db?host=/run/pg&password=hush", "postgresql:///run/pg/db"),
        ("postgresql://:hush@/db?host=a:1&host=b:2", "postgresql://a:1,b:2/db"),
        ("/home/me/.openclaw/openclaw.db", "/home/me/.openclaw/openclaw.db"),
    ],
)
def test_no_password_is_told_wherever_it_stands(where: str, redacted: str) -> None:
    assert redact_location(where) == redacted
