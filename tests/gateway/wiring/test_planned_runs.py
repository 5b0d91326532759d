"""An agent plans no job that does what the agent itself may not: in another's name, another's session, elsewhere."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.wiring.gateways import World, comes, world

CONFIG: dict[str, Any] = {
    "agents": {
        "list": [
            {"id": "main", "default": True, "runtime": "demo", "subagents": {"allowAgents": ["helper"]}},
            {"id": "helper", "runtime": "demo"},
            {"id": "b", "runtime": "demo"},
        ]
    },
    "channels": {
        "local": {
            "dmPolicy": "open",
            "allowFrom": ["*"],
            "groupPolicy": "open",
            "groups": {"#closed": {"requireMention": False, "tools": {"deny": ["message"]}}},
        }
    },
    "tools": {"message": {"crossContext": {"allowWithinProvider": False}}},
}
ALICES = "agent:main:local:direct:alice"
LATER = {"kind": "every", "everyMs": 365 * 24 * 3600 * 1000}
OWN = {"mode": "announce", "channel": "local", "to": "main"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("state"), CONFIG) as gateway:
        speak(gateway, "alice", "alice", "the code is 4711")
        speak(gateway, "main", None, "hello")
        yield gateway


def speak(server: World, conversation: str, sender: str | None, text: str) -> str:
    who = {} if sender is None else {"sender": {"id": sender}}
    run = server.ask("local.send", conversation=conversation, text=text, **who)["runId"]
    return server.answer(run)


def planned(**more: Any) -> dict[str, Any]:
    payload = {"kind": "agentTurn", "message": more.pop("message", "!say done")}
    return {"schedule": LATER, "payload": payload, "delivery": {"mode": "none"}, **more}


def cron(server: World, **arguments: Any) -> str:
    """The answer to a tool call of the owner's run."""
    return speak(server, "main", None, f"!tool cron {json.dumps(arguments)}")


FAR: list[tuple[dict[str, Any], str]] = [
    ({"agentId": "b"}, "plans no jobs for b"),
    ({"agentId": "B"}, "plans no jobs for b|unknown agent"),
    ({"agentId": "b", "sessionTarget": "isolated"}, "plans no jobs for b"),
    ({"sessionTarget": f"session:{ALICES}"}, "out of sight"),
    ({"sessionTarget": f"session:{ALICES.upper()}"}, "out of sight"),
    ({"sessionTarget": "session:local:direct:alice"}, "out of sight"),
    ({"sessionTarget": "current", "sessionKey": ALICES}, "out of sight"),
    ({"sessionTarget": "isolated", "sessionKey": ALICES}, "out of sight"),
    ({"sessionTarget": "session:agent:b:main"}, "out of sight"),
    ({"delivery": {"mode": "announce", "channel": "local", "to": "alice"}}, "Cross-context messaging denied"),
    ({"delivery": {"mode": "announce", "to": "local:alice"}}, "Cross-context messaging denied"),
    ({"delivery": {"mode": "announce", "channel": "local", "to": " Alice "}}, "Cross-context messaging denied"),
    ({"delivery": {"mode": "announce", "to": "alice"}}, "Cross-context messaging denied"),
    ({"delivery": {"mode": "announce", "channel": "telegram", "to": "7"}}, "Cross-context messaging denied"),
    (
        {"delivery": {**OWN, "failureDestination": {"mode": "announce", "channel": "local", "to": "alice"}}},
        "Cross-context messaging denied",
    ),
    ({"failureAlert": {"after": 1, "channel": "local", "to": "alice"}}, "Cross-context messaging denied"),
]


@pytest.mark.parametrize(("more", "why"), FAR, ids=[json.dumps(more)[:80] for more, _ in FAR])
def test_a_job_an_agent_adds_reaches_no_farther_than_the_agent(server: World, more: dict[str, Any], why: str) -> None:
    reply = cron(server, action="add", job=planned(**more))
    assert any(part in reply for part in why.split("|")), reply
    assert server.ask("cron.list", includeDisabled=True)["jobs"] == []


@pytest.mark.parametrize(("more", "why"), FAR, ids=[json.dumps(more)[:80] for more, _ in FAR])
@pytest.mark.parametrize("operators", [False, True])
def test_nor_does_one_it_changes(server: World, more: dict[str, Any], why: str, operators: bool) -> None:
    if operators:
        job = server.ask("cron.add", **planned(name="x"))["id"]
    else:
        job = json.loads(cron(server, action="add", job=planned(name="x")))["id"]
    try:
        before = server.ask("cron.get", id=job)
        reply = cron(server, action="update", jobId=job, patch=more)
        assert any(part in reply for part in why.split("|")), reply
        assert server.ask("cron.get", id=job) == before
    finally:
        server.ask("cron.remove", id=job)


@pytest.mark.parametrize(
    "more",
    [
        {}, {"delivery": OWN}, {"agentId": "main"}, {"agentId": "helper"}, {"sessionTarget": "current"},
        {"delivery": {"mode": "announce"}}, {"delivery": {"mode": "announce", "channel": "last"}},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_what_is_its_own_an_agent_may_plan(server: World, more: dict[str, Any]) -> None:
    job = json.loads(cron(server, action="add", job=planned(**more)))["id"]
    assert json.loads(cron(server, action="update", jobId=job, patch={"enabled": False}))["enabled"] is False
    server.ask("cron.remove", id=job)


def results(server: World, job: str) -> list[str]:
    rows = [row["key"] for row in server.ask("sessions.list", limit=500)["sessions"] if f":cron:{job}" in row["key"]]
    found = [m for key in rows for m in server.ask("chat.history", sessionKey=key)["messages"]]
    return [json.dumps(m["content"]) for m in found if m["role"] == "toolResult"]


def fired(server: World, job: str) -> str:
    server.ask("cron.run", id=job)
    assert comes(lambda: bool(results(server, job)))
    server.ask("cron.remove", id=job)
    return results(server, job)[0]


SEND = '!tool message {"action": "send", "channel": "local", "target": "bob", "message": "HELLO"}'
READ = '!tool message {"action": "read", "channel": "local", "target": "alice"}'


def test_a_job_runs_bound_to_where_it_was_planned_unless_an_operator_did(server: World) -> None:
    for order in (SEND, READ):
        job = json.loads(cron(server, action="add", job=planned(message=f"x\n{order}")))["id"]
        assert "Cross-context messaging denied" in fired(server, job)
    job = server.ask("cron.add", **planned(name="x", message=f"x\n{SEND}"))["id"]
    assert "denied" not in fired(server, job)
    job = server.ask("cron.add", **planned(name="x", message=f"x\n{READ}"))["id"]
    assert "Cross-context messaging denied" in fired(server, job)
    job = server.ask("cron.add", **planned(name="x"))["id"]
    cron(server, action="update", jobId=job, patch={"payload": {"kind": "agentTurn", "message": f"x\n{SEND}"}})
    assert "Cross-context messaging denied" in fired(server, job)  # it is the agent's now


def test_a_groups_rules_hold_for_the_jobs_planned_in_it(server: World) -> None:
    order = f"!tool cron {json.dumps({'action': 'add', 'job': planned(message='x' + chr(10) + SEND)})}"
    speak(server, "#closed", None, f"x\n{order}")
    (job,) = [job["id"] for job in server.ask("cron.list", includeDisabled=True)["jobs"]]
    assert "is refused by channels.local.groups.#closed.tools.deny" in fired(server, job)
