"""A CLI agent's tools of MCP servers: listed in time, and a call ends with the program that made it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from openclaw_mcp.core.model import ToolCall, ToolResult, ToolSpec
from openclaw_mcp.core.signal import Signal
from openclaw_mcp.mcp.client.server_pool import McpServerPool
from openclaw_mcp.net.gateway_client.client import ConnectionGone
from tests import web_client
from tests.gateway.rpc.gateways import running, within
from tests.gateway.rpc.test_grants import RUN, under
from tests.mcp.client.servers import odd


class EndlessTool:
    """A `ToolSource` whose tool works until it is cancelled."""

    def __init__(self) -> None:
        self.changed: Signal[None] = Signal()
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()

    def specs(self) -> Sequence[ToolSpec]:
        return (ToolSpec(name="slow__work", input_schema={"type": "object"}, deadline=3600),)

    async def call(self, call: ToolCall) -> ToolResult:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError


def test_a_server_that_does_not_start_keeps_no_tool_from_the_list(tmp_path: Path) -> None:
    """A CLI that gives its servers a second would have none of its tools."""

    async def test() -> None:
        async with McpServerPool({"silent": odd("silent")}) as servers, running(tmp_path, servers=servers) as server:
            server.gateway.registry.add("mcp/slow", EndlessTool())
            owner = replace(RUN, grant=replace(RUN.grant, owner=True)) if RUN.grant else RUN
            async with under(server, server.gateway.grants.issue(owner, seconds=60)) as client:
                listed = await client.call("tools.list", {}, within=20)
                assert [tool["name"] for tool in listed["tools"]] == ["slow__work"]
                assert not servers.find("silent").is_connected, "it is still starting"

    within(test())


@pytest.mark.parametrize("end", ["its run is over", "it is gone"])
def test_a_call_ends_with_the_program_that_made_it(tmp_path: Path, end: str) -> None:
    async def test() -> None:
        async with running(tmp_path) as server:
            tool = EndlessTool()
            server.gateway.registry.add("mcp/slow", tool)
            owner = replace(RUN, grant=replace(RUN.grant, owner=True)) if RUN.grant else RUN
            token = server.gateway.grants.issue(owner, seconds=60)
            async with under(server, token) as client:
                call = asyncio.ensure_future(client.call("tools.call", {"name": "slow__work"}, within=30))
                await tool.begun.wait()
                if end == "its run is over":
                    server.gateway.grants.revoke(token)
                    with pytest.raises(ConnectionGone):
                        await call
                else:
                    call.cancel()
            async with asyncio.timeout(20):
                await tool.cancelled.wait()

    within(test())


@pytest.mark.parametrize("era", ["stateless", "handshake"])
def test_a_call_over_http_ends_with_its_grant(tmp_path: Path, era: str) -> None:
    async def test() -> None:
        async with running(tmp_path) as server:
            tool = EndlessTool()
            server.gateway.registry.add("mcp/slow", tool)
            owner = replace(RUN, grant=replace(RUN.grant, owner=True)) if RUN.grant else RUN
            token = server.gateway.grants.issue(owner, seconds=60, over_http=True)
            url, params = f"{server.http}/mcp", {"name": "slow__work", "arguments": {}}
            bearer = {"Authorization": f"Bearer {token}"}

            def call() -> str:
                if era == "stateless":
                    return web_client.ask(url, "tools/call", params, **bearer).body.decode()
                begun = web_client.rpc("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
                session = web_client.send(url, "POST", begun, **bearer).headers["mcp-session-id"]
                request = web_client.rpc("tools/call", params)
                return web_client.send(url, "POST", request, **bearer, MCP_Session_Id=session).body.decode()

            answer = asyncio.ensure_future(asyncio.to_thread(call))
            await tool.begun.wait()
            server.gateway.grants.revoke(token)
            async with asyncio.timeout(20):
                await tool.cancelled.wait()
            assert "the grant it was called under has ended" in await answer

    within(test())
