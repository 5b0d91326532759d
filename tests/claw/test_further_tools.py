"""The tools of the gateway's MCP servers in `remoteclaw-mcp-server`: who has them, and how a call goes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.claw_methods import METHODS_BY_TOOL
from tests.gateway.wiring.gateways import Refused, World, comes, joined, world
from tests.mcp.client.servers import ECHO

from .gateways import call, environment, introduce, server

OWN = set(METHODS_BY_TOOL)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    config = {
        "mcp": {"servers": {"mine": ECHO, "lent": ECHO, "clerks": {**ECHO, "agents": ["clerk"]}}},
        "tools": {"alsoAllow": ["mcp/lent"]},
        "agents": {"list": [{"id": "main", "default": True}, {"id": "clerk"}]},
    }
    with world(tmp_path_factory.mktemp("state"), config) as served:
        yield served


def attached(gateway: World, **wanted: Any) -> dict[str, str]:
    """The environment of a program attached to a session."""
    grant = gateway.ask("attach.grant", **{"sessionKey": "main", **wanted})
    return {**os.environ, **grant["stdioConfig"]["mcpServers"]["openclaw"]["env"], **grant["env"]}


def further(peer: Any) -> set[str]:
    listed = {tool["name"] for tool in peer.ask("tools/list", {}, id="list")["result"]["tools"]}
    return listed - OWN


def test_an_owners_run_lists_and_calls_the_tools_of_its_agents_servers(gateway: World) -> None:
    with server(attached(gateway)) as peer:
        introduce(peer)
        assert further(peer) == {"mine__echo", "lent__echo"}
        result = call(peer, "mine__echo", text="C:\\new")
    assert result["content"] == [{"type": "text", "text": "C:\\new"}]
    assert result["isError"] is False


def test_a_server_for_another_agent_is_that_agents(gateway: World) -> None:
    with server(attached(gateway, sessionKey="agent:clerk:main")) as peer:
        introduce(peer)
        assert "clerks__echo" in further(peer)


def test_other_senders_have_what_was_lent_to_them_whatever_their_environment_says(gateway: World) -> None:
    env = attached(gateway, senderIsOwner=False)
    with server(env) as peer:
        introduce(peer)
        assert further(peer) == {"lent__echo"}
    forged = {**env, "REMOTECLAW_TOOLS": "mine__echo,lent__echo", "REMOTECLAW_SENDER_IS_OWNER": "true"}
    with server(forged) as peer:
        introduce(peer)
        assert further(peer) == {"lent__echo"}
        assert call(peer, "lent__echo", text="hi")["content"][0]["text"] == "hi"
    token = env["REMOTECLAW_GATEWAY_TOKEN"]
    with joined(gateway.served, token=token) as stranger:
        with pytest.raises(Refused, match="owner"):
            stranger.ask("tools.call", name="mine__echo", arguments={"text": "hi"})
        with pytest.raises(Refused, match="Unknown tool"):  # the gateway's own tools are behind their own methods
            stranger.ask("tools.call", name="sessions_list", arguments={})


def test_a_lesser_operator_has_what_was_lent(gateway: World) -> None:
    with joined(gateway.served, "operator.read", "operator.write") as operator:
        assert [tool["name"] for tool in operator.ask("tools.list")["tools"]] == ["lent__echo"]
        with pytest.raises(Refused, match="owner"):
            operator.ask("tools.call", name="mine__echo", arguments={"text": "hi"})


def test_a_grants_own_list_of_tools_holds_for_them_too(gateway: World) -> None:
    with server(attached(gateway, tools=["agents_list", "mine__echo"])) as peer:
        introduce(peer)
        assert further(peer) == {"mine__echo"}


def test_the_gateways_own_token_has_them_in_its_session(gateway: World, tmp_path: Path) -> None:
    env = environment(gateway.served.ws, gateway.served.token, tmp_path / "effects", SESSION_KEY="agent:main:main")
    with server(env) as peer:
        introduce(peer)
        assert further(peer) >= {"mine__echo"}
    with server({**env, "REMOTECLAW_TOOL_PROFILE": "messaging"}) as peer:
        introduce(peer)
        assert further(peer) == set()


def test_a_server_that_is_added_meanwhile_is_announced(gateway: World, tmp_path: Path) -> None:
    env = environment(gateway.served.ws, gateway.served.token, tmp_path / "effects", SESSION_KEY="agent:main:main")
    servers = gateway.ask("config.get")["parsed"]["mcp"]["servers"]
    with server(env) as peer:
        introduce(peer)
        assert "late__echo" not in further(peer)
        gateway.configure(mcp={"servers": {**servers, "late": ECHO}})
        assert gateway.invoke("late__echo", text="up")["ok"] is True
        assert peer.receive()["method"] == "notifications/tools/list_changed"
        assert "late__echo" in further(peer)


def test_each_call_is_on_record_once_under_its_session(gateway: World) -> None:
    with server(attached(gateway, sessionKey="agent:main:audited")) as peer:
        introduce(peer)
        further(peer)
        call(peer, "mine__echo", text="hi")

    def records() -> list[str]:
        found = gateway.ask("audit.list", limit=100)["records"]
        return [one["tool"] for one in found if one["sessionKey"] == "agent:main:audited"]

    assert comes(lambda: records() == ["mine__echo"]), records()
