"""Unused connections are closed; one that is used, or is being answered, is not."""

import asyncio
import json

import pytest

from openclaw_mcp.core.model import ToolCall, ToolResult, ToolSpec, text_result
from openclaw_mcp.mcp.server import http_request
from openclaw_mcp.mcp.server.http import McpHttp
from openclaw_mcp.net import listen
from tests.conversation import Tools, serving

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
IDLE = 0.2
WAIT = 20.0


async def _hello(scope: object, receive: object, send: object) -> None:
    assert callable(send)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


class Moved(asyncio.SelectorEventLoop):
    """A loop whose clock a test moves on."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def test_a_connection_is_closed_once_it_has_been_idle_long_enough() -> None:
    async def visit() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Moved)
        listener = listen.bind("127.0.0.1", 0)
        async with asyncio.timeout(WAIT + 10 * listen.KEEP_ALIVE), listen.serve_in_background(_hello, listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            for _ in range(4):  # each within the idle time of the one before, all together beyond it
                loop.ahead += listen.KEEP_ALIVE * 0.6
                writer.write(REQUEST)
                assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
            loop.ahead += listen.KEEP_ALIVE * 1.1
            assert await reader.read() == b"", "the server has closed it"
            writer.close()

    with asyncio.Runner(loop_factory=Moved) as runner:
        runner.run(visit())


def test_an_answer_may_take_longer_than_a_connection_may_be_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "KEEP_ALIVE", IDLE)
    takes = iter((0, 3 * IDLE))

    async def app(scope: object, receive: object, send: object) -> None:
        await asyncio.sleep(next(takes))
        await _hello(scope, receive, send)

    async def visit() -> None:
        listener = listen.bind("127.0.0.1", 0)
        async with asyncio.timeout(WAIT), listen.serve_in_background(app, listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            for _ in range(2):
                writer.write(REQUEST)
                assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(visit())


def test_a_call_ends_when_its_client_can_no_longer_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign of life that fails shows that the client is gone, as a disconnect does."""
    monkeypatch.setattr(http_request, "KEEPALIVE_INTERVAL", 0.01)
    stopped = asyncio.Event()

    async def work(call: ToolCall) -> ToolResult:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return text_result("never")

    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait"}}).encode()
    events = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, object]:
        if not events:
            await asyncio.Event().wait()
        return events.pop()

    async def send(message: object) -> None:
        raise OSError("the connection is gone")

    headers = [(b"host", b"localhost"), (b"accept", b"application/json, text/event-stream")]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "client": ("127.0.0.1", 1), "headers": headers}

    async def serve() -> None:
        tools = Tools()
        tools.add(ToolSpec(name="wait"), work)
        endpoint = McpHttp(serving(tools), sessions=False)
        async with asyncio.timeout(5):
            await endpoint(scope, receive, send)
        assert stopped.is_set()

    asyncio.run(serve())
