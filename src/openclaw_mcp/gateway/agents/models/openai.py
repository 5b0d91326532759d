"""OpenAI's chat completions, as OpenAI, Ollama, vLLM and many others speak them. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from ....core.agent import Usage
from ....core.model import Json
from ....core.numbers import read_count
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
from .request_body import encode_image

EFFORTS: Final = {"minimal": "minimal", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
STOPS: Final[dict[str, StopKind]] = {
    "stop": "stop", "length": "length", "tool_calls": "tools", "function_call": "tools", "content_filter": "refusal",
}  # fmt: skip
TOOL_IMAGES_TEXT: Final = "The images of the tool results above, in order:"

_encode = msgspec.json.Encoder().encode


class OpenAICodec:
    """A `Codec`."""

    def url(self, base: str) -> str:
        return f"{base}/chat/completions"

    def headers(self, key: str | None) -> dict[str, str]:
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def encode_body(self, request: ModelRequest) -> bytes:
        card = request.choice.model
        body: Json = {"model": card.id, "messages": _messages(request)}
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


def _tool(tool: ModelTool) -> Json:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
    }


_tools = LruCache[ModelTool, msgspec.Raw](lambda offers: msgspec.Raw(_encode([_tool(offer) for offer in offers])))


def _messages(request: ModelRequest) -> list[Json]:
    messages: list[Json] = [{"role": "system", "content": request.system}] if request.system else []
    for said in request.messages:
        messages += _assistant(said) if said.role == "assistant" else _user(said)
    return messages


def _assistant(message: ModelMessage) -> Iterator[Json]:
    text = join_text(message.parts)
    calls = [
        {
            "id": part.id,
            "type": "function",
            "function": {"name": part.name, "arguments": _valid_arguments(part.arguments)},
        }
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    if calls:
        yield {"role": "assistant", "content": text or None, "tool_calls": calls}
    elif text:
        yield {"role": "assistant", "content": text}


def _valid_arguments(arguments: str) -> str:
    """What the model wrote, unless it is nothing a server would read back to it."""
    try:
        return arguments if isinstance(msgspec.json.decode(arguments), dict) else "{}"
    except (msgspec.DecodeError, RecursionError):
        return "{}"


def _user(message: ModelMessage) -> Iterator[Json]:
    """Results first, each a message of its own; a result holds no picture, so those follow together."""
    pictures: list[ImagePart] = []
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            text = "\n".join(inner.text for inner in part.parts if isinstance(inner, TextPart))
            shown = [inner for inner in part.parts if isinstance(inner, ImagePart)]
            pictures += shown
            text = text or ("(see the image below)" if shown else "(nothing)")
            yield {"role": "tool", "tool_call_id": part.id, "content": f"Error: {text}" if part.failed else text}
    if pictures:
        yield {"role": "user", "content": [{"type": "text", "text": TOOL_IMAGES_TEXT}, *map(_image_block, pictures)]}
    own = [part for part in message.parts if isinstance(part, TextPart | ImagePart)]
    if any(isinstance(part, ImagePart) for part in own):
        content = [_image_block(p) if isinstance(p, ImagePart) else {"type": "text", "text": p.text} for p in own]
        yield {"role": "user", "content": content}
    elif own:
        yield {"role": "user", "content": "\n\n".join(part.text for part in own if isinstance(part, TextPart))}


def _image_block(image: ImagePart) -> Json:
    return {"type": "image_url", "image_url": {"url": f"data:{image.mime_type};base64,{encode_image(image)}"}}


class _PartialCall:
    """A call of a tool while it is written."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


class OpenAIReader:
    """A `Reader`. Also takes an answer that did not stream."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[_PartialCall] = []
        self._calls_by_index: dict[Any, _PartialCall] = {}
        self._stop: StopKind | None = None
        self._has_refusal = False
        self._usage = Usage()

    def read(self, data: bytes) -> Iterable[AnswerDelta]:
        if data.strip() == b"[DONE]":
            return ()
        chunk: Any = msgspec.json.decode(data)
        if not isinstance(chunk, dict):
            return ()
        if chunk.get("error"):
            raise error_from_stream(chunk["error"])
        if isinstance(chunk.get("usage"), dict):
            self._usage = _usage(chunk["usage"])
        heard: list[AnswerDelta] = []
        for choice in chunk.get("choices") or ():
            heard += self._read_delta(choice.get("delta") or choice.get("message") or {})
            if choice.get("finish_reason"):
                self._stop = STOPS.get(choice["finish_reason"], "stop")
        return heard

    def _read_delta(self, delta: Json) -> Iterator[AnswerDelta]:
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if thought and isinstance(thought, str):
            self._thinking.append(thought)
            yield AnswerDelta(thought, is_thinking=True)
        text = delta.get("content") or delta.get("refusal")
        self._has_refusal = self._has_refusal or bool(delta.get("refusal"))
        if text and isinstance(text, str):
            self._text.append(text)
            yield AnswerDelta(text)
        for piece in delta.get("tool_calls") or ():
            self._add_call(piece)

    def _add_call(self, piece: Json) -> None:
        """Pieces of one call share an index; some servers give every whole call the same one, or none."""
        index, id = piece.get("index"), piece.get("id")
        call = self._calls_by_index.get(index if index is not None else id)
        if call is None or (id and call.id and id != call.id):
            call = self._calls_by_index[index if index is not None else id] = _PartialCall()
            self._calls.append(call)
        function = piece.get("function") or {}
        call.id = call.id or id or ""
        call.name = call.name or function.get("name") or ""
        written = function.get("arguments")
        if written:
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


def _usage(counts: Json) -> Usage:
    details = counts.get("prompt_tokens_details")
    cached = read_count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    read, written = read_count(counts.get("prompt_tokens")), read_count(counts.get("completion_tokens"))
    return Usage(input=max(0, read - cached), output=written, cache_read=cached)
