"""Anthropic's Messages API. Pure."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ....core.agent import Usage
from ....core.model import Json
from .errors import told
from .lru import Kept
from .messages import Answer, Ask, Call, Heard, Offer, Part, Picture, Result, Said, Stop, Thought, Words
from .request_body import written

VERSION: Final = "2023-06-01"
MOST_OUTPUT: Final = 8192  # tokens; the API wants a number, and every model allows this one
BUDGETS: Final = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768}
"""Tokens a model may think with, by how hard it is asked to."""
LEAST_BUDGET: Final = 1024  # tokens; the API takes no less
AFTER_THINKING: Final = 4096  # tokens left for the answer itself
STOPS: Final[dict[str, Stop]] = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tools", "refusal": "refusal",
    "pause_turn": "pause", "model_context_window_exceeded": "length",
}  # fmt: skip
CACHED: Final = {"cache_control": {"type": "ephemeral"}}
"""Marks the end of what the provider should keep for the next request."""

_encode = msgspec.json.Encoder().encode


class Anthropic:
    """A `Codec`."""

    def url(self, base: str) -> str:
        return f"{base.removesuffix('/v1')}/v1/messages"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({} if key is None else {"x-api-key": key})}

    def body(self, ask: Ask) -> bytes:
        card = ask.choice.card
        most = card.most_output or MOST_OUTPUT
        body: Json = {"model": card.id, "stream": True, "messages": _messages(ask)}
        if ask.system:
            body["system"] = [{"type": "text", "text": ask.system, **CACHED}]
        if ask.offers:
            body["tools"] = _tools(ask.offers)
        budget = BUDGETS.get(ask.thinking or "", 0) if card.reasons else 0
        if card.most_output is None:
            most = max(most, budget + AFTER_THINKING)
        budget = min(budget, most - AFTER_THINKING)
        if budget >= LEAST_BUDGET:
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
        body["max_tokens"] = most
        return _encode(body)

    def reader(self, ask: Ask) -> "AnthropicReader":
        return AnthropicReader(ask.choice.name)


def _tool(offer: Offer) -> Json:
    return {"name": offer.name, "description": offer.description, "input_schema": offer.schema}


def _written(offers: tuple[Offer, ...]) -> msgspec.Raw:
    tools = [_tool(offer) for offer in offers]
    tools[-1] |= CACHED
    return msgspec.Raw(_encode(tools))


_tools = Kept[Offer, msgspec.Raw](_written)


def _messages(ask: Ask) -> list[Json]:
    """Neighbours of one role become one message: the API wants them to take turns."""
    messages: list[Json] = []
    for said in ask.talk:
        content = _content(said, ask.choice.name)
        if not content:
            continue
        if messages and messages[-1]["role"] == said.role:
            messages[-1]["content"] += content
        else:
            messages.append({"role": said.role, "content": content})
    if messages and messages[-1]["content"][-1]["type"] in ("text", "image", "tool_result"):
        messages[-1]["content"][-1] |= CACHED
    return messages


def _content(said: Said, origin: str) -> list[Json]:
    blocks = [block for part in said.parts if (block := _block(part, origin)) is not None]
    return sorted(blocks, key=lambda block: block["type"] != "tool_result")  # results must come first


def _block(part: Part, origin: str) -> Json | None:
    match part:
        case Words(text=text):
            return {"type": "text", "text": text} if text.strip() else None
        case Picture():
            return _picture(part)
        case Call():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": _arguments(part.arguments)}
        case Result():
            inner = [block for p in part.parts if (block := _block(p, origin)) is not None]
            result: Json = {"type": "tool_result", "tool_use_id": part.id}
            return result | ({"content": inner} if inner else {}) | ({"is_error": True} if part.failed else {})
        case Thought() if part.origin != origin:
            return None
        case Thought(sealed=str() as sealed):
            return {"type": "redacted_thinking", "data": sealed}
        case Thought(signature=str() as signature):
            return {"type": "thinking", "thinking": part.text, "signature": signature}
    return None


def _picture(picture: Picture) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": picture.mime_type, "data": written(picture)}}


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
        self._stop: Stop | None = None
        self._ended = False
        self._counts: dict[str, int] = {}

    def read(self, data: bytes) -> Iterable[Heard]:
        event: Any = msgspec.json.decode(data)
        if not isinstance(event, dict):
            return ()
        match event.get("type"):
            case "error":
                raise told(event)
            case "message_start":
                self._count((event.get("message") or {}).get("usage"))
            case "content_block_start":
                self._blocks[event["index"]] = {"text": "", **event["content_block"], "json": []}
            case "content_block_delta":
                return self._grow(self._blocks[event["index"]], event["delta"])
            case "message_delta":
                self._count(event.get("usage"))
                reason = (event.get("delta") or {}).get("stop_reason")
                self._stop = STOPS.get(reason, "stop") if reason else self._stop
            case "message_stop":
                self._ended = True
        return ()

    def _grow(self, block: Json, delta: Json) -> Iterable[Heard]:
        match delta.get("type"):
            case "text_delta":
                block["text"] += delta["text"]
                return (Heard(delta["text"]),)
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
                return (Heard(delta["thinking"], thought=True),)
            case "signature_delta":
                block["signature"] = block.get("signature", "") + delta["signature"]
            case "input_json_delta":
                block["json"].append(delta["partial_json"])
        return ()

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._counts |= {name: count for name, count in usage.items() if isinstance(count, int)}

    def answer(self) -> Answer | None:
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
        called = any(isinstance(part, Call) for part in parts)
        return Answer(parts=tuple(parts), stop="tools" if called else self._stop, usage=usage)

    def _part(self, block: Json) -> Part | None:
        match block.get("type"):
            case "text":
                return Words(block["text"])
            case "thinking":
                thought = Thought(text=block.get("thinking", ""), origin=self._origin)
                return msgspec.structs.replace(thought, signature=block.get("signature") or None)
            case "redacted_thinking":
                return Thought(text="", origin=self._origin, sealed=block.get("data", ""))
            case "tool_use":
                whole = "".join(block["json"]) or _encode(block.get("input") or {}).decode()
                return Call(block["id"], block["name"], whole)
        return None
