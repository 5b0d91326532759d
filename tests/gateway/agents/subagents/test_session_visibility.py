"""The methods of sessions as a program with a run's own credential finds them: its session, its tree, nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.agents import AgentRoster
from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.core.model import Caller, Grant
from openclaw_mcp.core.rpc import ADMIN, READ, WRITE, RpcCall, RpcError
from openclaw_mcp.core.sessions import NewSession, Subagent
from openclaw_mcp.gateway.agents.subagents.session_visibility import SessionVisibility
from openclaw_mcp.gateway.agents.subagents.settings import DelegationSettings
from openclaw_mcp.gateway.agents.subagents.settings import parse_delegation_settings as settings_of
from openclaw_mcp.store.subagents import SqlSubagentRepository
from tests.gateway.sessions.gateways import GatewayHarness, TwinLink, open_harness

OWN = "agent:main:own"
Asker = Callable[..., Awaitable[Any]]


def run(
    where: Path,
    scenario: Callable[[GatewayHarness, Asker], Awaitable[None]],
    settings: DelegationSettings = DelegationSettings(),
) -> None:
    async def play() -> None:
        async with open_harness(str(where / "x.sqlite")) as harness:
            memory, repository = harness.memory, SqlSubagentRepository(harness.memory.store)
            sight = SessionVisibility(
                memory.sessions, repository, memory.runs, settings=lambda: settings, roster=AgentRoster
            )
            for room in harness.memory.rpc_modules:
                harness.offer(sight.guard_methods(room.methods()).methods())
            for key, parent in ((OWN, None), ("agent:main:other", None), ("agent:main:subagent:1", OWN)):
                new = NewSession(key=key, agent_id="main", classification="custom", spawned_by=parent)
                await harness.memory.sessions.create(new)
            await harness.memory.sessions.patch("agent:main:other", {"label": "Private"}, {})
            await repository.put(_sent_off("agent:main:subagent:1"))
            caller = Caller(
                kind="agent",
                name="main",
                scopes=frozenset({READ, WRITE, ADMIN}),
                session=OWN,
                entry_point="rpc",
                grant=Grant(),
            )

            async def ask(method: str, **params: Any) -> Any:
                call = RpcCall(method=method, params=params, caller=caller, peer=TwinLink())
                return await harness.methods[method].handle(call)

            await scenario(harness, ask)

    asyncio.run(asyncio.wait_for(play(), 30))


def _sent_off(key: str) -> Subagent:
    """A sub-agent of `OWN`, for a sender who is not the owner."""
    return Subagent(
        child_key=key, run_id="1", requester_key=OWN, grant=Grant(), task="look", created_at=1, started_at=1
    )


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("chat.history", {"sessionKey": "agent:main:other"}),
        ("chat.history", {"sessionKey": "OTHER "}),
        ("chat.send", {"sessionKey": "other", "message": "x", "idempotencyKey": "1"}),
        ("chat.abort", {"sessionKey": "other"}),
        ("chat.message.get", {"sessionKey": "other", "messageId": "1"}),
        ("agent", {"sessionKey": "other", "message": "x", "idempotencyKey": "1"}),
        ("sessions.send", {"key": "other", "message": "x"}),
        ("sessions.get", {"key": "other"}),
        ("sessions.describe", {"key": "other"}),
        ("sessions.patch", {"key": "other", "label": "mine"}),
        ("sessions.abort", {"key": "other"}),
        ("sessions.resolve", {"label": "Private"}),
        ("chat.history", {"sessionKey": "agent:ghost:main"}),
    ],
)
def test_what_is_out_of_sight_is_refused_by_every_method(tmp_path: Path, method: str, params: dict[str, Any]) -> None:
    async def scenario(harness: GatewayHarness, ask: Asker) -> None:
        with pytest.raises(RpcError, match="out of sight") as refused:
            await ask(method, **params)
        assert refused.value.kind == "FORBIDDEN"

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "method",
    [
        "sessions.create", "sessions.reset", "sessions.delete", "sessions.search", "sessions.preview",
        "sessions.subscribe", "sessions.messages.subscribe", "sessions.steer", "chat.inject",
    ],
)  # fmt: skip
def test_what_no_agent_needs_is_closed_to_all_of_them(tmp_path: Path, method: str) -> None:
    async def scenario(harness: GatewayHarness, ask: Asker) -> None:
        with pytest.raises(RpcError) as refused:
            await ask(method, key=OWN, query="x")
        assert refused.value.kind == "FORBIDDEN"

    run(tmp_path, scenario)


def test_its_own_session_and_those_it_sent_off_are_open(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness, ask: Asker) -> None:
        assert (await ask("sessions.describe"))["session"]["key"] == OWN  # who names none means its own
        for key in (OWN, "own", "agent:main:subagent:1"):
            assert (await ask("chat.history", sessionKey=key))["messages"] == []
        listed = await ask("sessions.list")
        assert {row["key"] for row in listed["sessions"]} == {OWN, "agent:main:subagent:1"}
        assert [row["key"] for row in (await ask("sessions.list", limit=1))["sessions"]] == [OWN]

    run(tmp_path, scenario)


def test_no_other_parameter_leads_elsewhere(tmp_path: Path) -> None:
    """An id beside the key, another parent, a folder: dropped, so the run is in the caller's own session."""

    async def scenario(harness: GatewayHarness, ask: Asker) -> None:
        other = await harness.memory.sessions.get("agent:main:other")
        assert other is not None
        strays = {"sessionId": other.session_id, "spawnedBy": "agent:main:other", "cwd": "/"}
        received = await ask("agent", message="!say hi", idempotencyKey="a-1", **strays)
        assert received["status"] == "ok"
        assert (await harness.memory.sessions.history(OWN, limit=5)).total == 2
        assert (await harness.memory.sessions.history("agent:main:other", limit=5)).total == 0

    run(tmp_path, scenario)


def test_a_run_it_starts_has_no_better_rights(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness, ask: Asker) -> None:
        await ask("agent", message="!say hi", idempotencyKey="a-2")
        run = await harness.memory.runs.wait("a-2", seconds=10)
        assert run is not None
        assert run.options.grant == Grant(handed_on=True)  # not the owner's, though its scopes would make one

    run(tmp_path, scenario)


def test_a_ring_of_parents_ends(tmp_path: Path) -> None:
    async def scenario(harness: GatewayHarness, ask: Asker) -> None:
        for key, parent in (("agent:main:r1", "agent:main:r2"), ("agent:main:r2", "agent:main:r1")):
            new = NewSession(key=key, agent_id="main", classification="custom", spawned_by=parent)
            await harness.memory.sessions.create(new)
        with pytest.raises(RpcError, match="is out of sight"):
            await ask("chat.history", sessionKey="agent:main:r1")

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"tools": {"sessions": {"visibility": "everyone"}}}, "visibility"),
        ({"agents": {"defaults": {"subagents": {"maxSpawnDepth": 99}}}}, "maxSpawnDepth"),
        ({"agents": {"defaults": {"subagents": {"allowAgents": "all"}}}}, "allowAgents"),
        ({"session": {"agentToAgent": {"maxPingPongTurns": 6}}}, "maxPingPongTurns"),
    ],
)
def test_settings_out_of_bounds_are_named(config: dict[str, Any], words: str) -> None:
    with pytest.raises(RpcError, match=words):
        settings_of(read_config(config))
