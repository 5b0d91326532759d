"""Rules by provider bind by who really answers: however its model is named, whichever model replaces it, whatever is
changed while it goes. A real gateway asks scripted models; what each was offered and what its calls came to says it."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.providers import has_provider_rules
from tests.gateway.agents.cli.gateways import ANSWERS, lines
from tests.gateway.agents.cli.test_gateway_runs import configured
from tests.gateway.agents.models.conversations import provider
from tests.gateway.agents.models.fake import FakeModel, Request, Script, Step, call, say
from tests.gateway.wiring.gateways import World, comes, joined, serving, world

DENY = {"deny": ["agents_list"]}
FIRST, SECOND = "fake/m-1", "other/m-2"


class GatewayHarness:
    """A gateway with the providers `fake`, `other` and one under the name `openai`."""

    def __init__(self, world: World, models: dict[str, FakeModel]) -> None:
        self.world = world
        self.models = models
        self._number = 0

    def run(self, **more: Any) -> str:
        self._number += 1
        key = f"k{self._number}"
        self.world.ask("agent", message="x", idempotencyKey=key, **{"sessionKey": key, **more})
        return str(self.world.ask("agent.wait", runId=key, timeoutMs=30_000)["status"])

    def offered(self, name: str) -> list[bool]:
        """Whether the tool the rules deny was offered, with each request to a provider."""
        return [offers(request) for request in self.models[name].requests]


def offers(request: Request) -> bool:
    tools = [tool.get("function", tool)["name"] for tool in request.body.get("tools", ())]
    assert "message" in tools, tools  # it was offered others
    return "agents_list" in tools


def last_result(request: Request) -> str:
    """The last message a model got: the result of its tool."""
    return json.dumps(request.body["messages"][-1])


@contextmanager
def server(
    folder: Path, config: dict[str, Any], **scripts: Step | Script | list[Step | Script]
) -> Iterator[GatewayHarness]:
    with ExitStack() as stack:
        models: dict[str, FakeModel] = {}
        for name in ("fake", "other", "openai"):
            steps = scripts.get(name, say("hi"))
            models[name] = stack.enter_context(FakeModel(*(steps if isinstance(steps, list) else [steps])))
        providers = {name: provider("openai", model) for name, model in models.items()}
        whole = {"models": {"providers": providers}, **config}
        yield GatewayHarness(stack.enter_context(world(folder, whole)), models)


def ruled(name: str, agent: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A config with rules for one provider, and what it says of its one agent."""
    defaults = {"limits": {"retries": 0}, **agent}
    return {"agents": {"defaults": defaults}, "tools": {"byProvider": {name: DENY}}, **more}


# ---- however it is named ---------------------------------------------------------------------------------------------

APART = {"model": "m-1", "provider": "fake"}
NAMED = [
    ("as provider/model", "fake", {"model": FIRST}, {}, "fake"),
    ("by the runtime's namesake", "openai", {"model": "gpt-5", "runtime": "openai"}, {}, "openai"),
    ("by the run, with its provider", "fake", {"model": SECOND}, {"model": FIRST}, "fake"),
    ("by the run, with its provider beside it", "fake", {"model": SECOND}, APART, "fake"),
    ("by the run, without a provider", "openai", {"model": SECOND}, {"model": "m-1"}, "openai"),
    ("by the run, for a rule about a model", "fake/m-1", {"model": SECOND}, APART, "fake"),
    ("as an object", "fake", {"model": {"primary": FIRST}}, {}, "fake"),
    ("with a slash in the model's own name", "fake", {"model": "fake/meta/llama"}, {}, "fake"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "agent", "params", "answers"), [row[1:] for row in NAMED], ids=[r[0] for r in NAMED])
def test_a_rule_binds_however_the_model_is_named(
    tmp_path: Path, rule: str, agent: dict[str, Any], params: dict[str, Any], answers: str
) -> None:
    with server(tmp_path, ruled(rule, agent)) as harness:
        assert harness.run(**params) == "ok"
        assert {name: harness.offered(name) for name in harness.models if harness.models[name].requests} == {
            answers: [False]
        }


def test_a_rule_for_another_provider_binds_nobody_else(tmp_path: Path) -> None:
    with server(tmp_path, ruled("other", {"model": FIRST})) as harness:
        assert harness.run() == "ok"
        assert harness.offered("fake") == [True]


@pytest.mark.parametrize("named", [{"model": SECOND}, {"model": "m-2", "provider": "other"}])
def test_a_sessions_model_counts_with_its_provider(tmp_path: Path, named: dict[str, str]) -> None:
    with server(tmp_path, ruled("other", {"model": FIRST})) as harness:
        harness.world.ask("sessions.patch", key="own", **named)
        assert harness.run(sessionKey="own") == "ok"
        assert harness.offered("other") == [False]


# ---- fallback models -------------------------------------------------------------------------------------------------

FALLBACKS = {"model": {"primary": FIRST, "fallbacks": [SECOND]}}


@pytest.mark.parametrize("rule", ["other", "fake", SECOND])
def test_a_model_that_steps_in_is_under_its_own_rules_too(tmp_path: Path, rule: str) -> None:
    with server(tmp_path, ruled(rule, FALLBACKS), fake=Step(status=500), other=say("ho")) as harness:
        assert harness.run() == "ok"
        assert (harness.offered("fake"), harness.offered("other")) == ([False], [False])


def test_a_tool_that_one_of_the_models_may_not_use_is_not_called_by_the_other(tmp_path: Path) -> None:
    steps: list[Step | Script] = [call("agents_list"), say("done")]
    with server(tmp_path, ruled("other", FALLBACKS), fake=steps) as harness:
        assert harness.run() == "ok"
        assert "agents_list is refused" in last_result(harness.models["fake"].requests[1])


# ---- changes during a run --------------------------------------------------------------------------------------------


def patching(model: Any) -> Step:
    return call("gateway", action="config.patch", raw=json.dumps({"agents": {"defaults": {"model": model}}}))


CHANGES = [
    ("the config: without its provider", patching({"primary": "m-1"})),
    ("the config: another one", patching({"primary": SECOND})),
    ("the config: a fallback more", patching({"fallbacks": [SECOND]})),
    ("the config: none", patching(None)),
    ("its session's", call("session_status", model=SECOND)),
    ("its session's: the usual", call("session_status", model="default")),
]


@pytest.mark.parametrize("change", [row[1] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_a_run_does_not_change_the_model_its_rules_go_by(tmp_path: Path, change: Step) -> None:
    steps: list[Step | Script] = [change, call("agents_list"), say("done")]
    with server(tmp_path, ruled("fake", {"model": {"primary": FIRST}}), fake=steps) as harness:
        assert harness.run(sessionKey="own") == "ok"
        requests = harness.models["fake"].requests
        assert "may not change" in last_result(requests[1])
        assert "agents_list is refused" in last_result(requests[2])
        assert harness.offered("fake") == [False] * 3
        assert harness.world.ask("config.get")["parsed"]["agents"]["defaults"]["model"] == {"primary": FIRST}
        assert harness.run(sessionKey="own") == "ok"  # and the next one is bound too
        assert harness.offered("fake") == [False] * 4
        assert harness.offered("other") == []


def test_without_rules_by_provider_a_run_may_choose_a_model(tmp_path: Path) -> None:
    same = f"{FIRST.partition('/')[0]}/another"
    steps: list[Step | Script] = [patching({"primary": same}), call("session_status", model=SECOND), say("done")]
    config = {"agents": {"defaults": {"model": {"primary": FIRST}}}, "tools": {"byProvider": {}}}
    with server(tmp_path, config, fake=steps) as harness:
        assert harness.run(sessionKey="own") == "ok"
        assert "may not change" not in last_result(harness.models["fake"].requests[1])
        assert "may not change" not in last_result(harness.models["fake"].requests[2])
        assert harness.run(sessionKey="own") == "ok"
        assert harness.offered("other") == [True]


@pytest.mark.parametrize("change", ["config", "session"])
def test_what_a_person_changes_meanwhile_frees_no_run_that_goes(tmp_path: Path, change: str) -> None:
    """Their choice holds from the next run on."""
    harness: GatewayHarness

    def changing(request: Request) -> Step:
        with joined(harness.world.served) as person:  # while the model thinks
            if change == "session":
                person.ask("sessions.patch", key="own", model=SECOND)
            else:
                person.configure(agents={"defaults": {"model": {"primary": SECOND}}})
        return call("agents_list")

    with server(tmp_path, ruled("fake", {"model": {"primary": FIRST}}), fake=[changing, say("done")]) as harness:
        assert harness.run(sessionKey="own") == "ok"
        assert harness.offered("fake") == [False, False]
        assert "agents_list is refused" in last_result(harness.models["fake"].requests[1])
        assert harness.run(sessionKey="own") == "ok"
        assert harness.offered("other") == [True]


def test_new_rules_bind_a_run_that_goes(tmp_path: Path) -> None:
    harness: GatewayHarness

    def changing(request: Request) -> Step:
        with joined(harness.world.served) as person:
            person.configure(tools={"byProvider": {"fake": DENY}})
        return call("agents_list")

    with server(tmp_path, ruled("other", {"model": {"primary": FIRST}}), fake=[changing, say("done")]) as harness:
        assert harness.run() == "ok"
        assert harness.offered("fake") == [True, False]
        assert "agents_list is refused" in last_result(harness.models["fake"].requests[1])


# ---- what it starts --------------------------------------------------------------------------------------------------


def test_what_a_run_starts_with_another_model_stays_under_its_rules(tmp_path: Path) -> None:
    steps: list[Step | Script] = [call("sessions_spawn", task="look", model=SECOND), say("done")]
    config = ruled("fake", {"model": FIRST})
    config["tools"] |= {"subagents": {"tools": {"alsoAllow": ["agents_list"]}}}
    with server(tmp_path, config, fake=steps) as harness:
        assert harness.run() == "ok"
        assert offers(harness.models["other"].wait_for(1)) is False


@pytest.mark.parametrize("own", [{}, {"model": FIRST}], ids=["the agent's model", "the session's model"])
def test_a_job_that_a_run_plans_with_another_model_stays_under_its_rules(tmp_path: Path, own: dict[str, str]) -> None:
    job = {
        "schedule": {"kind": "every", "everyMs": 365 * 24 * 3600 * 1000},
        "payload": {"kind": "agentTurn", "message": "look", "model": SECOND},
        "delivery": {"mode": "none"},
        "name": "later",
    }
    steps: list[Step | Script] = [call("cron", action="add", job=job), say("done")]
    with server(tmp_path, ruled("fake", {"model": "openai/x" if own else FIRST}), fake=steps) as harness:
        if own:
            harness.world.ask("sessions.patch", key="own", **own)
        assert harness.run(sessionKey="own") == "ok"
        (planned,) = harness.world.ask("cron.list")["jobs"]
        harness.world.ask("cron.run", id=planned["id"])
        assert offers(harness.models["other"].wait_for(1)) is False
        assert comes(lambda: harness.world.ask("cron.runs", id=planned["id"])["entries"])


# ---- CLIs ------------------------------------------------------------------------------------------------------------

CLIS = [
    ("claude", None, "anthropic", True),
    ("claude", "opus", "anthropic", True),
    ("claude", "anthropic/opus", "anthropic", True),
    ("claude", "openai/opus", "anthropic", True),
    ("claude", "opus", "anthropic/opus", True),
    ("claude", None, "anthropic/opus", True),
    ("claude", "haiku", "anthropic/opus", False),
    ("claude", "opus", "openai", False),
    ("codex", None, "openai", True),
    ("codex", "gpt-5", "openai", True),
    ("codex", "openai/gpt-5", "OpenAI/GPT-5", True),
    ("codex", "gpt-5", "anthropic", False),
    ("gemini", None, "google", True),
    ("gemini", "pro", "google", True),
    ("gemini", "google/pro", "google/pro", True),
    ("opencode", "anthropic/opus", "anthropic", True),
    ("opencode", "anthropic/opus", "openai", False),
    ("opencode", None, "openai", True),  # it chooses itself: it may be this one
    ("opencode", None, "anthropic/opus", True),
]  # fmt: skip


@pytest.fixture(scope="module")
def clis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    agents = [
        {"id": f"a{number}", "runtime": cli, "tools": {"byProvider": {rule: DENY}}, **({"model": m} if m else {})}
        for number, (cli, m, rule, _) in enumerate(CLIS)
    ]
    with world(tmp_path_factory.mktemp("state"), {"agents": {"list": agents}}) as gateway:
        yield gateway


@pytest.mark.parametrize("number", range(len(CLIS)), ids=[f"{cli} {m}, {rule}" for cli, m, rule, _ in CLIS])
def test_a_cli_is_bound_by_the_rules_for_its_provider(clis: World, number: int) -> None:
    key, denied = f"agent:a{number}:main", CLIS[number][3]
    names = {tool["id"] for group in clis.ask("tools.effective", sessionKey=key)["groups"] for tool in group["tools"]}
    assert ("agents_list" not in names) == denied
    assert ("agents_list" not in clis.ask("attach.grant", sessionKey=key)["tools"]) == denied


@pytest.mark.parametrize(
    ("cli", "params", "word"),
    [
        ("claude", {}, None),
        ("claude", {"model": "opus"}, "opus"),
        ("claude", {"model": "anthropic/opus"}, "opus"),
        ("claude", {"model": "opus", "provider": "anthropic"}, "opus"),
        ("codex", {"model": "gpt-5"}, "gpt-5"),
        ("gemini", {"model": "google/pro"}, "pro"),
        ("opencode", {}, None),
        ("opencode", {"model": "openai/gpt-5"}, "openai/gpt-5"),
        ("opencode", {"model": "gpt-5", "provider": "openai"}, "openai/gpt-5"),
    ],
)
def test_a_cli_is_told_the_model_it_is_judged_by(
    tmp_path: Path, cli: str, params: dict[str, str], word: str | None
) -> None:
    stand_in = configured(tmp_path, cli, lines(*ANSWERS[cli]))
    with serving(tmp_path / "state") as served, joined(served) as client:
        client.ask("agent", message="x", idempotencyKey="k", sessionKey="main", **params)
        assert client.ask("agent.wait", runId="k", timeoutMs=30_000)["status"] == "ok"
    named = [arg for arg in stand_in.called()["args"] if arg.startswith("--model")]
    assert named == ([] if word is None else [f"--model={word}"])


# ---- where rules may stand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "there"),
    [
        ({}, False),
        ({"tools": {"byProvider": {}}}, False),
        ({"tools": {"byProvider": {"a": {}}}}, True),
        ({"agents": {"defaults": {"tools": {"byProvider": {"a": {}}}}}}, True),
        ({"agents": {"list": [{"id": "x"}, {"id": "y", "tools": {"byProvider": {"a": {}}}}]}}, True),
        ({"agents": {"entries": {"y": {"tools": {"byProvider": {"a": {}}}}}}}, True),
        ({"agents": {"list": [{"id": "x", "tools": {"deny": ["exec"]}}]}, "tools": {"deny": ["exec"]}}, False),
        ({"agents": None, "tools": []}, False),
    ],
)
def test_rules_by_provider_are_seen_wherever_they_stand(config: dict[str, Any], there: bool) -> None:
    assert has_provider_rules(config) is there
