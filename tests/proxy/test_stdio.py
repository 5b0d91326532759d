"""`openclaw proxy --stdio`: one session over a pipe, by every way to name it."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

from ..running import OPENCLAW, StdioServer, stdio_server
from .proxies import App, Proxy, proxy, soon, text_of
from .test_bridge import opened

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


@contextlib.asynccontextmanager
async def forwarder(at: Proxy, *words: str, **environment: str) -> AsyncIterator[StdioServer]:
    with (
        mock.patch.dict(os.environ, environment),
        stdio_server(OPENCLAW, "proxy", "--stdio", "--proxy-base-url", at.address, *words) as server,
    ):
        yield server


async def ask(server: StdioServer, method: str, params: Any = None, *, id: Any = 1) -> Any:
    return await asyncio.to_thread(server.ask, method, params, id=id)


async def receive(server: StdioServer) -> Any:
    return await asyncio.to_thread(server.receive)


@contextlib.asynccontextmanager
async def open_app(**settings: Any) -> AsyncIterator[tuple[Proxy, str, App]]:
    async with proxy(**settings) as at:
        id = await opened(at)
        async with at.app(id) as app:
            yield at, id, app


def test_initialize_is_answered_and_the_tools_are_listed_and_called() -> None:
    async def main() -> None:
        async with open_app() as (at, id, _), forwarder(at, "--session", id) as server:
            hello = await ask(server, "initialize", INITIALIZE)
            assert hello["result"]["capabilities"]["tools"] == {"listChanged": True}
            server.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            listed = await ask(server, "tools/list", id=2)
            assert [tool["name"] for tool in listed["result"]["tools"]] == ["echo_text", "hold"]
            call = {"name": "echo_text", "arguments": {"text": "piped"}}
            answer = await ask(server, "tools/call", call, id=3)
            assert answer["result"]["structuredContent"] == {"echoed_text": "piped"}
            assert (await ask(server, "tools/call", {"name": "none"}, id=4))["error"]["code"] == -32602
            assert await asyncio.to_thread(server.hang_up) == 0

    asyncio.run(main())


def test_the_session_is_named_by_initialize_the_environment_or_a_device() -> None:
    async def main() -> None:
        async with open_app() as (at, id, _):
            call = {"name": "echo_text", "arguments": {"text": "x"}}
            async with forwarder(at) as server:
                await ask(server, "initialize", {**INITIALIZE, "mcpSessionId": id})
                assert (await ask(server, "tools/call", call))["result"]["isError"] is False
            async with forwarder(at, OPENCLAW_PROXY_SESSION_ID=id) as server:
                assert (await ask(server, "tools/call", call))["result"]["isError"] is False
            newest = (await at.create(device_id="d/1 ü"))["mcpSessionId"]
            async with at.app(newest), forwarder(at, "--device", "d/1 ü", OPENCLAW_PROXY_SESSION_ID=id) as server:
                assert (await ask(server, "tools/call", call))["result"]["isError"] is False
            async with forwarder(at) as server:
                answer = await ask(server, "tools/list")
                assert "no session: give --session" in answer["error"]["message"]

    asyncio.run(main())


def test_progress_cancellation_and_list_changes_pass_through() -> None:
    async def main() -> None:
        async with open_app() as (at, id, app), forwarder(at, "--session", id) as server:
            await ask(server, "initialize", INITIALIZE)
            await ask(server, "tools/list")
            params = {"name": "hold", "arguments": {}, "_meta": {"progressToken": "tok"}}
            server.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params})
            held = await app.holding()
            await app.say(type="progress", request_id=held["request_id"], progress=1, message="half")
            news = await receive(server)
            assert news["params"] == {"progressToken": "tok", "progress": 1, "message": "half"}
            server.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}})
            assert await soon(app.cancelled.get()) == held["request_id"]
            await app.say(type="update_tools", tools=[{"name": "fresh"}])
            assert (await receive(server))["method"] == "notifications/tools/list_changed"
            listed = await ask(server, "tools/list", id=6)
            assert [tool["name"] for tool in listed["result"]["tools"]] == ["fresh"]

    asyncio.run(main())


def test_failures_at_the_proxy_are_reported_here() -> None:
    async def main() -> None:
        async with proxy() as at:
            async with forwarder(at, "--session", "unknown") as server:
                await ask(server, "initialize", INITIALIZE)
                assert "knows no such session" in (await ask(server, "tools/list", id=2))["error"]["message"]
                result = (await ask(server, "tools/call", {"name": "echo_text"}, id=3))["result"]
                assert result["isError"] is True
                assert "knows no such session" in text_of(result)
            async with forwarder(at, "--device", "nobody") as server:
                assert "has no session" in (await ask(server, "tools/list"))["error"]["message"]
        async with forwarder(at, "--session", "x") as server:
            assert "no proxy answers" in (await ask(server, "tools/list"))["error"]["message"]

    asyncio.run(main())


def test_an_app_that_comes_back_as_another_session_of_its_device_is_found_again() -> None:
    async def main() -> None:
        async with proxy() as at:
            await at.create(device_id="d")  # its app has crashed
            call = {"name": "echo_text", "arguments": {"text": "x"}}
            async with forwarder(at, "--device", "d") as server:
                assert "the app is not running" in text_of((await ask(server, "tools/call", call))["result"])
                second = (await at.create(device_id="d"))["mcpSessionId"]
                async with at.app(second):
                    await at.create(device_id="d")  # newer, and without an app
                    assert (await ask(server, "tools/call", call))["result"]["isError"] is False
                third = (await at.create(device_id="d"))["mcpSessionId"]
                async with at.app(third):
                    assert (await ask(server, "tools/call", call))["result"]["isError"] is False

    asyncio.run(main())


def test_a_session_or_token_that_http_can_not_carry_is_refused_and_sends_nothing() -> None:
    async def main() -> None:
        async with proxy() as at:
            for bad in ("abc\r\nX: 1", "abc\r\n\r\nGET /smuggled HTTP/1.1", "€"):
                async with forwarder(at) as server:
                    await ask(server, "initialize", {**INITIALIZE, "mcpSessionId": bad})
                    answer = await ask(server, "tools/list", id=2)
                    assert "MCP-Session-Id holds characters that HTTP can't carry" in answer["error"]["message"]

    asyncio.run(main())


def test_an_address_without_a_proxy_is_reported() -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nContent-Type: text/html\r\n\r\n<html>")
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(page, "127.0.0.1", 0) as elsewhere:
            at = Proxy(f"http://127.0.0.1:{elsewhere.sockets[0].getsockname()[1]}")
            for words in (("--session", "x"), ("--device", "d")):
                async with forwarder(at, *words) as server:
                    assert "is no app-tool proxy" in (await ask(server, "tools/list"))["error"]["message"]

    asyncio.run(main())


def test_a_large_result_comes_through_the_pipe() -> None:
    async def main() -> None:
        async with open_app() as (at, id, app), forwarder(at, "--session", id) as server:
            server.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "hold"}})
            await app.result(await app.holding(), "x" * 15_000_000)
            assert len(text_of((await receive(server))["result"])) == 15_000_000

    asyncio.run(main())
