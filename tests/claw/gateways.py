"""What the tests of the tool server share: the server as a process, clients for it, a gateway to look into."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientProfile, Credentials
from tests.gateway.rpc.gateways import BACKEND, EVERY
from tests.running import StdioServer, process

SERVER = str(Path(sys.executable).with_name("remoteclaw-mcp-server"))
WAIT = 60.0


def environment(url: str, token: str, effects: Path, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPENCLAW_", "REMOTECLAW_"))}
    return clean | {
        "REMOTECLAW_GATEWAY_URL": url,
        "REMOTECLAW_GATEWAY_TOKEN": token,
        "REMOTECLAW_SESSION_KEY": "agent:main:cli",
        "REMOTECLAW_SIDE_EFFECTS_FILE": str(effects),
        **{f"REMOTECLAW_{name}": value for name, value in more.items()},
    }


@contextlib.contextmanager
def server(env: dict[str, str]) -> Iterator[StdioServer]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    with process(SERVER, env=env, **pipes) as child:
        yield StdioServer(child)


def introduce(peer: StdioServer) -> Any:
    received = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    answer = peer.ask("initialize", received, id="init")
    peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    return answer["result"]


def call(peer: StdioServer, name: str, id: int = 1, **arguments: Any) -> Any:
    """The tool's result. News that come before it are left aside."""
    peer.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments}})
    while True:
        message = peer.receive()
        if message.get("id") == id:
            return message["result"]


@contextlib.asynccontextmanager
async def official(env: dict[str, str], *, mode: str = "auto") -> AsyncIterator[Client]:
    """The official client with the server as its child."""
    parameters = StdioServerParameters(command=SERVER, env=env)
    async with asyncio.timeout(WAIT), Client(stdio_client(parameters), mode=mode) as client:
        yield client


async def used(client: Client, name: str, /, **arguments: Any) -> Any:
    """A tool's answer through the official client: as structured, and the same as text."""
    result = await client.call_tool(name, arguments)
    text = result.content[0].text  # type: ignore[union-attr]
    assert not result.is_error, text
    assert json.loads(text) == result.structured_content
    return result.structured_content


async def failed(client: Client, name: str, /, **arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error, result
    return str(result.content[0].text)  # type: ignore[union-attr]


def operator(url: str, token: str) -> GatewayClient:
    """Another client of the gateway, which sees what a tool did."""
    received = ClientProfile(client=BACKEND, scopes=EVERY)
    return GatewayClient(url, received, credentials=Credentials(token=token), redial=False)
