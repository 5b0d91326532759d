"""What holds for every rule book and every caller, found by trying."""

import asyncio
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_mcp.cli.policy import parse_rules
from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.core.model import Caller, Grant, Sender, ToolCall, ToolSpec
from openclaw_mcp.core.owner import is_owner
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.tools.config_policy import ConfigPolicy
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.policy import combine_policies, scope_policy
from openclaw_mcp.tools.policy_rules import from_config
from openclaw_mcp.tools.registry import ToolRegistry
from openclaw_mcp.tools.tool_names import CHILD_TOOLS, CLAW_TOOLS, GROUPS, PROFILES
from tests.conversation import Tools
from tests.tools.test_policy_cases import answer

trying = settings(max_examples=80)

TOOLS = [*CLAW_TOOLS, "exec", "apply_patch", "read", "browser_request", "lobster", "whatsapp_login"]
PLAIN_GROUPS = [name for name in GROUPS if name not in ("group:openclaw", "group:remoteclaw", "group:plugins")]

words = st.sampled_from([*TOOLS, *CHILD_TOOLS, *PLAIN_GROUPS, "*", "message_*", "*_list", "s*s", "Bash", " EXEC "])
lists = st.lists(words, max_size=4)
scope = st.fixed_dictionaries({}, optional={"allow": lists, "deny": lists})
profiles = st.sampled_from(list(PROFILES))
provider_scope = st.fixed_dictionaries({}, optional={"allow": lists, "deny": lists, "profile": profiles})
people = st.dictionaries(st.sampled_from(["*", "id:7", "name:ann", "username:ann", "channel:irc:7"]), scope, max_size=3)
tool_rules = st.fixed_dictionaries(
    {},
    optional={
        "profile": profiles,
        "allow": lists,
        "deny": lists,
        "byProvider": st.dictionaries(st.sampled_from(["openai", "openai/gpt"]), provider_scope, max_size=2),
        "toolsBySender": people,
    },
)
group = st.fixed_dictionaries({}, optional={"tools": scope, "toolsBySender": people})
configs = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.builds(lambda rules, below: {**rules, "subagents": {"tools": below}}, tool_rules, scope),
        "agents": st.builds(lambda rules: {"list": [{"id": "main", "tools": rules}]}, tool_rules),
        "channels": st.builds(
            lambda groups: {"irc": {"groups": groups}}, st.dictionaries(st.sampled_from(["#a", "*"]), group, max_size=2)
        ),
        "gateway": st.builds(lambda allow: {"tools": {"allow": allow}}, lists),
    },
)
senders = st.none() | st.builds(
    Sender, id=st.none() | st.just("7"), name=st.none() | st.just("Ann"), username=st.none() | st.just("@ann")
)
grants = st.builds(
    Grant,
    agent=st.sampled_from([None, "main", "other"]),
    models=st.sampled_from([(), ("openai/gpt",), ("openai/o1", "x"), ("x",)]),
    sender=senders,
    owner=st.booleans(),
    depth=st.integers(0, 2),
    tools=st.none() | st.frozensets(words, max_size=4),
)
sessions = st.sampled_from([None, "agent:main:main", "agent:main:irc:group:#a", "agent:main:subagent:u"])
entry_points = st.sampled_from(["rpc", "http", "mcp", "agent", "cli"])
callers = st.builds(
    Caller,
    kind=st.sampled_from(["operator", "agent"]),
    name=st.just("c"),
    scopes=st.just(frozenset({"*"})),
    session=sessions,
    entry_point=entry_points,
    grant=grants,
)


def list_tools(config: dict[str, Any], caller: Caller) -> set[str]:
    rules = ConfigPolicy(from_config(config))
    return {name for name in TOOLS if rules(caller, "claw", ToolSpec(name=name)).allowed}


def named(tool: str, entries: list[str]) -> bool:
    """Whether a list names a tool, read naively."""
    own = {tool} | {family for family, members in CHILD_TOOLS.items() if tool in members}
    for entry in entries:
        word = {"bash": "exec"}.get(entry.strip().lower(), entry.strip().lower())
        for each in GROUPS.get(word, (word,)):
            if any(fnmatchcase(name, each) for name in own):
                return True
    return False


@trying
@given(configs, callers)
def test_a_denied_tool_is_denied_whatever_else_is_said(config: dict[str, Any], caller: Caller) -> None:
    denied = config.get("tools", {}).get("deny", [])

    assert not {tool for tool in list_tools(config, caller) if named(tool, denied)}


@trying
@given(configs, callers, lists, st.data())
def test_adding_a_deny_never_allows_more(
    config: dict[str, Any], caller: Caller, more: list[str], data: st.DataObject
) -> None:
    stricter = deepcopy(config)
    tools = stricter.setdefault("tools", {})
    below = tools.setdefault("subagents", {}).setdefault("tools", {})
    agent = stricter.setdefault("agents", {"list": [{"id": "main", "tools": {}}]})["list"][0]["tools"]
    places: list[dict[str, Any]] = [tools, below, agent]
    for each in (tools, agent):
        places += [*each.get("byProvider", {}).values(), *each.get("toolsBySender", {}).values()]
    for each in stricter.get("channels", {}).get("irc", {}).get("groups", {}).values():
        places += [*each.get("toolsBySender", {}).values(), *([each["tools"]] if "tools" in each else [])]
    place = data.draw(st.sampled_from(places))
    place["deny"] = [*place.get("deny", []), *more]

    assert list_tools(stricter, caller) <= list_tools(config, caller)


@trying
@given(configs, callers, lists)
def test_a_grants_menu_never_allows_more(config: dict[str, Any], caller: Caller, tools: list[str]) -> None:
    assert caller.grant is not None
    free = {name: getattr(caller.grant, name) for name in Grant.__struct_fields__}
    unlimited = _with_grant(caller, Grant(**{**free, "tools": None}))
    limited = _with_grant(caller, Grant(**{**free, "tools": frozenset(tools)}))

    assert list_tools(config, limited) <= list_tools(config, unlimited)
    assert all(named(tool, tools) or tool == "apply_patch" for tool in list_tools(config, limited))


@trying
@given(configs, callers)
def test_what_is_for_the_owner_never_reaches_others(config: dict[str, Any], caller: Caller) -> None:
    assert caller.grant is not None
    rules = ConfigPolicy(from_config(config))
    flagged = rules(caller, "claw", ToolSpec(name="lobster", owner_only=True))
    for_owners = {name for name in TOOLS if name.startswith(("cron_", "gateway_", "whatsapp_login"))}

    if not caller.grant.owner:
        assert not list_tools(config, caller) & for_owners
        assert not flagged.allowed


@trying
@given(st.sampled_from(["7", "ann", "+1", "*", ""]), st.booleans(), st.sampled_from([None, "allowlist", "pairing"]))
def test_an_empty_list_of_senders_admits_no_sender(id: str, group: bool, policy: str | None) -> None:
    channel: dict[str, Any] = {"groupAllowFrom": [], "groupPolicy": policy, "dmPolicy": "allowlist", "allowFrom": []}
    session = "agent:main:irc:group:#a" if group else "agent:main:irc:direct:7"
    grant = Grant(sender=Sender(id=id, e164=id, username=id, name=id), owner=True)
    caller = Caller(kind="agent", name="c", scopes=frozenset({"*"}), session=session, grant=grant)

    assert list_tools({"channels": {"irc": channel}}, caller) == set()
    rules = from_config({"commands": {"ownerAllowFrom": []}, "channels": {"irc": {"allowFrom": [id]}}})
    assert not is_owner(grant.sender, rules.commands.owner_allow_from, channel="irc")


@trying
@given(configs, callers)
def test_the_menu_lists_exactly_what_a_call_is_not_refused(config: dict[str, Any], caller: Caller) -> None:
    tools = Tools(**dict.fromkeys(TOOLS, answer))
    dispatcher = ToolDispatcher(
        ToolRegistry({"claw": tools}), policy=combine_policies(scope_policy, ConfigPolicy(from_config(config)))
    )

    async def try_all() -> tuple[set[str], set[str]]:
        permitted = set()
        for name in TOOLS:
            try:
                await dispatcher.call(ToolCall(caller=caller, name=name, arguments={}, context=NULL_CONTEXT))
            except ToolDenied:
                continue
            permitted.add(name)
        return {spec.name for spec in await dispatcher.list(caller)}, permitted

    listed, called = asyncio.run(try_all())

    assert listed == called == list_tools(config, caller)


@trying
@given(configs, callers, st.sampled_from(TOOLS))
def test_the_explanation_ends_where_the_decision_does(config: dict[str, Any], caller: Caller, tool: str) -> None:
    explanation = ConfigPolicy(from_config(config)).explain(caller, "claw", ToolSpec(name=tool))
    refusals = [verdict for verdict in explanation.steps if verdict.outcome == "deny"]

    assert explanation.decision.allowed == (not refusals)
    assert len(explanation.steps) == 15 + 4 * len(
        explanation.subject.models[1:]
    )  # of another model: whose node's tools, and three lists
    if refusals:
        assert (explanation.decision.step, explanation.decision.reason) == (refusals[0].step, refusals[0].reason)
    assert all(verdict.reason and "\n" not in verdict.reason for verdict in explanation.steps)


@trying
@given(configs, callers)
def test_tools_invoke_only_refuses_more_than_other_entry_points(config: dict[str, Any], caller: Caller) -> None:
    lists = {
        entry_point: list_tools(config, _through(caller, entry_point))
        for entry_point in ("rpc", "mcp", "agent", "cli", "http")
    }

    assert lists["mcp"] == lists["agent"] == lists["cli"]
    assert lists["http"] == lists["rpc"] <= lists["mcp"]


@trying
@given(st.lists(words, max_size=5), st.lists(words, max_size=5), st.sampled_from(TOOLS))
def test_one_step_is_deny_first_then_allow(allow: list[str], deny: list[str], tool: str) -> None:
    expected = not named(tool, deny) and (not allow or named(tool, allow))
    if tool == "apply_patch" and allow and not named(tool, deny):
        expected = named(tool, allow) or named("exec", allow) or named("write", allow)
    owner = Caller(kind="local", name="me", scopes=frozenset({"*"}))

    assert (tool in list_tools({"tools": {"allow": allow, "deny": deny}}, owner)) == expected


@trying
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_whatever_the_file_holds_reading_it_never_fails_open(data: bytes) -> None:
    rules = parse_rules(data)
    decision = ConfigPolicy(rules)(Caller(kind="local", name="me"), "claw", ToolSpec(name="exec"))

    assert decision.allowed == (rules.problem is None)
    if not data.lstrip().startswith(b"{"):
        assert not decision.allowed


def _with_grant(caller: Caller, grant: Grant) -> Caller:
    return Caller(
        kind=caller.kind,
        name="c",
        scopes=caller.scopes,
        session=caller.session,
        entry_point=caller.entry_point,
        grant=grant,
    )


def _through(caller: Caller, entry_point: Any) -> Caller:
    return Caller(
        kind=caller.kind,
        name="c",
        scopes=caller.scopes,
        session=caller.session,
        entry_point=entry_point,
        grant=caller.grant,
    )
