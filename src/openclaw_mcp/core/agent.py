"""What an agent is given and what it says while it works. Any runtime fits: a model's API, a CLI, the demo."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, structs

from .effects import RunEffects
from .mime import normalize_mime_type
from .model import Caller, Json

if TYPE_CHECKING:
    from .ports import Toolbox


class Attachment(Struct, frozen=True, kw_only=True):
    """A file that goes with a message, either way. Its bytes, or where they are.

    Whoever sends it names its type: here, where every file comes by, that becomes one that can be used anywhere."""

    mime_type: str
    name: str | None = None
    data: bytes | None = None
    url: str | None = None

    def __post_init__(self) -> None:
        structs.force_setattr(self, "mime_type", normalize_mime_type(self.mime_type))

    @property
    def kind(self) -> str:
        """`image`, `audio`, `video` or `file`."""
        family = self.mime_type.partition("/")[0]
        return family if family in ("image", "audio", "video") else "file"

    @property
    def web_address(self) -> str | None:
        """Its `url`, if that is for others to know: a place on this machine is not."""
        return web_address(self.url)


def web_address(url: str | None) -> str | None:
    """The address, if it is one of the web."""
    return url if url is not None and url.lower().startswith(("http://", "https://")) else None


LoadHistory = Callable[[int], Awaitable[tuple[Json, ...]]]


class Turn(Struct, frozen=True, kw_only=True):
    """One thing asked of an agent."""

    run_id: str
    agent_id: str
    session_key: str
    session_id: str
    prompt: str
    attachments: tuple[Attachment, ...] = ()
    load_history: LoadHistory | None = None
    """Ask for the last so many messages before this one, oldest first; a runtime with a memory of its own does not."""
    system_prompt: str | None = None
    model: str | None = None
    thinking: str | None = None
    resume: str | None = None
    """The runtime's own id of this conversation, as its last `Final` gave it."""
    cwd: str | None = None
    settings: Json = {}
    caller: Caller
    """Who the agent acts for when it calls tools."""
    tools: "Toolbox | None" = None

    @property
    def candidate_models(self) -> tuple[str, ...]:
        """Those that may answer, in order: what the caller is judged by. Empty: it is not judged by any."""
        return () if self.caller.grant is None else self.caller.grant.models


class PartialAnswer(Struct, frozen=True, tag="partial"):
    """More of the answer. `replace`: the text so far was wrong, this is all of it."""

    text: str
    replace: bool = False


class AnswerBlock(Struct, frozen=True, tag="block"):
    """A finished part of the answer, fit to be delivered on its own; its text came as partials or comes here."""

    text: str


class ThinkingText(Struct, frozen=True, tag="thinking"):
    text: str


class MediaAttached(Struct, frozen=True, tag="media"):
    attachment: Attachment


class ModelSelected(Struct, frozen=True, tag="model"):
    """Who answers, once it is known."""

    provider: str
    model: str


class ToolUse(Struct, frozen=True, tag="tool_use"):
    id: str
    name: str
    arguments: Json


class ToolUpdate(Struct, frozen=True, tag="tool_update"):
    id: str
    name: str
    content: tuple[Json, ...]


class ToolOutcome(Struct, frozen=True, tag="tool_outcome"):
    """`content` holds MCP-shaped blocks."""

    id: str
    name: str
    content: tuple[Json, ...]
    failed: bool = False


class Usage(Struct, frozen=True, tag="usage", kw_only=True):
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost_usd: float | None = None

    @property
    def total(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write


class Notice(Struct, frozen=True, tag="notice"):
    """Something the transcript should say that is no part of the answer, such as what the model no longer sees."""

    text: str
    detail: Json = {}


class TurnCompleted(Struct, frozen=True, tag="final", kw_only=True):
    """The end of a turn that went well. `text` None: what the partials said."""

    text: str | None = None
    stop_reason: str = "stop"
    usage: Usage | None = None
    resume: str | None = None


class TurnFailed(Struct, frozen=True, tag="failed", kw_only=True):
    """The end of a turn that did not. `message` is one sentence for the person who asked."""

    message: str
    kind: Literal["refusal", "timeout", "rate_limit", "context_length", "unknown"] = "unknown"
    detail: dict[str, Any] | None = None
    drop_resume: bool = False
    """The runtime's own conversation can't be taken up again; the next turn starts afresh."""


class EffectsReported(Struct, frozen=True, tag="did"):
    """What the agent did to others with tools of its own, told before the end of a turn, good or bad: whoever delivers
    the answer does not say again what was sent."""

    effects: RunEffects


AgentEvent = (
    PartialAnswer
    | AnswerBlock
    | ThinkingText
    | MediaAttached
    | ModelSelected
    | ToolUse
    | ToolUpdate
    | ToolOutcome
    | Usage
    | Notice
    | EffectsReported
    | TurnCompleted
    | TurnFailed
)
