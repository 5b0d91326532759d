"""Anthropic's Messages API. Pure."""

from collections.abc import Iterable
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
)
from .request_body import encode_image

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
    """A `Codec`."""

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


def _tool(tool: ModelTool) -> Json:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.schema}


def _encode_tools(model_tools: tuple[ModelTool, ...]) -> msgspec.Raw:
    tools = [_tool(offer) for offer in model_tools]
    tools[-1] |= CACHE_CONTROL
    return msgspec.Raw(_encode(tools))


_tools = LruCache[ModelTool, msgspec.Raw](_encode_tools)


def _messages(request: ModelRequest) -> list[Json]:
    """Neighbours of one role become one message: the API wants them to take turns."""
    messages: list[Json] = []
    for said in request.messages:
        content = _content(said, request.choice.name)
        if not content:
            continue
        if messages and messages[-1]["role"] == said.role:
            messages[-1]["content"] += content
        else:
            messages.append({"role": said.role, "content": content})
    if messages and messages[-1]["content"][-1]["type"] in ("text", "image", "tool_result"):
        messages[-1]["content"][-1] |= CACHE_CONTROL
    return messages


def _content(message: ModelMessage, origin: str) -> list[Json]:
    blocks = [block for part in message.parts if (block := _block(part, origin)) is not None]
    return sorted(blocks, key=lambda block: block["type"] != "tool_result")  # results must come first


def _block(part: MessagePart, origin: str) -> Json | None:
    match part:
        case TextPart(text=text):
            return {"type": "text", "text": text} if text.strip() else None
        case ImagePart():
            return _image_block(part)
        case ToolCallPart():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": _arguments(part.arguments)}
        case ToolResultPart():
            inner = [block for p in part.parts if (block := _block(p, origin)) is not None]
            result: Json = {"type": "tool_result", "tool_use_id": part.id}
            return result | ({"content": inner} if inner else {}) | ({"is_error": True} if part.failed else {})
        case ThinkingPart() if part.origin != origin:
            return None
        case ThinkingPart(redacted=str() as sealed):
            return {"type": "redacted_thinking", "data": sealed}
        case ThinkingPart(signature=str() as signature):
            return {"type": "thinking", "thinking": part.text, "signature": signature}
    return None


def _image_block(image: ImagePart) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": image.mime_type, "data": encode_image(image)}}


def _arguments(text: str) -> Json:
    """What the model wrote, when it is an object; it is told elsewhere when it is not."""
    try:
        value = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


class AnthropicReader:
    """A `Reader`."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._blocks: dict[int, Json] = {}
        self._stop: StopKind | None = None
        self._ended = False
        self._counts: dict[str, int] = {}

    def read(self, data: bytes) -> Iterable[AnswerDelta]:
        event: Any = msgspec.json.decode(data)
        if not isinstance(event, dict):
            return ()
        match event.get("type"):
            case "error":
                raise error_from_stream(event)
            case "message_start":
                self._add_usage((event.get("message") or {}).get("usage"))
            case "content_block_start":
                self._blocks[event["index"]] = {"text": "", **event["content_block"], "json": []}
            case "content_block_delta":
                return self._append_delta(self._blocks[event["index"]], event["delta"])
            case "message_delta":
                self._add_usage(event.get("usage"))
                reason = (event.get("delta") or {}).get("stop_reason")
                self._stop = STOPS.get(reason, "stop") if reason else self._stop
            case "message_stop":
                self._ended = True
        return ()

    def _append_delta(self, block: Json, delta: Json) -> Iterable[AnswerDelta]:
        match delta.get("type"):
            case "text_delta":
                block["text"] += delta["text"]
                return (AnswerDelta(delta["text"]),)
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
                return (AnswerDelta(delta["thinking"], is_thinking=True),)
            case "signature_delta":
                block["signature"] = block.get("signature", "") + delta["signature"]
            case "input_json_delta":
                block["json"].append(delta["partial_json"])
        return ()

    def _add_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._counts |= {name: read_count(count) for name, count in usage.items() if isinstance(count, int | float)}

    def answer(self) -> ModelAnswer | None:
        if self._stop is None or not self._ended:
            return None
        parts = [part for _, block in sorted(self._blocks.items()) if (part := self._part(block)) is not None]
        counts = self._counts
        usage = Usage(
            input=counts.get("input_tokens", 0),
            output=counts.get("output_tokens", 0),
            cache_read=counts.get("cache_read_input_tokens", 0),
            cache_write=counts.get("cache_creation_input_tokens", 0),
        )
        called = any(isinstance(part, ToolCallPart) for part in parts)
        return ModelAnswer(parts=tuple(parts), stop="tools" if called else self._stop, usage=usage)

    def _part(self, block: Json) -> MessagePart | None:
        match block.get("type"):
            case "text":
                return TextPart(block["text"])
            case "thinking":
                thought = ThinkingPart(text=block.get("thinking", ""), origin=self._origin)
                return msgspec.structs.replace(thought, signature=block.get("signature") or None)
            case "redacted_thinking":
                return ThinkingPart(text="", origin=self._origin, redacted=block.get("data", ""))
            case "tool_use":
                whole = "".join(block["json"]) or _encode(block.get("input") or {}).decode()
                return ToolCallPart(block["id"], block["name"], whole)
        return None
