"""Anthropic's Messages API. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from ....core.agent import Usage
from ....core.model import Json
from ....protocol.anthropic_events import AnthropicBlock, AnthropicEvent, AnthropicMessage
from .errors import error_from_stream
from .lru import LruCache
from .messages import (
    AnswerDelta,
    ImagePart,
    MessagePart,
    ModelAnswer,
    ModelRequest,
    ModelTool,
    StopKind,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from .request_body import encode_image, valid_arguments

VERSION: Final = "2023-06-01"
MAX_OUTPUT: Final = 8192  # tokens; the API wants a number, and every model allows this one
BUDGETS: Final = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768}
"""Tokens a model may think with, by how hard it is asked to."""
LEAST_BUDGET: Final = 1024  # tokens; the API takes no less
ANSWER_TOKENS: Final = 4096  # tokens left for the answer itself
STOPS: Final[dict[str, StopKind]] = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tools", "refusal": "refusal",
    "pause_turn": "pause", "model_context_window_exceeded": "length",
}  # fmt: skip
CACHE_CONTROL: Final = {"cache_control": {"type": "ephemeral"}}
"""Marks the end of what the provider should keep for the next request."""

_encode = msgspec.json.Encoder().encode


class AnthropicCodec:
    """A `ModelCodec`."""

    def url(self, base: str) -> str:
        return f"{base.removesuffix('/v1')}/v1/messages"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({} if key is None else {"x-api-key": key})}

    def encode_body(self, request: ModelRequest) -> bytes:
        card = request.choice.model
        most = card.max_output or MAX_OUTPUT
        body: Json = {"model": card.id, "stream": True, "messages": _messages(request)}
        if request.system:
            body["system"] = [{"type": "text", "text": request.system, **CACHE_CONTROL}]
        if request.tools:
            body["tools"] = _tools(request.tools)
        budget = BUDGETS.get(request.thinking or "", 0) if card.supports_reasoning else 0
        if card.max_output is None:
            most = max(most, budget + ANSWER_TOKENS)
        budget = min(budget, most - ANSWER_TOKENS)
        if budget >= LEAST_BUDGET:
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
        body["max_tokens"] = most
        return _encode(body)

    def create_reader(self, request: ModelRequest) -> "AnthropicReader":
        return AnthropicReader(request.choice.name)


def _encode_tools(model_tools: tuple[ModelTool, ...]) -> msgspec.Raw:
    tools: list[Json] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in model_tools
    ]
    tools[-1] |= CACHE_CONTROL
    return msgspec.Raw(_encode(tools))


_tools = LruCache[ModelTool, msgspec.Raw](_encode_tools)


class _WireMessage(Struct):
    role: str
    content: list[Json]


def _messages(request: ModelRequest) -> list[_WireMessage]:
    """Neighbours of one role become one message: the API wants them to take turns."""
    messages: list[_WireMessage] = []
    for message in request.messages:
        blocks = list(_blocks(message.parts, request.choice.name))
        content = sorted(blocks, key=lambda block: block["type"] != "tool_result")  # results must come first
        if messages and messages[-1].role == message.role:
            messages[-1].content += content
        elif content:
            messages.append(_WireMessage(message.role, content))
    if messages and messages[-1].content[-1]["type"] in ("text", "image", "tool_result"):
        messages[-1].content[-1] |= CACHE_CONTROL
    return messages


def _blocks(parts: Iterable[MessagePart], origin: str) -> Iterator[Json]:
    for part in parts:
        match part:
            case TextPart(text=text) if text.strip():
                yield {"type": "text", "text": text}
            case ImagePart(mime_type=mime_type):
                source = {"type": "base64", "media_type": mime_type, "data": encode_image(part)}
                yield {"type": "image", "source": source}
            case ToolCallPart(id=id, name=name):
                yield {"type": "tool_use", "id": id, "name": name, "input": msgspec.Raw(valid_arguments(part).encode())}
            case ToolResultPart(id=id):
                content, failed = list(_blocks(part.parts, origin)), {"is_error": True} if part.failed else {}
                yield {"type": "tool_result", "tool_use_id": id, **({"content": content} if content else {}), **failed}
            case ThinkingPart(redacted=str() as redacted) if part.origin == origin:
                yield {"type": "redacted_thinking", "data": redacted}
            case ThinkingPart(signature=str() as signature) if part.origin == origin:
                yield {"type": "thinking", "thinking": part.text, "signature": signature}


_decode = msgspec.json.Decoder(AnthropicEvent).decode
READ_EVENTS: Final = (
    "error", "message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop",
)  # fmt: skip
"""The events an answer is made of. Others may come at any time, the API says, and have fields of any type."""


def _is_of_use(event: object) -> bool:
    return isinstance(event, dict) and event.get("type") in READ_EVENTS


class AnthropicReader:
    """An `AnswerReader`."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._blocks: dict[int, AnthropicBlock] = {}
        self._json_pieces: dict[int, list[str]] = {}
        self._stop: StopKind | None = None
        self._ended = False
        self._counts: dict[str, float] = {}

    def read(self, data: bytes) -> Iterable[AnswerDelta]:
        try:
            event = _decode(data)
        except msgspec.ValidationError:
            if _is_of_use(msgspec.json.decode(data)):
                raise
            return ()
        match event:
            case AnthropicEvent(type="error"):
                raise error_from_stream({"error": event.error})
            case AnthropicEvent(type="message_start", message=AnthropicMessage(usage=usage)):
                self._add_usage(usage)
            case AnthropicEvent(type="content_block_start", content_block=AnthropicBlock() as block):
                self._blocks[event.index] = block
            case AnthropicEvent(type="content_block_delta", delta=AnthropicBlock() as delta):
                return self._append_delta(event.index, delta)
            case AnthropicEvent(type="message_delta"):
                self._add_usage(event.usage)
                reason = event.delta.stop_reason if event.delta is not None else None
                self._stop = STOPS.get(reason, "stop") if reason else self._stop
            case AnthropicEvent(type="message_stop"):
                self._ended = True
        return ()

    def _append_delta(self, index: int, delta: AnthropicBlock) -> Iterable[AnswerDelta]:
        block = self._blocks[index]
        match delta.type:
            case "text_delta":
                block.text += delta.text
                return (AnswerDelta(delta.text),)
            case "thinking_delta":
                block.thinking += delta.thinking
                return (AnswerDelta(delta.thinking, is_thinking=True),)
            case "signature_delta":
                block.signature += delta.signature
            case "input_json_delta":
                self._json_pieces.setdefault(index, []).append(delta.partial_json)
        return ()

    def _add_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._counts |= {name: count for name, count in usage.items() if isinstance(count, int | float)}

    def answer(self) -> ModelAnswer | None:
        if self._stop is None or not self._ended:
            return None
        pieces = {index: "".join(found) for index, found in self._json_pieces.items()}
        found = [self._to_part(block, pieces.get(at, "")) for at, block in sorted(self._blocks.items())]
        parts = tuple(part for part in found if part is not None)
        counts = self._counts
        usage = Usage.from_report(
            input=counts.get("input_tokens", 0),
            output=counts.get("output_tokens", 0),
            cache_read=counts.get("cache_read_input_tokens", 0),
            cache_write=counts.get("cache_creation_input_tokens", 0),
        )
        called = any(isinstance(part, ToolCallPart) for part in parts)
        return ModelAnswer(parts=parts, stop="tools" if called else self._stop, usage=usage)

    def _to_part(self, block: AnthropicBlock, json_text: str) -> MessagePart | None:
        """`json_text` are the arguments of a tool call that came in pieces."""
        match block.type:
            case "text":
                return TextPart(block.text)
            case "thinking":
                return ThinkingPart(text=block.thinking, origin=self._origin, signature=block.signature or None)
            case "redacted_thinking":
                return ThinkingPart(text="", origin=self._origin, redacted=block.data)
            case "tool_use":
                return ToolCallPart(block.id, block.name, json_text or _encode(block.input or {}).decode())
        return None
