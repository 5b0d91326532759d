"""In which session a connection acts: told with the headers of its upgrade, as `/mcp` has it.

Who holds the gateway's token may act in any session. One that names it is held to that session's rules about tools, in
what it is told to list and in what it calls. The words are percent-encoded, so that a header carries any of them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote

from msgspec import Struct

from ..core.claw import GRANT_PREFIX
from ..core.model import Caller

TOOLS_CHANGED: Final = "tools.changed"
"""The event that tells a connection which tools it has from now on."""
SESSION_HEADER: Final = "x-openclaw-session-key"
LONGEST: Final = 512  # characters of one word: a session key's limit
_HEADERS: Final = {
    "session": SESSION_HEADER,
    "channel": "x-openclaw-message-channel",
    "account": "x-openclaw-account-id",
    "to": "x-openclaw-message-to",
    "thread": "x-openclaw-thread-id",
}
_PLAIN: Final = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")


class Place(Struct, frozen=True, kw_only=True):
    """A session, and the conversation behind it as far as the client knows it."""

    session: str
    channel: str = ""
    account: str = ""
    to: str = ""
    thread: str = ""


Acting = Callable[[Caller, Place], Awaitable[Caller]]
"""As whom the rules about tools see an operator that acts in this place."""


def is_grant(token: str | None) -> bool:
    return token is not None and token.startswith(GRANT_PREFIX)


def headers_of(place: Place) -> dict[str, str]:
    said = {header: getattr(place, field) for field, header in _HEADERS.items()}
    return {header: quote(word, safe=_PLAIN) for header, word in said.items() if word}


def read_place(headers: Mapping[str, Sequence[str]]) -> Place | None:
    """Where the client says that it acts; None: it does not say. Of a header that is there twice the first counts."""
    said = {field: next(iter(headers.get(header, ())), "") for field, header in _HEADERS.items()}
    words = {field: unquote(word).strip()[:LONGEST] for field, word in said.items()}
    return Place(**words) if words["session"] else None


async def by_session(caller: Caller, place: Place) -> Caller:
    """Where no sessions are kept: by the session's key alone."""
    return Caller(kind=caller.kind, name=caller.name, scopes=caller.scopes, session=place.session, grant=caller.grant)
