"""OpenAI's chat completions, as OpenAI, Ollama, vLLM and many others speak them. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from ....core.agent import Usage
from ....core.model import Json
from .errors import told
from .lru import Kept
from .messages import Answer, Ask, Call, Heard, Offer, Part, Picture, Result, Said, Stop, Thought, Words, text_of
from .request_body import written

EFFORTS: Final = {"minimal": "minimal", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
STOPS: Final[dict[str, Stop]] = {
    "stop": "stop", "length": "length", "tool_calls": "tools", "function_call": "tools", "content_filter": "refusal",
}  # fmt: skip
FROM_TOOLS: Final = "The images of the tool results above, in order:"

_encode = msgspec.json.Encoder().encode


class OpenAI:
    """A `Codec`."""

    def url(self, base: str) -> str:
        return f"{base}/chat/completions"

    def headers(self, key: str | None) -> dict[str, str]:
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def body(self, ask: Ask) -> bytes:
        card = ask.choice.card
        body: Json = {"model": card.id, "messages": _messages(ask)}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if ask.offers:
            body["tools"] = _tools(ask.offers)
        if card.most_output is not None:
            # OpenAI's newer models refuse the old name, most others know no new one.
            own = ask.choice.provider.name == "openai"
            body["max_completion_tokens" if own else "max_tokens"] = card.most_output
        if card.reasons and ask.thinking in EFFORTS:
            body["reasoning_effort"] = EFFORTS[ask.thinking]
        return _encode(body)

    def reader(self, ask: Ask) -> "OpenAIReader":
        return OpenAIReader(ask.choice.name)


def _tool(offer: Offer) -> Json:
    return {
        "type": "function",
        "function": {"name": offer.name, "description": offer.description, "parameters": offer.schema},
    }


_tools = Kept[Offer, msgspec.Raw](lambda offers: msgspec.Raw(_encode([_tool(offer) for offer in offers])))


def _messages(ask: Ask) -> list[Json]:
    messages: list[Json] = [{"role": "system", "content": ask.system}] if ask.system else []
    for said in ask.talk:
        messages += _assistant(said) if said.role == "assistant" else _user(said)
    return messages


def _assistant(said: Said) -> Iterator[Json]:
    text = text_of(said.parts)
    calls = [
        {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": _object(part.arguments)}}
        for part in said.parts
        if isinstance(part, Call)
    ]
    if calls:
        yield {"role": "assistant", "content": text or None, "tool_calls": calls}
    elif text:
        yield {"role": "assistant", "content": text}


def _object(arguments: str) -> str:
    """What the model wrote, unless it is nothing a server would read back to it."""
    try:
        return arguments if isinstance(msgspec.json.decode(arguments), dict) else "{}"
    except (msgspec.DecodeError, RecursionError):
        return "{}"


def _user(said: Said) -> Iterator[Json]:
    """Results first, each a message of its own; a result holds no picture, so those follow together."""
    pictures: list[Picture] = []
    for part in said.parts:
        if isinstance(part, Result):
            text = "\n".join(inner.text for inner in part.parts if isinstance(inner, Words))
            shown = [inner for inner in part.parts if isinstance(inner, Picture)]
            pictures += shown
            text = text or ("(see the image below)" if shown else "(nothing)")
            yield {"role": "tool", "tool_call_id": part.id, "content": f"Error: {text}" if part.failed else text}
    if pictures:
        yield {"role": "user", "content": [{"type": "text", "text": FROM_TOOLS}, *map(_picture, pictures)]}
    own = [part for part in said.parts if isinstance(part, Words | Picture)]
    if any(isinstance(part, Picture) for part in own):
        content = [_picture(p) if isinstance(p, Picture) else {"type": "text", "text": p.text} for p in own]
        yield {"role": "user", "content": content}
    elif own:
        yield {"role": "user", "content": "\n\n".join(part.text for part in own if isinstance(part, Words))}


def _picture(picture: Picture) -> Json:
    return {"type": "image_url", "image_url": {"url": f"data:{picture.mime_type};base64,{written(picture)}"}}


class _Calling:
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
        self._thought: list[str] = []
        self._calls: list[_Calling] = []
        self._places: dict[Any, _Calling] = {}
        self._stop: Stop | None = None
        self._refused = False
        self._usage = Usage()

    def read(self, data: bytes) -> Iterable[Heard]:
        if data.strip() == b"[DONE]":
            return ()
        chunk: Any = msgspec.json.decode(data)
        if not isinstance(chunk, dict):
            return ()
        if chunk.get("error"):
            raise told(chunk["error"])
        if isinstance(chunk.get("usage"), dict):
            self._usage = _usage(chunk["usage"])
        heard: list[Heard] = []
        for choice in chunk.get("choices") or ():
            heard += self._take(choice.get("delta") or choice.get("message") or {})
            if choice.get("finish_reason"):
                self._stop = STOPS.get(choice["finish_reason"], "stop")
        return heard

    def _take(self, delta: Json) -> Iterator[Heard]:
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if thought and isinstance(thought, str):
            self._thought.append(thought)
            yield Heard(thought, thought=True)
        text = delta.get("content") or delta.get("refusal")
        self._refused = self._refused or bool(delta.get("refusal"))
        if text and isinstance(text, str):
            self._text.append(text)
            yield Heard(text)
        for piece in delta.get("tool_calls") or ():
            self._call(piece)

    def _call(self, piece: Json) -> None:
        """Pieces of one call share an index; some servers give every whole call the same one, or none."""
        index, id = piece.get("index"), piece.get("id")
        call = self._places.get(index if index is not None else id)
        if call is None or (id and call.id and id != call.id):
            call = self._places[index if index is not None else id] = _Calling()
            self._calls.append(call)
        function = piece.get("function") or {}
        call.id = call.id or id or ""
        call.name = call.name or function.get("name") or ""
        written = function.get("arguments")
        if written:
            call.arguments.append(written if isinstance(written, str) else _encode(written).decode())

    def answer(self) -> Answer | None:
        if self._stop is None:
            return None
        parts: list[Part] = []
        if self._thought:
            parts.append(Thought(text="".join(self._thought), origin=self._origin))
        if self._text:
            parts.append(Words("".join(self._text)))
        for number, call in enumerate(self._calls):
            parts.append(Call(call.id or f"call{number:05d}", call.name, "".join(call.arguments)))
        stop: Stop = "tools" if self._calls else "refusal" if self._refused else self._stop
        return Answer(parts=tuple(parts), stop=stop, usage=self._usage)


def _usage(given: Json) -> Usage:
    cached = (given.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    read = given.get("prompt_tokens") or 0
    return Usage(input=max(0, read - cached), output=given.get("completion_tokens") or 0, cache_read=cached)
