"""Programs an operator has the clock run: their secrets are the admin's to see, and they are no agent's to start."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from openclaw_mcp.core.model import Json
from openclaw_mcp.gateway.cron.redaction import redact_all, redact_job
from tests.gateway.wiring.gateways import Refused, World, joined, world

READ, WRITE, ADMIN = "operator.read", "operator.write", "operator.admin"
SECRETS = ("hush-env", "hush-argument", "hush-glued", "hush-input", "hush-hook", "hush-alert", "hush-failure")
DAILY = {"kind": "every", "everyMs": 86_400_000}
PROGRAM: Json = {
    "kind": "command",
    "argv": ["/bin/true", "backup", "--token", SECRETS[1], f"--password={SECRETS[2]}"],
    "env": {"RESTIC": SECRETS[0]},
    "input": SECRETS[3],
}
JOB: Json = {"name": "backup", "schedule": DAILY, "sessionTarget": "isolated", "payload": PROGRAM}
HOOKS: Json = {
    "delivery": {
        "mode": "webhook",
        "to": f"https://hooks.example/{SECRETS[4]}",
        "failureDestination": {"mode": "webhook", "to": f"https://hooks.example/f?x={SECRETS[6]}"},
    },
    "failureAlert": {"mode": "webhook", "to": f"https://hooks.example/a/{SECRETS[5]}"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), {"agents": {"list": [{"id": "main", "runtime": "demo"}]}}) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def job(server: World) -> str:
    id: str = server.ask("cron.add", **JOB, **HOOKS)["id"]
    return id


def found(answer: Any) -> list[str]:
    return [secret for secret in SECRETS if secret in json.dumps(answer)]


@pytest.mark.parametrize("scopes", [(READ,), (READ, WRITE), (READ, "operator.approvals", "operator.pairing")])
def test_below_admin_a_jobs_secrets_are_hidden(server: World, job: str, scopes: tuple[str, ...]) -> None:
    with joined(server.served, *scopes) as reader:
        for answer in (reader.ask("cron.list"), reader.ask("cron.list", compact=True), reader.ask("cron.get", id=job)):
            assert found(answer) == []
        program = reader.ask("cron.get", id=job)["payload"]
        assert program["argv"][:3] == ["/bin/true", "backup", "--token"]
        assert list(program["env"]) == ["RESTIC"]
        assert reader.ask("cron.get", id=job)["delivery"]["to"] == "https://hooks.example/***"
        assert reader.ask("cron.list")["deliveryPreviews"][job]["label"] == "webhook:hooks.example"
        server.ask("cron.update", id=job, patch={"description": " ".join(scopes)})
        answer = reader.until("cron", lambda payload: payload.get("action") == "updated")
        assert found(answer) == []
        assert found(reader.events) == []


def test_an_address_is_not_replaced_by_how_it_is_shown(server: World, job: str) -> None:
    with pytest.raises(Refused, match="leave it out"):
        server.ask("cron.update", id=job, patch={"delivery": {"mode": "webhook", "to": "https://hooks.example/***"}})
    assert found(server.ask("cron.get", id=job)) == list(SECRETS)


def test_an_admin_sees_what_is_to_be_edited(server: World, job: str) -> None:
    assert found(server.ask("cron.get", id=job)) == list(SECRETS)
    assert found(server.ask("cron.list")) == list(SECRETS)
    assert found(server.ask("cron.update", id=job, patch={"description": "seen"})) == list(SECRETS)


@pytest.mark.parametrize("arguments", [{"action": "list"}, {"action": "get"}, {"action": "status"}, {"action": "runs"}])
def test_an_owners_run_does_not_see_them(server: World, job: str, arguments: Json) -> None:
    reply = server.say("main", f"!tool cron {json.dumps({**arguments, 'jobId': job})}")
    assert found(reply) == []


@pytest.mark.parametrize("action", ["run", "remove", "update"])
def test_a_run_neither_starts_nor_removes_nor_changes_an_operators_program(
    server: World, job: str, action: str
) -> None:
    reply = server.say(
        "main", f"!tool cron {json.dumps({'action': action, 'jobId': job, 'patch': {'enabled': False}})}"
    )
    assert "operators" in reply
    row = server.ask("cron.get", id=job)
    assert row["enabled"]
    assert "lastRunAtMs" not in row


def test_a_run_still_runs_and_removes_an_operators_message(server: World) -> None:
    turn = {"kind": "agentTurn", "message": "!say hello"}
    id = server.ask("cron.add", **(JOB | {"name": "hello", "payload": turn, "delivery": {"mode": "none"}}))["id"]
    server.say("main", f"!tool cron {json.dumps({'action': 'run', 'jobId': id})}")
    server.until("cron", lambda payload: payload["jobId"] == id and payload["action"] == "finished")
    server.say("main", f"!tool cron {json.dumps({'action': 'remove', 'jobId': id})}")
    with pytest.raises(Refused):
        server.ask("cron.get", id=id)


@pytest.mark.parametrize(
    "schedule", [{"kind": "on-exit", "command": "watch --token hush"}, {"kind": "stream", "command": ["a", "hush"]}]
)
def test_without_somebody_who_knows_secrets_nothing_but_the_programs_name_is_shown(schedule: Json) -> None:
    redacted = redact_job({"schedule": schedule, "payload": PROGRAM, **HOOKS}, redact_all)
    assert found(redacted) == []
    assert "hush" not in json.dumps(redacted)
    assert redacted["payload"]["argv"][0] == "/bin/true"
