"""The official Python client, in each of its modes, over both transports."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.running import OPENCLAW, ROOT, everything_over_http

WAIT = 60.0
MODES = ["auto", "legacy", "2026-07-28"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with everything_over_http() as address:
        yield address


async def tour(client: Client) -> dict[str, Any]:
    """List, call, read, prompt, complete: what a client does on an ordinary day."""
    tools = await client.list_tools()
    called = await client.call_tool("greet", {"name": "Ada"})
    wrong = await client.call_tool("greet", {"name": 5})
    picture = await client.call_tool("test_image_content", {})
    resource = await client.read_resource("test://static-text")
    prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "1", "arg2": "2"})
    return {
        "tools": {tool.name for tool in tools.tools},
        "said": called.content[0].text,  # type: ignore[union-attr]
        "wrong": wrong.is_error,
        "picture": picture.content[0].type,
        "resource": resource.contents[0].text,  # type: ignore[union-attr]
        "prompt": prompt.messages[0].content.text,  # type: ignore[union-attr]
    }


def check(report: dict[str, Any]) -> None:
    assert {"greet", "test_simple_text"} <= report["tools"]
    assert report["said"] == "Hello, Ada!"
    assert report["wrong"] is True
    assert report["picture"] == "image"
    assert "static text" in report["resource"]
    assert "arg1='1'" in report["prompt"]


@pytest.mark.parametrize("mode", MODES)
def test_over_http(address: str, mode: str) -> None:
    async def visit() -> dict[str, Any]:
        async with asyncio.timeout(WAIT), Client(address, mode=mode) as client:
            return await tour(client)

    check(asyncio.run(visit()))


@pytest.mark.parametrize("mode", MODES)
def test_over_stdio(mode: str) -> None:
    async def visit() -> dict[str, Any]:
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "tests.mcp.server.everything_stdio"], cwd=str(ROOT)
        )
        async with asyncio.timeout(WAIT), Client(stdio_client(server), mode=mode) as client:
            return await tour(client)

    check(asyncio.run(visit()))


@pytest.mark.parametrize("mode", MODES)
def test_the_installed_command(mode: str) -> None:
    """Its opening is answered by the boot path, the rest by the real server."""

    async def visit() -> list[str]:
        server = StdioServerParameters(command=OPENCLAW, args=["echo"])
        async with asyncio.timeout(WAIT), Client(stdio_client(server), mode=mode) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            echoed = await client.call_tool("echo", {"text": "through the official client"})
            return [*names, echoed.content[0].text]  # type: ignore[union-attr]

    assert asyncio.run(visit()) == ["echo", "through the official client"]


@pytest.mark.parametrize("mode", MODES)
def test_progress_reaches_the_client(address: str, mode: str) -> None:
    values: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        values.append(progress)

    async def visit() -> None:
        async with asyncio.timeout(WAIT), Client(address, mode=mode) as client:
            await client.call_tool("test_tool_with_progress", {}, progress_callback=on_progress)

    asyncio.run(visit())
    assert values == [0, 50, 100]


@pytest.mark.parametrize("mode", MODES)
def test_a_question_is_answered_by_the_client(address: str, mode: str) -> None:
    from mcp_types import ElicitResult

    async def person(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada", "username": "ada"})

    async def visit() -> str:
        async with asyncio.timeout(WAIT), Client(address, mode=mode, elicitation_callback=person) as client:
            result = await client.call_tool("test_elicitation", {"message": "Who are you?"})
            return result.content[0].text  # type: ignore[union-attr]

    assert "ada" in asyncio.run(visit())
