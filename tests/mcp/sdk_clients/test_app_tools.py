"""Official clients at the tools of an app, through the proxy: by URL, by header, over stdio."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.programs import need_node, need_npm
from tests.proxy.proxies import App, Proxy, proxy, soon
from tests.running import OPENCLAW, ROOT

WAIT = 60.0
MODES = ["auto", "legacy", "2026-07-28"]
SCRIPT = Path(__file__).parent / "typescript" / "proxy.mjs"


@asynccontextmanager
async def open_app() -> AsyncIterator[tuple[Proxy, str, App]]:
    async with proxy() as at:
        id = (await at.create())["mcpSessionId"]
        async with at.app(id) as app:
            yield at, id, app


async def visit(client: Client, app: App) -> None:
    tools = await client.list_tools()
    assert [tool.name for tool in tools.tools] == ["echo_text", "hold"]
    echoed = await client.call_tool("echo_text", {"text": "from Python"})
    assert echoed.structured_content == {"echoed_text": "from Python"}
    wrong = await client.call_tool("echo_text", {"text": 5})
    assert wrong.is_error is True
    steps: list[float] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    calling = asyncio.create_task(client.call_tool("hold", {}, progress_callback=step))
    held = await app.holding()
    await app.say(type="progress", request_id=held["request_id"], progress=0.5)
    await app.result(held, "done")
    assert (await soon(calling)).is_error is False
    assert steps == [0.5]


@pytest.mark.parametrize("mode", MODES)
def test_the_python_client_at_a_session_url(mode: str) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(WAIT),
            open_app() as (at, id, app),
            Client(f"{at.address}/v1/mcp/{id}", mode=mode) as client,
        ):
            await visit(client, app)

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_the_python_client_over_stdio(mode: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT), open_app() as (at, id, app):
            words = ["proxy", "--stdio", "--session", id, "--proxy-base-url", at.address]
            server = StdioServerParameters(command=OPENCLAW, args=words)
            async with Client(stdio_client(server), mode=mode) as client:
                await visit(client, app)

    asyncio.run(main())


@pytest.mark.parametrize("way", ["path", "header"])
def test_the_typescript_client(way: str) -> None:
    node, sdk = need_node(), need_npm("@modelcontextprotocol/sdk")

    async def main() -> None:
        async with asyncio.timeout(WAIT), open_app() as (at, id, app):
            where = [f"{at.address}/v1/mcp/{id}"] if way == "path" else [f"{at.address}/v1/mcp", id]
            child = await asyncio.create_subprocess_exec(
                node, str(SCRIPT), str(sdk), *where, stdout=asyncio.subprocess.PIPE, cwd=ROOT
            )
            assert child.stdout is not None
            held = await app.holding()
            await app.say(type="progress", request_id=held["request_id"], progress=1)
            report = json.loads(await child.stdout.readline())
            assert report["tools"] == ["echo_text", "hold"]
            assert report["said"] == {"echoed_text": "from TypeScript"}
            assert (report["wrong"], report["steps"], report["ending"]) == (True, [1], "cancelled")
            if way == "path":  # by header the client has no name of its own to cancel under
                assert await soon(app.cancelled.get()) == held["request_id"]
            await app.say(type="update_tools", tools=[{"name": "fresh"}])
            assert json.loads(await child.stdout.readline()) == {"after": ["fresh"]}
            if way == "header":
                await app.result(held, "too late to matter")
            assert await child.wait() == 0

    asyncio.run(main())
