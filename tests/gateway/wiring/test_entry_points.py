"""One policy for every entry point: the same tool, the same session, the same decision by the same step everywhere.

Each agent of one config has rules of its own; each of its decisions is asked of a real gateway over RPC, over
`POST /tools/invoke`, over `/mcp`, of the agent itself, and of `openclaw policy explain`. What each one decided is
read from the audit.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from openclaw_mcp.cli import commands
from openclaw_mcp.tools.policy_pipeline import HTTP_DENY
from tests import web_client
from tests.gateway.wiring.gateways import Refused, World, comes, joined, world
from tests.mcp.client.servers import ECHO

OWN_TOOLS = (
    "sessions_list", "sessions_history", "sessions_send", "sessions_spawn", "session_status", "agents_list",
    "subagents", "gateway",
)  # fmt: skip
TOOLS = (*OWN_TOOLS, "parrot__echo", "closed__echo")
WRONG = {"limit": "x", "sessionKey": 0, "message": 0, "task": 0, "action": 0, "text": 0}
"""Arguments no tool takes: a call that is allowed gets as far as the check of its arguments and does nothing."""

HAND: dict[str, dict[str, Any]] = {
    "free": {},
    "minimal": {"profile": "minimal"},
    "coding": {"profile": "coding"},
    "messaging": {"profile": "messaging"},
    "full": {"profile": "full"},
    "also": {"profile": "minimal", "alsoAllow": ["agents_list", "parrot__*"]},
    "nothing": {"deny": ["*"]},
    "noagents": {"deny": ["group:agents"]},
    "nosessions": {"deny": ["Group:Sessions"]},
    "noguests": {"deny": ["group:plugins"]},
    "noparrot": {"deny": ["parrot"]},
    "nomcp": {"deny": ["bundle-mcp"]},
    "onlymcp": {"allow": ["bundle-mcp"]},
    "onlyhouse": {"allow": ["group:openclaw"]},
    "prefix": {"allow": ["sessions_*"]},
    "suffix": {"allow": ["*_list"]},
    "both": {"allow": ["sessions_*"], "deny": ["sessions_send", " SESSIONS_SPAWN "]},
    "typo": {"deny": ["group:sesions"]},
    "model": {"byProvider": {"openai": {"deny": ["sessions_list"]}, "openai/gpt": {"deny": ["agents_list"]}}},
}
MODELS = {"model": "openai/gpt"}


def generated(count: int) -> dict[str, dict[str, Any]]:
    """The same every time."""
    choose = random.Random(6)
    words = [
        *TOOLS,
        "group:sessions",
        "group:openclaw",
        "group:plugins",
        "group:automation",
        "sessions_*",
        "*",
        "mcp/parrot",
    ]
    agents: dict[str, dict[str, Any]] = {}
    for number in range(count):
        rules: dict[str, Any] = {}
        if choose.random() < 0.4:
            rules["profile"] = choose.choice(["minimal", "coding", "messaging", "full"])
        if choose.random() < 0.6:
            rules["deny"] = choose.sample(words[:-2], choose.randint(1, 3))
        if choose.random() < 0.5:
            rules[choose.choice(["allow", "alsoAllow"])] = choose.sample(words, choose.randint(1, 4))
        agents[f"made{number}"] = rules
    return agents


AGENTS = HAND | generated(12)
SESSIONS = {
    "group": "agent:free:telegram:group:-100",
    "child": "agent:free:subagent:0b9e2f4c-0000-4000-8000-000000000000",
}
"""Sessions of the agent without rules whose place has some."""

CONFIG: dict[str, Any] = {
    "agents": {
        "list": [
            {"id": name, "runtime": "demo", "tools": rules, **({"model": MODELS[name]} if name in MODELS else {})}
            for name, rules in AGENTS.items()
        ]
    },
    "channels": {"telegram": {"groups": {"-100": {"tools": {"deny": ["sessions_history", "parrot__echo"]}}}}},
    "gateway": {"tools": {"allow": list(HTTP_DENY)}},
    "mcp": {"servers": {"parrot": ECHO, "closed": {**ECHO, "agents": ["coding", "prefix", "full"]}}},
}


class Case(NamedTuple):
    session: str
    tool: str


KEYS = [*(f"agent:{name}:main" for name in AGENTS), *SESSIONS.values()]
CASES = [Case(session, tool) for session in KEYS for tool in TOOLS]


class Decision(NamedTuple):
    allowed: bool
    step: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), CONFIG) as gateway:
        gateway.say("agent:full:main", '!tool parrot__echo {"text": "up"}', '!tool closed__echo {"text": "up"}')
        yield gateway


@pytest.fixture(scope="module")
def decisions(server: World) -> dict[tuple[str, Case], Decision]:
    """What each entry point decided about each case, and by which step."""
    for session in KEYS:
        orders = [f"!tool {tool} {json.dumps(WRONG)}" for tool in TOOLS]
        server.say(session, *orders)
        for tool in TOOLS:
            server.invoke(tool, session, **WRONG)
            server.post(tool, session, **WRONG)
            server.mcp("tools/call", session, name=tool, arguments=WRONG)
    wanted = len(CASES) * 4
    assert comes(lambda: len(all_records(server)) >= wanted + 2)
    return {
        (record["door"], Case(record["sessionKey"], record["tool"])): Decision(
            record["outcome"] in ("ok", "tool_arguments"), record["step"]
        )
        for record in all_records(server)
    }


def all_records(server: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page = server.ask("audit.list", limit=1000)
    while True:
        found += page["records"]
        if "nextBefore" not in page:
            return found
        page = server.ask("audit.list", limit=1000, before=page["nextBefore"])


def explained(server: World, case: Case, capsys: pytest.CaptureFixture[str], **options: str) -> Decision:
    config = str(server.served.folder / "openclaw.json")
    words = ["--tool", case.tool, "--session", case.session, "--config", config, "--json"]
    words += [word for name, value in options.items() for word in (f"--{name}", value)]
    assert commands.run(["policy", "explain", *words]) == 0
    explanation = json.loads(capsys.readouterr().out)
    return Decision(explanation["allowed"], explanation["step"])


def test_the_matrix_is_as_large_as_promised() -> None:
    assert len(CASES) >= 300
    assert len(HAND) * len(TOOLS) >= 150


@pytest.mark.parametrize("session", KEYS)
def test_every_entry_point_decides_alike(
    server: World, decisions: dict[tuple[str, Case], Decision], capsys: pytest.CaptureFixture[str], session: str
) -> None:
    for tool in TOOLS:
        case = Case(session, tool)
        expected = explained(server, case, capsys)
        by_entry_point = {entry_point: decisions[entry_point, case] for entry_point in ("rpc", "http", "mcp", "agent")}

        assert by_entry_point == dict.fromkeys(by_entry_point, expected), case


def test_the_cases_show_both_answers_and_every_kind_of_step(decisions: dict[tuple[str, Case], Decision]) -> None:
    steps = {decision.step for decision in decisions.values() if not decision.allowed}
    allowed = sum(decision.allowed for decision in decisions.values())

    assert {"profile", "agent", "agent provider", "server", "group", "subagent"} <= steps
    assert 0.2 < allowed / len(decisions) < 0.8


@pytest.mark.parametrize("session", KEYS)
def test_what_an_entry_point_lists_is_what_it_lets_call(
    server: World, decisions: dict[tuple[str, Case], Decision], session: str
) -> None:
    listed = {tool["name"] for tool in server.mcp("tools/list", session)["result"]["tools"]}
    groups = server.ask("tools.effective", sessionKey=session)["groups"]
    effective = {tool["id"] for group in groups for tool in group["tools"]}
    may = {tool for tool in TOOLS if decisions["agent", Case(session, tool)].allowed}

    assert listed & set(TOOLS) == may
    assert effective & set(TOOLS) == may


def test_tools_with_a_reach_of_their_own_are_not_for_bare_tokens_unless_the_config_says_so(
    server: World, capsys: pytest.CaptureFixture[str]
) -> None:
    session = "agent:free:main"
    reach = ("sessions_spawn", "sessions_send", "gateway")
    server.configure(gateway={"tools": {"allow": ["sessions_send"], "deny": ["agents_list"]}})
    try:
        for tool in (*reach, "agents_list", "sessions_list"):
            error = server.invoke(tool, session, **WRONG)["error"]
            posted = server.post(tool, session, **WRONG)
            may = explained(server, Case(session, tool), capsys, door="rpc").allowed
            assert may == (tool in ("sessions_send", "sessions_list"))
            if may:
                assert (error["code"], posted.status) == ("invalid_request", 400)
            else:
                assert (error["code"], posted.status) == ("not_found", 404)
                assert error["message"].startswith(f"Tool not available: {tool} (")
                assert posted.json["error"] == {"type": "not_found", "message": error["message"]}
        listed = {tool["name"] for tool in server.mcp("tools/list", session)["result"]["tools"]}
        assert {*reach, "agents_list"} <= listed
    finally:
        server.configure(gateway=CONFIG["gateway"])


def test_an_operator_who_names_an_agent_acts_in_its_main_session(server: World) -> None:
    def refused(entry_point: str, **named: str) -> str:
        body = {"name": "agents_list", "args": {}, **named}
        if entry_point == "http":
            posted = web_client.send(f"{server.served.http}/tools/invoke", "POST", body, **server.bearer).json
            return str(posted.get("error", {}).get("message", ""))
        try:
            return str(server.ask("tools.invoke", **body).get("error", {}).get("message", ""))
        except Refused as exc:
            return str(exc)

    for entry_point in ("rpc", "http"):
        assert refused(entry_point, agentId="free") == ""
        assert "agents.nothing.tools.deny" in refused(entry_point, agentId="nothing")
        assert refused(entry_point, agentId="free", sessionKey="agent:free:main") == ""
        assert 'unknown agent id "ghost"' in refused(entry_point, agentId="ghost")
        assert 'unknown agent id "ghost"' in refused(entry_point, sessionKey="agent:ghost:main")
        assert "belongs to agent free, not nothing" in refused(
            entry_point, agentId="nothing", sessionKey="agent:free:main"
        )


def test_a_change_of_the_rules_holds_at_once_and_everywhere(server: World) -> None:
    session = "agent:free:main"

    def allowed() -> list[bool]:
        rpc = server.invoke("sessions_list", session, limit=1)["ok"]
        http = server.post("sessions_list", session, limit=1).status == 200
        mcp = not server.mcp("tools/call", session, name="sessions_list", arguments={})["result"].get("isError")
        agent = "refused" not in server.say(session, "!tool sessions_list {}")
        return [rpc, http, mcp, agent]

    assert allowed() == [True] * 4
    server.configure(tools={"deny": ["sessions_list"]})
    assert allowed() == [False] * 4
    server.configure(tools={"deny": ["group:no-such"]})  # what can't be understood refuses
    assert allowed() == [False] * 4
    server.configure(tools={})
    assert allowed() == [True] * 4


def test_an_operator_with_every_right_is_the_owner(server: World) -> None:
    answer = server.say("agent:free:owner", '!tool gateway {"action": "config.get", "path": "gateway"}')
    assert "sessions_spawn" in answer  # the operator's own run reads the config
    assert server.invoke("gateway", "agent:free:owner", action="config.get", path="gateway")["ok"]


def test_an_operator_with_fewer_rights_is_not_and_neither_are_its_runs(server: World) -> None:
    order = '!tool gateway {"action": "config.get"}'
    with joined(server.served, "operator.read", "operator.write") as operator:
        error = operator.invoke("gateway", "agent:free:guest", action="config.get")["error"]["message"]
        answered = operator.say("agent:free:guest", order)
        child = operator.ask("sessions.spawn", sessionKey="agent:free:guest", task=order)
        sent = {"sessionKey": "agent:free:other", "message": order, "timeoutSeconds": 20}
        reply = operator.ask("sessions.converse", **sent)["reply"]
        listed = {tool["id"] for g in operator.ask("tools.catalog")["groups"] for tool in g["tools"]}

        assert error.endswith("(gateway is refused: it is for the owner only)")
        assert answered == reply == "gateway is refused: it is for the owner only"
        assert "gateway" not in listed
        assert comes(lambda: any("owner only" in text for text in operator.texts(child["childSessionKey"])))
    mixed = server.say("agent:free:guest", order)
    assert '"hash"' in mixed  # the owner's own message in the same session has the owner's rights again


def test_the_agents_own_config_tool_changes_the_config(server: World) -> None:
    wait = {"inbound": {"debounceMs": 1}}
    patch = {"action": "config.patch", "raw": json.dumps({"messages": wait}), "note": "asked by the owner"}
    result = server.tool("agent:free:admin", "gateway", **patch)

    assert result["ok"]
    answer = server.tool("agent:free:admin", "gateway", action="config.get", path="messages")
    assert answer["config"] == wait
    missing = server.say("agent:free:admin", '!tool gateway {"action": "config.patch"}')
    assert "needs raw" in missing


RULES = {
    "mcp.servers.mine": {"mcp": {"servers": {"mine": {"command": "touch"}}}},
    "tools.sessions.visibility": {"tools": {"sessions": {"visibility": "all"}}},
    "commands.ownerAllowFrom": {"commands": {"ownerAllowFrom": ["telegram:666"]}},
    "models.providers.openai.baseUrl": {"models": {"providers": {"openai": {"baseUrl": "https://evil.example"}}}},
    "messages.x": {"messages": {"x": 1}},
}


@pytest.mark.parametrize("named", RULES)
def test_the_owners_agent_does_not_change_the_rules_that_bind_it(server: World, named: str) -> None:
    before = (server.served.folder / "openclaw.json").read_text()
    raw = json.dumps(RULES[named])

    reply = server.say("agent:free:admin", f"!tool gateway {json.dumps({'action': 'config.patch', 'raw': raw})}")
    assert "may not change" in reply
    assert named in reply
    assert "openclaw config set" in reply
    whole = json.dumps(server.ask("config.get")["parsed"] | RULES[named])
    reply = server.say("agent:free:admin", f"!tool gateway {json.dumps({'action': 'config.apply', 'raw': whole})}")
    assert "may not change" in reply

    assert (server.served.folder / "openclaw.json").read_text() == before


def test_a_config_that_is_no_config_leaves_the_rules_as_they_are(server: World, tmp_path: Path) -> None:
    file = server.served.folder / "openclaw.json"
    before = file.read_text()
    file.write_text("{ no config")
    try:
        assert server.invoke("sessions_list", "agent:minimal:main")["ok"] is False
        assert server.invoke("session_status", "agent:minimal:main")["ok"] is True
    finally:
        file.write_text(before)
