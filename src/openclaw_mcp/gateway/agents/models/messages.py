"""A conversation with a model, independent of any API: messages, requests, answers."""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from msgspec import Struct, structs

from ....core.agent import Usage
from ....core.model import Json
from .settings import ModelChoice


class TextPart(Struct, frozen=True, tag="words"):
    text: str


class ImagePart(Struct, frozen=True, tag="picture"):
    mime_type: str
    data: str | bytes
    """Base64, or the bytes themselves."""


class ThinkingPart(Struct, frozen=True, tag="thought", kw_only=True):
    """What a model thought aloud. Only the model it came from may be given it back, as it was."""

    text: str
    origin: str
    signature: str | None = None
    redacted: str | None = None
    """In place of the text: thoughts the provider keeps to itself."""


class ToolCallPart(Struct, frozen=True, tag="call"):
    id: str
    name: str
    """As the model's API knows the tool."""
    arguments: str
    """JSON text, as the model wrote it."""


class ToolResultPart(Struct, frozen=True, tag="result", kw_only=True):
    id: str
    name: str
    parts: tuple[TextPart | ImagePart, ...]
    failed: bool = False


MessagePart = TextPart | ImagePart | ThinkingPart | ToolCallPart | ToolResultPart


class ModelMessage(Struct, frozen=True):
    """One message. Results of tools are the user's."""

    role: Literal["user", "assistant"]
    parts: tuple[MessagePart, ...]


class ModelTool(Struct, frozen=True):
    """A tool, under a name the model's API takes."""

    name: str
    description: str
    schema: Json


class ModelRequest(Struct, frozen=True, kw_only=True):
    """One request to a model."""

    choice: ModelChoice
    system: str
    messages: Sequence[ModelMessage]
    tools: Sequence[ModelTool] = ()
    thinking: str | None = None


class AnswerDelta(Struct, frozen=True):
    """A piece of the answer while it comes."""

    text: str
    is_thinking: bool = False


StopKind = Literal["stop", "tools", "length", "refusal", "pause"]


class ModelAnswer(Struct, frozen=True, kw_only=True):
    """The whole of it. `pause`: the model has more to say and asks to be asked again."""

    parts: tuple[MessagePart, ...]
    stop: StopKind
    usage: Usage

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))


class AnswerReader(Protocol):
    """Reads one answer, event by event."""

    def read(self, data: bytes) -> Iterable[AnswerDelta]:
        """Read the data of one event. Raises ModelError when it reports an error."""

    def answer(self) -> ModelAnswer | None:
        """The answer once it is whole; None when the stream ended before it was."""


class ModelCodec(Protocol):
    """A model API's dialect. Pure: no I/O."""

    def url(self, base: str) -> str: ...

    def headers(self, key: str | None) -> dict[str, str]: ...

    def encode_body(self, request: ModelRequest) -> bytes:
        """JSON; images as `request_body.encode_image` writes them."""

    def create_reader(self, request: ModelRequest) -> AnswerReader: ...


def replace_images(part: MessagePart, note: TextPart) -> MessagePart:
    """The part with a note in place of each image, in a tool's result as well."""
    if isinstance(part, ImagePart):
        return note
    if isinstance(part, ToolResultPart) and any(isinstance(inner, ImagePart) for inner in part.parts):
        return structs.replace(part, parts=tuple(note if isinstance(p, ImagePart) else p for p in part.parts))
    return part


def join_text(parts: Iterable[MessagePart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))
