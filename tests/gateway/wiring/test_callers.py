"""As whom an agent acts: for the caller that started its run, as the credential or the channel vouches for it."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw_mcp.core.model import Caller, Grant, Sender
from openclaw_mcp.core.session_target import child_grant
from openclaw_mcp.core.sessions import NewSession, RunOptions, RunOutcome, RunRequest, Session
from openclaw_mcp.gateway.wiring.runs import caller_for_session
from openclaw_mcp.store.runs import SqlRunRepository
from openclaw_mcp.store.store import open_store
from openclaw_mcp.tools.policy_rules import from_config

ANN = {"id": "111", "name": "Ann"}
GROUP = {"channel": "telegram", "account": "default", "to": "-100", "group": "-100", "sender": ANN}


def session(key: str = "agent:main:telegram:group:-100", **more: Any) -> Session:
    return Session(
        key=key, agent_id=key.split(":")[1], session_id="s", epoch=1, revision="r", classification="group",
        created_at=0, updated_at=0, **more,
    )  # fmt: skip


def grant(options: dict[str, Any], config: dict[str, Any] | None = None, **more: Any) -> Grant:
    caller = caller_for_session(session(**more), msgspec.convert(options, RunOptions), rules=from_config(config or {}))
    assert caller.kind == "agent"
    assert caller.entry_point == "agent"
    assert caller.grant is not None
    return caller.grant


@pytest.mark.parametrize(
    ("config", "owner"),
    [
        ({}, False),
        ({"commands": {"ownerAllowFrom": ["111"]}}, True),
        ({"commands": {"ownerAllowFrom": ["telegram:111"]}}, True),
        ({"commands": {"ownerAllowFrom": ["discord:111"]}}, False),
        ({"commands": {"ownerAllowFrom": ["Ann"]}}, False),
        ({"commands": {"ownerAllowFrom": ["*"]}}, False),
        ({"commands": {"ownerAllowFrom": []}, "channels": {"telegram": {"allowFrom": ["111"]}}}, False),
        ({"channels": {"telegram": {"allowFrom": [111]}}}, False),
        ({"channels": {"telegram": {"allowFrom": ["*"]}}}, False),
    ],
)
def test_a_persons_message_is_the_owners_when_the_rules_name_them(config: dict[str, Any], owner: bool) -> None:
    derived = grant({"grant": {"channel": "telegram", "sender": ANN, "owner": True}}, config)

    assert derived.owner == owner  # what the note itself says of that counts for nothing
    assert derived.sender == Sender(**ANN)


def test_the_user_of_this_machine_is_the_owner() -> None:
    assert grant({"grant": {"channel": "local", "sender": {"id": "owner"}, "owner": True}}).owner
    assert not grant({"grant": {"channel": "local", "sender": {"id": "owner"}}}).owner  # its client was not the owner's
    assert not grant({"grant": {"channel": "local", "sender": {"id": "guest"}, "owner": True}}).owner
    assert not grant({"grant": {"channel": "matrix", "sender": {"id": "owner"}}}).owner


def test_a_run_that_nothing_vouches_for_has_no_owner() -> None:
    nobodys: list[dict[str, Any]] = [{}, {"sender": "owner"}, {"grant": {}}]
    assert not any(grant(options).owner for options in nobodys)


def test_agent_depth_parent_and_model_are_the_sessions_own() -> None:
    forged = {"grant": {"agent": "other", "depth": 0, "spawned_by": "agent:other:main", "models": ["a/b"]}}
    derived = grant(forged, key="agent:main:subagent:1", spawn_depth=2, spawned_by="agent:main:main")

    assert (derived.agent, derived.depth, derived.spawned_by, derived.models) == ("main", 2, "agent:main:main", ())
    assert grant({"model": "x/y"}, entry={"model": "p/q"}).models == ("x/y",)
    assert grant({}, entry={"model": "p/q"}).models == ("p/q",)


def test_two_runs_of_the_same_person_are_the_same_caller() -> None:
    first, second = (
        caller_for_session(session(), msgspec.convert({"grant": GROUP, "sender": id}, RunOptions)) for id in "ab"
    )
    assert first == second
    assert hash(first) == hash(second)


def test_what_is_handed_on_is_never_more_than_one_has() -> None:
    run = Grant(agent="main", channel="telegram", sender=Sender(id="1"), depth=2, tools=frozenset({"message"}), to="x")
    derived = child_grant(Caller(kind="agent", name="main", scopes=frozenset({"*", "operator.admin"}), grant=run))

    assert derived == Grant(
        channel="telegram",
        to="x",
        sender=Sender(id="1"),
        depth=2,
        tools=frozenset({"message"}),
        handed_on=True,
        led_by=("@main",),
    )
    assert child_grant(Caller(kind="operator", name="o", scopes=frozenset({"operator.admin"}))).owner
    assert not child_grant(Caller(kind="operator", name="o", scopes=frozenset({"operator.write"}))).owner
    assert not child_grant(Caller(kind="agent", name="a", scopes=frozenset({"*"}))).owner


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ({"grant": {"owner": True}}, {"grant": {"owner": True}}, True),
        ({"grant": {"owner": True}}, {"grant": {}}, False),
        ({"grant": GROUP}, {"grant": GROUP, "sender": "2"}, True),
        ({"grant": GROUP}, {"grant": {**GROUP, "sender": {"id": "222"}}}, False),
        ({"grant": GROUP}, {"grant": {"owner": True}}, False),
    ],
)
def test_what_different_people_wrote_is_not_answered_in_one_run(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], together: bool
) -> None:
    async def scenario() -> None:
        new = NewSession(key="agent:main:g", agent_id="main", classification="group")
        async with open_store(str(tmp_path / "x.sqlite")) as store:
            runs = SqlRunRepository(store)
            await runs.admit(RunRequest(run_id="first", session=new, message="first", mode="followup"))
            for name, options in (("a", one), ("b", other)):
                request = RunRequest(
                    run_id=name, session=new, message=name, mode="collect", options=msgspec.convert(options, RunOptions)
                )
                await runs.admit(request)
            result = await runs.finish("first", RunOutcome(status="ok", stop_reason="stop"))
            assert result is not None
            assert result.next is not None
            assert result.next.prompt == ("a\n\nb" if together else "a")

    asyncio.run(asyncio.wait_for(scenario(), 30))
