"""The session a client acts in: named by the headers of a connection's upgrade or of an HTTP request, alike.

A client with the gateway's token may act in any session. One that names a session is bound to that session's tool
rules in what it lists, calls, starts and changes. Values are percent-encoded, so that a header carries any text.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeGuard
from urllib.parse import quote, unquote

from ...core.claw_methods import GRANT_PREFIX
from ...core.session_target import SessionAddress

TOOLS_CHANGED: Final = "tools.changed"
"""The event that tells a connection its changed list of tools."""
SESSION_HEADER: Final = "x-openclaw-session-key"
MAX_HEADER_VALUE: Final = 512  # characters of one value: a session key's limit
_HEADERS: Final = {
    "session": SESSION_HEADER,
    "channel": "x-openclaw-message-channel",
    "account": "x-openclaw-account-id",
    "to": "x-openclaw-message-to",
    "thread": "x-openclaw-thread-id",
}
_UNQUOTED: Final = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")


def is_grant_token(token: str | None) -> TypeGuard[str]:
    return token is not None and token.startswith(GRANT_PREFIX)


def session_headers(address: SessionAddress) -> dict[str, str]:
    values = {header: getattr(address, field) for field, header in _HEADERS.items()}
    return {header: quote(value, safe=_UNQUOTED) for header, value in values.items() if value}


def read_session_address(headers: Mapping[str, Sequence[str]]) -> SessionAddress | None:
    """The session the client names; None: it names none. Of a header given twice the first counts."""
    raw = {field: next(iter(headers.get(header, ())), "") for field, header in _HEADERS.items()}
    values = {field: unquote(value).strip()[:MAX_HEADER_VALUE] for field, value in raw.items()}
    return SessionAddress(**values) if values["session"] else None
