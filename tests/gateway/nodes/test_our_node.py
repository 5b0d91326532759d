"""Our node on our gateway, both as programs: joined, approved, invoked, asked about, from our own command line."""

import asyncio
import base64
import contextlib
import json
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.net.gateway_client.client import GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientProfile, Credentials

from ... import web_client
from ...node.running import RunningNode, running_node
from ...programs import need
from ...running import OPENCLAW, process, read_line
from ..rpc.gateways import BACKEND, EVERY, within
from ..wiring.gateways import serving
from ..wiring.test_gateway import Served, environment
from .gateways import approve, collect_events, next_of, order

WAIT = 60.0
RULES = {
    "defaultAction": "prompt",
    "rules": [{"pattern": "echo *", "action": "allow"}, {"pattern": "rm *", "action": "deny"}],
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("gateway")) as served:
        yield served


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    words = (need("Xvfb", package="xvfb"), "-displayfd", "1", "-nolisten", "tcp", "-screen", "0", "320x200x24")
    with process(*words, stdout=subprocess.PIPE) as x:
        yield f":{read_line(x, WAIT).decode().strip()}"


@contextlib.contextmanager
def joined(state: Path, gateway: Served, name: str, **env: str) -> Iterator[RunningNode]:
    """A node that has connected to the gateway."""
    state.mkdir(parents=True, exist_ok=True)
    (state / "exec-policy.json").write_text(json.dumps(RULES))
    settings = {"enableNodeMode": True, "gatewayUrl": gateway.ws, "displayName": name}
    env = {"OPENCLAW_GATEWAY_TOKEN": gateway.token, **env}
    with running_node(state, env=env, **settings) as node:
        while f"gateway: connected to {gateway.ws}" not in node.line():
            pass
        yield node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, gateway: Served, display: str) -> Iterator[str]:
    """The id of an approved node called `workstation`, with a screen."""
    with joined(tmp_path_factory.mktemp("node"), gateway, "workstation", DISPLAY=display):
        result = nodes(gateway, "approve", "workstation")
        assert "system.run" in result.stdout, result.stderr
        yield json.loads(nodes(gateway, "--json", "list").stdout)[0]["nodeId"]


def nodes(gateway: Served, *words: str) -> "subprocess.CompletedProcess[str]":
    """Our command line."""
    return subprocess.run(
        [OPENCLAW, "nodes", "--url", gateway.ws, *words],
        env=environment(gateway.folder),
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )


def invoke(gateway: Served, command: str, params: Any) -> Any:
    result = nodes(gateway, "invoke", "workstation", command, json.dumps(params))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def with_operator(gateway: Served, work: Callable[[GatewayClient], Coroutine[Any, Any, None]]) -> None:
    async def test() -> None:
        reported = ClientProfile(client=BACKEND, scopes=EVERY)
        async with GatewayClient(
            gateway.ws, reported, credentials=Credentials(token=gateway.token), redial=False
        ) as client:
            await work(client)

    within(test())


def test_it_does_what_it_is_asked(gateway: Served, node: str) -> None:
    assert invoke(gateway, "system.which", {"bins": ["sh"]})["bins"]["sh"].endswith("/sh")
    assert invoke(gateway, "device.info", {})
    ran = invoke(gateway, "system.run", {"command": ["echo", "hello"]})
    assert (ran["stdout"].strip(), ran["exitCode"]) == ("hello", 0)
    shot = invoke(gateway, "screen.snapshot", {})
    assert (shot["width"], shot["height"]) == (320, 200)
    assert base64.b64decode(shot["base64"]).startswith(b"\x89PNG")


def test_its_rules_hold_for_every_caller(gateway: Served, node: str) -> None:
    result = nodes(gateway, "invoke", "workstation", "system.run", '{"command":["rm","-rf","/nowhere"]}')
    assert result.returncode == 1
    assert "TOOL_DENIED: Command denied by exec policy" in result.stderr


@pytest.mark.parametrize(("decision", "runs"), [("allow-once", True), ("deny", False)])
def test_an_operator_answers_its_question(gateway: Served, node: str, decision: str, runs: bool) -> None:
    async def work(operator: GatewayClient) -> None:
        requests = collect_events(operator, "exec.approval.requested")
        params = {"command": ["expr", "20", "+", "3"]}
        call = asyncio.ensure_future(
            operator.call("node.invoke", order(node, "system.run", key=decision, params=params))
        )
        question = await next_of(requests)
        assert question["request"]["command"].startswith("expr 20 + 3")
        assert question["request"]["nodeId"] == node
        await operator.call("exec.approval.resolve", {"id": question["id"], "decision": decision})
        if runs:
            assert (await call)["payload"]["stdout"].strip() == "23"
        else:
            with pytest.raises(RpcError, match="Command denied by a person"):
                await call

    with_operator(gateway, work)


def test_a_question_that_is_no_longer_wanted_is_taken_back(gateway: Served, node: str) -> None:
    async def work(operator: GatewayClient) -> None:
        settled = collect_events(operator, "exec.approval.resolved")
        params = {"command": ["expr", "1"]}
        with pytest.raises(RpcError, match="TIMEOUT"):
            await operator.call("node.invoke", order(node, "system.run", key="short", params=params, timeoutMs=300))
        assert (await next_of(settled))["reason"] == "run-aborted"
        assert await operator.call("exec.approval.list") == []

    with_operator(gateway, work)


def test_a_person_at_another_terminal_answers(gateway: Served, node: str) -> None:
    words = (OPENCLAW, "approvals", "--url", gateway.ws)
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with process(*words, env=environment(gateway.folder), **streams) as terminal:
        assert b"Waiting for questions" in read_line(terminal)

        async def work(operator: GatewayClient) -> None:
            params = {"command": ["expr", "6", "*", "7"]}
            call = asyncio.ensure_future(
                operator.call("node.invoke", order(node, "system.run", key="t", params=params))
            )
            lines = b""
            while b"[n]o" not in lines:
                lines += await asyncio.to_thread(read_line, terminal)
            assert b"expr 6 '*' 7" in lines
            assert terminal.stdin is not None
            terminal.stdin.write(b"y\n")
            terminal.stdin.flush()
            assert (await call)["payload"]["stdout"].strip() == "42"

        with_operator(gateway, work)


def test_its_commands_are_tools_of_the_gateway_with_the_nodes_own_schemas(gateway: Served, node: str) -> None:
    bearer = {"Authorization": f"Bearer {gateway.token}"}
    listed = web_client.send(f"{gateway.http}/mcp", "POST", web_client.rpc("tools/list"), **bearer).json
    tools = {tool["name"]: tool for tool in listed["result"]["tools"]}
    assert "bins" in tools["workstation__system_which"]["inputSchema"]["properties"]
    call = {"name": "workstation__screen_snapshot", "arguments": {"format": "jpeg"}}
    shot = web_client.send(f"{gateway.http}/mcp", "POST", web_client.rpc("tools/call", call), **bearer).json["result"]
    assert [block["type"] for block in shot["content"]] == ["text", "image"]


def test_its_rules_are_read_and_tightened_from_the_gateway(gateway: Served, node: str) -> None:
    async def work(operator: GatewayClient) -> None:
        rules = await operator.call("exec.approvals.node.get", {"nodeId": node})
        assert rules["defaultAction"] == "prompt"
        loose = {"nodeId": node, "baseHash": rules["hash"], "rules": rules["rules"], "defaultAction": "allow"}
        with pytest.raises(RpcError, match="TOOL_DENIED"):
            await operator.call("exec.approvals.node.set", loose)
        strict = [{"pattern": "expr 99 *", "action": "deny"}, *rules["rules"]]
        result = await operator.call("exec.approvals.node.set", loose | {"rules": strict, "defaultAction": "prompt"})
        assert result["updated"]
        params = {"command": ["expr", "99", "+", "1"]}
        with pytest.raises(RpcError, match="denied by exec policy"):
            await operator.call("node.invoke", order(node, "system.run", key="strict", params=params))

    with_operator(gateway, work)


def test_our_command_line_names_and_shows_nodes(gateway: Served, node: str) -> None:
    assert nodes(gateway, "rename", "workstation", "Desk").stdout == "workstation is now called Desk\n"
    output = nodes(gateway, "list").stdout
    assert "Desk" in output
    assert "connected  approved" in output
    assert json.loads(nodes(gateway, "describe", node[:8]).stdout)["toolPrefix"] == "desk"
    assert nodes(gateway, "rename", "desk", "workstation").returncode == 0
    unknown = nodes(gateway, "describe", "nobody")
    assert (unknown.returncode, unknown.stderr) == (
        1,
        "openclaw nodes: no node 'nobody' is known here; see openclaw nodes list\n",
    )
    bad = nodes(gateway, "invoke", "workstation", "system.which", "[]")
    assert (bad.returncode, bad.stderr.count("\n")) == (1, 1)


def test_a_node_that_dies_fails_its_call_at_once(tmp_path: Path, gateway: Served) -> None:
    with joined(tmp_path / "state", gateway, "mortal") as child:

        async def work(operator: GatewayClient) -> None:
            listed = (await operator.call("node.list"))["nodes"]
            (id,) = [entry["nodeId"] for entry in listed if entry["displayName"] == "mortal"]
            await approve(operator, id)
            requests = collect_events(operator, "exec.approval.requested")
            params = {"command": ["expr", "1"]}
            call = asyncio.ensure_future(operator.call("node.invoke", order(id, "system.run", params=params)))
            await next_of(requests)
            child.child.kill()
            with pytest.raises(RpcError, match="left before it answered"):
                await call
            assert await operator.call("exec.approval.list") == []

        with_operator(gateway, work)
    assert nodes(gateway, "remove", "mortal").stdout == "removed mortal\n"
