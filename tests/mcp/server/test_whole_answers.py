"""Answers on the wire: the same bytes whether they are written whole or in pieces, in order, and never a broken one."""

import asyncio
import contextlib
import gc
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from openclaw_mcp.core.model import ToolCall, ToolResult, text_result
from openclaw_mcp.mcp.server import http_request
from openclaw_mcp.mcp.server.http import McpHttp
from openclaw_mcp.net import listen
from openclaw_mcp.net.response_sender import ResponseSender
from tests.conversation import Tools, serving

WAIT = 20.0
LARGE = 8_000_000  # characters: far more than the kernel keeps on the way
SIGN_OF_LIFE = b"5\r\n:\r\n\r\n\r\n"


async def _work(call: ToolCall) -> ToolResult:
    for step in range(call.arguments.get("steps", 0)):
        await call.context.progress(step + 1)
    await asyncio.sleep(call.arguments.get("seconds", 0))
    return text_result("x" * call.arguments.get("size", 1))


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[int]:
    listener = listen.bind("127.0.0.1", 0)
    endpoint = McpHttp(serving(Tools(work=_work)), probe_text="here")
    async with asyncio.timeout(WAIT), listen.serve_in_background(endpoint, listener):
        yield listener.getsockname()[1]
    await endpoint.aclose()


def post(message: Any, *headers: str) -> bytes:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    given = ("Host: localhost", "Accept: application/json, text/event-stream", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join(("POST / HTTP/1.1", *given, "", "")).encode() + body


def call(id: int, *headers: str, **arguments: Any) -> bytes:
    params = {"name": "work", "arguments": arguments, "_meta": {"progressToken": id}}
    return post({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}, *headers)


def plain(method: str, *headers: str) -> bytes:
    return "\r\n".join((f"{method} / HTTP/1.1", "Host: localhost", *headers, "", "")).encode()


MANY = b"".join((
    call(1), call(2, steps=2), call(3, seconds=0.02), plain("GET"), plain("HEAD"), plain("DELETE"), plain("OPTIONS"),
    post(b"{"), call(4, size=300_000), call(5, "Expect: 100-continue"), call(6, "Upgrade: h2c", "Connection: Upgrade"),
    post({"jsonrpc": "2.0", "method": "notifications/initialized"}), plain("GET", "Accept: text/event-stream"),
    post({"jsonrpc": "2.0", "id": 7, "method": "no/such"}),
))  # fmt: skip
"""Whole, streamed, slow, refused, large and empty answers."""
LAST = {"close": call(9, "Connection: close"), "old": call(9).replace(b"HTTP/1.1", b"HTTP/1.0")}


async def converse(port: int, data: bytes, piece: int) -> bytes:
    """All that comes back for what is sent so many bytes at a time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for at in range(0, len(data), piece):
        writer.write(data[at : at + piece])
        await writer.drain()
    received = await reader.read()
    writer.close()
    return received


@pytest.mark.parametrize("last", LAST.values(), ids=LAST)
@pytest.mark.parametrize("piece", [1 << 20, 1000, 7])
def test_an_answer_written_whole_is_the_one_written_in_pieces(
    monkeypatch: pytest.MonkeyPatch, piece: int, last: bytes
) -> None:
    requests = MANY + last

    async def both() -> tuple[bytes, bytes]:
        async with served() as port:
            whole = await converse(port, requests, piece)
            monkeypatch.setattr(ResponseSender, "send_whole", lambda *_: False)
            return whole, await converse(port, requests, piece)

    whole, pieces = asyncio.run(both())

    assert whole == pieces
    assert [whole.count(b'"id":%d' % id) for id in (*range(1, 8), 9)] == [1] * 8


def test_a_request_leaves_nothing_for_the_garbage_collector() -> None:
    """A circle for each request would make the collector pause the server: see decision 77."""

    async def main() -> int:
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)

            async def ask(times: int) -> None:
                for _ in range(times):
                    writer.write(call(1))
                    await reader.readuntil(b"false}}")

            await ask(10)
            gc.collect()
            gc.disable()
            await ask(100)
            left = gc.collect()
            writer.close()
            return left

    try:
        left = asyncio.run(main())
    finally:
        gc.enable()
        gc.unfreeze()

    assert left < 100


def test_a_session_call_that_is_cancelled_after_a_sign_of_life_ends_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_request, "KEEPALIVE_INTERVAL", 0.01)
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}

    async def main() -> bytes:
        async with served() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin}))
            head = await reader.readuntil(b"\r\n\r\n")
            session = head.decode().partition("mcp-session-id: ")[2].split()[0]
            writer.write(call(2, f"Mcp-Session-Id: {session}", seconds=WAIT))
            await reader.readuntil(SIGN_OF_LIFE)
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
            gone = post(cancel, f"Mcp-Session-Id: {session}", "Connection: close")
            assert b" 202 " in await converse(port, gone, len(gone))
            await reader.readuntil(b"0\r\n\r\n")  # of the chunks: all of it has come
            writer.write(call(3, "Connection: close"))  # and the connection serves the next one
            answer = await reader.read()
            writer.close()
            return answer

    assert b'"id":3' in asyncio.run(main())


def test_a_result_reaches_a_client_that_did_not_read_when_a_sign_of_life_was_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_request, "KEEPALIVE_INTERVAL", 0.01)
    answered = asyncio.Event()
    finish = http_request.HttpReply.finish

    async def note(reply: Any, body: bytes, status: int) -> None:
        if b'"id":2' in body:
            answered.set()
        await finish(reply, body, status)

    monkeypatch.setattr(http_request.HttpReply, "finish", note)

    async def main() -> bytes:
        async with served() as port:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(call(1, size=LARGE) + call(2, "Connection: close", seconds=0.2))
                await answered.wait()
                return await asyncio.to_thread(_read_all, client)

    received = asyncio.run(main())

    assert b'"id":2' in received[LARGE:]
    assert received.count(b"HTTP/1.1 200 OK") == 2


def _read_all(client: socket.socket) -> bytes:
    client.settimeout(WAIT)
    return b"".join(iter(lambda: client.recv(1 << 20), b""))
