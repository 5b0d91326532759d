"""Claude Code, Gemini CLI, Codex and OpenCode at our servers: a node, the proxy, an agent to be ordered."""

import asyncio
import os
from pathlib import Path

import pytest

from ..node.running import running_node
from ..order.test_server import NOBODY
from ..proxy.proxies import proxy
from ..running import OPENCLAW
from .cli_clients import NAME, RUN_WAIT, Server, ask, listed
from .clis import CLIS

ASK_NODE = "[[call device_info {}]] [[say It is {result}]]"


@pytest.mark.parametrize("cli", CLIS)
def test_it_lists_and_calls_a_nodes_tools_over_http(tmp_path: Path, cli: str) -> None:
    with running_node(tmp_path / "node") as node:
        received = ask(cli, tmp_path, Server(url=node.address, token=node.token), ASK_NODE)
    assert {"device_info", "device_status", "system_which"} <= received.declared, received.ended
    assert [outcome.failed for outcome in received.outcomes] == [False], received.ended
    assert "deviceName" in received.text


@pytest.mark.parametrize("cli", CLIS)
def test_it_lists_and_calls_a_nodes_tools_over_stdio(tmp_path: Path, cli: str) -> None:
    server = Server(command=(OPENCLAW, "node", "--stdio"), env={"OPENCLAW_STATE_DIR": str(tmp_path / "node")})
    received = ask(cli, tmp_path, server, ASK_NODE)
    assert {"device_info", "device_status", "system_which"} <= received.declared, received.ended
    assert [outcome.failed for outcome in received.outcomes] == [False], received.ended
    assert "deviceName" in received.text


@pytest.mark.parametrize("cli", CLIS)
def test_it_orders_an_agent_and_gets_the_answer(tmp_path: Path, cli: str) -> None:
    env = {"OPENCLAW_STATE_DIR": str(tmp_path / "state"), "OPENCLAW_GATEWAY_PORT": NOBODY, "PATH": os.environ["PATH"]}
    server = Server(command=(OPENCLAW, "mcp-server"), env=env)
    received = ask(
        cli, tmp_path, server, '[[call order_openclaw {"message": "!say forty-two"}]] [[say It says {result}]]'
    )
    assert received.declared == {"order_openclaw"}, received.ended
    assert [outcome.failed for outcome in received.outcomes] == [False], received.ended
    assert "forty-two" in received.text


@pytest.mark.parametrize("cli", CLIS)
def test_it_calls_an_apps_tool_at_a_session_url(tmp_path: Path, cli: str) -> None:
    prompt = '[[call echo_text {"text": "lent"}]] [[say It says {result}]]'

    async def scenario() -> None:
        async with asyncio.timeout(RUN_WAIT), proxy() as at:
            id = (await at.create())["mcpSessionId"]
            server = Server(url=f"{at.address}/v1/mcp/{id}")
            async with at.app(id):
                if cli != "codex":  # it prints its configuration and connects to nothing
                    output = await asyncio.to_thread(listed, cli, tmp_path / "list", server)
                    line = next(line for line in output.splitlines() if NAME in line)
                    assert "connected" in line.lower(), output
                    assert "✗" not in line
                    assert "✘" not in line
                received = await asyncio.to_thread(ask, cli, tmp_path / "ask", server, prompt)
        assert received.declared == {"echo_text", "hold"}, received.ended
        assert "lent" in received.text, received.ended

    asyncio.run(scenario())
