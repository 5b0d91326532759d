"""The rule book by itself: which agents it knows, whose rules they have, who answers for them, what contradicts."""

from typing import Any

import pytest

from openclaw_mcp.core.model import Json
from openclaw_mcp.tools.policy_rules import from_config, refuse_everything


def agents(*listed: Json, **more: Any) -> Json:
    return {"agents": {"list": list(listed), **more}}


@pytest.mark.parametrize(
    ("config", "default"),
    [
        ({}, "main"),
        (agents({"id": "a"}), "a"),
        (agents({"id": " Big "}, {"id": "b"}), "big"),
        (agents({"id": "a"}, {"id": "b", "default": True}), "b"),
        (agents({"id": "a", "default": True}, {"id": "b", "default": True}), "a"),
        (agents(entries={"C": {}}), "c"),
        (agents(entries={"c": {}, "d": {"default": True}}), "d"),
        (agents({"id": "a"}, entries={"d": {"default": True}}), "d"),
        (agents({"id": "a"}, entries={"d": {}}), "a"),
    ],
)
def test_there_is_one_agent_that_answers_when_none_is_named(config: Json, default: str) -> None:
    rules = from_config(config)
    assert rules.default_agent == default
    assert rules.has_agent(default)
    assert not rules.has_agent("nobody")


TOOLS = {"tools": {"deny": ["exec"]}}


@pytest.mark.parametrize(
    ("config", "agent", "denied", "known"),
    [
        ({}, "main", None, True),
        (agents(defaults=TOOLS), "main", ("exec",), True),
        (agents(defaults=TOOLS), "any", ("exec",), False),
        (agents({"id": "a"}, defaults=TOOLS), "a", None, True),
        (agents({"id": "a"}, defaults=TOOLS), "main", None, False),
        (agents(entries={"a": {}}, defaults=TOOLS), "a", None, True),
        (agents({"id": " A ", **TOOLS}), "a", ("exec",), True),
        (agents({"id": "b"}, {"id": "a", **TOOLS}), "a", ("exec",), True),
        (agents(entries={" A ": TOOLS, "b": {}}), "a", ("exec",), True),
        (agents({"id": "b", **TOOLS}, entries={"a": {}}), "a", None, True),
        (agents({"id": "a"}, entries={"a": TOOLS}), "a", None, True),
    ],
)
def test_an_agent_has_its_own_rules_or_where_none_are_listed_the_defaults(
    config: Json, agent: str, denied: tuple[str, ...] | None, known: bool
) -> None:
    policy = from_config(config)
    rules = policy.agent_rules(agent)
    assert (rules.deny if rules else None) == denied
    assert policy.has_agent(agent) is known


NEAR = {"models": {"providers": {"near": {"api": "openai"}}}}


@pytest.mark.parametrize(
    ("config", "model", "models"),
    [
        ({}, None, ()),
        (agents(defaults={"model": "near/m"}) | NEAR, None, ("near/m",)),
        (agents({"id": "main"}, defaults={"model": "near/m"}) | NEAR, None, ("near/m",)),
        (agents({"id": "main", "model": "near/own"}, defaults={"model": "near/m"}) | NEAR, None, ("near/own",)),
        (agents({"id": "main", "model": None}, defaults={"model": "near/m"}) | NEAR, None, ()),
        (agents({"id": "other", "model": "near/own"}, defaults={"model": "near/m"}) | NEAR, None, ("near/m",)),
        (agents(defaults={"model": "near/m"}) | NEAR, "near/asked", ("near/asked",)),
        (agents(defaults={"model": "m"}) | NEAR, None, ("openai/m",)),
        (agents(defaults={"runtime": "claude", "model": "opus"}), None, ("anthropic/opus",)),
        (agents({"id": "main"}, defaults={"runtime": "claude", "model": "opus"}), None, ("anthropic/opus",)),
        (agents({"id": "main", "runtime": "codex"}, defaults={"runtime": "claude", "model": "x"}), None, ("openai/",)),
        (agents({"id": "main", "runtime": "codex"}, defaults={"model": "near/m"}) | NEAR, None, ("openai/",)),
        (agents({"id": "main", "runtime": "codex"}, defaults={"model": "near/m"}) | NEAR, "o3", ("openai/o3",)),
        (agents({"id": "main", "runtime": "opencode"}, defaults={"model": "near/m"}) | NEAR, None, ("*",)),
        (agents({"id": "main", "runtime": "codex", "model": "o3"}, defaults={"model": "near/m"}), None, ("openai/o3",)),
        (agents({"id": "other", "runtime": "codex"}, defaults={"runtime": "claude", "model": "x"}), None,
         ("anthropic/x",)),
    ],
)  # fmt: skip
def test_whose_model_may_answer(config: Json, model: str | None, models: tuple[str, ...]) -> None:
    assert from_config(config).possible_models("main", model) == models


def test_a_book_that_cant_be_read_knows_no_models() -> None:
    assert refuse_everything("torn").possible_models("main", "near/m") == ()
    assert refuse_everything("torn").problem == "torn"


def test_providers_with_rules_are_everybodys_and_the_agents_own() -> None:
    config = agents({"id": "a", "tools": {"byProvider": {"two": {}}}}, {"id": "b"})
    rules = from_config({**config, "tools": {"byProvider": {"one": {}}}})
    assert rules.providers_with_rules("a") == ("one", "two")
    assert rules.providers_with_rules("b") == rules.providers_with_rules("nobody") == ("one",)


BOTH = {"allow": ["a"], "alsoAllow": ["b"]}


@pytest.mark.parametrize(
    ("config", "scope"),
    [
        ({"tools": BOTH}, "tools"),
        ({"tools": {"byProvider": {"p": {}, "q": BOTH}}}, "tools.byProvider.q"),
        (agents(defaults={"tools": BOTH}), "agents.defaults.tools"),
        (agents({"id": "a"}, {"id": "b", "tools": BOTH}), "agents.list[b].tools"),
        (agents({"id": "a", "tools": {"byProvider": {"p": BOTH}}}), "agents.list[a].tools.byProvider.p"),
        (agents(entries={"c": {"tools": BOTH}}), "agents.entries.c.tools"),
        ({"tools": {"allow": ["a"]}}, None),
        ({"tools": {"alsoAllow": ["a"]}}, None),
        ({"tools": {"allow": [], "alsoAllow": ["a"]}}, None),
        ({"tools": {"byProvider": {"p": {"allow": ["a"]}, "q": {"alsoAllow": ["a"]}}}}, None),
    ],
)
def test_a_scope_that_contradicts_itself_is_named(config: Json, scope: str | None) -> None:
    problem = from_config(config).problem
    assert problem == (scope and f"{scope} has both allow and alsoAllow; put the names into one of them")


@pytest.mark.parametrize(
    "config",
    [
        {"tools": {"subagents": {"tools": {"denny": []}}}},
        {"gateway": {"tools": {"dent": []}}},
        {"tools": {"toolsBySender": {"*": {"alow": []}}}},
        {"tools": {"byProvider": {"p": {"profil": "x"}}}},
        {"tools": {"allow": "exec"}},
        {"mcp": {"servers": {"s": {"agents": "main"}}}},
        {"agents": {"defaults": {"subagents": {"maxSpawnDepth": "two"}}}},
    ],
)
def test_a_misspelt_list_makes_the_book_unreadable(config: Json) -> None:
    assert from_config(config).problem is not None


def test_what_other_modules_read_is_left_to_them() -> None:
    rules = from_config({"tools": {"exec": {"x": 1}}, "ui": 1, "agents": {"list": [{"id": "a", "name": 3}]}})
    assert rules.problem is None
    assert rules.agents.defaults.subagents.max_spawn_depth == 1
