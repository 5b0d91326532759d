"""What a tool's handler works with: the gateway it calls, the run it works for, the file it records effects in."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct

from ..core.effects import SentMessage
from ..core.errors import OpenClawError, ToolArguments
from ..core.lenient import read_struct
from ..core.model import Json
from ..core.signal import Signal
from ..net.file_access import FileAccess
from ..net.side_effects_file import CannotRecord, EffectsFile
from .settings import ClawSettings

CALL_TIMEOUT: Final = 60.0  # seconds an ordinary method may take


class OutcomeUnknown(OpenClawError):
    """The connection broke after the request was sent: whether it was carried out is not known."""

    code = "unsure"


class GatewayOffer(Struct, frozen=True):
    """What a gateway announced: its methods, and the tools of the run's grant if the token is a grant's."""

    methods: frozenset[str]
    granted_tools: frozenset[str] | None = None


class ClawGateway(Protocol):
    """The one connection. Opened at the first call, kept, dialled again when lost."""

    @property
    def offered(self) -> Signal[GatewayOffer]:
        """Emits at each hello and each change of the granted tools."""

    async def methods(self) -> frozenset[str]:
        """What the gateway offers; connects if need be. Raises ToolUnavailable."""

    async def call(self, method: str, params: Json, *, within: float = CALL_TIMEOUT, repeatable: bool = False) -> Any:
        """The method's answer. Raises RpcError when it is refused, ToolUnavailable without a gateway, OutcomeUnknown.

        `repeatable`: the method only reads or carries an idempotency key, so when the connection breaks, it is dialled
        again and the request repeated once before OutcomeUnknown is raised."""


class ClawContext(Struct, frozen=True):
    gateway: ClawGateway
    settings: ClawSettings
    effects: EffectsFile
    file_access: FileAccess = FileAccess()
    """The files that are read here instead of by the gateway; none unless given."""
    is_local: bool = True
    """Whether the gateway is on this machine, so that a path means the same there."""

    async def call_repeatable(self, method: str, params: Json, *, within: float = CALL_TIMEOUT) -> Any:
        """Call a method that changes nothing, or that may be repeated."""
        return await self.gateway.call(method, drop_empty(params), within=within, repeatable=True)

    async def call_once(self, method: str, params: Json, *, within: float = CALL_TIMEOUT) -> Any:
        """Call a method that must not be repeated by itself."""
        return await self.gateway.call(method, drop_empty(params), within=within)

    def record_messages(self, messages: Sequence[SentMessage], answer: Json) -> Json:
        """Record messages that were sent; the answer, with a warning if they could not be recorded.

        A message is out by then: an error would only make the agent send it twice."""
        try:
            self.effects.record_messages(messages)
        except CannotRecord as exc:
            return {**answer, "warning": f"this was done, but not recorded: {exc}; do not repeat it"}
        return answer


ToolHandler = Callable[[ClawContext, Json], Awaitable[Any]]
Arguments = TypeVar("Arguments", bound=Struct)


def bind_handlers(
    shape: type[Arguments], handlers: Mapping[str, Callable[[ClawContext, Arguments], Awaitable[Any]]]
) -> dict[str, ToolHandler]:
    """Handlers by tool that get the arguments of a call as this struct. Their types were checked by the tool's schema;
    an argument that no schema names and that does not fit counts as absent."""

    def bind(handler: Callable[[ClawContext, Arguments], Awaitable[Any]]) -> ToolHandler:
        return lambda context, arguments: handler(context, read_struct(arguments, shape))

    return {name: bind(handler) for name, handler in handlers.items()}


def drop_empty(params: Json) -> Json:
    """Without nulls and empty texts: a real gateway refuses them where it expects a value."""
    return {name: value for name, value in params.items() if value is not None and value != ""}


def require_text(name: str, value: str) -> str:
    """A text that must not be blank. Raises ToolArguments."""
    if not value.strip():
        raise ToolArguments(f"`{name}` is empty; say what it is to be")
    return value
