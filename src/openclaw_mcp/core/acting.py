"""Where somebody acts who is no run of it: a session named by its key, and the conversation behind it."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from .model import Caller

if TYPE_CHECKING:
    from .books import SessionBook

FARTHEST: Final = 16  # steps from a sub-agent up to the session that started it all; deeper is a ring


class Place(Struct, frozen=True, kw_only=True):
    """A session, and the conversation behind it as far as the client knows it."""

    session: str
    channel: str = ""
    account: str = ""
    to: str = ""
    thread: str = ""


Acting = Callable[[Caller, Place], Awaitable[Caller]]
"""A caller as the rules about tools see it in this place. One answer, for every door at which a session is named."""


async def by_session(caller: Caller, place: Place) -> Caller:
    """Where no sessions are kept: by the session's key alone."""
    return replace(caller, session=place.session)


async def began_in(key: str, sessions: "SessionBook") -> str:
    """The session a sub-agent's work began in, however many lie between: its conversation's rules hold for all of them;
    of any other session, itself."""
    for _ in range(FARTHEST):
        session = await sessions.get(key)
        if session is None or session.spawned_by is None:
            break
        key = session.spawned_by
    return key
