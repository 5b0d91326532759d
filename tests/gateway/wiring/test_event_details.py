"""Details of events and errors: no names of sessions, people or folders to those who may not see them."""

import json
from collections.abc import Iterator

import pytest
from websockets.sync.client import connect

from openclaw_mcp.core.model import Caller, Json
from openclaw_mcp.gateway.rpc.server import redact_health
from tests.gateway.rpc.gateways import CONNECT
from tests.gateway.wiring.gateways import WAIT, Refused, World, joined, world

VIP = "agent:main:alice-the-patient"


@pytest.fixture(scope="module")
def running_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), {"agents": {"list": [{"id": "main", "runtime": "demo"}]}}) as gateway:
        gateway.say(VIP, "!say hello")
        gateway.ask("sessions.patch", key=VIP, label="vip")
        yield gateway


@pytest.mark.parametrize(
    ("scopes", "named"),
    [
        (["operator.pairing"], False),
        (["operator.approvals"], False),
        (["operator.pairing", "operator.approvals"], False),
        (["operator.read"], True),
        (["operator.write"], True),
        (["operator.admin"], True),
    ],
)
def test_hello_and_health_name_sessions_and_folders_to_readers_alone(
    running_gateway: World, scopes: list[str], named: bool
) -> None:
    with connect(running_gateway.served.ws, compression=None) as socket:
        socket.recv(timeout=WAIT)
        hello = CONNECT | {"auth": {"token": running_gateway.served.token}, "scopes": scopes}
        socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": hello}))
        frames = [socket.recv(timeout=WAIT)]
        socket.send(json.dumps({"type": "req", "id": "2", "method": "health", "params": {}}))
        frames.append(socket.recv(timeout=WAIT))
    for frame in map(json.loads, frames):
        health = frame["payload"].get("snapshot", {}).get("health") or frame["payload"]
        assert health["ok"]
        assert ("alice-the-patient" in json.dumps(health)) is named
        assert bool(health["sessions"]["path"]) is named


def test_a_node_is_told_no_session() -> None:
    health: Json = {"ok": True, "sessions": {"path": "/p", "recent": [{"key": VIP}]}, "agents": [{"path": "/p"}]}
    for scopes in (frozenset[str](), frozenset({"operator.read"})):
        redacted = redact_health(Caller(kind="node", name="n", scopes=scopes), health)
        assert (redacted["ok"], redacted["sessions"]["recent"], redacted["agents"]) == (True, [], [])
        assert "/p" not in json.dumps(redacted)


def test_what_is_out_of_sight_is_answered_as_what_is_not_there(running_gateway: World) -> None:
    id = running_gateway.ask("sessions.describe", key=VIP)["session"]["sessionId"]
    unknown = id[:-4] + ("0000" if not id.endswith("0000") else "1111")

    def reply(tool: str, **arguments: str) -> str:
        return running_gateway.say("agent:main:mallory", f"!tool {tool} {json.dumps(arguments)}")

    for there, not_there in (
        (reply("sessions_send", label="vip", message="x"), reply("sessions_send", label="nobody", message="x")),
        (reply("sessions_send", sessionKey=id, message="x"), reply("sessions_send", sessionKey=unknown, message="x")),
        (reply("sessions_history", sessionKey=id), reply("sessions_history", sessionKey=unknown)),
        (reply("session_status", sessionKey=id), reply("session_status", sessionKey=unknown)),
    ):
        assert "out of sight" in there
        assert "alice" not in there
        assert there.replace("vip", "nobody").replace(id, unknown) == not_there


@pytest.mark.parametrize("how", ["label", "sessionId"])
def test_a_runs_own_program_learns_no_key_by_another_name(running_gateway: World, how: str) -> None:
    id = running_gateway.ask("sessions.describe", key=VIP)["session"]["sessionId"]
    grant = running_gateway.ask("attach.grant", sessionKey="agent:main:mallory", senderIsOwner=False)
    with joined(running_gateway.served, token=grant["token"]) as run:
        received = []
        for name in ({"label": "vip", "sessionId": id}[how], "nobody"):
            with pytest.raises(Refused) as refused:
                run.ask("sessions.resolve", **{how: name})
            received.append(str(refused.value).replace(name, "NAME"))
            assert run.ask("sessions.resolve", **{how: name}, allowMissing=True) == {"ok": False}
        assert received[0] == received[1]
        assert "alice" not in received[0]
