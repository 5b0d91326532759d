"""The dispatcher: which tools are listed, who may call them, and what happens to a call."""

import asyncio

import pytest

from openclaw_mcp.core.claw_methods import TOOLS_BY_ACTION
from openclaw_mcp.core.errors import ToolArguments, ToolDenied, ToolNotFound, ToolTimeout, ToolUnavailable
from openclaw_mcp.core.model import LOCAL_CALLER, Caller, Json, ToolCall, ToolResult, ToolSpec, text_result
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.gateway.agents.subagents.tool_specs import SPECS
from openclaw_mcp.gateway.channels.message_tool import SPEC as MESSAGE
from openclaw_mcp.gateway.cron.cron_tool import SCHEMA as CRON
from openclaw_mcp.tools.audit import AuditRecord
from openclaw_mcp.tools.config_policy import ConfigPolicy
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.policy import combine_policies, scope_policy
from openclaw_mcp.tools.policy_rules import from_config
from openclaw_mcp.tools.registry import ToolRegistry
from tests.conversation import Tools


async def answer(call: ToolCall) -> ToolResult:
    return text_result(f"{call.name} done")


def order(name: str, arguments: Json | None = None, caller: Caller = LOCAL_CALLER) -> ToolCall:
    return ToolCall(caller=caller, name=name, arguments=arguments or {}, context=NULL_CONTEXT)


def app(id: str) -> Caller:
    return Caller(kind="app", name=id, scopes=frozenset({f"source:app/{id}"}))


def names(dispatcher: ToolDispatcher, caller: Caller) -> list[str]:
    return [spec.name for spec in asyncio.run(dispatcher.list(caller))]


def test_the_menu_never_shows_what_may_not_be_called() -> None:
    dispatcher = ToolDispatcher(ToolRegistry({"a": Tools(read=answer), "app/x": Tools(lent=answer)}))

    assert names(dispatcher, LOCAL_CALLER) == ["read"]
    assert names(dispatcher, app("x")) == ["lent"]
    assert names(dispatcher, app("y")) == []
    assert names(dispatcher, Caller(kind="agent", name="nobody")) == []


def test_a_denied_call_says_who_may_not_do_what() -> None:
    dispatcher = ToolDispatcher(ToolRegistry({"a": Tools(read=answer)}))

    with pytest.raises(ToolDenied, match="agent 'run-1' may not use 'read'"):
        asyncio.run(dispatcher.call(order("read", caller=Caller(kind="agent", name="run-1"))))


def test_a_scope_that_names_a_tool_or_an_effect_opens_it() -> None:
    tools = Tools(one=answer)
    tools.add(ToolSpec(name="two", effect="send"), answer)
    dispatcher = ToolDispatcher(ToolRegistry({"a": tools}))

    assert names(dispatcher, Caller(kind="agent", name="x", scopes=frozenset({"tool:one"}))) == ["one"]
    assert names(dispatcher, Caller(kind="agent", name="x", scopes=frozenset({"effect:send"}))) == ["two"]


def test_two_apps_lend_a_tool_of_one_name_and_each_caller_reaches_its_own() -> None:
    async def left(call: ToolCall) -> ToolResult:
        return text_result("left")

    async def right(call: ToolCall) -> ToolResult:
        return text_result("right")

    dispatcher = ToolDispatcher(ToolRegistry({"app/l": Tools(open=left), "app/r": Tools(open=right)}))

    assert asyncio.run(dispatcher.call(order("open", caller=app("l")))) == text_result("left")
    assert asyncio.run(dispatcher.call(order("open", caller=app("r")))) == text_result("right")


def test_a_caller_two_sources_would_serve_must_choose() -> None:
    dispatcher = ToolDispatcher(ToolRegistry({"a": Tools(same=answer), "b": Tools(same=answer)}))

    assert names(dispatcher, LOCAL_CALLER) == []
    with pytest.raises(ToolDenied, match="offered by a, b"):
        asyncio.run(dispatcher.call(order("same")))


def test_a_source_that_is_removed_has_no_tools_any_more() -> None:
    registry = ToolRegistry()
    dispatcher = ToolDispatcher(registry)
    registry.add("other", Tools(visit=answer))
    assert names(dispatcher, LOCAL_CALLER) == ["visit"]

    registry.remove("other")

    assert names(dispatcher, LOCAL_CALLER) == []
    with pytest.raises(ToolNotFound):
        asyncio.run(dispatcher.call(order("visit")))


def test_a_tool_added_to_a_source_is_announced_and_listed() -> None:
    tools = Tools(first=answer)
    dispatcher = ToolDispatcher(ToolRegistry({"a": tools}))
    changes: list[None] = []
    dispatcher.changed.connect(changes.append)
    before = asyncio.run(dispatcher.list(LOCAL_CALLER))

    tools.add(ToolSpec(name="second"), answer)

    assert len(changes) == 1
    assert [spec.name for spec in before] == ["first"]
    assert names(dispatcher, LOCAL_CALLER) == ["first", "second"]


def test_the_menu_is_the_same_object_until_something_changes() -> None:
    dispatcher = ToolDispatcher(ToolRegistry({"a": Tools(first=answer)}))

    assert asyncio.run(dispatcher.list(LOCAL_CALLER)) is asyncio.run(dispatcher.list(LOCAL_CALLER))


def test_wrong_arguments_never_reach_the_tool_and_the_field_is_named() -> None:
    calls: list[Json] = []

    async def work(call: ToolCall) -> ToolResult:
        calls.append(call.arguments)
        return text_result("made")

    tools = Tools()
    person = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["name"]}
    schema = {"type": "object", "properties": {"person": person}}
    tools.add(ToolSpec(name="save", input_schema=schema), work)
    dispatcher = ToolDispatcher(ToolRegistry({"a": tools}))

    with pytest.raises(ToolArguments, match=r"\"name\" is a required.*person\.age.*integer"):
        asyncio.run(dispatcher.call(order("save", {"person": {"age": "hunter2"}})))
    assert calls == []


def test_a_refused_value_is_not_repeated_in_the_refusal() -> None:
    tools = Tools()
    tools.add(ToolSpec(name="save", input_schema={"properties": {"pin": {"type": "integer"}}}), answer)

    with pytest.raises(ToolArguments) as refused:
        asyncio.run(ToolDispatcher(ToolRegistry({"a": tools})).call(order("save", {"pin": "hunter2"})))
    assert "hunter2" not in str(refused.value)


def test_a_schema_that_points_outside_is_never_fetched() -> None:
    tools = Tools()
    tools.add(ToolSpec(name="x", input_schema={"$ref": "http://127.0.0.1:9/schema.json"}), answer)

    with pytest.raises(ToolUnavailable, match="schema"):
        asyncio.run(ToolDispatcher(ToolRegistry({"a": tools})).call(order("x")))


def test_a_tool_that_takes_too_long_is_stopped() -> None:
    stopped = asyncio.Event()

    async def forever(call: ToolCall) -> ToolResult:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return text_result("never")

    tools = Tools()
    tools.add(ToolSpec(name="slow", deadline=0.01), forever)

    with pytest.raises(ToolTimeout, match=r"slow took longer than 0\.01 s"):
        asyncio.run(ToolDispatcher(ToolRegistry({"a": tools})).call(order("slow")))
    assert stopped.is_set()


def test_every_call_is_written_in_the_book_without_its_arguments() -> None:
    async def fail(call: ToolCall) -> ToolResult:
        return text_result("no", failed=True)

    records: list[AuditRecord] = []
    dispatcher = ToolDispatcher(ToolRegistry({"a": Tools(good=answer, bad=fail)}), audit=records.append)

    async def orders() -> None:
        await dispatcher.call(order("good", {"secret": "hunter2"}))
        await dispatcher.call(order("bad"))
        for name, caller in (("good", Caller(kind="agent", name="x")), ("none", LOCAL_CALLER)):
            with pytest.raises((ToolDenied, ToolNotFound)):
                await dispatcher.call(order(name, caller=caller))

    asyncio.run(orders())

    assert [(r.tool, r.source, r.outcome) for r in records] == [
        ("good", "a", "ok"),
        ("bad", "a", "failed"),
        ("good", "a", "tool_denied"),
        ("none", None, "tool_not_found"),
    ]
    assert "hunter2" not in repr(records)


MANY = ToolSpec(
    name="message",
    input_schema={"properties": {"action": {"enum": ["send", "pin", "edit"]}}, "required": ["action"]},
    actions={"send": "message_send", "pin": "message_pin", "edit": "message_edit"},
)


@pytest.mark.parametrize(
    ("rules", "may"),
    [
        ({}, {"send", "pin", "edit"}),
        ({"deny": ["message_pin"]}, {"send", "edit"}),
        ({"deny": [" Message_PIN "]}, {"send", "edit"}),
        ({"deny": ["message_edit"]}, {"send", "pin"}),
        ({"deny": ["message_*"]}, set()),
        ({"deny": ["*_pin"]}, {"send", "edit"}),
        ({"deny": ["message"]}, set()),
        ({"deny": ["group:messaging"]}, set()),
        ({"allow": ["message_send"]}, {"send"}),
        ({"allow": ["message_send", "message_pin"], "deny": ["message_send"]}, {"pin"}),
        ({"allow": ["message"], "deny": ["message_send"]}, {"pin", "edit"}),
        ({"allow": ["message"]}, {"send", "pin", "edit"}),
        ({"allow": ["cron"]}, set()),
        ({"profile": "messaging", "deny": ["message_pin"]}, {"send", "edit"}),
        ({"profile": "minimal", "alsoAllow": ["message_pin"]}, {"pin"}),
        ({"profile": "minimal"}, set()),
    ],
)
def test_a_tool_with_many_actions_is_judged_by_each(rules: Json, may: set[str]) -> None:
    tools = Tools()
    tools.add(MANY, answer)
    records: list[AuditRecord] = []
    dispatcher = ToolDispatcher(
        ToolRegistry({"gateway": tools}),
        policy=combine_policies(scope_policy, ConfigPolicy(from_config({"tools": rules}))),
        audit=records.append,
    )
    listed = asyncio.run(dispatcher.list(LOCAL_CALLER))
    callable_actions = set()
    for action in MANY.actions:
        try:
            asyncio.run(dispatcher.call(order("message", {"action": action})))
            callable_actions.add(action)
        except ToolDenied as exc:
            assert " is refused" in str(exc)
    assert callable_actions == may
    assert {action for spec in listed for action in spec.input_schema["properties"]["action"]["enum"]} == may
    assert {record.outcome for record in records} <= {"ok", "tool_denied"}


@pytest.mark.parametrize("action", ["PIN", " pin", "message:pin", "", None, 7, ["pin"], {"x": "pin"}])
def test_an_action_that_is_not_offered_is_no_way_around(action: object) -> None:
    tools = Tools()
    tools.add(MANY, answer)
    for check in (True, False):
        dispatcher = ToolDispatcher(ToolRegistry({"gateway": tools}), check_arguments=check)
        with pytest.raises(ToolArguments):
            asyncio.run(dispatcher.call(order("message", {"action": action})))
        with pytest.raises(ToolArguments):
            asyncio.run(dispatcher.call(order("message", {})))


def test_own_tools_offer_what_they_are_judged_by() -> None:
    specs = (MESSAGE, next(spec for spec in SPECS if spec.name == "gateway"))
    assert all(set(spec.input_schema["properties"]["action"]["enum"]) == set(spec.actions) for spec in specs)
    assert set(CRON["properties"]["action"]["enum"]) == set(TOOLS_BY_ACTION["cron"])


def test_a_tool_whose_own_work_was_cancelled_is_an_error_and_not_the_end_of_its_caller() -> None:
    async def cancelled(call: ToolCall) -> ToolResult:
        shared: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        shared.cancel()
        return await shared

    records: list[AuditRecord] = []
    dispatcher = ToolDispatcher(ToolRegistry({"a": Tools(read=cancelled)}), audit=records.append)

    with pytest.raises(ToolUnavailable, match="read was stopped: what it waited for has ended"):
        asyncio.run(dispatcher.call(order("read")))
    assert records[0].outcome == ToolUnavailable.code
