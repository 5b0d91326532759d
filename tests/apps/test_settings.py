"""What the Python client is given and can never work with is refused as it is made."""

import pytest

from openclaw_mcp.apps.client import AppTools, BadRequest


def test_at_least_one_call_must_be_able_to_run() -> None:
    with pytest.raises(BadRequest, match="at_once is 0"):
        AppTools("http://127.0.0.1:1", at_once=0)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://example.com",
        "http://",
        "http://[::1",
        "http://127.0.0.1:abc",
        "http://127.0.0.1:99999",
        f"http://{'a' * 70}.example.com",
        "http://someone:secret@127.0.0.1:8000",
        "http://127.0.0.1:8000/a b",
        "http://127.0.0.1:8000/ü",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="no address of a proxy") as refused:
        AppTools(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("token", ["two\nlines", "pässwörd", "€"])
def test_a_token_no_header_can_carry_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(BadRequest, match="the app token has a line break or a character") as refused:
        AppTools("http://127.0.0.1:1", token=token)
    assert token not in str(refused.value)
