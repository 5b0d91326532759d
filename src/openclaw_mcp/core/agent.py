"""What an agent gets, and the events of its work; for every runtime: a model's API, a CLI, the demo."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct, structs

from .effects import RunEffects
from .mime import normalize_mime_type
from .model import Caller, Json
from .numbers import read_count

if TYPE_CHECKING:
    from .chat_messages import ChatMessage
    from .ports import Toolbox

MAX_ATTACHMENT_BYTES: Final = 18 * 1024 * 1024  # as base64 it just fits the largest frame


class Attachment(Struct, frozen=True, kw_only=True):
    """A file of a message, in either direction: its bytes, or their address. Its sender names the type, so the type is
    normalized here, where every file passes."""

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
        """Its `url`, if others may know it: a path on this machine is private."""
        return web_address(self.url)


def web_address(url: str | None) -> str | None:
    """The address, if it is an HTTP URL."""
    return url if url is not None and url.lower().startswith(("http://", "https://")) else None


LoadHistory = Callable[[int], Awaitable[tuple["ChatMessage", ...]]]


class Turn(Struct, frozen=True, kw_only=True):
    """One thing asked of an agent."""

    run_id: str
    agent_id: str
    session_key: str
    session_id: str
    prompt: str
    attachments: tuple[Attachment, ...] = ()
    load_history: LoadHistory | None = None
    """Loads the last so many messages before this one, oldest first; for a runtime that keeps no history itself."""
    system_prompt: str | None = None
    model: str | None = None
    thinking: str | None = None
    resume: str | None = None
    """The runtime's own id of this conversation, from its last `TurnCompleted`."""
    cwd: str | None = None
    settings: Json = {}
    caller: Caller
    """Who the agent acts for when it calls tools."""
    tools: "Toolbox | None" = None

    @property
    def candidate_models(self) -> tuple[str, ...]:
        """The models that may answer, in order; policy applies the rules of each. Empty: no model's rules apply."""
        return () if self.caller.grant is None else self.caller.grant.models


class PartialAnswer(Struct, frozen=True, tag="partial"):
    """More of the answer. `replace`: the text so far was wrong, this is all of it."""

    text: str
    replace: bool = False


class AnswerBlock(Struct, frozen=True, tag="block"):
    """A finished part of the answer that may be delivered on its own; its text came as partials or comes here."""

    text: str


class ThinkingText(Struct, frozen=True, tag="thinking"):
    text: str


class MediaAttached(Struct, frozen=True, tag="media"):
    attachment: Attachment


class ModelSelected(Struct, frozen=True, tag="model"):
    """The model that answers, once it is known."""

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

    @classmethod
    def from_report(
        cls,
        *,
        input: float = 0,
        output: float = 0,
        cache_read: float = 0,
        cache_write: float = 0,
        cost_usd: float | None = None,
    ) -> "Usage":
        """Of counts as another program reports them: made whole numbers from 0 to `MAX_COUNT`."""
        counts = map(read_count, (input, output, cache_read, cache_write))
        fields = dict(zip(("input", "output", "cache_read", "cache_write"), counts, strict=True))
        return cls(**fields, cost_usd=cost_usd)

    @property
    def total(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write


class Notice(Struct, frozen=True, tag="notice"):
    """A note for the transcript that is no part of the answer, such as what the model no longer sees."""

    text: str
    detail: Json = {}


class TurnCompleted(Struct, frozen=True, tag="final", kw_only=True):
    """The end of a successful turn. `text` None: the text of the partials."""

    text: str | None = None
    stop_reason: str = "stop"
    usage: Usage | None = None
    resume: str | None = None


class TurnFailed(Struct, frozen=True, tag="failed", kw_only=True):
    """The end of a failed turn. `message` is one sentence for the person who asked."""

    message: str
    kind: Literal["refusal", "timeout", "rate_limit", "context_length", "unknown"] = "unknown"
    detail: dict[str, Any] | None = None
    drop_resume: bool = False
    """The runtime's own conversation can't be resumed; the next turn starts a new one."""


class EffectsReported(Struct, frozen=True, tag="did"):
    """The effects of the tools that the agent used itself, before the end of a turn: a message that was sent by a tool
    is not delivered a second time."""

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
