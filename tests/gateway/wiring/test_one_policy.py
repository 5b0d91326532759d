"""One policy for the 29 tools, whichever credential they come with: a run's grant, the gateway's own token, a device's.

Each session of one config has rules of its own. What a connection in that session may list and what it may call
is asked of a real gateway under each credential, and compared with the gateway's other entry points.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from openclaw_mcp.cli import remoteclaw
from openclaw_mcp.core.claw_methods import GRANT_PREFIX, MESSAGE_ACTIONS, METHODS_BY_TOOL, TOOLS_BY_ACTION
from openclaw_mcp.core.session_target import SessionAddress
from openclaw_mcp.net.gateway_client.acting_headers import read_session_address, session_headers
from openclaw_mcp.tools.policy_rules import from_config
from openclaw_mcp.tools.subject import find_listed_group
from tests.claw.gateways import call, environment, introduce, server
from tests.gateway.rpc.gateways import CONNECT
from tests.gateway.wiring.gateways import WAIT, Refused, World, comes, joined, world

RULES: dict[str, dict[str, Any]] = {
    "free": {},
    "named": {"deny": ["cron", "message_pin"]},
    "one": {"deny": ["cron_list"]},
    "family": {"deny": ["message"]},
    "groups": {"deny": ["group:messaging", "group:sessions"]},
    "automation": {"deny": ["Group:Automation"]},
    "wild": {"deny": ["cron_*", "*_send"]},
    "all": {"deny": ["*"]},
    "only": {"allow": ["sessions_list", "message_send"]},
    "onlygroup": {"allow": ["group:sessions"]},
    "minimal": {"profile": "minimal"},
    "coding": {"profile": "coding"},
    "messaging": {"profile": "messaging"},
    "also": {"profile": "minimal", "alsoAllow": ["cron"]},
    "typo": {"deny": ["group:sesions"]},
    "model": {"byProvider": {"openai": {"deny": ["cron", "message_pin"]}}},
}
"""An agent of each name, and its rules."""
GROUPS: dict[str, Any] = {
    "-100": {"tools": {"deny": ["cron", "message_pin"]}},
    "-200": {"tools": {"allow": ["message_send"]}},
    "-300": {"toolsBySender": {"*": {"deny": ["group:messaging"]}}},
    "*": {"tools": {"deny": ["gateway"]}},
}
CONFIG: dict[str, Any] = {
    "agents": {
        "list": [
            {
                "id": name,
                "runtime": "demo",
                "tools": rules,
                **({"model": "openai/gpt"} if name == "model" else {}),
                **({"default": True} if name == "free" else {}),
            }
            for name, rules in RULES.items()
        ]
    },
    "channels": {
        "telegram": {
            "groups": GROUPS,
            "accounts": {"work": {"groups": {"-100": {"tools": {"deny": ["sessions_list"]}}}}, "default": {}},
        }
    },
    "gateway": {"tools": {"allow": ["sessions_spawn", "sessions_send", "cron", "gateway"]}},
}
SESSIONS = [
    *(f"agent:{name}:main" for name in RULES),
    *(f"agent:free:telegram:group:{id}" for id in ("-100", "-200", "-300", "-999", "-100:topic:7")),
    "agent:free:telegram:direct:1",
    "agent:free:subagent:0b9e2f4c-0000-4000-8000-000000000000",
    "agent:named:subagent:0b9e2f4c-0000-4000-8000-000000000001",
    "agent:ghost:main",
]
WRONG: dict[str, Any] = {
    "limit": "x", "sessionKey": 0, "key": 0, "message": 0, "task": 0, "id": 0, "raw": 0, "path": 0, "baseHash": 0,
    "reason": 0, "job": 0, "runId": 0, "timeoutMs": "x", "params": 0, "schedule": 0, "filter": 0, "includeDisabled": 0,
}  # fmt: skip
"""Parameters no method takes: a call that is allowed gets as far as these and does nothing."""


def request(tool: str) -> tuple[str, dict[str, Any]]:
    """The method that is this tool's own, with parameters that do no harm."""
    if tool in MESSAGE_ACTIONS:
        return "message.action", {"action": MESSAGE_ACTIONS[tool], "params": {"dryRun": True}, "dryRun": True}
    if tool == "gateway_restart":
        return "gateway.restart.preflight", {}
    method = METHODS_BY_TOOL[tool][0][-1] if tool.startswith("gateway_config_") else METHODS_BY_TOOL[tool][0][0]
    return method, WRONG


class ToolClient:
    """A connection of a tool server: what it is to list, and what it may call."""

    def __init__(self, hello: dict[str, Any], ask: Callable[..., Any]) -> None:
        self.listed = set(hello["features"]["tools"])
        self.ask = ask

    def refusal(self, tool: str) -> str | None:
        method, params = request(tool)
        return self.refusal_of(method, params)

    def refusal_of(self, method: str, params: dict[str, Any]) -> str | None:
        try:
            self.ask(method, **params)
        except Refused as exc:
            return str(exc) if "is refused" in str(exc) else None  # else it got as far as the method itself
        return None

    @property
    def callable(self) -> set[str]:
        return {tool for tool in METHODS_BY_TOOL if self.refusal(tool) is None}


@contextlib.contextmanager
def tool_client(
    running_gateway: World, place: SessionAddress | None, *, token: str | None = None, scopes: Any = None
) -> Iterator[ToolClient]:
    """A tool server's connection, as `clawlink` makes it."""
    headers = {} if place is None else session_headers(place)
    with connect(
        running_gateway.served.ws, compression=None, max_size=None, max_queue=None, additional_headers=headers
    ) as socket:
        socket.recv(timeout=WAIT)
        params = CONNECT | {"auth": {"token": token or running_gateway.served.token}}
        params |= {} if scopes is None else {"scopes": scopes}
        socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": params}))
        answer = json.loads(socket.recv(timeout=WAIT))
        assert answer["ok"], answer
        yield ToolClient(answer["payload"], World(running_gateway.served, socket).ask)


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), CONFIG) as gateway:
        yield gateway


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", SESSIONS)
def test_the_gateways_token_has_the_tools_a_grant_of_that_session_has_to_list_and_to_call(
    running_gateway: World, session: str
) -> None:
    params = {"sessionKey": session} if "ghost" not in session else {"sessionKey": "agent:free:main"}
    token = running_gateway.ask("attach.grant", **params)["token"]
    with (
        tool_client(running_gateway, None, token=token) as grant,
        tool_client(running_gateway, SessionAddress(session=session)) as own,
    ):
        assert own.listed == grant.listed
        assert own.callable == own.listed
        assert grant.callable == grant.listed


@pytest.mark.parametrize("session", [key for key in SESSIONS if "ghost" not in key])
def test_the_gateways_entry_points_decide_alike_about_the_tools_they_share(
    running_gateway: World, session: str
) -> None:
    with tool_client(running_gateway, SessionAddress(session=session)) as client:
        mcp = {tool["name"] for tool in running_gateway.mcp("tools/list", session)["result"]["tools"]}
        effective = {
            t["id"] for g in running_gateway.ask("tools.effective", sessionKey=session)["groups"] for t in g["tools"]
        }
        shared = {tool for tool in METHODS_BY_TOOL if tool.startswith(("session", "agents_list", "subagents"))}

        assert mcp & shared == effective & shared == client.listed & shared
        for tool in sorted(shared):
            answered = running_gateway.mcp("tools/call", session, name=tool, arguments=WRONG)["result"]["content"][0][
                "text"
            ]
            posted = running_gateway.post(tool, session, **WRONG).status
            invoked = running_gateway.invoke(tool, session, **WRONG).get("error", {}).get("code")
            reply = running_gateway.say(session, f"!tool {tool} {json.dumps(WRONG)}")
            refused = [
                "is refused" in answered, posted == 404, invoked == "not_found", "is refused" in reply,
                client.refusal(tool) is not None,
            ]  # fmt: skip
            assert refused == [tool not in client.listed] * 5, (tool, answered, posted, invoked, reply)


@pytest.mark.parametrize("session", [key for key in SESSIONS if "ghost" not in key])
def test_an_action_of_a_familys_tool_is_judged_as_the_tool_that_does_it_alone(
    running_gateway: World, session: str
) -> None:
    """At every entry point: what may be done under one name may be done under the other, and is what is shown."""
    with tool_client(running_gateway, SessionAddress(session=session)) as client:
        schemas = {
            tool["name"]: tool["inputSchema"] for tool in running_gateway.mcp("tools/list", session)["result"]["tools"]
        }
        for family, actions in TOOLS_BY_ACTION.items():
            may = {action for action, tool in actions.items() if tool in client.listed}
            alone = {action for action, tool in actions.items() if tool in METHODS_BY_TOOL}
            listed = set(schemas[family]["properties"]["action"]["enum"]) if family in schemas else set()
            assert listed & alone == may, (family, listed, may)
            calls = {action: {"action": action, "target": 0, "jobId": 0, "raw": 0, "reason": 0} for action in alone}
            for action, arguments in calls.items():
                answered = running_gateway.mcp("tools/call", session, name=family, arguments=arguments)["result"][
                    "content"
                ]
                invoked = running_gateway.invoke(family, session, **arguments).get("error", {}).get("message", "")
                refused = ["is refused" in words for words in (answered[0]["text"], invoked)]
                assert refused == [action not in may] * 2, (family, action, answered, invoked)
            for action in [*sorted(may)[:1], *sorted(alone - may)[:1]]:  # an agent's runs take longer: one of each
                reply = running_gateway.say(session, f"!tool {family} {json.dumps(calls[action])}")
                assert ("is refused" in reply) == (action not in may), (family, action, reply)


def test_the_rows_show_both_answers() -> None:
    assert len(SESSIONS) * len(METHODS_BY_TOOL) >= 600


@pytest.mark.parametrize(
    ("scopes", "owner"),
    [(["operator.admin"], True), (["operator.read", "operator.write"], False), (["operator.read"], False)],
)
def test_a_session_is_acted_in_with_the_rights_of_the_credential(
    running_gateway: World, scopes: list[str], owner: bool
) -> None:
    with tool_client(running_gateway, SessionAddress(session="agent:free:main"), scopes=scopes) as client:
        assert ("cron_list" in client.listed, "gateway_config_get" in client.listed) == (owner, owner)
        assert (client.refusal("cron_list") is None) == owner


# ---- by another way --------------------------------------------------------------------------------------------------

DENIED = {
    "cron": [("cron.list", {}), ("cron.status", {}), ("cron.add", {}), ("cron.run", {"id": "x"}), ("cron.runs", {})],
    "message_pin": [
        ("message.action", {"action": "pin"}), ("message.action", {"action": "unpin"}), ("message:pin", {}),
    ],
}  # fmt: skip
OTHERS = [
    ("message.action", {"action": "no-such"}), ("message.action", {}), ("message.action", {"action": ["pin"]}),
    ("chat.send", {}), ("local.send", {"text": "x"}), ("tools.invoke", {"name": "cron"}), ("attach.grant", {}),
    ("config.set", {}), ("sessions.create", {}), ("sessions.converse", {}), ("wake", {}), ("node.invoke", {}),
    ("poll", {}), ("audit.list", {}), ("sessions.patch", {}), ("exec.approvals.set", {}), ("cron.get", {"id": "x"}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "params"), [*itertools.chain(*DENIED.values()), *OTHERS])
def test_no_other_method_leads_past_the_rules(running_gateway: World, method: str, params: dict[str, Any]) -> None:
    with tool_client(running_gateway, SessionAddress(session="agent:named:main")) as client:
        assert client.refusal_of(method, params) is not None


KEYS = [
    "agent:named:main", "AGENT:NAMED:MAIN", " agent:named:main ", "agent:named:other", "agent:named:telegram:direct:1",
    "agent:named:d\u00e9j\u00e0-vu", "agent:named:100%", "agent:named:a b", "agent:named:%2e",
    "agent:named:" + "x" * 480,
]  # fmt: skip


@pytest.mark.parametrize("session", KEYS)
def test_a_session_is_known_however_it_is_written(running_gateway: World, session: str) -> None:
    with tool_client(running_gateway, SessionAddress(session=session)) as client:
        assert not {"cron_list", "message_pin"} & client.listed
        assert "message_send" in client.listed
        assert client.refusal("cron_list") is not None


@pytest.mark.parametrize(
    ("place", "missing"),
    [
        (SessionAddress(session="main", channel="telegram", to="-100"), {"cron_list", "message_pin"}),
        (SessionAddress(session="main", channel="telegram", to="telegram:-100"), {"cron_list", "message_pin"}),
        (SessionAddress(session="main", channel="telegram", to="group:-100"), {"cron_list", "message_pin"}),
        (SessionAddress(session="main", channel="telegram", to="-100:topic:3"), {"cron_list", "message_pin"}),
        (SessionAddress(session="main", channel="telegram", account="work", to="-100"), {"sessions_list"}),
        (SessionAddress(session="main", channel="Telegram", to="-100"), {"cron_list", "message_pin"}),
        (SessionAddress(session="agent:free:telegram:group:-100", account="work"), {"sessions_list"}),
        (SessionAddress(session="main", channel="telegram", to="42"), set()),
        (SessionAddress(session="main", channel="matrix", to="-100"), set()),
        (SessionAddress(session="main", to="-100"), set()),
    ],
)
def test_the_conversation_behind_a_session_counts(
    running_gateway: World, place: SessionAddress, missing: set[str]
) -> None:
    watched = {"cron_list", "message_pin", "sessions_list"}
    with tool_client(running_gateway, place) as client:
        assert watched - client.listed == missing
        assert {tool for tool in watched if client.refusal(tool) is not None} == missing


def test_a_grant_is_judged_by_its_own_session_whatever_the_headers_say(running_gateway: World) -> None:
    token = running_gateway.ask("attach.grant", sessionKey="agent:named:main")["token"]
    with tool_client(running_gateway, SessionAddress(session="agent:free:main"), token=token) as client:
        assert "cron_list" not in client.listed
        assert client.refusal("cron_list") is not None


def test_a_sub_agent_of_a_sub_agent_is_known_by_the_books(running_gateway: World) -> None:
    """Its key tells of one step only."""
    running_gateway.configure(agents={**CONFIG["agents"], "defaults": {"subagents": {"maxSpawnDepth": 2}}})
    try:
        parent = running_gateway.ask("sessions.spawn", sessionKey="agent:free:deep", task="!sleep 600")[
            "childSessionKey"
        ]
        child = running_gateway.ask("sessions.spawn", sessionKey=parent, task="!sleep 600")["childSessionKey"]
        with (
            tool_client(running_gateway, SessionAddress(session=parent)) as one,
            tool_client(running_gateway, SessionAddress(session=child)) as two,
        ):
            assert ("sessions_spawn" in one.listed, "sessions_spawn" in two.listed) == (True, False)
            assert two.refusal("sessions_spawn") is not None
        running_gateway.ask("sessions.abort", key=child)
        running_gateway.ask("sessions.abort", key=parent)
    finally:
        running_gateway.configure(agents=CONFIG["agents"])


def test_without_a_session_the_token_opens_what_an_operator_may(running_gateway: World) -> None:
    assert running_gateway.ask("cron.list")["jobs"] == []
    with joined(running_gateway.served) as other:
        assert "tools" not in other.ask("status")


def test_each_call_is_on_record_under_its_session(running_gateway: World) -> None:
    session = "agent:named:recorded"
    with tool_client(running_gateway, SessionAddress(session=session)) as client:
        client.ask("agents.list")
        assert client.refusal("cron_list") is not None

    def records() -> dict[str, str]:
        found = running_gateway.ask("audit.list", limit=100)["records"]
        return {one["tool"]: one["outcome"] for one in found if one["sessionKey"] == session}

    assert comes(lambda: len(records()) == 2)
    assert records() == {"agents_list": "ok", "cron_list": "tool_denied"}


# ---- the server ------------------------------------------------------------------------------------------------------


def listed(peer: Any) -> set[str]:
    return {tool["name"] for tool in peer.ask("tools/list", {}, id="list")["result"]["tools"]}


@pytest.mark.parametrize(
    ("session", "more"),
    [
        ("agent:named:main", {}),
        ("agent:free:telegram:group:-100", {}),
        ("main", {"CHANNEL": "telegram", "TO": "-100"}),
        ("agent:model:main", {}),
        ("agent:free:subagent:1", {}),
    ],
)
@pytest.mark.parametrize("first", ["list", "call"])
def test_the_server_lists_and_calls_what_the_session_has_from_the_first_word(
    running_gateway: World, tmp_path: Path, session: str, more: dict[str, str], first: str
) -> None:
    env = environment(
        running_gateway.served.ws, running_gateway.served.token, tmp_path / "effects", SESSION_KEY=session, **more
    )
    with server(env) as peer:
        introduce(peer)
        if first == "list":
            assert "cron_list" not in listed(peer)
        result = call(peer, "cron_list")
        assert result["isError"] is True
        assert "cron_list is " in result["content"][0]["text"]
        assert "cron_list" not in listed(peer)
        pinned = call(peer, "message_pin", 2, messageId="1", target="x")["content"][0]["text"]
        if "subagent" not in session:
            assert "message_pin is " in pinned
        assert peer.hang_up() == 0


def test_the_list_follows_a_change_of_the_rules(running_gateway: World, tmp_path: Path) -> None:
    env = environment(
        running_gateway.served.ws, running_gateway.served.token, tmp_path / "effects", SESSION_KEY="agent:free:live"
    )
    with server(env) as peer:
        introduce(peer)
        assert {"agents_list", "cron_list"} <= listed(peer)
        running_gateway.configure(tools={"deny": ["agents_list"]})
        try:
            assert peer.receive()["method"] == "notifications/tools/list_changed"
            assert "agents_list" not in listed(peer)
            assert "agents_list is " in call(peer, "agents_list")["content"][0]["text"]
        finally:
            running_gateway.configure(tools={})
        assert peer.receive()["method"] == "notifications/tools/list_changed"
        assert "agents_list" in listed(peer)
        assert call(peer, "agents_list")["isError"] is False


def test_a_grants_list_follows_a_change_too(running_gateway: World, tmp_path: Path) -> None:
    token = running_gateway.ask("attach.grant", sessionKey="agent:free:live")["token"]
    with server(environment(running_gateway.served.ws, token, tmp_path / "effects")) as peer:
        introduce(peer)
        assert call(peer, "agents_list")["isError"] is False
        running_gateway.configure(tools={"deny": ["agents_list"]})
        try:
            assert peer.receive()["method"] == "notifications/tools/list_changed"
            assert "agents_list" not in listed(peer)
        finally:
            running_gateway.configure(tools={})


# ---- by themselves ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["a", "d\u00e9j\u00e0 vu", "100%", "%41", "a\tb", "\U0001f980", "x" * 512])
def test_a_place_is_read_as_it_was_written(word: str) -> None:
    place = SessionAddress(session=word, channel=word, account=word, to=word, thread=word)
    headers = session_headers(place)
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    assert read_session_address({name: [value] for name, value in headers.items()}) == place


def test_no_session_is_no_place() -> None:
    assert read_session_address({}) is None
    assert read_session_address({"x-openclaw-session-key": [""]}) is None
    assert read_session_address({"x-openclaw-session-key": ["%20"], "x-openclaw-account-id": ["a"]}) is None
    assert read_session_address({"x-openclaw-session-key": ["a", "b"]}) == SessionAddress(session="a")


def test_a_runs_token_is_told_by_its_beginning_where_nothing_may_be_loaded() -> None:
    assert remoteclaw.GRANT_PREFIX == GRANT_PREFIX


def test_a_group_counts_when_the_rules_name_it() -> None:
    repository = from_config(
        {"channels": {"discord": {"guilds": {"g": {"channels": {"7": {}}}}, "channels": {"8": {}}}}}
    )
    found = [
        find_listed_group(repository, channel="discord", account="", to=to) for to in ("7", "channel:8", "9", "*", "")
    ]
    assert found == ["7", "8", None, None, None]
