"""An app that lends its tools: what it registered, and the bridge its calls take right now."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from ...core.errors import BadRequest, ToolBusy, ToolUnavailable
from ...core.model import Json, ToolCall, ToolResult, ToolSpec
from ...core.ports import CallContext
from ...core.signal import Signal
from ...protocol.bridge import APP_DISCONNECTED
from . import results
from .bridge import Bridge, ProgressHandler
from .frames import Frame
from .tool_list import ToolManifest

NO_SUCH_SESSION: Final = "no such session: it was deleted, has expired, or never was; have the app register again"


class BridgeTaken(ToolBusy):
    """Another bridge is attached to the session, and alive."""

    code = "bridge_taken"


class SessionGone(BadRequest):
    """The session was deleted while something was on its way to it."""

    code = "session_gone"


class TooManySessions(ToolBusy):
    """There is no room for the session, or for its tools."""

    code = "too_many_sessions"

    def __init__(self, message: str, *, per_peer: bool) -> None:
        super().__init__(message)
        self.per_peer = per_peer
        """Whether it is one peer that has too many, not all of them together."""


class StoreDown(ToolUnavailable):
    """The shared store can't be reached."""

    code = "store_down"


class AppRegistration(Struct, frozen=True, kw_only=True):
    """What an app registered, without its tools."""

    id: str
    created: float
    """Seconds since 1970."""
    about: bytes
    """A JSON object: everything the app registered besides its tools, unknown fields included."""
    device: str | None = None
    peer: str = ""
    """The peer that registered it, as limits count peers."""
    validate: bool = True
    """Whether arguments are checked against a tool's schema before the app gets the call."""
    has_secret: bool = False
    """Whether its id is derived from a secret, which the app must then show to hold the bridge."""

    def is_same_app(self, other: "AppRegistration") -> bool:
        """Whether both say the same, apart from where and when it was said."""
        return (self.id, self.about, self.validate) == (other.id, other.about, other.validate)

    def decode_about(self) -> Json:
        about: Json = msgspec.json.decode(self.about)
        return about


class AppSessionStatus(Struct, frozen=True):
    """A session as its owner may inspect it."""

    registration: AppRegistration
    manifest: ToolManifest
    connected: bool


class ToolInvoker(Protocol):
    """Takes a call to the app: a bridge here, or one at another instance."""

    async def invoke(self, tool: str, arguments: Any, on_progress: ProgressHandler | None) -> tuple[Frame, int]: ...


FindInvoker = Callable[["AppSession"], Awaitable[ToolInvoker | None]]


async def find_no_invoker(_: "AppSession") -> ToolInvoker | None:
    return None


class AppSession:
    """A session as it lives in this process. A `ToolSource`."""

    __slots__ = (
        "_find_remote",
        "active_requests",
        "bridge",
        "changed",
        "last_call_number",
        "last_used",
        "last_verified",
        "manifest",
        "registration",
    )

    def __init__(
        self,
        registration: AppRegistration,
        manifest: ToolManifest,
        *,
        now: float,
        find_remote: FindInvoker = find_no_invoker,
    ) -> None:
        self.registration = registration
        self.manifest = manifest
        self.changed: Signal[None] = Signal()
        self.bridge: Bridge | None = None
        """The bridge, when it is attached to this process."""
        self.last_used = now
        self.last_verified = now
        """When the session was last found in the shared store."""
        self.last_call_number = 0
        """Calls made so far; a new bridge counts on from there."""
        self.active_requests = 0
        """MCP requests that are being served for it in this process."""
        self._find_remote = find_remote

    @property
    def digest(self) -> str:
        """Its name in logs, audit and policy."""
        return session_digest(self.registration.id)

    @property
    def chat_id(self) -> str | None:
        """The conversation its app belongs to, if the app named one."""
        about = self.registration.decode_about()
        chat = about.get("chat_id") or about.get("chatId")
        return chat if isinstance(chat, str) else None

    def attach_bridge(self, bridge: Bridge, *, first_number: int) -> None:
        bridge.last_call_number = first_number
        self.bridge = bridge

    def detach_bridge(self) -> None:
        """The bridge is gone; the next one counts on from its last call."""
        if self.bridge is not None:
            self.last_call_number = self.bridge.last_call_number
            self.bridge = None

    def replace_tools(self, manifest: ToolManifest) -> None:
        if manifest is not self.manifest:
            self.manifest = manifest
            self.changed.emit(None)

    def specs(self) -> Sequence[ToolSpec]:
        return self.manifest.specs

    async def call(self, call: ToolCall) -> ToolResult:
        invoker: ToolInvoker | None = self.bridge or await self._find_remote(self)
        if invoker is None:
            raise ToolUnavailable(APP_DISCONNECTED)
        frame, sent = await invoker.invoke(call.name, call.arguments, _progress_handler(call.context))
        return results.to_tool_result(frame, sent=sent)


def _progress_handler(context: CallContext) -> ProgressHandler:
    async def on_progress(frame: Frame) -> None:
        if frame.progress is not None:
            await context.progress(frame.progress, total=frame.total, message=frame.message)

    return on_progress


def session_digest(session_id: str) -> str:
    """A session's name in logs, audit and policy: its id is the key to it."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:12]
