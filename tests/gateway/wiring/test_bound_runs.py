"""What a run started by another may do to people: a real gateway, in the words of a sender who is not the owner."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.wiring.gateways import World, comes, world

CONFIG: dict[str, Any] = {
    "agents": {"defaults": {"subagents": {"maxSpawnDepth": 3}}, "list": [{"id": "main", "runtime": "demo"}]},
    "channels": {
        "local": {
            "dmPolicy": "open",
            "allowFrom": ["*"],
            "groupPolicy": "open",
            "groups": {
                "#closed": {"requireMention": False, "tools": {"deny": ["message"]}},
                "#open": {"requireMention": False},
            },
        }
    },
    "tools": {"message": {"crossContext": {"allowWithinProvider": False}}},
}
SECRET = "the code is 4711"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), CONFIG) as gateway:
        send(gateway, "alice", "alice", SECRET)
        yield gateway


def send(server: World, conversation: str, sender: str, text: str) -> None:
    run = server.ask("local.send", conversation=conversation, sender={"id": sender}, text=text)["runId"]
    server.ask("agent.wait", runId=run, timeoutMs=30_000)


def order(tool: str, **arguments: Any) -> str:
    return f"!tool {tool} {json.dumps(arguments)}"


def results(server: World, session: str) -> list[tuple[bool, str]]:
    history = server.ask("chat.history", sessionKey=session, limit=50)["messages"]
    return [(bool(m.get("isError")), json.dumps(m["content"])) for m in history if m["role"] == "toolResult"]


def deepest(server: World, depth: int, since: set[str]) -> str:
    """The session at this depth that was not there before."""

    def there() -> list[str]:
        rows = server.ask("sessions.list", limit=1000)["sessions"]
        return [row["key"] for row in rows if row.get("spawnDepth") == depth and row["key"] not in since]

    assert comes(lambda: bool(there()))
    return there()[0]


def sessions(server: World) -> set[str]:
    return {row["key"] for row in server.ask("sessions.list", limit=1000)["sessions"]}


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("place", ["mallory", "#open", "#closed"])
@pytest.mark.parametrize(
    "deed",
    [
        {"action": "send", "target": "alice", "channel": "local", "message": "PHISH"},
        {"action": "broadcast", "targets": ["alice"], "channel": "local", "message": "PHISH"},
        {"action": "read", "target": "alice", "channel": "local"},
    ],
    ids=lambda deed: deed["action"],
)
def test_no_chain_of_sub_agents_leaves_its_requesters_conversation(
    server: World, deed: dict[str, Any], place: str, depth: int
) -> None:
    before = sessions(server)
    text = order("message", **deed)
    for _ in range(depth):
        text = order("sessions_spawn", task=text)
    send(server, place, "mallory", f"x\n{text}")
    kind = "group" if place.startswith("#") else "direct"
    key = f"agent:main:local:{kind}:{place}" if depth == 0 else deepest(server, depth, before)
    assert comes(lambda: len(results(server, key)) > 0)
    failed, words = results(server, key)[-1]

    assert failed or '\\"ok\\":false' in words or '"ok": false' in words, words
    assert SECRET not in words
    if place == "#closed":
        assert "is refused by channels.local.groups.#closed.tools.deny" in words
    else:
        assert "Cross-context messaging denied" in words
    assert not any(m["text"] == "PHISH" for m in server.ask("local.read", conversation="alice")["messages"])
