"""`remoteclaw-mcp-server` as an agent starts it: what it lists, when it connects, how it starts and ends."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from openclaw_mcp.core.claw_methods import METHODS_BY_TOOL
from openclaw_mcp.mcp.first_replies.claw_lists import OWNER_ONLY
from openclaw_mcp.tools.tool_names import CLAW_TOOLS
from tests.gateway.wiring.gateways import serving
from tests.gateway.wiring.test_gateway import Served
from tests.gateway.wiring.test_gateway import environment as settings
from tests.running import OPENCLAW

from .gateways import SERVER, call, environment, introduce, official, operator, server

NOBODY = "ws://127.0.0.1:1"
STARTS = int(os.environ.get("CLAW_STARTS", "10"))
"""How many servers are started one after another; `CLAW_STARTS=100` for the whole test."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("gateway")) as served:
        yield served


def listed(peer: Any) -> list[str]:
    return [tool["name"] for tool in peer.ask("tools/list", {}, id="list")["result"]["tools"]]


# ---- starting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GATEWAY_URL", "GATEWAY_TOKEN", "SESSION_KEY", "SIDE_EFFECTS_FILE"])
@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_setting_stops_the_start_with_its_name(tmp_path: Path, name: str, value: str | None) -> None:
    env = environment(NOBODY, "t", tmp_path / "effects")
    env.pop(f"REMOTECLAW_{name}")
    if value is not None:
        env[f"REMOTECLAW_{name}"] = value
    result = subprocess.run([SERVER], env=env, capture_output=True, text=True, timeout=60, check=False)

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"remoteclaw-mcp-server fatal: Missing required environment variable: REMOTECLAW_{name}\n"


def test_an_unknown_profile_stops_the_start(tmp_path: Path) -> None:
    env = environment(NOBODY, "t", tmp_path / "effects", TOOL_PROFILE="everything")
    result = subprocess.run([SERVER], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "minimal, coding, messaging, full" in result.stderr


# ---- what is listed --------------------------------------------------------------------------------------------------


def test_all_29_are_listed_before_the_gateway_is_called(tmp_path: Path) -> None:
    with server(environment(NOBODY, "t", tmp_path / "effects")) as peer:
        hello = introduce(peer)
        assert hello["serverInfo"]["name"] == "remoteclaw"
        assert hello["capabilities"]["tools"] == {"listChanged": True}
        assert listed(peer) == list(CLAW_TOOLS)
        answer = call(peer, "agents_list")
        assert answer["isError"] is True
        assert answer["content"][0]["text"].startswith(
            "Tool error (agents_list): the gateway can't be used: no gateway"
        )
        assert listed(peer) == list(CLAW_TOOLS)
        assert peer.hang_up() == 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"SENDER_IS_OWNER": "true"}, list(CLAW_TOOLS)),
        ({"SENDER_IS_OWNER": "false"}, [name for name in CLAW_TOOLS if name not in OWNER_ONLY]),
        ({"SENDER_IS_OWNER": "True"}, [name for name in CLAW_TOOLS if name not in OWNER_ONLY]),
        ({"TOOL_PROFILE": "minimal"}, ["session_status"]),
        ({"TOOLS": "cron_add, sessions_list"}, ["sessions_list", "cron_add"]),
        ({"TOOLS": "cron_add sessions_list", "SENDER_IS_OWNER": "false"}, ["sessions_list"]),
        ({"TOOLS": ""}, []),
    ],
)
def test_the_list_follows_owner_profile_and_menu(tmp_path: Path, settings: Any, expected: list[str]) -> None:
    with server(environment(NOBODY, "t", tmp_path / "effects", **settings)) as peer:
        introduce(peer)
        assert listed(peer) == expected  # by the opening
        peer.ask("logging/setLevel", {"level": "error"}, id="real")
        assert listed(peer) == expected  # by the server itself
        absent = next((name for name in CLAW_TOOLS if name not in expected), None)
        if absent is not None:
            answer = call(peer, absent)
            assert "not among the tools this run was given" in answer["content"][0]["text"]


def test_both_eras_see_the_same_list(tmp_path: Path) -> None:
    async def work() -> None:
        env = environment(NOBODY, "t", tmp_path / "effects", TOOL_PROFILE="messaging")
        lists = []
        for mode in ("legacy", "2026-07-28"):
            async with official(env, mode=mode) as client:
                lists.append([tool.name for tool in (await client.list_tools()).tools])
        assert lists[0] == lists[1]
        assert "message_send" in lists[0]

    asyncio.run(work())


@pytest.mark.parametrize("token", ["a run's", "the gateway's"])
def test_the_gateway_is_dialled_once_by_the_first_call_or_a_list_only_it_can_give(
    tmp_path: Path, gateway: Served, token: str
) -> None:
    def connections() -> int:
        return sum(one.status == "ESTABLISHED" for one in psutil.Process(peer.child.pid).net_connections())

    own = token == "the gateway's"
    credential = gateway.token if own else granted(gateway)["token"]
    with server(environment(gateway.ws, credential, tmp_path / "effects")) as peer:
        introduce(peer)
        assert connections() == 0
        listed(peer)
        assert connections() == (1 if own else 0)  # a run's menu is in its environment
        for id in range(3):
            assert call(peer, "agents_list", id)["isError"] is False
        assert connections() == 1


def test_the_list_is_narrowed_to_what_the_gateway_offers(tmp_path: Path, gateway: Served) -> None:
    async def offered() -> set[str]:
        async with operator(gateway.ws, gateway.token) as client:
            assert client.hello is not None
            return set(client.hello["features"]["methods"])

    methods = asyncio.run(offered())
    expected = [name for name, ways in METHODS_BY_TOOL.items() if any(methods.issuperset(way) for way in ways)]
    with server(environment(gateway.ws, gateway.token, tmp_path / "effects")) as peer:
        introduce(peer)
        call(peer, "agents_list")
        assert listed(peer) == expected


def test_a_wrong_token_is_said_so(tmp_path: Path, gateway: Served) -> None:
    with server(environment(gateway.ws, "wrong", tmp_path / "effects")) as peer:
        introduce(peer)
        text = call(peer, "agents_list")["content"][0]["text"]
        assert "gateway token mismatch" in text
        assert "wrong" not in text.replace("went wrong", "")


# ---- grants ----------------------------------------------------------------------------------------------------------


def granted(gateway: Served, **wanted: Any) -> Any:
    result = gateway.call("attach.grant", json.dumps({"sessionKey": "cli", **wanted}))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_an_attached_agent_has_the_grants_tools_any_its_environment_says(tmp_path: Path, gateway: Served) -> None:
    grant = granted(gateway, senderIsOwner=False, tools=["agents_list", "sessions_list", "gateway_config_get"])
    assert grant["tools"] == ["sessions_list", "agents_list"]
    entry = grant["stdioConfig"]["mcpServers"]["openclaw"]
    assert grant["token"] not in json.dumps(entry)
    env = {**os.environ, **entry["env"], **grant["env"]}
    with server(env) as peer:
        introduce(peer)
        assert listed(peer) == ["sessions_list", "agents_list"]

    forged = environment(gateway.ws, grant["token"], tmp_path / "effects", SENDER_IS_OWNER="true")
    with server(forged) as peer:
        introduce(peer)
        assert len(listed(peer)) == 29
        refusal = call(peer, "gateway_config_get")["content"][0]["text"]
        assert refusal == "Tool error (gateway_config_get): gateway_config_get is refused: it is for the owner only"
        assert listed(peer) == ["sessions_list", "agents_list"]  # the gateway has said so meanwhile
        assert call(peer, "agents_list", 2)["isError"] is False

        revoked = gateway.call("attach.revoke", json.dumps({"token": grant["token"]}))
        assert json.loads(revoked.stdout) == {"revoked": True}
        text = call(peer, "agents_list", 3)["content"][0]["text"]
        assert "token has ended" in text


def test_the_owners_grant_changes_what_is_free_and_not_the_rules(tmp_path: Path, gateway: Served) -> None:
    grant = granted(gateway, senderIsOwner=True)
    with server(environment(gateway.ws, grant["token"], tmp_path / "effects")) as peer:
        introduce(peer)
        colour = call(peer, "gateway_config_patch", 1, patches={"ui": {"seamColor": "#123456"}})
        assert colour["isError"] is False, colour
        whole = json.loads(call(peer, "gateway_config_get", 2)["content"][0]["text"])["config"]
        same = call(peer, "gateway_config_apply", 3, config={**whole, "ui": {"seamColor": "#654321"}})
        assert same["isError"] is False, same
        before = (gateway.folder / "openclaw.json").read_text()
        rules: list[Any] = [{"tools": {"profile": "full"}}, {"mcp": {"servers": {"x": {"command": "id"}}}}]
        for id, rule in enumerate(rules):
            for tool, content in (
                ("gateway_config_patch", {"patches": rule}),
                ("gateway_config_patch", {"patches": [{"ui": {"seamColor": "#000"}}, rule]}),
                ("gateway_config_apply", {"config": {**whole, **rule}}),
            ):
                refused = call(peer, tool, 10 + id, **content)
                assert refused["isError"] is True
                assert "an agent's run may not change" in refused["content"][0]["text"]
        assert (gateway.folder / "openclaw.json").read_text() == before


def test_a_list_that_was_cut_says_so(tmp_path: Path, gateway: Served) -> None:
    grant = granted(gateway, sessionKey="parent")
    env = environment(gateway.ws, grant["token"], tmp_path / "effects", SESSION_KEY="agent:main:parent")
    with server(env) as peer:
        introduce(peer)
        for id in (1, 2):
            call(peer, "sessions_spawn", id, task="!say ANNOUNCE_SKIP")
        cut, whole = (call(peer, "sessions_list", limit + 2, limit=limit)["structuredContent"] for limit in (1, 5))
    assert (cut["count"], cut["totalCount"], cut["hasMore"], cut["limitApplied"]) == (1, 2, True, 1)
    assert (whole["count"], whole["totalCount"], whole["hasMore"]) == (2, 2, False)


def test_a_grant_of_no_tools_lists_none(gateway: Served) -> None:
    grant = granted(gateway, tools=[])
    with server({**os.environ, **grant["stdioConfig"]["mcpServers"]["openclaw"]["env"], **grant["env"]}) as peer:
        introduce(peer)
        assert listed(peer) == []


@pytest.mark.parametrize(
    ("wanted", "says"),
    [({"sender_is_owner": False}, "sender_is_owner"), ({"sessionKey": "agent:nobody:x"}, "unknown agent")],
)
def test_a_grant_that_was_asked_for_wrongly_is_none(gateway: Served, wanted: Any, says: str) -> None:
    result = gateway.call("attach.grant", json.dumps({"sessionKey": "cli", **wanted}))
    assert result.returncode != 0
    assert says in result.stderr


def test_each_tool_a_cli_agent_uses_is_on_record_once(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "openclaw.json").write_text('{"tools": {"sessions": {"visibility": "all"}}}')
    with serving(folder) as gateway:
        grant = granted(gateway, senderIsOwner=False)
        forged = environment(gateway.ws, grant["token"], tmp_path / "effects", SENDER_IS_OWNER="true")
        with server(forged) as peer:
            introduce(peer)
            call(peer, "gateway_config_get")
            call(peer, "agents_list", 2)
            call(peer, "sessions_history", 3, sessionKey="agent:nobody:main")
            other = {"sessionKey": "agent:main:other", "message": "!say well heard", "timeout": 30}
            assert "well heard" in call(peer, "sessions_send", 4, **other)["content"][0]["text"]
        found = audited(gateway, "agent:main:cli", 4)

    assert [(one["tool"], one["step"], one["outcome"]) for one in found] == [
        ("gateway_config_get", "owner", "tool_denied"),
        ("agents_list", "default", "ok"),
        ("sessions_history", "default", "failed"),
        ("sessions_send", "default", "ok"),  # it asked three things of the gateway
    ]
    assert {(one["caller"], one["door"]) for one in found} == {("agent attached to agent:main:cli", "mcp")}
    assert "well heard" not in json.dumps(found)


def audited(gateway: Served, session: str, count: int) -> list[Any]:
    """What `openclaw audit` shows of a session, the oldest first, once there are so many."""
    command = [OPENCLAW, "audit", "--session", session, "--json"]
    deadline = time.monotonic() + 30
    while True:
        result = subprocess.run(
            command, env=settings(gateway.folder), capture_output=True, text=True, timeout=60, check=True
        )
        found: list[Any] = json.loads(result.stdout)[::-1]
        if len(found) >= count or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


# ---- ending ----------------------------------------------------------------------------------------------------------


def test_servers_one_after_another_leave_nothing_behind(tmp_path: Path, gateway: Served) -> None:
    before = psutil.Process(gateway.child.pid)
    effects = tmp_path / "effects"
    files, sockets = before.num_fds(), len(before.net_connections())
    for _ in range(STARTS):
        with server(environment(gateway.ws, gateway.token, effects)) as peer:
            introduce(peer)
            assert call(peer, "agents_list")["isError"] is False
            assert peer.hang_up() == 0
            assert not psutil.pid_exists(peer.child.pid) or psutil.Process(peer.child.pid).status() == "zombie"

    def settled() -> bool:
        return before.num_fds() <= files and len(before.net_connections()) <= sockets

    end = time.monotonic() + 20
    while not settled() and time.monotonic() < end:  # the gateway notices a closed connection in its own time
        time.sleep(0.05)
    assert settled()
    assert list(tmp_path.iterdir()) == []
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(effects) in " ".join(one.info["cmdline"] or ())]


def test_a_server_whose_agent_is_gone_ends_by_itself(tmp_path: Path, gateway: Served) -> None:
    with server(environment(gateway.ws, gateway.token, tmp_path / "effects")) as peer:
        introduce(peer)
        call(peer, "agents_list")
        assert peer.child.stdin is not None
        peer.child.stdin.close()
        assert peer.child.wait(10) == 0
