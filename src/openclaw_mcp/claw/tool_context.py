"""Where a tool sits: the gateway it calls, the run it works for, the file it notes effects in. And what a tool is."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from ..core.effects import Sent
from ..core.errors import OpenClawError, ToolArguments
from ..core.model import Effect, Json, ToolSpec
from ..net.file_access import FileAccess
from ..net.side_effects_file import CannotRecord, EffectsFile
from .settings import Settings

CALL_WITHIN: Final = 60.0  # seconds an ordinary method may take


class Unsure(OpenClawError):
    """The connection broke after the request was sent: nobody knows whether it was carried out."""

    code = "unsure"


class Gateway(Protocol):
    """The one connection. Opened at the first call, kept, dialled again when lost."""

    async def methods(self) -> frozenset[str]:
        """What the gateway offers; connects if need be. Raises ToolUnavailable."""

    async def call(self, method: str, params: Json, *, within: float = CALL_WITHIN, again: bool = False) -> Any:
        """The method's answer. Raises Fault when refused, ToolUnavailable when there is no gateway, Unsure.

        `again`: the method may be repeated, since it only reads or bears an idempotency key; then a broken connection
        is dialled again and the request repeated once before Unsure is raised."""


class Seat(Struct, frozen=True):
    gateway: Gateway
    run: Settings
    effects: EffectsFile
    files: FileAccess = FileAccess()
    """What is read here and not by the gateway: nothing, unless the caretaker says so."""
    near: bool = True
    """Whether the gateway is on this machine, so that a path means the same there."""

    async def ask(self, method: str, params: Json, *, within: float = CALL_WITHIN) -> Any:
        """Call a method that changes nothing, or that may be repeated."""
        return await self.gateway.call(method, given(params), within=within, again=True)

    async def tell(self, method: str, params: Json, *, within: float = CALL_WITHIN) -> Any:
        """Call a method that must not be repeated by itself."""
        return await self.gateway.call(method, given(params), within=within)

    def note(self, sends: Sequence[Sent], answer: Json) -> Json:
        """Write down what went out, then the answer; one that could not be written down says so.

        The message is gone by then: an error would only make the agent send it twice."""
        try:
            self.effects.sent(sends)
        except CannotRecord as exc:
            return {**answer, "warning": f"this was done, but not recorded: {exc}; do not repeat it"}
        return answer


Work = Callable[[Seat, Json], Awaitable[Any]]


class Tool(Struct, frozen=True):
    """A tool and how it is done. `aliases` are other names agents use for a parameter; `mend` makes other ways to say
    the same thing into the one the schema describes."""

    spec: ToolSpec
    work: Work
    aliases: Mapping[str, str] = {}
    mend: Callable[[Json], Json] | None = None


class Nature(Struct, frozen=True, kw_only=True):
    """What a tool does to the world. `outside`: people beyond this gateway see it."""

    effect: Effect = "read"
    destructive: bool = False
    idempotent: bool = False
    outside: bool = False
    owner_only: bool = False
    deadline: float | None = None


READS: Final = Nature()


def tool(
    name: str,
    description: str,
    work: Work,
    *,
    title: str,
    nature: Nature = READS,
    parameters: Mapping[str, Json] | None = None,
    required: Sequence[str] = (),
    aliases: Mapping[str, str] | None = None,
    mend: Callable[[Json], Json] | None = None,
    parameter_tools: Mapping[str, str] | None = None,
) -> Tool:
    schema: Json = {"type": "object", "properties": dict(parameters or {})}
    if required:
        schema["required"] = list(required)
    reads = nature.effect == "read"
    annotations: Json = {"title": title, "readOnlyHint": reads, "openWorldHint": nature.outside}
    if not reads:
        annotations |= {"destructiveHint": nature.destructive, "idempotentHint": nature.idempotent}
    spec = ToolSpec(
        name=name,
        title=title,
        description=description,
        input_schema=schema,
        annotations=annotations,
        effect=nature.effect,
        owner_only=nature.owner_only,
        parameter_tools=parameter_tools or {},
        deadline=nature.deadline,
    )
    return Tool(spec, work, aliases or {}, mend)


def also(**names: str) -> dict[str, str]:
    """Other names for parameters: `also(prompt="task message")`."""
    return {other: name for name, others in names.items() for other in others.split()}


def text(description: str, **more: Any) -> Json:
    return {"type": "string", "description": description, **more}


def whole(description: str, *, least: int = 1, most: int | None = None) -> Json:
    bounds: Json = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    return {"type": "integer", **bounds, "description": description}


def flag(description: str) -> Json:
    return {"type": "boolean", "description": description}


def thing(description: str) -> Json:
    return {"type": "object", "description": description, "additionalProperties": True}


def given(params: Json) -> Json:
    """Without what was not said: a real gateway refuses a null or an empty text where it expects a word."""
    return {name: value for name, value in params.items() if value is not None and value != ""}


def some(arguments: Json, name: str) -> str:
    """A text that must say something. Raises ToolArguments."""
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ToolArguments(f"`{name}` is empty; say what it is to be")
    return value


def number(arguments: Json, name: str) -> int | None:
    """JSON has one kind of number: 5.0 is a whole one too."""
    value = arguments.get(name)
    return None if value is None else int(value)
