"""Our node on a real OpenClaw gateway: paired, approved, invoked by the real command line, switched while running."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..node.running import RunningNode, running_node
from . import real

NAME = "a-node-of-ours"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture(scope="module")
def url(home: Path) -> Iterator[str]:
    with real.gateway(home) as url:
        yield url


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, home: Path, url: str) -> Iterator[RunningNode]:
    """A node that serves MCP and is connected and approved on the gateway."""
    state = tmp_path_factory.mktemp("node")
    settings = {"enableNodeMode": True, "gatewayUrl": url, "displayName": NAME}
    (state / "exec-policy.json").write_text(
        '{"defaultAction": "allow", "rules": [{"pattern": "rm *", "action": "deny"}]}'
    )
    with running_node(state, env={"OPENCLAW_GATEWAY_TOKEN": real.TOKEN}, **settings) as node:
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


def test_the_real_command_line_reads_our_rules(home: Path, url: str, node: RunningNode) -> None:
    ended = real.command_line(home, url, real.TOKEN, "approvals", "get", "--node", NAME)

    assert ended.returncode == 0
    assert "rm *" in ended.stdout


def test_the_node_comes_back_with_its_own_token_and_goes_when_switched_off(
    home: Path, url: str, node: RunningNode
) -> None:
    settings = json.loads((node.state / "node.json").read_text())
    kept = json.loads((node.state / "device-tokens.json").read_text())
    assert list(kept) == [f"node {url}"]

    (node.state / "node.json").write_text(json.dumps({**settings, "enableNodeMode": False}))
    until(node, "gateway: closed")
    (node.state / "node.json").write_text(json.dumps({**settings, "enableMcpServer": False}))
    until(node, f"gateway: connected to {url}")
    assert invoke(home, url, "system.which", {"bins": ["sh"]})["ok"]
