"""OpenAI's chat completions, as OpenAI, Ollama, vLLM and many others speak them. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ....core.agent import Usage
from ....core.lenient import read_struct
from ....core.model import Json
from .errors import error_from_stream
from .lru import LruCache
from .messages import (
    AnswerDelta,
    ImagePart,
    MessagePart,
    ModelAnswer,
    ModelMessage,
    ModelRequest,
    ModelTool,
    StopKind,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    join_text,
)
from .request_body import encode_image, valid_arguments

EFFORTS: Final = {"minimal": "minimal", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
STOPS: Final[dict[str, StopKind]] = {
    "stop": "stop", "length": "length", "tool_calls": "tools", "function_call": "tools", "content_filter": "refusal",
}  # fmt: skip
TOOL_IMAGES_TEXT: Final = "The images of the tool results above, in order:"

_encode = msgspec.json.Encoder().encode


class OpenAICodec:
    """A `ModelCodec`."""

    def url(self, base: str) -> str:
        return f"{base}/chat/completions"

    def headers(self, key: str | None) -> dict[str, str]:
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def encode_body(self, request: ModelRequest) -> bytes:
        card = request.choice.model
        body: Json = {"model": card.id, "messages": list(_messages(request))}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if request.tools:
            body["tools"] = _tools(request.tools)
        if card.max_output is not None:
            # OpenAI's newer models refuse the old name, most others know no new one.
            own = request.choice.provider.name == "openai"
            body["max_completion_tokens" if own else "max_tokens"] = card.max_output
        if card.supports_reasoning and request.thinking in EFFORTS:
            body["reasoning_effort"] = EFFORTS[request.thinking]
        return _encode(body)

    def create_reader(self, request: ModelRequest) -> "OpenAIReader":
        return OpenAIReader(request.choice.name)


def _encode_tools(tools: tuple[ModelTool, ...]) -> msgspec.Raw:
    functions = [{"name": tool.name, "description": tool.description, "parameters": tool.schema} for tool in tools]
    return msgspec.Raw(_encode([{"type": "function", "function": function} for function in functions]))


_tools = LruCache[ModelTool, msgspec.Raw](_encode_tools)


class _WireMessage(Struct):
    role: str
    content: Any
    tool_calls: Any = UNSET
    tool_call_id: str | UnsetType = UNSET


def _messages(request: ModelRequest) -> Iterator[_WireMessage]:
    if request.system:
        yield _WireMessage("system", request.system)
    for message in request.messages:
        yield from _assistant(message) if message.role == "assistant" else _user(message)


def _assistant(message: ModelMessage) -> Iterator[_WireMessage]:
    text = join_text(message.parts)
    parts = [part for part in message.parts if isinstance(part, ToolCallPart)]
    calls = [
        {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": valid_arguments(part)}}
        for part in parts
    ]
    if calls:
        yield _WireMessage("assistant", text or None, tool_calls=calls)
    elif text:
        yield _WireMessage("assistant", text)


def _user(message: ModelMessage) -> Iterator[_WireMessage]:
    """Results first, each a message of its own; a result holds no picture, so those follow together."""
    pictures: list[TextPart | ImagePart] = []
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            text = "\n".join(inner.text for inner in part.parts if isinstance(inner, TextPart))
            shown = [inner for inner in part.parts if isinstance(inner, ImagePart)]
            pictures += shown
            text = text or ("(see the image below)" if shown else "(nothing)")
            yield _WireMessage("tool", f"Error: {text}" if part.failed else text, tool_call_id=part.id)
    if pictures:
        yield _WireMessage("user", list(map(_block, [TextPart(TOOL_IMAGES_TEXT), *pictures])))
    own = [part for part in message.parts if isinstance(part, TextPart | ImagePart)]
    if any(isinstance(part, ImagePart) for part in own):
        yield _WireMessage("user", list(map(_block, own)))
    elif own:
        yield _WireMessage("user", "\n\n".join(part.text for part in own if isinstance(part, TextPart)))


def _block(part: TextPart | ImagePart) -> Json:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": f"data:{part.mime_type};base64,{encode_image(part)}"}}


# A chunk of another structure is an error, and the model is asked again: an answer with a hole would count as whole.
# Texts of another type are passed over: some servers send a list or an object where there is none.


class _Function(Struct, frozen=True):
    name: Any = None
    arguments: Any = None


class _CallPiece(Struct, frozen=True):
    index: Any = None
    id: Any = None
    function: _Function | None = None


class _Delta(Struct, frozen=True):
    content: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: tuple[_CallPiece, ...] | None = None


class _Choice(Struct, frozen=True):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Any = None


class _PromptDetails(Struct, frozen=True):
    cached_tokens: float | None = None


class _TokenCounts(Struct, frozen=True):
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    prompt_tokens_details: _PromptDetails | None = None

    def to_usage(self) -> Usage:
        cached = (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0
        fresh = max(0, (self.prompt_tokens or 0) - cached)
        return Usage.from_report(input=fresh, output=self.completion_tokens or 0, cache_read=cached)


class _Chunk(Struct, frozen=True):
    error: Any = None
    usage: Any = None
    choices: tuple[_Choice, ...] | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk | str | int | float | bool | list[Any] | None).decode
"""What is no object holds nothing of the answer."""


class _PartialCall(Struct):
    """A call of a tool while it is written."""

    id: str = ""
    name: str = ""
    arguments: list[str] = []


def _read_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _read_content(value: object) -> str:
    """Mistral's models that think send a list of parts, in which their thoughts have no `text`."""
    if isinstance(value, list):
        return "".join(_read_text(part.get("text")) for part in value if isinstance(part, dict))
    return _read_text(value)


class OpenAIReader:
    """An `AnswerReader`. Also takes an answer that did not stream."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[_PartialCall] = []
        self._calls_by_index: dict[float | str, _PartialCall] = {}
        self._stop: StopKind | None = None
        self._has_refusal = False
        self._usage = Usage()

    def read(self, data: bytes) -> Iterable[AnswerDelta]:
        if data.strip() == b"[DONE]":
            return ()
        chunk = _decode_chunk(data)
        if not isinstance(chunk, _Chunk):
            return ()
        if chunk.error:
            raise error_from_stream(chunk.error)
        if isinstance(chunk.usage, dict):
            self._usage = read_struct(chunk.usage, _TokenCounts).to_usage()
        deltas: list[AnswerDelta] = []
        for choice in chunk.choices or ():
            deltas += self._read_delta(choice.delta or choice.message or _Delta())
            if choice.finish_reason:
                self._stop = STOPS.get(str(choice.finish_reason), "stop")
        return deltas

    def _read_delta(self, delta: _Delta) -> Iterator[AnswerDelta]:
        if thought := _read_text(delta.reasoning_content) or _read_text(delta.reasoning):
            self._thinking.append(thought)
            yield AnswerDelta(thought, is_thinking=True)
        self._has_refusal = self._has_refusal or bool(delta.refusal)
        if text := _read_content(delta.content) or _read_text(delta.refusal):
            self._text.append(text)
            yield AnswerDelta(text)
        for piece in delta.tool_calls or ():
            self._add_call(piece)

    def _add_call(self, piece: _CallPiece) -> None:
        """Pieces of one call share an index; some servers give every whole call the same one, or none."""
        id = _read_text(piece.id)
        index = piece.index if isinstance(piece.index, int | float | str) else id
        call = self._calls_by_index.get(index)
        if call is None or (id and call.id and id != call.id):
            call = self._calls_by_index[index] = _PartialCall()
            self._calls.append(call)
        function = piece.function or _Function()
        call.id = call.id or id
        call.name = call.name or _read_text(function.name)
        if written := function.arguments:
            call.arguments.append(written if isinstance(written, str) else _encode(written).decode())

    def answer(self) -> ModelAnswer | None:
        if self._stop is None:
            return None
        parts: list[MessagePart] = []
        if self._thinking:
            parts.append(ThinkingPart(text="".join(self._thinking), origin=self._origin))
        if self._text:
            parts.append(TextPart("".join(self._text)))
        for number, call in enumerate(self._calls):
            parts.append(ToolCallPart(call.id or f"call{number:05d}", call.name, "".join(call.arguments)))
        stop: StopKind = "tools" if self._calls else "refusal" if self._has_refusal else self._stop
        return ModelAnswer(parts=tuple(parts), stop=stop, usage=self._usage)
