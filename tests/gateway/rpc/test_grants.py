"""Run grants: whom a token stands for, how long, and what it opens. The rules decide alike at both ends."""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_mcp.cli.remoteclaw import select_tools as registered
from openclaw_mcp.core.claw_methods import (
    GRANT_PREFIX,
    MESSAGE_ACTIONS,
    METHODS_BY_TOOL,
    TOOLS_BY_METHOD,
    GrantedCall,
    tools_for_request,
)
from openclaw_mcp.core.errors import ToolBusy
from openclaw_mcp.core.model import Caller, Grant, Json, PolicyDecision, ToolSpec
from openclaw_mcp.core.rpc import ADMIN, READ, WRITE, RpcCall, RpcError, RpcEvent, RpcMethod
from openclaw_mcp.gateway.rpc import grants
from openclaw_mcp.gateway.rpc.grants import RunGrants
from openclaw_mcp.net.gateway_client.client import CannotConnect, ConnectionGone, GatewayClient
from openclaw_mcp.net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials
from openclaw_mcp.net.gateway_client.identity import DeviceIdentity
from openclaw_mcp.tools.audit import AuditRecord
from openclaw_mcp.tools.config_policy import ConfigPolicy
from openclaw_mcp.tools.policy_rules import from_config
from openclaw_mcp.tools.tool_names import CLAW_TOOLS

from .gateways import BACKEND, CONNECT, EVERY, NODE, TOKEN, Running, running, within

HOME = Grant(agent="main", channel="local", account="default", to="room-1", thread="t7", owner=True)
COMMAND_LINE = ClientInfo(id="cli", version="1", platform="linux", mode="cli")
RUN = Caller(kind="agent", name="run 1", session="agent:main:local:direct:ada", grant=HOME)


class EchoMethods:
    """A room with a method behind each tool, which says how it was called."""

    def methods(self) -> Sequence[RpcMethod]:
        reads = {"sessions.list", "chat.history", "sessions.describe", "agents.list", "config.get", "sessions.resolve"}
        admin = {"config.patch", "config.apply", "cron.add", "gateway.restart.request"}
        others = {"sessions.delete", "chat.inject"}
        return tuple(
            RpcMethod(name, READ if name in reads else ADMIN if name in admin else WRITE, self._echo)
            for name in sorted(TOOLS_BY_METHOD.keys() | others)
        )

    async def _echo(self, call: RpcCall) -> Any:
        caller = call.caller
        return {"params": call.params, "caller": caller.name, "kind": caller.kind, "scopes": sorted(caller.scopes)}


def allow_all(caller: Caller, tool: str) -> PolicyDecision:
    return PolicyDecision(True, "no rule refuses it", "default")


def under(server: Running, token: str, **more: Any) -> GatewayClient:
    profile = ClientProfile(client=more.pop("who", BACKEND), scopes=EVERY, role=more.pop("role", "operator"))
    return GatewayClient(server.url, profile, credentials=Credentials(token=token), redial=False, **more)


# ---- the office ------------------------------------------------------------------------------------------------------


def test_a_token_stands_for_its_caller_until_it_is_revoked() -> None:
    issuer = RunGrants()
    token, other = issuer.issue(RUN, seconds=60), issuer.issue(RUN, seconds=60)

    assert token != other
    assert len(token) > 40
    assert issuer.find_caller(token) == RUN
    issuer.revoke(token)
    assert issuer.find_caller(token) is None
    assert issuer.find_caller(other) == RUN
    issuer.revoke(token)
    issuer.revoke("something else")


def test_a_token_ends_with_its_time() -> None:
    now = [100.0]
    issuer = RunGrants(clock=lambda: now[0])
    token = issuer.issue(RUN, seconds=10)

    now[0] = 109.9
    assert issuer.find_caller(token) == RUN
    now[0] = 110.0
    assert issuer.find_caller(token) is None


def test_no_grant_outlasts_a_day_and_the_office_does_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(grants, "MAX_GRANTS", 2)
    issuer = RunGrants(clock=lambda: now[0])
    token = issuer.issue(RUN, seconds=10**9)
    issuer.issue(RUN, seconds=5)
    with pytest.raises(ToolBusy):
        issuer.issue(RUN, seconds=5)

    now[0] = 6.0
    issuer.issue(RUN, seconds=5)
    now[0] = grants.MAX_GRANT_SECONDS + 1
    assert issuer.find_caller(token) is None


def test_the_office_keeps_no_token(tmp_path: Path) -> None:
    issuer = RunGrants()
    token = issuer.issue(RUN, seconds=60)

    assert token not in repr(vars(issuer))


# ---- what it opens ---------------------------------------------------------------------------------------------------


def test_a_connection_under_a_grant_is_the_runs_agent(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, modules=[EchoMethods()]) as server:
            server.gateway.grants.decide = allow_all
            token = server.gateway.grants.issue(RUN, seconds=60)
            async with under(server, token) as client:
                assert client.hello is not None
                assert client.hello["auth"]["scopes"] == sorted((READ, WRITE))
                assert client.hello["features"]["tools"] == list(METHODS_BY_TOOL)
                assert client.hello["snapshot"]["presence"] == []
                assert client.hello["snapshot"]["health"] == {"ok": True}
                answer = await client.call("sessions.list")
                assert (answer["caller"], answer["kind"]) == ("run 1", "agent")
                assert answer["scopes"] == sorted((READ, WRITE))

    within(work())


def test_admin_is_lent_for_the_one_method_that_needs_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, modules=[EchoMethods()]) as server:
            server.gateway.grants.decide = allow_all
            async with under(server, server.gateway.grants.issue(RUN, seconds=60)) as client:
                assert ADMIN in (await client.call("config.patch", {"raw": "{}"}))["scopes"]
                assert ADMIN not in (await client.call("agent", {"message": "/reset"}))["scopes"]

    within(work())


@pytest.mark.parametrize(
    "method", ["health", "status", "system.info", "device.pair.list", "chat.inject", "sessions.delete"]
)
def test_what_is_behind_no_tool_is_closed(tmp_path: Path, method: str) -> None:
    async def work() -> None:
        async with running(tmp_path, modules=[EchoMethods()]) as server:
            server.gateway.grants.decide = allow_all
            async with under(server, server.gateway.grants.issue(RUN, seconds=60)) as client:
                with pytest.raises(RpcError, match="behind no tool") as caught:
                    await client.call(method)
                assert caught.value.kind == "FORBIDDEN"

    within(work())


@pytest.mark.parametrize(("tool", "method"), [(None, "sessions.list"), ("sessions_list", "sessions.list")])
def test_the_rules_are_asked_once_for_a_call_that_is_checked_and_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str | None, method: str
) -> None:
    records: list[AuditRecord] = []
    checks: list[str] = []
    decide = ConfigPolicy.__call__

    def counting(self: ConfigPolicy, caller: Caller, source: str, spec: ToolSpec) -> PolicyDecision:
        checks.append(spec.name)
        return decide(self, caller, source, spec)

    async def work() -> None:
        async with running(tmp_path, modules=[EchoMethods()], audit=records.append) as server:
            server.gateway.apply_rules(from_config({"tools": {"deny": [tool] if tool else []}}))
            async with under(server, server.gateway.grants.issue(RUN, seconds=60)) as client:
                monkeypatch.setattr(ConfigPolicy, "__call__", counting)
                with nullcontext() if tool is None else pytest.raises(RpcError):
                    await client.call(method, {})

    within(work())

    assert checks == ["sessions_list"]
    assert [(record.tool, record.outcome) for record in records] == [("sessions_list", "tool_denied" if tool else "ok")]


def test_a_refused_tool_is_refused_with_the_rules_own_words(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, modules=[EchoMethods()]) as server:
            rules = ConfigPolicy(from_config({"tools": {"deny": ["message_delete", "sessions_list"]}}))
            server.gateway.grants.decide = rules.decide_own_tool
            async with under(server, server.gateway.grants.issue(RUN, seconds=60)) as client:
                assert client.hello is not None
                assert set(METHODS_BY_TOOL) - set(client.hello["features"]["tools"]) == {
                    "message_delete",
                    "sessions_list",
                }
                with pytest.raises(RpcError, match="sessions_list is refused by tools"):
                    await client.call("sessions.list")
                with pytest.raises(RpcError, match="message_delete is refused by tools"):
                    await client.call("message.action", {"action": "delete", "params": {}})
                await client.call("message.action", {"action": "send", "params": {"message": "x"}})
                with pytest.raises(RpcError, match="behind no tool"):
                    await client.call("message.action", {"action": "renameGroup", "params": {}})

    within(work())


def test_the_run_speaks_for_its_own_session_and_in_its_own_conversation(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, modules=[EchoMethods()]) as server:
            server.gateway.grants.decide = allow_all
            async with under(server, server.gateway.grants.issue(RUN, seconds=60)) as client:

                async def received(method: str, params: Json) -> Any:
                    return (await client.call(method, params))["params"]

                spawned = await received("sessions.spawn", {"task": "x", "sessionKey": "agent:main:main"})
                assert spawned["sessionKey"] == RUN.session
                answer = await received(
                    "message.action", {"action": "reply", "params": {"message": "hi"}, "agentId": "x"}
                )
                assert answer == {
                    "action": "reply",
                    "params": {"message": "hi", "to": "room-1", "threadId": "t7"},
                    "sessionKey": RUN.session,
                    "channel": "local",
                    "accountId": "default",
                }
                away = await received("message.action", {"channel": "matrix", "action": "send", "params": {"to": "!a"}})
                assert (away["channel"], away["params"], away.get("accountId")) == ("matrix", {"to": "!a"}, None)
                near = await received("message:send", {"message": "hi"})
                assert (near["to"], near["threadId"], near["channel"]) == ("room-1", "t7", "local")

    within(work())


def test_it_hears_nothing_of_what_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, modules=[EchoMethods()]) as server:
            server.gateway.grants.decide = allow_all
            received: list[str] = []
            async with under(server, server.gateway.grants.issue(RUN, seconds=60)) as client:
                client.events.connect(lambda news: received.append(news.event))
                server.gateway.publish(RpcEvent(name="chat", payload={"secret": 1}))
                server.gateway.publish(RpcEvent(name="health", payload={"sessions": ["somebody"]}, scope=None))
                server.gateway.publish(RpcEvent(name="tick", payload={}, scope=None))
                await client.call("agents.list")
            assert received == ["tick"]

    within(work())


def test_revoking_closes_what_it_opened_and_nothing_else(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, modules=[EchoMethods()]) as server:
            issuer = server.gateway.grants
            issuer.decide = allow_all
            token, other = issuer.issue(RUN, seconds=60), issuer.issue(RUN, seconds=60)
            async with under(server, token) as gone, under(server, other) as stays:
                await gone.call("agents.list")
                issuer.revoke(token)
                with pytest.raises(ConnectionGone):
                    while True:
                        await gone.call("agents.list")
                await stays.call("agents.list")
            for _ in range(20):
                with pytest.raises(CannotConnect, match="this run's token has ended") as caught:
                    async with under(server, token):
                        pass
                assert caught.value.permanent
            async with server.client() as operator:  # wrong guesses of a dead run lock no operator out
                await operator.call("health")

    within(work())


def test_its_time_closes_what_it_opened(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, modules=[EchoMethods()]) as server:
            server.gateway.grants.decide = allow_all
            async with under(server, server.gateway.grants.issue(RUN, seconds=0.3)) as client:
                with pytest.raises(ConnectionGone):
                    while True:
                        await client.call("agents.list")
                        await asyncio.sleep(0.02)

    within(work())


def test_it_is_for_programs_of_this_machine_only(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, modules=[EchoMethods()], trusted_proxies=["127.0.0.1"]) as server:
            server.gateway.grants.decide = allow_all
            token = server.gateway.grants.issue(RUN, seconds=60)
            node = under(server, token, who=NODE, role="node", signer=DeviceIdentity(b"\7" * 32))
            for client in (
                node,
                under(server, token, who=COMMAND_LINE),
            ):
                with pytest.raises(CannotConnect, match="for its own programs"):
                    async with client:
                        pass
            async with server.stranger(**{"X-Forwarded-For": "192.0.2.1"}) as peer:
                await peer.event("connect.challenge")
                who = {"id": "gateway-client", "version": "0", "platform": "linux", "mode": "backend"}
                params = {"minProtocol": 4, "maxProtocol": 4, "client": who, "auth": {"token": token}}
                assert (await peer.ask("connect", params))["error"]["details"]["code"] == "AUTH_GRANT_MISUSED"

    within(work())


def test_a_client_behind_a_trusted_proxy_is_not_of_this_machine(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            running(tmp_path, trusted_proxies=["127.0.0.0/8"]) as server,
            server.stranger(**{"X-Forwarded-For": "127.0.0.1, 192.0.2.1"}) as peer,
        ):
            await peer.event("connect.challenge")
            answer = await peer.ask("connect", CONNECT)
            assert answer["payload"]["auth"]["scopes"] == []

    within(work())


def test_the_shared_token_is_no_grant_whatever_it_looks_like() -> None:
    assert RunGrants().find_caller(TOKEN) is None
    assert RunGrants().find_caller(GRANT_PREFIX + "guess") is None


def test_every_tool_has_a_way_and_every_action_its_tool() -> None:
    assert set(METHODS_BY_TOOL) == set(CLAW_TOOLS)
    assert len(METHODS_BY_TOOL) == 29
    for tool, action in MESSAGE_ACTIONS.items():
        assert tools_for_request("message.action", {"action": action}) == {tool}
    assert tools_for_request("message.action", {"action": ["send"]}) == frozenset()


# ---- what it makes of a request --------------------------------------------------------------------------------------

SESSION = RUN.session
SPOKEN = [
    ("chat.history", HOME, {"sessionKey": "other"}, {"sessionKey": "other"}),
    ("sessions.spawn", HOME, {"agentId": "x"}, {"agentId": "x", "sessionKey": SESSION}),
    ("sessions.subagents", HOME, {"sessionKey": "other"}, {"sessionKey": SESSION}),
    ("send", None, {"agentId": "x"}, {"agentId": "x", "sessionKey": SESSION}),
    (
        "send",
        HOME,
        {"agentId": "x", "message": "hi"},
        {"message": "hi", "channel": "local", "accountId": "default", "to": "room-1", "threadId": "t7"},
    ),
    ("send", HOME, {"channel": "matrix"}, {"channel": "matrix"}),
    ("send", HOME, {"channel": "local"}, {"channel": "local", "to": "room-1", "threadId": "t7"}),
    ("send", HOME, {"channel": "local", "to": "else"}, {"channel": "local", "to": "else"}),
    ("send", HOME, {"channel": "local", "target": "else"}, {"channel": "local", "target": "else"}),
    ("send", HOME, {"channel": "local", "targets": ["a"]}, {"channel": "local", "targets": ["a"]}),
    ("send", HOME, {"channel": "local", "channelId": "c"}, {"channel": "local", "channelId": "c"}),
    ("send", HOME, {"channel": "local", "threadId": "t1"}, {"channel": "local", "to": "room-1", "threadId": "t1"}),
    ("send", HOME, {"channel": "local", "to": ""}, {"channel": "local", "to": "room-1", "threadId": "t7"}),
    ("send", Grant(channel="local", to="room-1"), {}, {"channel": "local", "to": "room-1"}),
    (
        "send",
        Grant(channel="local", to="room-1"),
        {"threadId": "t1"},
        {"channel": "local", "to": "room-1", "threadId": "t1"},
    ),
    ("send", Grant(channel="local"), {}, {"channel": "local"}),
    ("send", Grant(channel="local", to="room-1", handed_on=True), {}, {"channel": "local"}),
    ("send", Grant(), {}, {}),
    (
        "message.action",
        HOME,
        {"action": "send", "params": {"message": "hi"}, "channel": "local"},
        {"action": "send", "params": {"message": "hi", "to": "room-1", "threadId": "t7"}, "channel": "local"},
    ),
    (
        "message.action",
        HOME,
        {"action": "send", "params": {"to": "else"}, "to": "outer", "channel": "local"},
        {"action": "send", "params": {"to": "else"}, "to": "outer", "channel": "local"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("method", "grant", "params", "expected"), SPOKEN)
def test_a_request_is_for_its_own_session_and_at_home_where_it_names_no_place(
    method: str, grant: Grant | None, params: Json, expected: Json
) -> None:
    caller = Caller(kind="agent", name="run", session=SESSION, grant=grant)
    before = repr(params)

    restricted = RunGrants(decide=allow_all).restrict_call(
        RpcMethod(method, WRITE, None),  # type: ignore[arg-type]
        _request(caller, method, params),
    )

    expected = expected if method == "chat.history" else {**expected, "sessionKey": SESSION}
    assert restricted.params == expected
    assert repr(params) == before


def _request(caller: Caller, method: str, params: Json) -> RpcCall:
    return RpcCall(method=method, params=params, caller=caller, peer=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("scope", [None, READ, ADMIN])
def test_just_the_scope_a_method_needs_is_lent(scope: str | None) -> None:
    caller = grants.grant_caller(Caller(kind="operator", name="run", scopes=frozenset({ADMIN})))
    assert (caller.kind, caller.entry_point, caller.grant) == ("agent", "mcp", Grant())
    assert caller.scopes == {READ, WRITE}

    restricted = RunGrants(decide=allow_all).restrict_call(
        RpcMethod("send", scope, None),  # type: ignore[arg-type]
        _request(caller, "send", {}),
    )

    assert restricted.caller.scopes == {READ, WRITE} | ({scope} if scope else set())


def test_a_run_that_is_over_begins_nothing_more() -> None:
    issuer = RunGrants()
    token = issuer.issue(RUN, seconds=60)
    held = issuer.find(token)
    assert held is not None
    issuer.track_effects(held.id, _request(RUN, "send", {}))
    issuer.revoke(token)

    with pytest.raises(RpcError, match="this run's token has ended") as caught:
        issuer.track_effects(held.id, _request(RUN, "send", {}))

    assert (caught.value.kind, caught.value.details) == ("FORBIDDEN", {"code": "AUTH_GRANT_ENDED"})


@pytest.mark.parametrize(
    ("method", "refused", "outcome", "recorded"),
    [
        ("chat.history", (), "ok", "sessions_history"),
        ("chat.history", ("sessions_history",), "FORBIDDEN", "sessions_history"),
        ("agent", (), "ok", "sessions_send"),
        ("agent.wait", (), "ok", None),
        ("agent.wait", ("sessions_send",), "FORBIDDEN", "sessions_send"),
        ("config.get", (), "ok", "gateway_config_get"),
        ("config.get", ("gateway_config_get",), "ok", "gateway_config_apply"),
        ("config.get", ("gateway_config_get", "gateway_config_apply"), "ok", "gateway_config_patch"),
        ("config.get", tuple(METHODS_BY_TOOL), "FORBIDDEN", "gateway_config_get"),
        ("health", (), "ok", None),
        ("health", (), "FORBIDDEN", "health"),
    ],
)
def test_each_use_of_a_tool_goes_on_record_once(
    method: str, refused: Sequence[str], outcome: str, recorded: str | None
) -> None:
    records: list[tuple[str, str, float]] = []

    def record(call: GrantedCall, how: str, seconds: float) -> None:
        records.append((call.tool, how, seconds))

    issuer = RunGrants(decide=lambda _, tool: PolicyDecision(tool not in refused, "rule"), record_use=record)
    issuer.record_call(issuer.evaluate(RUN, method, {}), outcome=outcome, seconds=1.5)

    assert records == ([] if recorded is None else [(recorded, outcome, 1.5)])


def test_the_refusal_of_the_tool_that_is_just_this_method_is_the_one_reported() -> None:
    issuer = RunGrants(decide=lambda _, tool: PolicyDecision(False, f"{tool} is closed"))

    with pytest.raises(RpcError, match="gateway_config_get is closed") as caught:
        issuer.check_call(issuer.evaluate(RUN, "config.get", {}))

    assert caught.value.details == {"code": "TOOL_DENIED", "method": "config.get"}
    assert RunGrants().decide(RUN, "send").reason == "send is refused: no rules were given"


def test_4096_grants_at_once_each_for_a_day_at_the_most() -> None:
    now = [0.0]
    issuer = RunGrants(clock=lambda: now[0])
    ended: list[str] = []
    issuer.ended.connect(ended.append)
    tokens = [issuer.issue(RUN, seconds=10**9) for _ in range(4096)]
    with pytest.raises(ToolBusy, match="there are 4096 grants already"):
        issuer.issue(RUN, seconds=1)
    now[0] = 86_399.0
    assert issuer.find_caller(tokens[0]) == RUN
    now[0] = 86_400.0
    assert issuer.find_caller(tokens[0]) is None
    assert len(ended) == 1
    issuer.issue(RUN, seconds=1)  # the others have ended, too
    assert len(ended) == 4096
    issuer.close()
    assert len(set(ended)) == len(ended) == 4097
    assert issuer.find_caller("") is None


def test_a_grant_that_ends_early_leaves_no_timer_and_one_that_does_not_ends_by_itself() -> None:
    async def work() -> None:
        issuer = RunGrants()
        ended: list[str] = []
        done = asyncio.Event()
        issuer.ended.connect(ended.append)
        issuer.ended.connect(lambda _: done.set())
        first = issuer.issue(RUN, seconds=0.05)
        held = issuer.find(first)
        assert held is not None
        assert await issuer.settle(first) == await issuer.settle("unknown")
        assert ended == [held.id]
        done.clear()
        second = issuer.find(issuer.issue(RUN, seconds=0.06))
        assert second is not None
        await done.wait()  # the first one's time has passed by now
        assert ended == [held.id, second.id]

    within(work())


# ---- the rules decide alike at both ends -----------------------------------------------------------------------------

words = st.sampled_from([
    *CLAW_TOOLS, "message", "cron", "gateway", "group:sessions", "group:messaging", "group:automation",
    "group:openclaw", "*", "message_*", "sessions_*", "*_list", "nothing_of_ours",
])  # fmt: skip
lists = st.fixed_dictionaries({}, optional={"allow": st.lists(words, max_size=4), "deny": st.lists(words, max_size=3)})
profiles = st.sampled_from(["minimal", "coding", "messaging", "full"])
configs = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.builds(lambda more, profile: {**more, "profile": profile}, lists, profiles) | lists,
        "agents": st.builds(lambda tools: {"list": [{"id": "main", "tools": tools}]}, lists),
        "channels": st.builds(lambda tools: {"local": {"groups": {"g1": {"tools": tools}}}}, lists),
    },
)
runs = st.builds(
    lambda owner, depth, group, menu: Caller(
        kind="agent",
        name="run",
        session="agent:main:local:group:g1" if group else "agent:main:main",
        grant=Grant(agent="main", channel="local", owner=owner, depth=depth, tools=menu),
    ),
    st.booleans(),
    st.integers(0, 2),
    st.booleans(),
    st.none() | st.frozensets(st.sampled_from(CLAW_TOOLS), max_size=6),
)


@given(configs, runs)
def test_what_is_registered_is_what_the_gateway_permits(config: Json, run: Caller) -> None:
    issuer = RunGrants(decide=ConfigPolicy(from_config(config)).decide_own_tool)
    caller = grants.grant_caller(run)
    variables = {"REMOTECLAW_TOOLS": ",".join(issuer.list_tools(run)), "REMOTECLAW_SENDER_IS_OWNER": "true"}
    listed = set(registered(variables))

    for method in (*TOOLS_BY_METHOD, "message.action"):
        for action in MESSAGE_ACTIONS.values() if method == "message.action" else ("",):
            call = RpcCall(method=method, params={"action": action}, caller=caller, peer=None)  # type: ignore[arg-type]
            served = tools_for_request(method, call.params)
            permitted = True
            try:
                issuer.check_call(issuer.evaluate(caller, method, call.params))
            except RpcError:
                permitted = False
            assert permitted == bool(served & listed), (method, action, served & listed)


@given(profiles, st.booleans())
def test_profile_and_owner_flag_leave_what_the_rules_leave(profile: str, owner: bool) -> None:
    rules = ConfigPolicy(from_config({"tools": {"profile": profile}}))
    run = Caller(kind="agent", name="run", grant=Grant(owner=owner))
    variables = {"REMOTECLAW_TOOL_PROFILE": profile, "REMOTECLAW_SENDER_IS_OWNER": str(owner).lower()}

    assert set(registered(variables)) == {tool for tool in CLAW_TOOLS if rules.refusal_reason(run, tool) is None}
