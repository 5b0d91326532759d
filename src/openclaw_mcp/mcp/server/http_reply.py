"""One HTTP response being written: a JSON body, or server-sent events once something comes before the result."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final

from ...core.model import Json
from ...net import asgi
from ...protocol import jsonrpc
from ...protocol.jsonrpc import JsonRpcError, JsonRpcId
from .http_gate import HttpRefusal

KEEPALIVE_INTERVAL: Final = 15.0  # seconds of silence on a stream before a comment line says we are there

AsgiReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]
AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]
HeaderList = tuple[tuple[bytes, bytes], ...]

_JSON = (b"content-type", b"application/json")
_STREAM: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class HttpReply:
    """Answers one request. `write` opens the stream; without it the result is plain JSON."""

    __slots__ = ("_accepts_stream", "_is_streaming", "_lock", "_receive", "headers", "id", "send")

    def __init__(self, receive: AsgiReceive, send: AsgiSend, *, accepts_stream: bool) -> None:
        self.id: JsonRpcId = 0
        self.headers: HeaderList = ()
        self.send = send
        self._receive = receive
        self._accepts_stream = accepts_stream
        self._is_streaming = False
        self._lock: asyncio.Lock | None = None

    async def write(self, message: bytes) -> None:
        """Say something before the result. A client that takes no stream never hears it."""
        if self._accepts_stream:
            await self.send_event(message)

    async def send_event(self, message: bytes, *, id: str | None = None, more: bool = True) -> None:
        head = b"event: message\r\n" if id is None else b"id: %b\r\nevent: message\r\n" % id.encode()
        await self.send_raw(head + b"data: " + message + b"\r\n\r\n", more=more)

    async def send_raw(self, data: bytes, *, more: bool = True) -> None:
        """Put bytes on the stream, opening it if need be. The lock keeps its opening first."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if not self._is_streaming:
                self._is_streaming = True
                start = {"type": "http.response.start", "status": 200, "headers": [*_STREAM, *self.headers]}
                await self.send(start)
            await self.send({"type": "http.response.body", "body": data, "more_body": more})

    async def send_result(self, value: Json) -> None:
        await self.finish(jsonrpc.encode_result(self.id, value), 200)

    async def send_error(self, exc: JsonRpcError, *, status: int) -> None:
        await self.finish(jsonrpc.encode_error(self.id, exc), status)

    async def finish(self, body: bytes, status: int) -> None:
        if self._is_streaming:
            await self.send_event(body, more=False)
        else:
            await send_json(self.send, body, status=status, headers=self.headers)

    async def end_without_result(self) -> None:
        """End without a result: nobody wants it any more."""
        if self._is_streaming:
            await self.send_raw(b"", more=False)
        else:
            await send_status(self.send, 202)

    async def wait_disconnect(self) -> None:
        """Return when the client has gone; meanwhile give it signs of life."""
        leaving = asyncio.ensure_future(self._receive_disconnect())
        try:
            while not leaving.done():
                await asyncio.wait((leaving,), timeout=KEEPALIVE_INTERVAL)
                if not leaving.done() and self._accepts_stream:
                    await self.send_raw(b":\r\n\r\n")
        finally:
            leaving.cancel()

    async def run_until_disconnect(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` until it is done, or stop it when the client goes; whether it was done."""
        doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(self.wait_disconnect())
        try:
            await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                doing.result()
            return doing.done()
        finally:
            doing.cancel()
            leaving.cancel()

    async def _receive_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def send_json(send: AsgiSend, body: bytes, *, status: int = 200, headers: HeaderList = ()) -> None:
    listed = [_JSON, (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})


send_status = asgi.send_status


async def send_text(send: AsgiSend, text: str, *, status: int = 200, headers: HeaderList = ()) -> None:
    body = text.encode()
    listed = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})


async def send_refusal(send: AsgiSend, refusal: HttpRefusal) -> None:
    await send_text(send, refusal.reason, status=refusal.status, headers=refusal.headers)
