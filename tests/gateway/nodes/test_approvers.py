"""Who may allow what: never the one who asked, over any connection; and always what was shown, which is what runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.config.config import Config
from openclaw_mcp.core.model import Caller, Grant
from openclaw_mcp.core.rpc import ADMIN, APPROVALS, READ, WRITE, RpcError
from openclaw_mcp.gateway.wiring.gateway import GatewayServer
from openclaw_mcp.gateway.wiring.nodes import open_nodes
from openclaw_mcp.net.gateway_client.client import CannotConnect, GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity
from openclaw_mcp.tools.policy_rules import from_config

from ..rpc.gateways import BACKEND, EVERY, running, within
from .gateways import FakeNode, MemoryBook, NodeHarness, collect_events, machines, next_of, order

ASK = {"command": "echo hi", "host": "gateway", "id": "Q", "twoPhase": True}
CLI = ClientInfo(id="cli", version="1", platform="linux", mode="cli")
PROBE = ClientInfo(id="gateway-client", version="2", platform="linux", mode="backend", display_name="another")

Connect = Callable[[NodeHarness], contextlib.AbstractAsyncContextManager[GatewayClient]]


def silent(name: str) -> Connect:
    return lambda harness: harness.silent("linux", name)


def bare(harness: NodeHarness) -> GatewayClient:
    return harness.gateway.client()


def bare_cli(harness: NodeHarness) -> GatewayClient:
    return harness.gateway.client(who=CLI, scopes=[APPROVALS])


def bare_named_otherwise(harness: NodeHarness) -> GatewayClient:
    return harness.gateway.client(who=PROBE)


def device(name: str) -> Connect:
    return lambda harness: harness.reviewer(name)


def made_up_key(harness: NodeHarness) -> GatewayClient:
    """A key that was never paired: programs of this machine are admitted by the token alone."""
    return harness.gateway.client(who=BACKEND, signer=DeviceIdentity.load(harness.folder / "made-up.json"))


async def by_device_token(
    harness: NodeHarness, name: str, scopes: Any = EVERY, *, approved: bool = False
) -> GatewayClient:
    """A paired device that has its own token and does not show the gateway's; admitted silently or `approved`."""
    signer = DeviceIdentity.load(harness.folder / f"{name}.json")
    first_time = harness.reviewer(name) if approved else harness.gateway.client(who=CLI, signer=signer, scopes=scopes)
    async with first_time as first:
        token = (first.hello or {})["auth"]["deviceToken"]
    reported = ClientProfile(client=CLI, scopes=tuple(scopes))
    credentials = Credentials(device_token=token)
    return GatewayClient(harness.gateway.url, reported, credentials=credentials, signer=signer, redial=False)


def silent_by_its_own_token(name: str) -> Connect:
    @contextlib.asynccontextmanager
    async def connect(harness: NodeHarness) -> AsyncIterator[GatewayClient]:
        async with await by_device_token(harness, name) as client:
            yield client

    return connect


SAME: dict[str, tuple[Connect, Connect]] = {
    "the same token": (bare, bare),
    "the same token as another kind of client": (bare, bare_cli),
    "the same token the other way round": (bare_cli, bare),
    "the same token under another name": (bare, bare_named_otherwise),
    "the same token and a made-up key": (bare, made_up_key),
    "a made-up key and then the same token": (made_up_key, bare),
    "a device that holds the token, and then the token alone": (device("a"), bare),
    "the token, and then a device let in because of it": (bare, silent("a")),
    "a device let in because of the token, and then another": (silent("a"), silent("b")),
    "a device that holds the token, and then one let in because of it": (device("a"), silent("b")),
    "a device let in because of the token, by its own, and then the token": (silent_by_its_own_token("a"), bare),
    "one by its own token, and then another let in because of it": (silent_by_its_own_token("a"), silent("b")),
    "both by their own tokens": (silent_by_its_own_token("a"), silent_by_its_own_token("b")),
    "the same device": (device("a"), device("a")),
}


@pytest.mark.parametrize("method", ["exec.approval.resolve", "approval.resolve"])
@pytest.mark.parametrize("decision", ["allow-once", "allow-always"])
@pytest.mark.parametrize("case", SAME)
def test_a_second_connection_of_the_requester_does_not_allow_it(
    tmp_path: Path, case: str, decision: str, method: str
) -> None:
    one, two = SAME[case]
    answer = {"id": "Q", "decision": decision, **({"kind": "exec"} if method == "approval.resolve" else {})}

    async def test() -> None:
        async with machines(tmp_path) as harness, two(harness) as answering:
            async with one(harness) as asking:
                await asking.call("exec.approval.request", ASK)
                with pytest.raises(RpcError, match="another operator must"):
                    await answering.call(method, answer)
            with pytest.raises(RpcError, match="another operator must"):  # nor once the first has gone
                await answering.call(method, answer)
            await answering.call(method, {**answer, "decision": "deny"})
            async with harness.reviewer("somebody-else") as other:
                record = (await other.call("approval.get", {"id": "Q"}))["approval"]
            assert record["status"] in ("denied", "cancelled")

    within(test())


OTHERS: dict[str, tuple[Connect, Connect]] = {
    "another device": (device("a"), device("b")),
    "a device, asked with the token": (bare, device("a")),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_operator_does(tmp_path: Path, case: str) -> None:
    one, two = OTHERS[case]

    async def test() -> None:
        async with machines(tmp_path) as harness, one(harness) as asking, two(harness) as answering:
            await asking.call("exec.approval.request", ASK)
            assert await answering.call("exec.approval.resolve", {"id": "Q", "decision": "allow-once"}) == {"ok": True}

    within(test())


def test_the_owner_allows_with_the_token_what_a_device_without_it_asks(tmp_path: Path) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness:
            phone = await by_device_token(harness, "phone", approved=True)
            async with phone, bare(harness) as owner:
                await phone.call("exec.approval.request", ASK)
                assert await owner.call("exec.approval.resolve", {"id": "Q", "decision": "allow-once"}) == {"ok": True}

    within(test())


# ---- what a node asks on a caller's behalf ----


LENT_TO_ALL = {
    "tools": {"allow": ["laptop__system_run"]},
    "gateway": {"tools": {"allow": ["nodes", "laptop__system_run"]}},
}


async def asking_node(harness: NodeHarness, node: FakeNode, operator: GatewayClient, how: str) -> Any:
    """Have the node asked about while it is at work on a call of `operator`'s; the question and the call."""
    calls = {
        "node.invoke": order(node.id, "system.run", params={"command": ["x"]}),
        "tools.invoke": {"name": "laptop__system_run", "args": {"command": ["x"]}},
    }
    request = asyncio.ensure_future(operator.call(how, calls[how]))
    await next_of(node.invoked)
    question = asyncio.ensure_future(node.client.call("exec.approval.request", {"command": "x", "id": "Q"}))
    return request, question


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [((READ, WRITE, APPROVALS), False), ((READ, WRITE, APPROVALS, ADMIN), True)],
    ids=["may only write and approve", "may do anything"],
)
@pytest.mark.parametrize("how", ["node.invoke", "tools.invoke"])
def test_a_device_does_not_allow_what_it_had_a_node_begin_unless_it_is_the_owners(
    tmp_path: Path, scopes: Any, allowed: bool, how: str
) -> None:
    waits = asyncio.Event()

    async def stay(command: str, params: Any) -> Any:
        await waits.wait()

    async def test() -> None:
        async with machines(tmp_path) as harness, bare(harness) as owner, harness.approved(owner, answer=stay) as node:
            harness.gateway.gateway.apply_rules(from_config(LENT_TO_ALL))
            received = collect_events(owner, "exec.approval.requested")
            one = await by_device_token(harness, "phone", scopes)
            two = await by_device_token(harness, "phone", scopes)
            async with one, two:
                request, question = await asking_node(harness, node, one, how)
                await next_of(received)
                answer = {"id": "Q", "decision": "allow-once"}
                if allowed:
                    assert await two.call("exec.approval.resolve", answer) == {"ok": True}
                else:
                    for connection in (one, two):
                        with pytest.raises(RpcError, match="who began the command can't allow it"):
                            await connection.call("exec.approval.resolve", answer)
                    assert await owner.call("exec.approval.resolve", answer) == {"ok": True}
                assert (await question)["decision"] == "allow-once"
                waits.set()
                await request

    within(test())


# ---- runs ----


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("exec.approval.request", ASK),
        ("exec.approval.resolve", {"id": "Q", "decision": "allow-once"}),
        ("exec.approval.resolve", {"id": "Q", "decision": "deny"}),
        ("approval.resolve", {"id": "Q", "kind": "exec", "decision": "allow-once"}),
    ],
)
@pytest.mark.parametrize(
    "caller",
    [
        Caller(kind="agent", name="main", scopes=frozenset({"*", *EVERY}), session="s"),
        Caller(kind="operator", name="x", scopes=frozenset(EVERY), grant=Grant(owner=True)),
        Caller(kind="app", name="x", scopes=frozenset(EVERY)),
        Caller(kind="local", name="x", scopes=frozenset(EVERY)),
    ],
    ids=["an agent", "an owner's run", "an app", "a tool within"],
)
def test_a_run_neither_asks_nor_answers_with_any_scope(
    tmp_path: Path, method: str, params: Any, caller: Caller
) -> None:
    gateways: list[GatewayServer] = []

    @contextlib.asynccontextmanager
    async def furnish(gateway: GatewayServer) -> Any:
        gateways.append(gateway)
        async with open_nodes(gateway, MemoryBook(), config=Config):
            yield

    async def test() -> None:
        async with running(tmp_path, furnish=furnish) as gateway, gateway.client() as operator:
            if method != "exec.approval.request":
                await operator.call("exec.approval.request", ASK)
            before = await operator.call("exec.approval.list")
            with pytest.raises(RpcError, match=r"missing scope: operator\.approvals"):
                await gateways[0].call_method(method, params, caller)
            assert await operator.call("exec.approval.list") == before

    within(test())


@pytest.mark.parametrize("method", ["exec.approval.resolve", "approval.resolve", "exec.approval.list"])
def test_a_runs_token_opens_no_way_to_approvals(tmp_path: Path, method: str) -> None:
    gateways: list[GatewayServer] = []

    @contextlib.asynccontextmanager
    async def furnish(gateway: GatewayServer) -> Any:
        gateways.append(gateway)
        async with open_nodes(gateway, MemoryBook(), config=Config):
            yield

    async def test() -> None:
        async with running(tmp_path, furnish=furnish) as gateway, gateway.client() as operator:
            await operator.call("exec.approval.request", ASK)
            run = Caller(kind="agent", name="main", session="agent:main:main", grant=Grant(owner=True))
            token = gateways[0].grants.issue(run, seconds=60)
            async with gateway.client(token=token) as program:
                with pytest.raises((RpcError, CannotConnect)):
                    await program.call(method, {"id": "Q", "kind": "exec", "decision": "allow-once"})
            assert len(await operator.call("exec.approval.list")) == 1

    within(test())


# ---- the text and the words ----

PLAN = {
    "argv": ["rm", "-rf", "/srv/data"],
    "commandText": "rm -rf /srv/data",
    "cwd": "/srv",
    "agentId": "a",
    "sessionKey": "s",
}
REASONS = r"differs|something else|different things|must name|longer than|more than"
DIFFER: dict[str, Any] = {
    "a text beside the words": {"command": "ls", "commandArgv": ["rm", "-rf", "/"]},
    "a text that leaves a word out": {"command": "rm -rf /tmp", "commandArgv": ["rm", "-rf", "/tmp", "/srv"]},
    "a text that says more": {"command": "echo hi there", "commandArgv": ["echo", "hi"]},
    "words run together": {"command": "rm a b", "commandArgv": ["rm", "a b"]},
    "words torn apart": {"command": "rm 'a b'", "commandArgv": ["rm", "a", "b"]},
    "a comment": {"command": "echo hi # rm x", "commandArgv": ["echo", "hi"]},
    "another program after a semicolon": {"command": "echo hi", "commandArgv": ["echo", "hi;", "rm", "x"]},
    "an invisible difference": {"command": "ls a", "commandArgv": ["ls", "a\u200b"]},
    "another letter": {"command": "ls a", "commandArgv": ["l\u0455", "a"]},
    "a program that is no shell": {"command": "echo hi", "commandArgv": ["./evil", "-c", "echo hi"]},
    "a shell with more words": {"command": "echo hi", "commandArgv": ["sh", "-c", "echo hi", "x"]},
    "a shell's other text": {"command": "echo hi", "commandArgv": ["sh", "-c", "rm x"]},
    "text that is not closed": {"command": "echo 'hi", "commandArgv": ["echo", "hi"]},
    "no words": {"command": "echo hi", "commandArgv": []},
    "a blank program": {"command": "echo hi", "commandArgv": [" ", "hi"]},
    "rawCommand": {"rawCommand": "ls", "commandArgv": ["rm", "x"]},
    "commandText": {"commandText": "ls", "commandArgv": ["rm", "x"]},
    "three texts": {"command": "ls", "rawCommand": "rm x"},
    "a plan's own text": {"systemRunPlan": PLAN | {"commandText": "ls"}},
    "a text beside a plan": {"command": "ls", "systemRunPlan": PLAN},
    "words beside a plan": {"commandArgv": ["ls"], "systemRunPlan": PLAN},
    "a folder beside a plan": {"cwd": "/home", "systemRunPlan": PLAN},
    "an agent beside a plan": {"agentId": "b", "systemRunPlan": PLAN},
    "a session beside a plan": {"sessionKey": "t", "systemRunPlan": PLAN},
    "words too long to read": {"commandArgv": ["echo", "x" * 20_000]},
    "a plan too long to read": {"systemRunPlan": PLAN | {"argv": ["echo", "x" * 20_000], "commandText": "echo x"}},
    "variables too long to read": {"commandArgv": ["echo"], "env": {"A": "x" * 20_000}},
}
AGREE: dict[str, tuple[Any, str]] = {
    "the text alone": ({"command": "echo hi"}, "echo hi"),
    "the words alone": ({"commandArgv": ["echo", "a b"]}, "echo 'a b'"),
    "the same": ({"command": "echo hi", "commandArgv": ["echo", "hi"]}, "echo hi"),
    "the same, quoted": ({"command": "echo 'a b'", "commandArgv": ["echo", "a b"]}, "echo 'a b'"),
    "the same, quoted otherwise": ({"command": 'echo "a b"', "commandArgv": ["echo", "a b"]}, "echo 'a b'"),
    "as OpenClaw quotes": (
        {"command": 'echo "say \\"x\\"" a;b', "commandArgv": ["echo", 'say "x"', "a;b"]},
        "echo 'say \"x\"' 'a;b'",
    ),
    "a shell's text": ({"command": "ls | wc", "commandArgv": ["sh", "-c", "ls | wc"]}, "sh -c 'ls | wc'"),
    "a plan": ({"systemRunPlan": PLAN}, "rm -rf /srv/data"),
    "a plan and the same": ({"command": "rm -rf /srv/data", "cwd": "/srv", "systemRunPlan": PLAN}, "rm -rf /srv/data"),
    "variables": ({"commandArgv": ["make"], "env": {"CC": "evil"}}, "env CC=evil make"),
    "variables and a text": ({"command": "make", "env": {"CC": "evil"}}, "env CC=evil make"),
    "what can't be seen": ({"command": "ls a\u200bb"}, "ls a\\u{200b}b"),
    "a program in another alphabet": ({"commandArgv": ["\u0441at"]}, "'\\u{441}at'"),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFER)
def test_a_question_whose_parts_say_different_things_is_not_put(tmp_path: Path, case: str) -> None:
    async def test() -> None:
        async with machines(tmp_path) as harness, bare(harness) as asking:
            with pytest.raises(RpcError, match=REASONS):
                await asking.call("exec.approval.request", {"twoPhase": True, **DIFFER[case]})
            assert await asking.call("exec.approval.list") == []
            async with harness.node() as node:
                with pytest.raises(RpcError, match=REASONS):
                    await node.client.call("exec.approval.request", DIFFER[case])

    within(test())


@pytest.mark.parametrize("case", AGREE)
def test_what_is_shown_is_what_would_run(tmp_path: Path, case: str) -> None:
    params, text = AGREE[case]

    async def test() -> None:
        async with machines(tmp_path) as harness, bare(harness) as asking:
            await asking.call("exec.approval.request", {"id": "Q", "twoPhase": True, **params})
            (listed,) = await asking.call("exec.approval.list")
            assert listed["request"]["command"] == text
            assert (await asking.call("exec.approval.get", {"id": "Q"}))["commandText"] == text
            assert (await asking.call("approval.get", {"id": "Q"}))["approval"]["presentation"]["commandText"] == text
            argv = params.get("commandArgv") or params.get("systemRunPlan", {}).get("argv")
            assert listed["request"]["commandArgv"] == argv

    within(test())
