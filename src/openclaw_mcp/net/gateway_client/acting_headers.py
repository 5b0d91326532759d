"""In which session a client acts: told with the headers of a connection's upgrade or of an HTTP request, alike.

Who holds the gateway's token may act in any session. One that names it is that session's agent (`Caller.bound`), held
to its rules in what it is told to list, calls, starts and changes. The words are percent-encoded, so that a header
carries any of them.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote

from ...core.claw_methods import GRANT_PREFIX
from ...core.session_target import SessionAddress

TOOLS_CHANGED: Final = "tools.changed"
"""The event that tells a connection which tools it has from now on."""
SESSION_HEADER: Final = "x-openclaw-session-key"
MAX_HEADER_VALUE: Final = 512  # characters of one word: a session key's limit
_HEADERS: Final = {
    "session": SESSION_HEADER,
    "channel": "x-openclaw-message-channel",
    "account": "x-openclaw-account-id",
    "to": "x-openclaw-message-to",
    "thread": "x-openclaw-thread-id",
}
_UNQUOTED: Final = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")


def is_grant_token(token: str | None) -> bool:
    return token is not None and token.startswith(GRANT_PREFIX)


def session_headers(address: SessionAddress) -> dict[str, str]:
    said = {header: getattr(address, field) for field, header in _HEADERS.items()}
    return {header: quote(word, safe=_UNQUOTED) for header, word in said.items() if word}


def read_session_address(headers: Mapping[str, Sequence[str]]) -> SessionAddress | None:
    """Where the client says that it acts; None: it does not say. Of a header that is there twice the first counts."""
    said = {field: next(iter(headers.get(header, ())), "") for field, header in _HEADERS.items()}
    words = {field: unquote(word).strip()[:MAX_HEADER_VALUE] for field, word in said.items()}
    return SessionAddress(**words) if words["session"] else None
