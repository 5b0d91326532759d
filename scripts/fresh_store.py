"""Write down the tables of a new SQLite database, so that a first start need not walk through every migration.

`python scripts/fresh_store.py` writes `store/fresh.py`; `--check` fails when it is not what the migrations make.
"""

import sqlite3
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from openclaw_mcp.store.engine import create_engines
from openclaw_mcp.store.migrate import run_migrations

TARGET: Final = Path(__file__).parent.parent / "src" / "openclaw_mcp" / "store" / "fresh.py"


def statements() -> list[str]:
    """What makes the tables, in the order in which they were made."""
    with TemporaryDirectory() as place:
        file = f"{place}/new.sqlite"
        writer, reader = create_engines(file)
        with writer.begin() as connection:
            run_migrations(connection)
        writer.dispose()
        reader.dispose()
        with sqlite3.connect(file) as plain:
            # Tables whose names begin with that of a full-text index are made by the index itself.
            rows = plain.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid").fetchall()
    words = [name for name, sql in rows if sql.startswith("CREATE VIRTUAL TABLE")]
    return [
        sql for name, sql in rows if not any(name.startswith(f"{word}_") and "CREATE TABLE" in sql for word in words)
    ]


def text() -> str:
    body = "".join(f"    {_quoted(sql)},\n" for sql in statements())
    return (
        "# ruff: noqa: E501 - SQLite's own words, as long as they are\n"
        '"""The tables of a new SQLite database, as the migrations make them. Written by scripts/fresh_store.py."""\n\n'
        "from typing import Final\n\n"
        f"STATEMENTS: Final = (\n{body})\n"
    )


def _quoted(sql: str) -> str:
    lines = [line.rstrip() for line in sql.strip().splitlines()]
    return '"""' + "\n".join(lines) + '"""'


def main() -> int:
    wanted = text()
    if "--check" in sys.argv:
        if TARGET.exists() and TARGET.read_text(encoding="utf-8") == wanted:
            return 0
        print(f"{TARGET} is out of date; run python scripts/fresh_store.py", file=sys.stderr)
        return 1
    TARGET.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
