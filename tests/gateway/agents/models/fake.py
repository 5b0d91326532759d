"""A scripted model on loopback that speaks OpenAI's chat completions and Anthropic's Messages. Thread of its own."""

import asyncio
import json
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

WAIT = 20.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the model does with one request."""

    say: str = ""
    think: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    status: int = 200
    error: str = "scripted"
    headers: dict[str, str] = field(default_factory=dict)
    hang: float = 0.0
    """Seconds before the first byte."""
    slow: float = 0.0
    """Seconds between two pieces."""
    drop: bool = False
    """Cut the stream in the middle."""
    broken: str = ""
    """An error reported in the middle of the stream."""
    stop: str | None = None
    whole: bool = False
    """Answer without streaming."""
    usage: tuple[int, int, int] = (100, 10, 0)
    """Read, written, read from a cache."""


def say(text: str, **more: Any) -> Step:
    return Step(say=text, **more)


def call(name: str, **arguments: Any) -> Step:
    return Step(calls=((name, arguments),))


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: Any
    gone: threading.Event = field(default_factory=threading.Event)
    """The client hung up before the answer was whole."""

    @property
    def key(self) -> str:
        return self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")


Script = Callable[[Request], Step]


class FakeModel:
    """`with FakeModel(step, ...) as model:` the steps in order, the last one for ever; or a function of the request."""

    def __init__(self, *steps: Step | Script, keys: tuple[str, ...] = ()) -> None:
        self._steps = list(steps) or [say("ok")]
        self._keys = keys
        self.requests: list[Request] = []
        self._came = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._ready = threading.Event()
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(WAIT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(WAIT)

    def wait_for(self, count: int) -> Request:
        """The request of that number, come already or yet to come."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.requests) >= count, WAIT), f"only {len(self.requests)} came"
        return self.requests[count - 1]

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        self._talks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._end.wait()
        server.close()
        for task in list(self._talks):
            task.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):  # its end is ours
                while await self._one(reader, writer):
                    pass
        finally:
            self._talks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"{}")
        request = Request(head[0].split()[1], headers, body)
        with self._came:
            self.requests.append(request)
            self._came.notify_all()
        step = self._steps[0] if len(self._steps) == 1 else self._steps.pop(0)
        step = step if isinstance(step, Step) else step(request)
        if self._keys and request.key not in self._keys:
            step = Step(status=401, error=f"Incorrect API key provided: {request.key}")
        answering = asyncio.ensure_future(self._answer(request, step, writer))
        watch = asyncio.ensure_future(reader.read(1))  # nothing but the end can come while we answer
        await asyncio.wait({watch, answering}, return_when=asyncio.FIRST_COMPLETED)
        whole = answering.done()
        if not whole:
            request.gone.set()
        for task in (watch, answering):
            task.cancel()
        await asyncio.gather(watch, answering, return_exceptions=True)
        return whole and not step.drop and watch.cancelled()

    async def _answer(self, request: Request, step: Step, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(step.hang)
        anthropic = request.path.endswith("/messages")
        if step.status != 200:
            body: Any = {"error": {"message": step.error, "type": "scripted_error", "code": step.status}}
            _plain(writer, step.status, {"type": "error", **body} if anthropic else body, step.headers)
        elif step.whole:
            _plain(writer, 200, _chat_whole(request, step), step.headers)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            events = list(_messages(request, step) if anthropic else _chat(request, step))
            async for data in _paced(events, step):
                writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                await writer.drain()
            if not step.drop:
                writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _paced(events: list[bytes], step: Step) -> AsyncIterator[bytes]:
    for data in events[: max(1, len(events) * 2 // 3)] if step.drop or step.broken else events:
        if step.slow:
            await asyncio.sleep(step.slow)
        yield data
    if step.broken:
        yield _event("error", {"type": "error", "error": {"type": step.broken, "message": "scripted"}})


def _plain(writer: asyncio.StreamWriter, status: int, body: Any, headers: dict[str, str]) -> None:
    data = json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(data)}"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join((*head, "", "")).encode() + data)


def _event(name: str, data: Any) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def _pieces(text: str) -> list[str]:
    return [text[at : at + 5] for at in range(0, len(text), 5)]


def _written(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _chat_usage(step: Step) -> Any:
    read, written, cached = step.usage
    return {"prompt_tokens": read, "completion_tokens": written, "prompt_tokens_details": {"cached_tokens": cached}}


def _chat(request: Request, step: Step) -> Iterator[bytes]:
    def chunk(delta: Any, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event("", {"object": "chat.completion.chunk", "created": int(time.time()), "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(step.think):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(step.say):
        yield chunk({"content": piece})
    for index, (name, arguments) in enumerate(step.calls):
        id = f"call_{uuid.uuid4().hex[:8]}"
        yield chunk({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": ""}}]})
        for piece in _pieces(_written(arguments)):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, step.stop or ("tool_calls" if step.calls else "stop"))
    yield _event("", {"choices": [], "usage": _chat_usage(step)})
    yield _event("", "[DONE]")


def _chat_whole(request: Request, step: Step) -> Any:
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": _written(arguments)}}
        for n, (name, arguments) in enumerate(step.calls)
    ]
    message = {"role": "assistant", "content": step.say, **({"tool_calls": calls} if calls else {})}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": _chat_usage(step)}


def _messages(request: Request, step: Step) -> Iterator[bytes]:
    def event(type: str, **more: Any) -> bytes:
        return _event(type, {"type": type, **more})

    read, written, cached = step.usage
    usage = {"input_tokens": read, "output_tokens": 1, "cache_read_input_tokens": cached}
    yield event("message_start", message={"id": "msg_1", "role": "assistant", "content": [], "usage": usage})
    blocks: list[tuple[Any, list[Any]]] = []
    if step.think:
        thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(step.think)]
        signed = {"type": "signature_delta", "signature": "signed"}
        blocks.append(({"type": "thinking", "thinking": ""}, [*thoughts, signed]))
    if step.say:
        words = [{"type": "text_delta", "text": piece} for piece in _pieces(step.say)]
        blocks.append(({"type": "text", "text": ""}, words))
    for name, arguments in step.calls:
        start = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:8]}", "name": name, "input": {}}
        pieces = _pieces(_written(arguments))
        blocks.append((start, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]))
    for index, (start, deltas) in enumerate(blocks):
        yield event("content_block_start", index=index, content_block=start)
        yield event("ping")
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    reason = step.stop or ("tool_use" if step.calls else "end_turn")
    yield event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": written})
    yield event("message_stop")
