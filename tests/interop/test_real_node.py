"""Our node on a real OpenClaw gateway: paired, approved, invoked by the real command line, switched while running."""

import asyncio
import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.cli.approvals import CLIENT_CAPS
from openclaw_mcp.core.rpc import RpcError

from ..gateway.nodes.gateways import collect_events, next_of, order
from ..gateway.rpc.gateways import within
from ..node.running import RunningNode, running_node
from ..programs import need
from ..running import process, read_line
from . import real

NAME = "a-node-of-ours"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    # What a real gateway hands on only when its config says so.
    allow = ["device.info", "device.status", "screen.snapshot"]
    with real.gateway(home, nodes={"commands": {"allow": allow}}) as url:
        yield url


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    words = (need("Xvfb", package="xvfb"), "-displayfd", "1", "-nolisten", "tcp", "-screen", "0", "320x200x24")
    with process(*words, stdout=subprocess.PIPE) as x:
        yield f":{read_line(x, 60).decode().strip()}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, home: Path, url: str, display: str) -> Iterator[RunningNode]:
    """A node that serves MCP and is connected and approved on the gateway."""
    state = tmp_path_factory.mktemp("node")
    settings = {"enableNodeMode": True, "gatewayUrl": url, "displayName": NAME}
    (state / "exec-policy.json").write_text(
        '{"defaultAction": "allow", "rules": [{"pattern": "rm *", "action": "deny"},'
        ' {"pattern": "expr *", "action": "prompt"}]}'
    )
    with running_node(state, env={"OPENCLAW_GATEWAY_TOKEN": real.TOKEN, "DISPLAY": display}, **settings) as node:
        until(node, f"gateway: connected to {url}")
        for request in cli(home, url, "nodes", "pending"):
            cli(home, url, "nodes", "approve", request["requestId"])
        yield node


def until(node: RunningNode, text: str) -> None:
    while text not in node.line():
        pass


def cli(home: Path, url: str, *words: str) -> Any:
    ended = real.command_line(home, url, real.TOKEN, *words, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def invoke(home: Path, url: str, command: str, params: Any) -> Any:
    words = ("nodes", "invoke", "--node", NAME, "--command", command, "--params", json.dumps(params))
    return cli(home, url, *words)


def test_the_real_command_line_lists_the_node_and_invokes_it(home: Path, url: str, node: RunningNode) -> None:
    paired = next(entry for entry in cli(home, url, "nodes", "list")["paired"] if entry["displayName"] == NAME)

    assert paired["connected"]
    assert {"system.run", "system.which", "system.execApprovals.get"} <= set(paired["commands"])
    assert invoke(home, url, "system.which", {"bins": ["sh"]})["payload"]["bins"]["sh"].endswith("/sh")


def test_the_real_gateway_hands_on_what_it_allows(home: Path, url: str, node: RunningNode) -> None:
    assert invoke(home, url, "device.info", {})["payload"]
    assert invoke(home, url, "device.status", {})["payload"]
    shot = invoke(home, url, "screen.snapshot", {})["payload"]
    assert (shot["width"], shot["height"]) == (320, 200)
    assert base64.b64decode(shot["base64"]).startswith(b"\x89PNG")


def test_commands_run_by_our_rules_and_an_operator_of_the_real_gateway_is_asked(url: str, node: RunningNode) -> None:
    async def test() -> None:
        async with real.client(url) as asker, real.client(url, caps=CLIENT_CAPS) as operator:
            (id,) = [one["nodeId"] for one in (await asker.call("node.list"))["nodes"] if one["connected"]]
            ran = await asker.call("node.invoke", order(id, "system.run", key="1", params={"command": ["echo", "a"]}))
            assert ran["payload"]["stdout"].strip() == "a"
            with pytest.raises(RpcError, match="denied by exec policy"):
                await asker.call("node.invoke", order(id, "system.run", key="2", params={"command": ["rm", "x"]}))
            requests = collect_events(operator, "exec.approval.requested")
            params = {"command": ["expr", "20", "+", "3"]}
            call = asyncio.ensure_future(asker.call("node.invoke", order(id, "system.run", key="3", params=params)))
            question = await next_of(requests)
            assert "expr 20 + 3" in question["request"]["command"]
            await operator.call("exec.approval.resolve", {"id": question["id"], "decision": "allow-once"})
            assert (await call)["payload"]["stdout"].strip() == "23"

    within(test())


def test_our_commands_are_described_to_the_real_gateways_agents(url: str, node: RunningNode) -> None:
    async def test() -> None:
        async with real.client(url) as operator:
            (entry,) = [one for one in (await operator.call("node.list"))["nodes"] if one["connected"]]
            described = {tool["command"] for tool in entry["nodePluginTools"]}
            assert "device.info" in described

    within(test())


def test_the_real_command_line_reads_our_rules(home: Path, url: str, node: RunningNode) -> None:
    ended = real.command_line(home, url, real.TOKEN, "approvals", "get", "--node", NAME)

    assert ended.returncode == 0
    assert "rm *" in ended.stdout


def test_the_node_comes_back_with_its_own_token_and_goes_when_switched_off(
    home: Path, url: str, node: RunningNode
) -> None:
    settings = json.loads((node.state / "node.json").read_text())
    tokens = json.loads((node.state / "device-tokens.json").read_text())
    assert f"node {url}" in tokens

    (node.state / "node.json").write_text(json.dumps({**settings, "enableNodeMode": False}))
    until(node, "gateway: closed")
    (node.state / "node.json").write_text(json.dumps({**settings, "enableMcpServer": False}))
    until(node, f"gateway: connected to {url}")
    assert invoke(home, url, "system.which", {"bins": ["sh"]})["ok"]
