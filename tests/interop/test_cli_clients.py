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
        heard = ask(cli, tmp_path, Server(url=node.address, token=node.token), ASK_NODE)
    assert {"device_info", "device_status", "system_which"} <= heard.declared, heard.ended
    assert [outcome.failed for outcome in heard.outcomes] == [False], heard.ended
    assert "deviceName" in heard.text


@pytest.mark.parametrize("cli", CLIS)
def test_it_lists_and_calls_a_nodes_tools_over_stdio(tmp_path: Path, cli: str) -> None:
    server = Server(command=(OPENCLAW, "node", "--stdio"), env={"OPENCLAW_STATE_DIR": str(tmp_path / "node")})
    heard = ask(cli, tmp_path, server, ASK_NODE)
    assert {"device_info", "device_status", "system_which"} <= heard.declared, heard.ended
    assert [outcome.failed for outcome in heard.outcomes] == [False], heard.ended
    assert "deviceName" in heard.text


@pytest.mark.parametrize("cli", CLIS)
def test_it_orders_an_agent_and_gets_the_answer(tmp_path: Path, cli: str) -> None:
    env = {"OPENCLAW_STATE_DIR": str(tmp_path / "state"), "OPENCLAW_GATEWAY_PORT": NOBODY, "PATH": os.environ["PATH"]}
    server = Server(command=(OPENCLAW, "mcp-server"), env=env)
    heard = ask(cli, tmp_path, server, '[[call order_openclaw {"message": "!say forty-two"}]] [[say It says {result}]]')
    assert heard.declared == {"order_openclaw"}, heard.ended
    assert [outcome.failed for outcome in heard.outcomes] == [False], heard.ended
    assert "forty-two" in heard.text


@pytest.mark.parametrize("cli", CLIS)
def test_it_calls_an_apps_tool_at_a_session_url(tmp_path: Path, cli: str) -> None:
    prompt = '[[call echo_text {"text": "lent"}]] [[say It says {result}]]'

    async def story() -> None:
        async with asyncio.timeout(RUN_WAIT), proxy() as at:
            id = (await at.create())["mcpSessionId"]
            server = Server(url=f"{at.address}/v1/mcp/{id}")
            async with at.app(id):
                if cli != "codex":  # it prints its configuration and connects to nothing
                    said = await asyncio.to_thread(listed, cli, tmp_path / "list", server)
                    line = next(line for line in said.splitlines() if NAME in line)
                    assert "connected" in line.lower(), said
                    assert "✗" not in line
                    assert "✘" not in line
                heard = await asyncio.to_thread(ask, cli, tmp_path / "ask", server, prompt)
        assert heard.declared == {"echo_text", "hold"}, heard.ended
        assert "lent" in heard.text, heard.ended

    asyncio.run(story())
