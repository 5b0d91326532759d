"""Ids of runs can be guessed: knowing one neither opens its answer nor takes its place."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from openclaw_mcp.core.sessions import INTERNAL_RUN_PREFIXES, is_internal_run
from openclaw_mcp.gateway.channels.channel_types import CHANNEL_FACTORIES
from tests.gateway.wiring.gateways import Refused, World, joined, world

CONFIG: dict[str, Any] = {
    "agents": {"list": [{"id": "main", "runtime": "demo"}]},
    "channels": {"local": {"dmPolicy": "open", "allowFrom": ["*"]}},
}
MALLORYS = "agent:main:local:direct:mallory"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), CONFIG) as gateway:
        yield gateway


@contextlib.contextmanager
def run_of(server: World, session: str, *, owner: bool) -> Iterator[World]:
    token = server.ask("attach.grant", sessionKey=session, senderIsOwner=owner)["token"]
    with joined(server.served, token=token) as client:
        yield client


def received(server: World, conversation: str, text: str) -> str:
    sent = server.ask("local.send", conversation=conversation, sender={"id": conversation}, text=text)
    server.answer(sent["runId"])
    return str(sent["runId"])


@pytest.mark.parametrize("owner", [False, True])
def test_a_run_out_of_sight_is_not_told_of_whoever_knows_its_id(server: World, owner: bool) -> None:
    alices = received(server, "alice", "!say ALICE-4711")
    own = received(server, "mallory", "!say mine")
    with run_of(server, MALLORYS, owner=owner) as mallory:
        with pytest.raises(Refused, match="out of sight") as refused:
            mallory.ask("agent.wait", runId=alices, timeoutMs=1000)
        assert "alice" not in str(refused.value)
        assert mallory.ask("agent.wait", runId=own, timeoutMs=1000)["terminalReply"]["text"] == "mine"
        nobodys = mallory.ask("agent.wait", runId="local:default:nobody:1", timeoutMs=10)
        assert (nobodys["status"], "terminalReply" in nobodys) == ("timeout", False)


IDS = [
    "telegram:default:1111:3", "matrix:default:$event", "local:default:x", "LOCAL:default:x", " telegram:x",
    "cron:job:1:x", "manual:job:1:1:x", "announce:v1:agent:main:subagent:1:2", "wake:1",
]  # fmt: skip


@pytest.mark.parametrize("id", IDS)
def test_no_client_gives_a_run_an_id_reserved_for_the_gateway(server: World, id: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("agent", {"sessionKey": MALLORYS, "message": "x", "idempotencyKey": id}),
        ("chat.send", {"sessionKey": MALLORYS, "message": "x", "idempotencyKey": id}),
        ("sessions.send", {"key": MALLORYS, "message": "x", "idempotencyKey": id}),
        ("sessions.steer", {"key": MALLORYS, "message": "x", "idempotencyKey": id}),
    ]
    with joined(server.served, "operator.read", "operator.write") as writer:
        for method, params in calls:
            with pytest.raises(Refused, match="ids of the gateway's own runs"):
                writer.ask(method, **params)
    with run_of(server, MALLORYS, owner=False) as mallory, pytest.raises(Refused, match="the gateway's own runs"):
        mallory.ask("agent", message="x", idempotencyKey=id)


def test_every_channels_ids_are_reserved_and_other_ids_are_free() -> None:
    assert {*CHANNEL_FACTORIES, "local"} <= INTERNAL_RUN_PREFIXES
    assert not any(
        map(is_internal_run, ("0b9e2f4c-0000-4000-8000-000000000000", "slack:1:2", "telegram", "cron-7", "a"))
    )
