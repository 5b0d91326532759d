"""An app that lends its tools: what it registered, and the bridge its calls go over right now."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from ...core.errors import BadRequest, ToolBusy, ToolUnavailable
from ...core.model import ToolCall, ToolResult, ToolSpec
from ...core.ports import Line
from ...core.signal import Bell
from . import results
from .bridge import Bridge, Tell
from .frames import AWAY, Frame
from .tool_list import Menu

GONE: Final = "no such session: it was deleted, has expired, or never was; have the app register again"


class BridgeTaken(ToolBusy):
    """Another bridge is attached to the session, and alive."""

    code = "bridge_taken"


class SessionGone(BadRequest):
    """The session was deleted while something was on its way to it."""

    code = "session_gone"


class TooManySessions(ToolBusy):
    """There is no room for the session, or for its tools."""

    code = "too_many_sessions"

    def __init__(self, message: str, *, of_a_peer: bool) -> None:
        super().__init__(message)
        self.of_a_peer = of_a_peer
        """Whether it is one peer that has too many, not all of them together."""


class StoreDown(ToolUnavailable):
    """The shared store can't be reached."""

    code = "store_down"


class Session(Struct, frozen=True, kw_only=True):
    """What an app registered, without its tools."""

    id: str
    created: float
    """Seconds since 1970."""
    about: bytes
    """A JSON object: everything the app said of itself, unknown fields included."""
    device: str | None = None
    peer: str = ""
    """Who registered it, as far as limits go."""
    validate: bool = True
    """Whether arguments are checked against a tool's schema before the app is asked."""


class Entry(Struct, frozen=True):
    """A session as its owner may inspect it."""

    session: Session
    menu: Menu
    connected: bool


class Carrier(Protocol):
    """Takes a call to the app: a bridge here, or one at another instance."""

    async def invoke(self, tool: str, arguments: Any, tell: Tell | None) -> tuple[Frame, int]: ...


Elsewhere = Callable[["Guest"], Awaitable[Carrier | None]]


async def nowhere(_: "Guest") -> Carrier | None:
    return None


class Guest:
    """A session as it lives in this process. A `ToolSource`."""

    __slots__ = ("_elsewhere", "bridge", "changed", "checked", "count", "door", "menu", "session", "used")

    def __init__(self, session: Session, menu: Menu, *, now: float, elsewhere: Elsewhere = nowhere) -> None:
        self.session = session
        self.menu = menu
        self.changed: Bell[None] = Bell()
        self.bridge: Bridge | None = None
        """The bridge, when it is attached to this process."""
        self.used = now
        self.checked = now
        """When the shared store last said that the session is there."""
        self.count = 0
        """Calls made so far; ids go on from there when a new bridge comes."""
        self.door: Any = None
        """The caretaker's own: what it built to serve this session."""
        self._elsewhere = elsewhere

    def retool(self, menu: Menu) -> None:
        if menu is not self.menu:
            self.menu = menu
            self.changed.ring(None)

    def specs(self) -> Sequence[ToolSpec]:
        return self.menu.specs

    async def call(self, call: ToolCall) -> ToolResult:
        carrier: Carrier | None = self.bridge or await self._elsewhere(self)
        if carrier is None:
            raise ToolUnavailable(AWAY)
        frame, sent = await carrier.invoke(call.name, call.arguments, _teller(call.line))
        return results.result(frame, sent=sent)


def _teller(line: Line) -> Tell:
    async def tell(frame: Frame) -> None:
        if frame.progress is not None:
            await line.progress(frame.progress, total=frame.total, message=frame.message)

    return tell
