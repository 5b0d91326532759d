"""OpenClaw's own node host and command line on our gateway: joined, approved, invoked, named, disconnected."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.net.gateway_client.connection import CannotConnect
from openclaw_mcp.net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity

from .. import web_client
from ..gateway.nodes.gateways import collect_events, next_of, order
from ..gateway.rpc.gateways import EVERY, within
from ..gateway.wiring.test_gateway import Served, serving
from ..running import OPENCLAW, process
from . import real

PHONE = ClientInfo(id="cli", version="1", platform="linux", mode="cli")

NAME = "their-node"
JOIN_WAIT = 120.0  # seconds their node host may take to start on a busy machine


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    real.program()
    with serving(tmp_path_factory.mktemp("ours")) as served:
        yield served


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def their_node(tmp_path_factory: pytest.TempPathFactory, ours: Served, home: Path) -> Iterator[str]:
    """The id of their node host, connected and approved by their command line."""
    node, entry = real.program()
    state = tmp_path_factory.mktemp("their-node")
    words = (node, entry, "node", "run", "--host", "127.0.0.1", "--port", ours.port, "--display-name", NAME)
    env = real.environment(state, OPENCLAW_GATEWAY_TOKEN=ours.token)
    servers = {"nodeHost": {"mcp": {"servers": {"parrot": {"command": OPENCLAW, "args": ["echo"]}}}}}
    (state / "state").mkdir()
    (state / "state" / "openclaw.json").write_text(json.dumps(servers))
    with (state / "log").open("wb") as log, process(*words, env=env, stdout=log, stderr=subprocess.STDOUT):
        request = asyncio.run(_joined(ours))
        (pending,) = cli(home, ours, "nodes", "pending")
        assert pending["requestId"] == request["requestId"]
        assert {"system.run", "system.which"} <= set(pending["commands"])
        cli(home, ours, "nodes", "approve", pending["requestId"])
        yield request["nodeId"]


async def _joined(ours: Served) -> Any:
    async with asyncio.timeout(JOIN_WAIT), real.client(ours.ws, ours.token) as operator:
        requests = collect_events(operator, "node.pair.requested")
        pending = (await operator.call("node.pair.list"))["pending"]
        return pending[0] if pending else await requests.get()


def cli(home: Path, ours: Served, *words: str) -> Any:
    ended = real.command_line(home, ours.ws, ours.token, *words, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_their_command_line_sees_their_node_on_our_gateway(ours: Served, home: Path, their_node: str) -> None:
    (paired,) = cli(home, ours, "nodes", "list")["paired"]
    assert (paired["nodeId"], paired["displayName"]) == (their_node, NAME)
    (status,) = cli(home, ours, "nodes", "status")["nodes"]
    assert (status["connected"], status["approvalState"]) == (True, "approved")
    described = cli(home, ours, "nodes", "describe", "--node", NAME)
    assert "system.run" in described["commands"]
    result = real.command_line(home, ours.ws, ours.token, "nodes", "status")
    assert "Known: 1 · Paired: 1 · Connected: 1" in result.stdout


def test_their_command_line_invokes_their_node_through_us(ours: Served, home: Path, their_node: str) -> None:
    words = ("nodes", "invoke", "--node", NAME, "--command", "system.which", "--params", '{"bins":["sh"]}')
    assert cli(home, ours, *words)["payload"]["bins"]["sh"].endswith("/sh")
    refused = real.command_line(
        home, ours.ws, ours.token, "nodes", "invoke", "--node", NAME, "--command", "no.such", "--json"
    )
    assert refused.returncode != 0
    assert "is not a command of this node" in refused.stderr + refused.stdout


def test_their_node_runs_commands_for_our_clients(ours: Served, their_node: str) -> None:
    async def test() -> None:
        async with real.client(ours.ws, ours.token) as operator:
            params = {"command": ["echo", "through us"]}
            outcome = await operator.call("node.invoke", order(their_node, "system.run", params=params))
            assert (outcome["payload"]["stdout"], outcome["payload"]["success"]) == ("through us\n", True)

    within(test())
    call = {"name": "their-node__system_which", "arguments": {"bins": ["sh"]}}
    bearer = {"Authorization": f"Bearer {ours.token}"}
    result = web_client.send(f"{ours.http}/mcp", "POST", web_client.rpc("tools/call", call), **bearer).json["result"]
    assert "/sh" in result["content"][0]["text"]


def test_the_tools_of_their_nodes_mcp_servers_are_ours_too(ours: Served, their_node: str) -> None:
    async def described() -> Any:
        async with asyncio.timeout(JOIN_WAIT), real.client(ours.ws, ours.token) as operator:
            while True:
                description = await operator.call("node.describe", {"nodeId": their_node})
                if tools := [tool for tool in description["nodePluginTools"] if tool.get("mcp")]:
                    return tools
                await asyncio.sleep(0.5)

    (tool,) = asyncio.run(described())
    assert (tool["command"], tool["mcp"]) == ("mcp.tools.call.v1", {"server": "parrot", "tool": "echo"})
    call = {"name": f"their-node__{tool['name']}", "arguments": {"text": "polly"}}
    bearer = {"Authorization": f"Bearer {ours.token}"}
    result = web_client.send(f"{ours.http}/mcp", "POST", web_client.rpc("tools/call", call), **bearer).json["result"]
    assert result["content"] == [{"type": "text", "text": "polly"}]


def test_their_command_line_reads_and_changes_rules(ours: Served, home: Path, their_node: str) -> None:
    result = cli(home, ours, "approvals", "get", "--node", NAME)
    assert result["file"]["version"] == 1
    own = cli(home, ours, "approvals", "get", "--gateway")
    assert own["file"]["version"] == 1
    added = real.command_line(home, ours.ws, ours.token, "approvals", "allowlist", "add", "--gateway", "/usr/bin/true")
    assert added.returncode == 0, added.stderr
    again = cli(home, ours, "approvals", "get", "--gateway")
    assert "/usr/bin/true" in json.dumps(again["file"])


@pytest.mark.parametrize("decision", ["allow-once", "deny"])
def test_their_command_line_answers_our_questions(ours: Served, home: Path, decision: str) -> None:
    async def test() -> None:
        # The asker is a device that a person approved, and holds its token alone: the requester can't allow it with the
        # same credential, nor with one that it was given for the gateway's token.
        phone = DeviceIdentity.load(home / f"phone-{decision}.json")
        shared = Credentials(token=ours.token)
        profile = ClientProfile(client=PHONE, scopes=EVERY)
        moved = ClientProfile(client=replace(PHONE, platform="another system"), scopes=EVERY)
        async with GatewayClient(ours.ws, moved, credentials=shared, signer=phone):
            pass
        with pytest.raises(CannotConnect, match="pairing required"):
            async with GatewayClient(ours.ws, profile, credentials=shared, signer=phone):
                pass
        async with real.client(ours.ws, ours.token) as operator:
            (waiting,) = (await operator.call("device.pair.list"))["pending"]
            await operator.call("device.pair.approve", {"requestId": waiting["requestId"]})
        async with GatewayClient(ours.ws, profile, credentials=shared, signer=phone) as first:
            own = Credentials(device_token=(first.hello or {})["auth"]["deviceToken"])
        async with (
            GatewayClient(ours.ws, profile, credentials=own, signer=phone, redial=False) as asker,
            real.client(ours.ws, ours.token) as operator,
        ):
            id = f"Q-{decision}"
            request = {"command": "make coffee", "host": "gateway", "timeoutMs": 120_000, "id": id}
            requests = collect_events(operator, "exec.approval.requested")
            question = asyncio.ensure_future(asker.call("exec.approval.request", request, within=120))
            await next_of(requests)
            pending = await asyncio.to_thread(cli, home, ours, "approvals", "pending")
            assert "make coffee" in json.dumps(pending)
            result = await asyncio.to_thread(cli, home, ours, "approvals", "resolve", id, decision)
            assert result["approval"]["decision"] == decision
            assert (await question)["decision"] == decision

    within(test())


def test_their_command_line_names_and_removes_nodes(ours: Served, home: Path, their_node: str) -> None:
    cli(home, ours, "nodes", "rename", "--node", NAME, "--name", "another name")
    assert cli(home, ours, "nodes", "describe", "--node", "another name")["nodeId"] == their_node
    cli(home, ours, "nodes", "remove", "--node", "another name")

    async def test() -> None:
        async with real.client(ours.ws, ours.token) as operator:
            nodes = (await operator.call("node.list"))["nodes"]
            assert not [node for node in nodes if node["approvalState"] == "approved"]

    within(test())
