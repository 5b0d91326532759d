"""The matrix: each row of `policy_cases.json`, for each tool it names, at each entry point."""

import asyncio
import functools
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import pytest

from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.core.model import Caller, EntryPoint, Grant, Sender, ToolCall, ToolResult, ToolSpec, text_result
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.tools.config_policy import ConfigPolicy
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.policy import combine_policies, scope_policy
from openclaw_mcp.tools.policy_rules import from_config
from openclaw_mcp.tools.registry import ToolRegistry
from openclaw_mcp.tools.tool_names import CHILD_TOOLS, PROFILES
from tests.conversation import Tools

ROWS: list[dict[str, Any]] = msgspec.json.decode((Path(__file__).parent / "policy_cases.json").read_bytes())
ENTRY_POINTS = get_args(EntryPoint)
KINDS: dict[str, Any] = {"rpc": "operator", "http": "operator", "mcp": "agent", "agent": "agent", "cli": "local"}


class Case(NamedTuple):
    says: str
    config: dict[str, Any]
    who: dict[str, Any]
    source: str
    tool: str
    step: str | None
    """The step that refuses; None = allowed."""


@functools.cache
def cases() -> list[Case]:
    found = []
    for row in ROWS:
        expected = [(tool, None) for tool in row.get("allow", "").split()]
        expected += [(tool, step) for step, tools in row.get("deny", {}).items() for tool in tools.split()]
        same = (row["says"], row["config"], row.get("who", {}), row.get("source", "claw"))
        found += [Case(*same, tool, step) for tool, step in expected]
    return found


def caller(who: dict[str, Any], entry_point: EntryPoint) -> Caller:
    """An owner's run unless `who` says otherwise, with a credential that opens everything."""
    fields = {"owner": True, **{name: value for name, value in who.items() if name not in ("session", "door", "model")}}
    fields["models"] = [who["model"]] if "model" in who else []
    grant = msgspec.convert(fields, Grant)
    scopes = frozenset({"*", "source:app/x"})
    return Caller(
        kind=KINDS[entry_point],
        name="c",
        scopes=scopes,
        session=who.get("session"),
        entry_point=entry_point,
        grant=grant,
    )


async def answer(call: ToolCall) -> ToolResult:
    return text_result("done")


def make_dispatcher(case: Case) -> ToolDispatcher:
    tools = Tools()
    tools.add(ToolSpec(name=case.tool), answer)
    return ToolDispatcher(
        ToolRegistry({case.source: tools}),
        policy=combine_policies(scope_policy, ConfigPolicy(from_config(case.config))),
    )


def may_call(dispatcher: ToolDispatcher, who: Caller, tool: str) -> bool:
    return asyncio.run(list_and_call(dispatcher, who, tool))


async def list_and_call(dispatcher: ToolDispatcher, who: Caller, tool: str) -> bool:
    """What the tool list and the dispatcher both say; they may not disagree."""
    listed = tool in [spec.name for spec in await dispatcher.list(who)]
    try:
        await dispatcher.call(ToolCall(caller=who, name=tool, arguments={}, context=NULL_CONTEXT))
    except ToolDenied:
        assert not listed
        return False
    assert listed
    return True


def test_the_matrix_is_as_large_as_promised() -> None:
    assert len(cases()) >= 150
    assert len({row["says"] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", range(len(ROWS)), ids=[row["says"] for row in ROWS])
def test_a_tool_is_allowed_or_refused_by_the_step_the_table_names(row: int) -> None:
    for case in cases():
        if case.says != ROWS[row]["says"]:
            continue
        who = caller(case.who, case.who.get("door", "mcp"))
        rules = ConfigPolicy(from_config(case.config))
        explanation = rules.explain(who, case.source, ToolSpec(name=case.tool))

        assert may_call(make_dispatcher(case), who, case.tool) == (case.step is None), (case.tool, explanation.decision)
        assert explanation.decision.allowed == (case.step is None)
        if case.step is not None:
            first = next(verdict for verdict in explanation.steps if verdict.outcome == "deny")
            assert (explanation.decision.step, first.step) == (case.step, case.step), (case.tool, explanation.decision)
            assert case.tool.lower() in explanation.decision.reason.lower()


@pytest.mark.parametrize("row", range(len(ROWS)), ids=[row["says"] for row in ROWS])
def test_every_entry_point_decides_alike_and_tools_invoke_only_refuses_more(row: int) -> None:
    for case in cases():
        if case.says != ROWS[row]["says"] or "door" in case.who:
            continue
        rules = ConfigPolicy(from_config(case.config))
        decisions = {
            entry_point: rules(caller(case.who, entry_point), case.source, ToolSpec(name=case.tool))
            for entry_point in ENTRY_POINTS
        }
        http, rpc = decisions.pop("http"), decisions.pop("rpc")

        assert len(set(decisions.values())) == 1
        assert http == rpc
        assert http.step == "http" if http != decisions["mcp"] else True
        for entry_point in decisions:
            assert may_call(make_dispatcher(case), caller(case.who, entry_point), case.tool) == (case.step is None)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("family", CHILD_TOOLS)
def test_a_family_and_its_tools_are_in_a_profile_together(profile: str, family: str) -> None:
    rules = ConfigPolicy(from_config({"tools": {"profile": profile}}))
    who = caller({}, "mcp")

    allowed = {rules(who, "claw", ToolSpec(name=name)).allowed for name in (family, *CHILD_TOOLS[family])}

    assert len(allowed) == 1


def test_senders_in_the_table_are_known_by_every_name_the_rules_use() -> None:
    used = {name for row in ROWS for name in row.get("who", {}).get("sender", {})}

    assert used == set(Sender.__struct_fields__)
