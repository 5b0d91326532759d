"""Where a tool sits: the gateway it calls, the run it works for, the file it notes effects in. And what a tool is."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from ..core.effects import SentMessage
from ..core.errors import OpenClawError, ToolArguments
from ..core.model import Json, ToolEffect, ToolSpec
from ..net.file_access import FileAccess
from ..net.side_effects_file import CannotRecord, EffectsFile
from .settings import ClawSettings

CALL_TIMEOUT: Final = 60.0  # seconds an ordinary method may take


class OutcomeUnknown(OpenClawError):
    """The connection broke after the request was sent: nobody knows whether it was carried out."""

    code = "unsure"


class ClawGateway(Protocol):
    """The one connection. Opened at the first call, kept, dialled again when lost."""

    async def methods(self) -> frozenset[str]:
        """What the gateway offers; connects if need be. Raises ToolUnavailable."""

    async def call(self, method: str, params: Json, *, within: float = CALL_TIMEOUT, repeatable: bool = False) -> Any:
        """The method's answer. Raises Fault when refused, ToolUnavailable when there is no gateway, Unsure.

        `again`: the method may be repeated, since it only reads or bears an idempotency key; then a broken connection
        is dialled again and the request repeated once before Unsure is raised."""


class ClawContext(Struct, frozen=True):
    gateway: ClawGateway
    settings: ClawSettings
    effects: EffectsFile
    file_access: FileAccess = FileAccess()
    """What is read here and not by the gateway: nothing, unless the caretaker says so."""
    is_local: bool = True
    """Whether the gateway is on this machine, so that a path means the same there."""

    async def call_repeatable(self, method: str, params: Json, *, within: float = CALL_TIMEOUT) -> Any:
        """Call a method that changes nothing, or that may be repeated."""
        return await self.gateway.call(method, drop_empty(params), within=within, repeatable=True)

    async def call_once(self, method: str, params: Json, *, within: float = CALL_TIMEOUT) -> Any:
        """Call a method that must not be repeated by itself."""
        return await self.gateway.call(method, drop_empty(params), within=within)

    def record_messages(self, messages: Sequence[SentMessage], answer: Json) -> Json:
        """Write down what went out, then the answer; one that could not be written down says so.

        The message is gone by then: an error would only make the agent send it twice."""
        try:
            self.effects.record_messages(messages)
        except CannotRecord as exc:
            return {**answer, "warning": f"this was done, but not recorded: {exc}; do not repeat it"}
        return answer


ToolHandler = Callable[[ClawContext, Json], Awaitable[Any]]


class ClawTool(Struct, frozen=True):
    """A tool and how it is done. `aliases` are other names agents use for a parameter; `mend` makes other ways to say
    the same thing into the one the schema describes."""

    spec: ToolSpec
    handler: ToolHandler
    aliases: Mapping[str, str] = {}
    repair_arguments: Callable[[Json], Json] | None = None


class ToolTraits(Struct, frozen=True, kw_only=True):
    """What a tool does to the world. `outside`: people beyond this gateway see it."""

    effect: ToolEffect = "read"
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    owner_only: bool = False
    deadline: float | None = None


READ_TRAITS: Final = ToolTraits()


def define_tool(
    name: str,
    description: str,
    handler: ToolHandler,
    *,
    title: str,
    traits: ToolTraits = READ_TRAITS,
    parameters: Mapping[str, Json] | None = None,
    required: Sequence[str] = (),
    aliases: Mapping[str, str] | None = None,
    repair_arguments: Callable[[Json], Json] | None = None,
    parameter_tools: Mapping[str, str] | None = None,
) -> ClawTool:
    schema: Json = {"type": "object", "properties": dict(parameters or {})}
    if required:
        schema["required"] = list(required)
    reads = traits.effect == "read"
    annotations: Json = {"title": title, "readOnlyHint": reads, "openWorldHint": traits.open_world}
    if not reads:
        annotations |= {"destructiveHint": traits.destructive, "idempotentHint": traits.idempotent}
    spec = ToolSpec(
        name=name,
        title=title,
        description=description,
        input_schema=schema,
        annotations=annotations,
        effect=traits.effect,
        owner_only=traits.owner_only,
        parameter_tools=parameter_tools or {},
        deadline=traits.deadline,
    )
    return ClawTool(spec, handler, aliases or {}, repair_arguments)


def parameter_aliases(**names: str) -> dict[str, str]:
    """Other names for parameters: `also(prompt="task message")`."""
    return {other: name for name, others in names.items() for other in others.split()}


def text_parameter(description: str, **extra: Any) -> Json:
    return {"type": "string", "description": description, **extra}


def integer_parameter(description: str, *, least: int = 1, most: int | None = None) -> Json:
    bounds: Json = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    return {"type": "integer", **bounds, "description": description}


def flag_parameter(description: str) -> Json:
    return {"type": "boolean", "description": description}


def object_parameter(description: str) -> Json:
    return {"type": "object", "description": description, "additionalProperties": True}


def drop_empty(params: Json) -> Json:
    """Without what was not said: a real gateway refuses a null or an empty text where it expects a word."""
    return {name: value for name, value in params.items() if value is not None and value != ""}


def require_text(arguments: Json, name: str) -> str:
    """A text that must say something. Raises ToolArguments."""
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ToolArguments(f"`{name}` is empty; say what it is to be")
    return value


def optional_integer(arguments: Json, name: str) -> int | None:
    """JSON has one kind of number: 5.0 is a whole one too."""
    value = arguments.get(name)
    return None if value is None else int(value)
