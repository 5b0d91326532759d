"""What a run does in other people's conversations: for every initiator, however it was started, by every method."""

from pathlib import Path

import pytest

from openclaw_mcp.core.errors import ToolError
from openclaw_mcp.core.model import Caller, Grant, Json, Sender
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.core.session_target import child_grant
from openclaw_mcp.gateway.channels.message_actions import OWN_CONVERSATION_ACTIONS
from openclaw_mcp.gateway.channels.rpc_methods import LEGACY_ACTIONS

from .gateways import ChannelHarness, open_channels, within
from .test_action_families import ACTIONS, TWO, Recorder, agent_at, aimed, use

EVERYTHING: Json = {"allowCrossContextSend": True, "crossContext": {"allowAcrossProviders": True}}
OPEN: list[Json] = [{}, {"crossContext": {"allowWithinProvider": True}}, EVERYTHING]
"""Rules about sending, none of which lets a run read or change what others wrote."""
ELSEWHERE: list[Json] = [
    {"target": "bob"},
    {"target": "twin:bob"},
    {"channel": "twin", "target": "bob"},
    {"accountId": "second", "target": "ann"},
    {"accountId": "second"},
    {"channel": "local", "target": "main"},
    {"target": "local:main"},
]
OWN: list[Json] = [{}, {"target": "ann"}, {"target": "twin:ann"}, {"target": " ann "}, {"threadId": "t9"}]
METHODS = ["tool", "message.action", "message:"]


async def ask(here: ChannelHarness, method: str, caller: Caller, action: str, params: Json) -> str | None:
    """Why it was refused; None: it was done."""
    try:
        if method == "tool":
            result = await use(here, caller, action, **params)
        elif method == "message.action":
            result = await here.call("message.action", caller, action=action, params=params)
        else:
            name = {"read": "readMessages"}.get(action, action)
            result = await here.call(f"message:{name}", caller, **params)
    except (ToolError, RpcError) as exc:
        return str(exc)
    results = result.get("payload", result).get("results") if action == "broadcast" else None
    return None if results is None else results[0].get("error")


async def two_accounts(here: ChannelHarness) -> list[Recorder]:
    second = Recorder("second")
    here.twins["second"] = second
    await here.service.runner.apply_config()
    assert isinstance(here.twin, Recorder)
    return [here.twin, second]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("action", sorted(OWN_CONVERSATION_ACTIONS))
def test_only_the_owners_run_reads_or_changes_what_is_said_elsewhere(tmp_path: Path, action: str, method: str) -> None:
    if method == "message:" and action not in (*LEGACY_ACTIONS, "edit", "read"):
        return  # it has no such name
    params = dict(ACTIONS)[action]

    async def scenario() -> None:
        async with open_channels(tmp_path, twin=Recorder(), config=TWO) as here:
            twins = await two_accounts(here)
            other, owner = (agent_at(here.at("ann"), owner=owner) for owner in (False, True))
            for rules in OPEN:
                here.config = {**TWO, "tools": {"message": rules}}
                for where in ELSEWHERE:
                    refusal = await ask(here, method, other, action, {**params, **where})
                    assert refusal is not None, (rules, where)
                    assert "elsewhere it is for the owner" in refusal, (rules, where)
                    assert await ask(here, method, other, action, {**params, **where, "dryRun": True}) is not None
                assert [twin.done for twin in twins] == [[], []]
                for where in OWN:
                    assert await ask(here, method, other, action, {**params, **where}) is None, where
                assert await ask(here, method, owner, action, {**params, "target": "bob"}) is None
                twins[0].done.clear()

    within(scenario())


def test_sending_elsewhere_on_the_channel_stays_as_configured(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, twin=Recorder(), config=TWO) as here:
            other = agent_at(here.at("ann"), owner=False)
            sends = [(action, params) for action, params in ACTIONS if action not in OWN_CONVERSATION_ACTIONS]
            assert len(sends) == 6
            for action, params in sends:
                assert await ask(here, "tool", other, action, aimed(action, params, "bob")) is None
            here.config = {**TWO, "tools": {"message": {"crossContext": {"allowWithinProvider": False}}}}
            for action, params in sends:
                assert "denied" in str(await ask(here, "tool", other, action, aimed(action, params, "bob")))

    within(scenario())


# ---- runs that other runs started -----------------------------------------------------------------------------------

GRANDCHILD = "agent:main:subagent:7:subagent:8"
BOBS = "agent:main:twin:direct:bob"
ANN = Sender(id="ann")


def started_by(caller: Caller, session: str, *, steps: int = 1) -> Caller:
    """The run at the end of so many steps, as its options tell of it."""
    for _ in range(steps):
        grant = child_grant(caller)
        caller = Caller(kind="agent", name="run", session=session, grant=grant)
    return caller


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize(("action", "params"), ACTIONS)
def test_a_run_that_another_started_is_bound_as_that_is(tmp_path: Path, action: str, params: Json, steps: int) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, twin=Recorder(), config=TWO) as here:
            twins = await two_accounts(here)
            first = agent_at(here.at("ann"), owner=False, sender=ANN)
            child = started_by(first, GRANDCHILD, steps=steps)
            for rules in ({}, {"crossContext": {"allowWithinProvider": False}}):
                here.config = {**TWO, "tools": {"message": rules}}
                for where in ("ann", "bob", "local:main"):
                    arguments = aimed(action, params, where)
                    own, childs = [await ask(here, "tool", who, action, arguments) for who in (first, child)]
                    assert own == childs, (rules, where)
            assert {deed[1] for twin in twins for deed in twin.done} <= {"ann", "bob"}

    within(scenario())


def test_a_letter_to_another_session_is_answered_there_and_bound_to_who_wrote_it(tmp_path: Path) -> None:
    """A run sends to the conversation of its session by default, even if its initiator is in another one."""

    async def scenario() -> None:
        async with open_channels(tmp_path, twin=Recorder()) as here:
            twin = here.twin
            assert isinstance(twin, Recorder)
            assert twin.hear is not None
            await twin.hear(twin.build_message("hi", id="1", to="bob"))
            await twin.has(1)
            assert await here.service.find_address(BOBS) == here.at("bob")
            twin.done.clear()
            run = started_by(agent_at(here.at("ann"), owner=False, sender=ANN), BOBS)
            assert await ask(here, "tool", run, "send", {"message": "hello"}) is None
            assert twin.done == [("send", "bob", "hello")]
            assert "for the owner" in str(await ask(here, "tool", run, "read", {}))
            assert await ask(here, "tool", run, "read", {"target": "ann"}) is None
            here.config = {**here.config, "tools": {"message": {"crossContext": {"allowWithinProvider": False}}}}
            assert "denied" in str(await ask(here, "tool", run, "send", {"message": "hello"}))
            owners = started_by(agent_at(here.at("ann"), sender=ANN), BOBS)
            assert await ask(here, "tool", owners, "send", {"message": "mine"}) is None
            assert await ask(here, "tool", owners, "read", {}) is None

    within(scenario())


NOWHERE: list[tuple[str, Grant | None, Json, bool]] = [
    # who, its grant, the rules, whether it may send
    ("no person's run", Grant(), {}, False),
    ("a run without a grant", None, {}, False),
    ("no person's, with a channel and no conversation", Grant(channel="twin"), {}, False),
    ("no person's, where within a channel it may", Grant(), {"crossContext": {"allowWithinProvider": True}}, False),
    ("no person's, where it may cross", Grant(), {"crossContext": {"allowAcrossProviders": True}}, True),
    ("no person's, where everything may", Grant(), {"allowCrossContextSend": True}, True),
    ("no person's, by a rule not quite true", Grant(), {"allowCrossContextSend": "true"}, False),
    ("the owner's", Grant(owner=True), {}, True),
    ("a job's that an operator made", Grant(sends_anywhere=True), {}, True),
    ("a job's, to the target of its result", Grant(delivers_to=("twin", "default", "bob")), {}, True),
    ("a job's, to others of that channel", Grant(delivers_to=("twin", "default", "ann")), {}, True),
    ("a job's, to another channel", Grant(delivers_to=("local", "default", "main")), {}, False),
]


@pytest.mark.parametrize(("who", "grant", "rules", "may"), NOWHERE, ids=[row[0] for row in NOWHERE])
def test_a_run_in_no_conversation_sends_only_where_it_was_said(
    tmp_path: Path, who: str, grant: Grant | None, rules: Json, may: bool
) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, twin=Recorder()) as here:
            here.config = {**here.config, "tools": {"message": rules}}
            caller = Caller(kind="agent", name="run", session="agent:main:cron:1", grant=grant)
            params = {"channel": "twin", "target": "bob"}
            refusal = await ask(here, "tool", caller, "send", {**params, "message": "x"})
            assert (refusal is None) is may, refusal
            at_home = grant is not None and (grant.owner or grant.delivers_to == ("twin", "default", "bob"))
            assert (await ask(here, "tool", caller, "read", params) is None) is at_home

    within(scenario())


def test_an_operators_single_call_is_bound_to_no_conversation(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, twin=Recorder()) as here:
            caller = Caller(kind="operator", name="writer", grant=Grant())
            assert await ask(here, "tool", caller, "send", {"channel": "twin", "target": "bob", "message": "x"}) is None

    within(scenario())
