"""The tool policy at the dispatcher: who is the owner, how rules and scopes combine, what is reported and recorded."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from openclaw_mcp.cli.policy import parse_rules
from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.core.model import LOCAL_CALLER, Caller, Grant, Json, Sender, ToolCall, ToolSpec
from openclaw_mcp.core.owner import is_owner
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.core.session_target import child_grant
from openclaw_mcp.mcp.server.server import McpServer, McpServerInfo
from openclaw_mcp.tools.audit import AuditRecord, digest_arguments
from openclaw_mcp.tools.config_policy import KEPT_CALLERS, ConfigPolicy
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.policy import combine_policies, scope_policy
from openclaw_mcp.tools.policy_rules import PolicyRules, from_config
from openclaw_mcp.tools.registry import ToolRegistry
from openclaw_mcp.tools.tool_names import CLAW_TOOLS
from tests.conversation import Conversation, Tools
from tests.tools.test_policy_cases import answer


def make_dispatcher(config: Json, *tools: str, **options: Any) -> tuple[ToolDispatcher, ConfigPolicy]:
    rules = ConfigPolicy(from_config(config))
    source = Tools(**dict.fromkeys(tools, answer))
    return ToolDispatcher(
        ToolRegistry({"claw": source}), policy=combine_policies(scope_policy, rules), **options
    ), rules


def names(dispatcher: ToolDispatcher, caller: Caller) -> list[str]:
    return [spec.name for spec in asyncio.run(dispatcher.list(caller))]


def call(dispatcher: ToolDispatcher, tool: str, caller: Caller, arguments: Json | None = None) -> None:
    asyncio.run(dispatcher.call(ToolCall(caller=caller, name=tool, arguments=arguments or {}, context=NULL_CONTEXT)))


def run(session: str | None = None, **grant: Any) -> Caller:
    return Caller(kind="agent", name="run-1", scopes=frozenset({"*"}), session=session, grant=Grant(**grant))


# ---- scopes and rules ----


def test_callers_alike_share_a_menu_and_others_never_do() -> None:
    groups = {"*": {"toolsBySender": {"id:eve": {"deny": ["*"]}}}, "g2": {"tools": {"deny": ["exec"]}}}
    config: Json = {
        "tools": {"byProvider": {"tiny": {"deny": ["write"]}}, "deny": ["cron"]},
        "agents": {"list": [{"id": "main"}, {"id": "other", "tools": {"allow": ["read"]}}]},
        "channels": {"chat": {"groupPolicy": "open", "groups": groups}},
    }
    plain, rules = make_dispatcher(config, "exec", "read", "write", "cron", "sessions_spawn")
    shared, _ = make_dispatcher(config, "exec", "read", "write", "cron", "sessions_spawn", cache_key=rules.cache_key)
    callers = [
        Caller(kind="agent", name=agent, scopes=frozenset(scopes), session=f"agent:{agent}:{key}", grant=Grant(**grant))
        for agent in ("main", "other")
        for scopes in ({"*"}, {"tool:read"})
        for key in ("one", "two", "chat:group:g1", "chat:group:g2", "subagent:x", "chat:direct:eve")
        for grant in (
            {},
            {"owner": True},
            {"models": ("tiny/m",)},
            {"sender": Sender(id="eve")},
            {"depth": 1},
            {"tools": frozenset({"exec"})},
        )
    ]

    assert [names(shared, caller) for caller in callers] == [names(plain, caller) for caller in callers]
    menus = [asyncio.run(shared.list(run(f"agent:main:{key}", owner=True))) for key in ("one", "two")]
    assert menus[0] is menus[1]
    assert names(shared, run("agent:main:chat:group:g2", owner=True)) != [spec.name for spec in menus[0]]


def test_rules_leave_only_what_scopes_open_and_scopes_only_what_rules_leave() -> None:
    dispatcher, _ = make_dispatcher({"tools": {"deny": ["exec"]}}, "exec", "read", "write")
    reader = Caller(kind="agent", name="r", scopes=frozenset({"tool:read", "tool:exec"}), grant=Grant(owner=True))

    assert names(dispatcher, reader) == ["read"]
    with pytest.raises(ToolDenied, match=r"exec is refused by tools\.deny, which names exec"):
        call(dispatcher, "exec", reader)
    with pytest.raises(ToolDenied, match="agent 'r' may not use 'write'"):
        call(dispatcher, "write", reader)


def test_no_policy_at_all_allows_nothing() -> None:
    assert not combine_policies()(LOCAL_CALLER, "claw", ToolSpec(name="read")).allowed


def test_new_rules_hold_from_the_moment_they_are_adopted() -> None:
    dispatcher, rules = make_dispatcher({}, "exec", "read")
    assert names(dispatcher, LOCAL_CALLER) == ["exec", "read"]

    rules.replace_rules(from_config({"tools": {"deny": ["exec"]}}))
    dispatcher.refresh()

    assert names(dispatcher, LOCAL_CALLER) == ["read"]
    with pytest.raises(ToolDenied):
        call(dispatcher, "exec", LOCAL_CALLER)


def test_more_callers_than_are_remembered_are_still_distinguished() -> None:
    _, rules = make_dispatcher({"agents": {"list": [{"id": "a1", "tools": {"deny": ["exec"]}}]}})
    spec = ToolSpec(name="exec")

    allowed = [rules(run(agent=f"a{n}"), "claw", spec).allowed for n in range(KEPT_CALLERS + 10)]

    assert allowed.count(False) == 1
    assert len(rules._compiled) <= KEPT_CALLERS
    assert not rules(run(agent="a1"), "claw", spec).allowed


# ---- who is the owner ----


@pytest.mark.parametrize(
    ("caller", "owner"),
    [
        (LOCAL_CALLER, True),
        (Caller(kind="operator", name="o", scopes=frozenset({"*", "operator.admin"})), True),
        (Caller(kind="operator", name="o", scopes=frozenset({"tool:cron_add", "operator.write"})), False),
        (Caller(kind="agent", name="a", scopes=frozenset({"*", "operator.admin"})), False),
        (Caller(kind="node", name="n", scopes=frozenset({"*"})), False),
        (Caller(kind="app", name="p", scopes=frozenset({"*"})), False),
        (run(owner=True), True),
        (run(), False),
        (Caller(kind="local", name="l", scopes=frozenset({"*"}), grant=Grant()), False),
    ],
)
def test_the_owner_is_known_by_the_credential(caller: Caller, owner: bool) -> None:
    dispatcher, _ = make_dispatcher({}, "cron_add")

    assert names(dispatcher, caller) == (["cron_add"] if owner else [])


@pytest.mark.parametrize(
    ("config", "sender", "owner"),
    [
        ({"commands": {"ownerAllowFrom": ["telegram:7"]}}, Sender(id="7"), True),
        ({"commands": {"ownerAllowFrom": ["7"]}}, Sender(id="7"), True),
        ({"commands": {"ownerAllowFrom": [7]}}, Sender(id="7"), True),
        ({"commands": {"ownerAllowFrom": ["discord:7"]}}, Sender(id="7"), False),
        ({"commands": {"ownerAllowFrom": ["*"]}}, Sender(id="7"), False),
        ({"commands": {"ownerAllowFrom": ["ann"]}}, Sender(id="7", name="ann", username="ann"), False),
        ({"commands": {"ownerAllowFrom": []}, "channels": {"telegram": {"allowFrom": ["7"]}}}, Sender(id="7"), False),
        ({"channels": {"telegram": {"allowFrom": ["7"]}}}, Sender(id="7"), False),
        ({"commands": {"ownerAllowFrom": ["+15550001"]}}, Sender(e164="+15550001"), True),
        ({}, Sender(id="7"), False),
        ({"commands": {"ownerAllowFrom": ["7"]}}, None, False),
        ({"commands": {"ownerAllowFrom": [""]}}, Sender(id=""), False),
    ],
)
def test_a_sender_is_the_owner_when_the_rules_name_them(config: Json, sender: Sender | None, owner: bool) -> None:
    owners = from_config(config).commands.owner_allow_from
    assert is_owner(sender, owners, channel="telegram") == owner


def test_a_tool_may_say_of_itself_that_it_is_the_owners() -> None:
    tools = Tools()
    tools.add(ToolSpec(name="self_destruct", owner_only=True), answer)
    dispatcher = ToolDispatcher(
        ToolRegistry({"mcp/x": tools}), policy=combine_policies(scope_policy, ConfigPolicy(PolicyRules()))
    )

    assert names(dispatcher, run(owner=True)) == ["self_destruct"]
    assert names(dispatcher, run()) == []


# ---- reading ----


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"tools": {"deny": [1]}}', b"[" * 100_000])
def test_a_rule_book_that_cant_be_read_refuses_everything_and_says_so(data: bytes) -> None:
    decision = ConfigPolicy(parse_rules(data))(LOCAL_CALLER, "claw", ToolSpec(name="session_status"))

    assert (decision.allowed, decision.step) == (False, "rule book")
    assert decision.reason.startswith("session_status is refused: the rule book can't be read")
    assert "\n" not in decision.reason


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"tools": {"profile": "codnig"}}, "the profiles are minimal, coding, messaging, full"),
        ({"tools": {"deny": ["group:shell"]}}, "there is no 'group:shell'; the groups are group:agents"),
        ({"tools": {"allow": ["a"], "alsoAllow": ["b"]}}, "tools has both allow and alsoAllow"),
        ({"tools": {"deny": "exec"}}, r"\$\.tools\.deny"),
    ],
)
def test_a_refusal_for_bad_rules_says_what_to_change(config: Json, says: str) -> None:
    dispatcher, _ = make_dispatcher(config, "read")

    with pytest.raises(ToolDenied, match=says):
        call(dispatcher, "read", LOCAL_CALLER)


def test_doubtful_rules_are_noted_but_hold() -> None:
    config = {"tools": {"allow": ["lobster", "exec"], "toolsBySender": {"7": {}, "id:8": {}}}}
    caller = run("agent:main:telegram:direct:7", sender=Sender(id="7"))

    explanation = ConfigPolicy(from_config(config)).explain(caller, "claw", ToolSpec(name="exec"))

    notes = {verdict.step: verdict.notes for verdict in explanation.steps if verdict.notes}
    assert notes.keys() == {"global", "sender"}
    assert "'lobster' is no tool of the gateway itself" in notes["global"][0]
    assert notes["sender"] == ("tools.toolsBySender: '7' is read as an id; write id:7",)
    assert explanation.decision.allowed


# ---- over MCP ----


def test_an_mcp_client_sees_and_reaches_what_its_grant_leaves() -> None:
    dispatcher, _ = make_dispatcher({"tools": {"profile": "messaging"}}, *CLAW_TOOLS)
    caller = run("agent:main:subagent:u1", tools=frozenset({"message_send", "sessions_list", "cron_add"}))

    async def talk() -> tuple[Any, Any, Any]:
        client = Conversation(McpServer(McpServerInfo(name="test", version="1"), dispatcher), caller=caller)
        return await client.ask("tools/list"), await client.call("message_send"), await client.call("sessions_list")

    listed, sent, refused = asyncio.run(talk())

    assert [tool["name"] for tool in listed["tools"]] == ["message_send"]
    assert not sent.get("isError")
    assert refused["isError"]
    assert "a sub-agent that may not spawn is denied sessions_list" in refused["content"][0]["text"]


# ---- the book ----


def test_the_audit_names_caller_entry_point_and_deciding_step() -> None:
    records: list[AuditRecord] = []
    dispatcher, _ = make_dispatcher({"tools": {"deny": ["exec"]}}, "exec", "read", audit=records.append)
    caller = Caller(
        kind="operator", name="phone", scopes=frozenset({"*"}), session="agent:main:main", entry_point="rpc"
    )

    call(dispatcher, "read", caller)
    with pytest.raises(ToolDenied):
        call(dispatcher, "exec", caller)

    assert [(r.caller, r.entry_point, r.session, r.tool, r.step, r.outcome) for r in records] == [
        ("operator phone", "rpc", "agent:main:main", "read", "default", "ok"),
        ("operator phone", "rpc", "agent:main:main", "exec", "global", "tool_denied"),
    ]
    assert records[1].rule == "exec is refused by tools.deny, which names exec"


def test_the_same_arguments_have_the_same_digest_and_others_another() -> None:
    records: list[AuditRecord] = []
    dispatcher, _ = make_dispatcher({}, "read", audit=records.append, digest_key=b"one key")
    other, _ = make_dispatcher({}, "read", audit=records.append, digest_key=b"another key")

    for arguments in ({"a": 1, "b": "x"}, {"b": "x", "a": 1}, {"a": 2, "b": "x"}):
        call(dispatcher, "read", LOCAL_CALLER, arguments)
    call(other, "read", LOCAL_CALLER, {"a": 1, "b": "x"})

    digests = [record.digest for record in records]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3, "another dispatcher has another key, so digests can't be looked up"


def test_a_dispatcher_without_a_key_writes_no_digest_that_could_be_looked_up() -> None:
    records: list[AuditRecord] = []
    dispatcher, _ = make_dispatcher({}, "read", audit=records.append)

    call(dispatcher, "read", LOCAL_CALLER, {"pin": "1234"})

    assert [record.digest for record in records] == [None]


def test_a_digest_key_makes_digests_last() -> None:
    records: list[AuditRecord] = []
    for _ in range(2):
        dispatcher, _ = make_dispatcher({}, "read", audit=records.append, digest_key=b"kept elsewhere")
        call(dispatcher, "read", LOCAL_CALLER, {"pin": "1234"})

    assert records[0].digest == records[1].digest == digest_arguments({"pin": "1234"}, b"kept elsewhere")
    assert "1234" not in repr(records)


WEAK = {"weak": {"deny": ["message"]}}


@pytest.mark.parametrize(
    ("rules", "first", "then", "may"),
    [
        ({"byProvider": WEAK}, "weak/m", "other/x", False),
        ({"byProvider": WEAK}, None, "other/x", False),  # the agent's own model
        ({"byProvider": WEAK}, None, None, False),
        ({"byProvider": WEAK}, "other/x", "weak/m", False),
        ({"byProvider": WEAK}, "other/x", "other/y", True),
        ({"byProvider": {"weak/m": {"deny": ["message"]}}}, "weak/m", "weak/n", False),
        ({"byProvider": {"weak": {"profile": "minimal"}}}, "weak/m", "other/x", False),
        ({"byProvider": {"weak": {"allow": ["cron"]}}}, "weak/m", "other/x", False),
        ({}, "weak/m", "other/x", True),
    ],
)
@pytest.mark.parametrize("steps", [1, 2])
def test_naming_another_model_for_what_it_starts_frees_no_run_from_the_rules_for_its_own(
    rules: dict[str, Any], first: str | None, then: str | None, may: bool, steps: int
) -> None:
    def named(model: str | None) -> tuple[str, ...]:
        return (model,) if model else ()

    agents = {"list": [{"id": "main", "model": "weak/m"}]}
    policy = ConfigPolicy(from_config({"tools": rules, "agents": agents}))
    caller = Caller(kind="agent", name="a", session="agent:main:main", grant=Grant(agent="main", models=named(first)))
    for _ in range(steps):
        grant = structs.replace(child_grant(caller), agent="main", models=named(then))
        caller = Caller(kind="agent", name="a", session="agent:main:other", grant=grant)
    assert (policy.refusal_reason(caller, "message") is None) is may


NODE = {"allow": ["node/desk", "message"]}


@pytest.mark.parametrize(
    ("rules", "models", "may"),
    [
        ({"one": NODE}, ("one/m",), True),
        ({"one": NODE}, ("two/m",), False),
        ({"one": NODE}, ("one/m", "two/m"), False),
        ({"one": NODE}, ("two/m", "one/m"), False),
        ({"one": NODE, "two": NODE}, ("one/m", "two/m"), True),
        ({"one": NODE, "two": {"deny": ["node/desk"]}}, ("one/m", "two/m"), False),
        ({"one": NODE}, ("*",), False),
        ({"one/m": NODE}, ("one/",), False),
        ({"one": NODE}, ("one/",), True),
    ],
)
def test_a_nodes_tool_is_given_when_the_rules_for_each_model_that_may_answer_give_it(
    rules: dict[str, Any], models: tuple[str, ...], may: bool
) -> None:
    policy = ConfigPolicy(from_config({"tools": {"byProvider": rules}}))
    caller = Caller(kind="agent", name="a", session="agent:main:main", grant=Grant(agent="main", models=models))
    assert policy(caller, "node/desk", ToolSpec(name="desk__system_run")).allowed is may
