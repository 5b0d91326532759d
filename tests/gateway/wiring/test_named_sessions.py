"""A client that acts in a session it names is bound by what the store knows of it, the same at every entry point.

A key does not tell whose sub-agent a session is, nor which model it has. Sessions whose rules come from there are acted
in over the WebSocket, by `tools.invoke`, `POST /tools/invoke`, `/mcp`, under `attach.grant` and by their own agent.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

import pytest

from openclaw_mcp.core.session_target import SessionAddress
from tests import web_client
from tests.gateway.wiring.gateways import World, world
from tests.gateway.wiring.test_one_policy import tool_client

GROUP = "agent:main:local:group:#g"
CONFIG: dict[str, Any] = {
    "agents": {
        "defaults": {"runtime": "demo", "model": "a/one", "subagents": {"maxSpawnDepth": 4}},
        "list": [{"id": "main"}, {"id": "other", "model": "b/two"}],
    },
    "channels": {
        "local": {
            "dmPolicy": "open",
            "allowFrom": ["*"],
            "groupPolicy": "open",
            "groups": {"#g": {"tools": {"deny": ["sessions_history", "subagents"]}}},
        }
    },
    "tools": {"byProvider": {"b": {"deny": ["sessions_history"]}}},
    "gateway": {"tools": {"allow": ["sessions_spawn", "gateway"]}},
}
TOOLS = ("sessions_history", "subagents", "sessions_list")
WRONG = {"limit": "x", "sessionKey": 0, "action": 0}
"""Arguments no tool takes: a call that is allowed gets as far as the check of its arguments and does nothing."""

EntryPoint = Callable[[World, str], set[str]]


def by_list(server: World, session: str) -> set[str]:
    with tool_client(server, SessionAddress(session=session)) as client:
        return client.listed & set(TOOLS)


def by_socket(server: World, session: str) -> set[str]:
    with tool_client(server, SessionAddress(session=session)) as client:
        return {tool for tool in TOOLS if client.refusal(tool) is None}


def by_grant(server: World, session: str) -> set[str]:
    token = server.ask("attach.grant", sessionKey=session)["token"]
    with tool_client(server, None, token=token) as client:
        return {tool for tool in TOOLS if client.refusal(tool) is None}


def by_grant_over_http(server: World, session: str) -> set[str]:
    return set(attached(server, server.ask("attach.grant", sessionKey=session))) & set(TOOLS)


def attached(server: World, grant: Any, **more: str) -> list[str]:
    """The tools of a client that was given a grant's entry for its config, in an environment with its token."""
    entry = grant["mcpConfig"]["mcpServers"]["openclaw"]
    assert (entry["type"], entry["url"]) == ("http", f"{server.served.http}/mcp")
    assert grant["token"] not in str(entry)
    authorization = Template(entry["headers"]["Authorization"]).substitute(grant["env"])
    reply = web_client.ask(entry["url"], "tools/list", {}, Authorization=authorization, **more)
    return [tool["name"] for tool in reply.json["result"]["tools"]] if reply.status == 200 else [str(reply.status)]


def by_invoke(server: World, session: str) -> set[str]:
    return {tool for tool in TOOLS if server.invoke(tool, session, **WRONG)["error"]["code"] != "not_found"}


def by_post(server: World, session: str) -> set[str]:
    return {tool for tool in TOOLS if server.post(tool, session, **WRONG).status != 404}


def by_post_header(server: World, session: str, **body: str) -> set[str]:
    def status(tool: str) -> int:
        headers = {**server.bearer, "x_openclaw_session_key": quote(session)}
        request = {"tool": tool, "args": WRONG, **body}
        return web_client.send(f"{server.served.http}/tools/invoke", "POST", request, **headers).status

    return {tool for tool in TOOLS if status(tool) != 404}


def by_post_header_first(server: World, session: str) -> set[str]:
    """A client that puts a session into the header relies on it: the body names no other."""
    return by_post_header(server, session, sessionKey="agent:main:main")


def by_mcp_list(server: World, session: str) -> set[str]:
    return {tool["name"] for tool in server.mcp("tools/list", quote(session))["result"]["tools"]} & set(TOOLS)


def by_mcp_call(server: World, session: str) -> set[str]:
    def reply(tool: str) -> str:
        result = server.mcp("tools/call", quote(session), name=tool, arguments=WRONG)["result"]
        return str(result["content"][0]["text"])

    return {tool for tool in TOOLS if "is refused" not in reply(tool)}


def by_agent(server: World, session: str) -> set[str]:
    groups = server.ask("tools.effective", sessionKey=session)["groups"]
    return {tool["id"] for group in groups for tool in group["tools"]} & set(TOOLS)


ENTRY_POINTS: dict[str, EntryPoint] = {
    "listed over the socket": by_list,
    "called over the socket": by_socket,
    "under a grant": by_grant,
    "under a grant at /mcp": by_grant_over_http,
    "tools.invoke": by_invoke,
    "POST /tools/invoke": by_post,
    "POST /tools/invoke, by its header": by_post_header,
    "POST /tools/invoke, another in its body": by_post_header_first,
    "listed at /mcp": by_mcp_list,
    "called at /mcp": by_mcp_call,
    "its own agent": by_agent,
}
EVERY, NOT_HISTORY, NOT_IN_GROUP = set(TOOLS), {"subagents", "sessions_list"}, {"sessions_list"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), CONFIG) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def sessions(server: World) -> dict[str, tuple[str, set[str]]]:
    """Each by what it is: its key, and what may be used there."""

    def spawned(above: str, **more: Any) -> str:
        return str(server.ask("sessions.spawn", sessionKey=above, task="!say x", **more)["childSessionKey"])

    child = spawned(GROUP)
    grandchild = spawned(child)
    server.ask("sessions.patch", key="agent:main:modelled", model="b/two")
    server.ask("sessions.patch", key="agent:other:back", model="a/one")
    return {
        "an ordinary session": ("agent:main:main", EVERY),
        "the group itself": (GROUP, NOT_IN_GROUP),
        "its sub-agent": (child, NOT_IN_GROUP),
        "its sub-agent's sub-agent": (grandchild, NOT_IN_GROUP),
        "one more below": (spawned(grandchild), NOT_IN_GROUP),
        "a sub-agent of no group": (spawned("agent:main:alone"), EVERY),
        "a session with a model of its own": ("agent:main:modelled", NOT_HISTORY),
        "an agent with a model of its own": ("agent:other:main", NOT_HISTORY),
        "a session that has another model than its agent": ("agent:other:back", EVERY),
    }


WHICH = [
    "an ordinary session", "the group itself", "its sub-agent", "its sub-agent's sub-agent", "one more below",
    "a sub-agent of no group", "a session with a model of its own", "an agent with a model of its own",
    "a session that has another model than its agent",
]  # fmt: skip


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize("which", WHICH)
def test_a_session_has_the_same_tools_at_every_entry_point(
    server: World, sessions: dict[str, tuple[str, set[str]]], which: str, entry_point: str
) -> None:
    key, allowed = sessions[which]
    assert ENTRY_POINTS[entry_point](server, key) == allowed


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize("written", ["modelled", "AGENT:MAIN:MODELLED", " agent:main:modelled "])
@pytest.mark.usefixtures("sessions")
def test_a_key_is_read_alike_at_every_entry_point(server: World, entry_point: str, written: str) -> None:
    assert ENTRY_POINTS[entry_point](server, written) == NOT_HISTORY


@pytest.mark.usefixtures("sessions")
def test_a_header_is_decoded_wherever_it_names_a_session(server: World) -> None:
    key = "agent:main:d\u00e9j\u00e0 vu"
    server.ask("sessions.patch", key=key, model="b/two")
    assert by_mcp_list(server, key) == by_list(server, key) == NOT_HISTORY

    body = {"model": "openclaw", "messages": [{"role": "user", "content": "!say here"}]}
    headers = {**server.bearer, "x_openclaw_session_key": quote(key)}
    assert web_client.send(f"{server.served.http}/v1/chat/completions", "POST", body, **headers).status == 200
    assert server.texts(key) == ["here"]


def test_a_grant_at_mcp_stays_in_its_session_has_its_own_tools_and_ends(server: World) -> None:
    grant = server.ask("attach.grant", sessionKey=GROUP, ttlMs=60_000)
    assert set(attached(server, grant, x_openclaw_session_key="agent:main:main")) & set(TOOLS) == NOT_IN_GROUP
    few = server.ask("attach.grant", tools=["sessions_list"])
    assert (few["sessionKey"], attached(server, few)) == ("agent:main:main", ["sessions_list"])
    assert server.ask("attach.revoke", token=grant["token"]) == {"revoked": True}
    assert attached(server, grant) == ["401"]


def test_a_sub_agent_far_below_a_group_runs_under_its_rules(tmp_path: Path) -> None:
    """Its run too, not only those who act in its session."""
    with world(tmp_path, CONFIG) as server:
        below: str = GROUP
        for _ in range(3):
            below = server.ask("sessions.spawn", sessionKey=below, task="!say x")["childSessionKey"]
        assert "is refused" in server.say(below, '!tool sessions_history {"sessionKey": "main"}')
        assert "is refused" not in server.say(below, "!tool sessions_list {}")
