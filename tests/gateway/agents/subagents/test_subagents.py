"""Sub-agents through a real gateway: spawned, announced, redirected, stopped, kept within limits, not forgotten."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.gateway.rpc.gateways import CONNECT
from tests.gateway.wiring.gateways import Refused, World, comes, joined, serving, world

AGENTS = {
    "defaults": {"subagents": {"maxSpawnDepth": 2, "maxChildrenPerAgent": 3}},
    "list": [
        {"id": "main", "default": True, "subagents": {"allowAgents": ["helper", "thinker"]}},
        {"id": "thinker", "runtime": "openai"},
        {"id": "helper", "name": "Helper"},
        {"id": "stranger"},
    ],
}


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(
        tmp_path_factory.mktemp("state"), {"agents": AGENTS, "gateway": {"tools": {"allow": ["sessions_spawn"]}}}
    ) as gateway:
        yield gateway


def spawned(harness: World, session: str, task: str, **more: object) -> dict[str, str]:
    received: dict[str, str] = harness.tool(session, "sessions_spawn", task=task, **more)
    assert received["status"] == "accepted", received
    return received


def settled(harness: World, child: str) -> dict[str, str]:
    def over(payload: dict[str, Any]) -> bool:
        return bool(payload["task"]["childSessionKey"] == child and payload["task"]["deliveryStatus"] != "pending")

    task: dict[str, str] = harness.until("task", over)["task"]
    return task


def announced(harness: World, session: str, child: str) -> str:
    """The announcement to the requester, once it is there."""
    assert settled(harness, child)["deliveryStatus"] == "delivered"
    assert comes(lambda: any("sub-agent" in text for text in harness.texts(session, "user")))
    return harness.texts(session, "user")[-1]


def test_a_task_is_done_elsewhere_and_its_result_comes_back(harness: World) -> None:
    child = spawned(harness, "agent:main:one", "!say forty-two", label="sum")
    received = announced(harness, "agent:main:one", child["childSessionKey"])
    row = harness.ask("sessions.describe", key=child["childSessionKey"])["session"]
    started = [event["payload"]["task"] for event in harness.events if event["event"] == "task"]

    assert child["childSessionKey"].startswith("agent:main:subagent:")
    assert 'The sub-agent for "sum" has finished' in received
    assert "forty-two" in received
    assert (row["spawnedBy"], row["spawnDepth"]) == ("agent:main:one", 1)
    assert started[0]["status"] == "running"
    run = f"announce:v1:{child['childSessionKey']}:{child['runId']}"
    assert harness.ask("agent.wait", runId=run, timeoutMs=10_000)["status"] == "ok"


def test_a_failure_is_reported_as_one(harness: World) -> None:
    child = spawned(harness, "agent:main:two", "!fail the disk is full")

    assert "has failed (the disk is full)" in announced(harness, "agent:main:two", child["childSessionKey"])


def test_one_that_takes_too_long_is_stopped_and_reported_so(harness: World) -> None:
    child = spawned(harness, "agent:main:late", "!sleep 600", runTimeoutSeconds=1)

    assert "ran out of time" in announced(harness, "agent:main:late", child["childSessionKey"])


@pytest.mark.parametrize("word", ["NO_REPLY", "ANNOUNCE_SKIP"])
def test_nothing_to_say_is_not_said(harness: World, word: str) -> None:
    session = f"agent:main:silent-{word.lower()}"
    child = spawned(harness, session, f"!say {word}")

    assert settled(harness, child["childSessionKey"])["deliveryStatus"] == "not_applicable"
    assert len(harness.texts(session, "user")) == 1


def test_the_requester_receives_only_when_those_below_have_ended(harness: World) -> None:
    inner = json.dumps({"task": "!sleep 1\n!say from the depth"})
    child = spawned(harness, "agent:main:deep", f"!tool sessions_spawn {inner}\n!say sent one off")
    received = announced(harness, "agent:main:deep", child["childSessionKey"])
    (below,) = harness.ask("sessions.list", spawnedBy=child["childSessionKey"])["sessions"]

    assert below["spawnDepth"] == 2
    assert "from the depth" in received  # the child's answer to its own child's announcement


def test_limits_are_answers_a_model_can_read(harness: World) -> None:
    def refused(session: str, **arguments: object) -> str:
        received = harness.tool(session, "sessions_spawn", task="!say x", **arguments)
        assert received["status"] in ("forbidden", "error")
        return str(received["error"])

    assert "its subagents.allowAgents: helper" in refused("agent:main:limits", agentId="stranger")
    assert "helper may not spawn main" in refused("agent:helper:limits", agentId="main")
    assert "is malformed" in refused("agent:main:limits", agentId="no such agent!")
    assert "needs thread true" in refused("agent:main:limits", mode="session")
    for _ in range(3):
        spawned(harness, "agent:main:limits", "!sleep 60", agentId="helper")
    assert "maxChildrenPerAgent is 3" in refused("agent:main:limits")
    assert harness.tool("agent:main:limits", "subagents", action="kill", target="all")["killed"] == 3
    assert spawned(harness, "agent:main:limits", "!say room again")["childSessionKey"].startswith("agent:main:")


def test_depth_is_limited_by_what_the_store_knows(harness: World) -> None:
    deepest = json.dumps({"task": "!say never"})
    inner = json.dumps({"task": f"!tool sessions_spawn {deepest}"})
    child = spawned(harness, "agent:main:abyss", f"!tool sessions_spawn {inner}")
    settled(harness, child["childSessionKey"])
    (below,) = harness.ask("sessions.list", spawnedBy=child["childSessionKey"])["sessions"]
    result = harness.texts(below["key"], "toolResult")[0]

    assert "sessions_spawn is refused" in result  # the policy of a leaf comes before the registry's own limit
    assert harness.ask("sessions.list", spawnedBy=below["key"])["sessions"] == []


def test_a_kill_stops_the_run_and_all_below_it(harness: World) -> None:
    inner = json.dumps({"task": "!sleep 600"})
    child = spawned(harness, "agent:main:kill", f"!tool sessions_spawn {inner}\n!sleep 600", label="doomed")
    key = child["childSessionKey"]
    assert comes(lambda: bool(harness.ask("sessions.list", spawnedBy=key)["sessions"]))
    (below,) = harness.ask("sessions.list", spawnedBy=key)["sessions"]

    received = harness.tool("agent:main:kill", "subagents", action="kill", target="doomed", reason="enough")

    assert (received["status"], received["killed"]) == ("ok", 2)
    for session in (key, below["key"]):
        row = harness.ask("sessions.describe", key=session)["session"]
        assert (row["status"], row["hasActiveRun"]) == ("killed", False)
    (listed,) = harness.tool("agent:main:kill", "subagents", action="list")["runs"]
    assert (listed["status"], listed["error"], listed["deliveryStatus"]) == ("killed", "enough", "killed")
    assert len(harness.texts("agent:main:kill", "user")) == 3  # no requester is notified of a run it killed itself


def test_a_new_order_takes_the_place_of_the_old(harness: World) -> None:
    child = spawned(harness, "agent:main:steer", "!sleep 600", label="ship")
    key = child["childSessionKey"]

    turned = harness.tool("agent:main:steer", "subagents", action="steer", target="ship", message="!say land ahoy")
    assert turned["status"] == "accepted"
    assert (turned["childSessionKey"], turned["runId"] != child["runId"]) == (key, True)
    with pytest.raises(Refused, match="wait"):
        harness.ask("sessions.subagents", action="steer", sessionKey="agent:main:steer", target=1, message="again")

    assert "land ahoy" in announced(harness, "agent:main:steer", key)
    assert [text for text in harness.texts("agent:main:steer", "user") if "was stopped" in text] == []


@pytest.mark.parametrize("digits", ["9" * 5000, "9" * 20, str(2**63), "\u0663", "\u00b2", "-1", ""])
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("sessions.list", {"cursor": "{0}.1"}),
        ("sessions.list", {"cursor": "1.{0}"}),
        ("chat.history", {"sessionKey": "main", "cursor": "v1.x.{0}.1"}),
        ("chat.history", {"sessionKey": "main", "cursor": "v1.x.1.{0}"}),
        ("tasks.list", {"cursor": "v1.{0}.1"}),
        ("tasks.list", {"cursor": "v1.1.{0}"}),
    ],
)
def test_a_cursor_with_no_number_of_ours_is_refused(
    harness: World, method: str, params: dict[str, str], digits: str
) -> None:
    arguments = {name: value.format(digits) for name, value in params.items()}

    with pytest.raises(Refused, match="cursor"):
        harness.ask(method, **arguments)


def test_the_ledger_of_tasks_is_read_in_pages_and_a_cancel_stops_the_work(harness: World) -> None:
    children = [spawned(harness, "agent:main:ledger", f"!say {number}", label=f"t{number}") for number in range(2)]
    for child in children:
        settled(harness, child["childSessionKey"])
    inner = json.dumps({"task": "!sleep 60"})
    going = spawned(harness, "agent:main:ledger", f"!tool sessions_spawn {inner}\n!sleep 60", agentId="helper")
    mine = {"sessionKey": "agent:main:ledger"}
    assert comes(lambda: harness.ask("sessions.subagents", sessionKey=going["childSessionKey"])["runs"])

    first = harness.ask("tasks.list", **mine, limit=2)
    rest = harness.ask("tasks.list", **mine, limit=2, cursor=first["nextCursor"])
    assert [task["childSessionKey"] for task in first["tasks"] + rest["tasks"]] == [
        child["childSessionKey"] for child in (going, children[1], children[0])
    ]
    assert "nextCursor" not in rest
    ended = harness.ask("tasks.list", **mine, status=["completed", "failed"])["tasks"]
    assert [(task["title"], task["status"], task["deliveryStatus"]) for task in ended] == [
        ("t1", "completed", "delivered"),
        ("t0", "completed", "delivered"),
    ]
    (task,) = harness.ask("tasks.list", **mine, agentId="helper", status="running")["tasks"]
    assert harness.ask("tasks.get", taskId=task["id"])["task"] == task

    stopped = harness.ask("tasks.cancel", taskId=task["id"], reason="enough")
    assert (stopped["found"], stopped["cancelled"], stopped["task"]["status"]) == (True, True, "cancelled")
    for key in (going["childSessionKey"], *(t["childSessionKey"] for t in _below(harness, going["childSessionKey"]))):
        assert harness.ask("sessions.describe", key=key)["session"]["status"] == "killed"
    again = harness.ask("tasks.cancel", taskId=task["id"])
    assert (again["found"], again["cancelled"]) == (True, False)
    assert harness.ask("tasks.cancel", taskId="nobody") == {
        "found": False,
        "cancelled": False,
        "reason": "task not found",
    }


def test_a_run_of_agent_is_found_and_cancelled_as_a_task(harness: World) -> None:
    key = "agent:main:tasked"
    chat = harness.begin(key, "!say first")
    accepted = harness.ask("agent", sessionKey=key, message="!sleep 60", idempotencyKey="agent-run")
    assert accepted["status"] == "accepted"
    assert harness.ask("tasks.get", taskId="agent-run")["task"]["status"] in ("queued", "running")
    stopped = harness.ask("tasks.cancel", taskId="agent-run")
    assert (stopped["found"], stopped["cancelled"], stopped["task"]["status"]) == (True, True, "cancelled")
    assert not harness.ask("tasks.cancel", taskId=chat)["found"]


def _below(harness: World, key: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = harness.ask("tasks.list", sessionKey=key)["tasks"]
    below = [task for task in found if task["sessionKey"] == key]
    assert below
    return below


@pytest.mark.parametrize(
    ("method", "params", "words"),
    [
        ("tasks.get", {"taskId": "nobody"}, "task not found: nobody"),
        ("tasks.get", {}, "taskId"),
        ("tasks.list", {"status": "lost"}, "status"),
        ("tasks.list", {"limit": 501}, "limit"),
        ("tasks.list", {"cursor": "mine"}, "first page"),
        ("tasks.list", {"nonsense": 1}, "nonsense"),
    ],
)
def test_wrong_questions_about_tasks_are_refused(harness: World, method: str, params: Any, words: str) -> None:
    with pytest.raises(Refused, match=words):
        harness.ask(method, **params)


def test_only_ones_own_can_be_touched(harness: World) -> None:
    child = spawned(harness, "agent:main:mine", "!sleep 600")
    name = {"target": child["runId"]}

    replies = harness.say("agent:main:thief", f"!tool subagents {json.dumps({'action': 'kill', **name})}")
    forged = {"action": "kill", "sessionKey": "agent:main:mine", **name}
    replies += harness.say("agent:main:thief", f"!tool subagents {json.dumps(forged)}")
    assert replies.count("this session has no such sub-agent") == 2

    status = harness.ask("sessions.subagents", action="status", sessionKey="agent:main:mine", runId=child["runId"])
    assert status["run"]["status"] == "running"
    ended = harness.ask("sessions.subagents", action="cancel", sessionKey="agent:main:mine", runId=child["runId"])
    assert ended["terminated"] == 1
    again = harness.ask("sessions.subagents", action="cancel", sessionKey="agent:main:mine", runId=child["runId"])
    assert (again["terminated"], again["status"]) == (0, "done")


@pytest.mark.parametrize(
    "how", ["chat.abort", "sessions.abort", "sessions.reset", "sessions.delete", "/stop", "sessions.send"]
)
def test_who_stops_a_session_stops_those_it_sent_off(harness: World, how: str) -> None:
    session = f"agent:main:stop-{how.strip('/').replace('.', '-')}"
    child = spawned(harness, session, "!sleep 600")["childSessionKey"]
    if how == "/stop":
        harness.ask("chat.send", sessionKey=session, message="/stop", idempotencyKey="stop-1")
    elif how == "sessions.send":
        harness.ask("sessions.send", key=session, message="/stop", idempotencyKey="stop-2")
    else:
        harness.ask(how, **{"sessionKey" if how == "chat.abort" else "key": session})

    row = harness.ask("sessions.describe", key=child)["session"]
    assert (row["status"], row["hasActiveRun"]) == ("killed", False)
    assert settled(harness, child)["deliveryStatus"] == "dismissed"


@pytest.mark.parametrize("command", ["/stop", "/new"])
def test_who_stops_a_conversation_of_a_channel_stops_those_it_sent_off(harness: World, command: str) -> None:
    conversation = f"talk-{command[1:]}"
    harness.ask(
        "local.send",
        conversation=conversation,
        text=f'!tool sessions_spawn {{"task": "!sleep 600", "label": "{conversation}"}}',
    )
    task = harness.until("task", lambda payload: payload["task"]["title"] == conversation)["task"]

    harness.ask("local.send", conversation=conversation, text=command)

    assert settled(harness, task["childSessionKey"])["deliveryStatus"] == "dismissed"
    row = harness.ask("sessions.describe", key=task["childSessionKey"])["session"]
    assert (row["status"], row["hasActiveRun"]) == ("killed", False)


def test_a_reset_that_is_refused_leaves_them_at_work(harness: World) -> None:
    child = spawned(harness, "agent:main:kept", "!sleep 600")["childSessionKey"]
    with connect(harness.served.ws, compression=None) as socket:
        lesser = World(harness.served, socket)
        lesser.until("connect.challenge")
        auth = {"token": harness.served.token}
        lesser.ask("connect", **CONNECT | {"auth": auth, "scopes": ["operator.read", "operator.write"]})
        lesser.ask("chat.send", sessionKey="agent:main:kept", message="/new", idempotencyKey="refused-reset")
        end = lesser.until("chat", lambda payload: payload["runId"] == "refused-reset")
    assert "operator.admin" in end["message"]["content"][0]["text"]
    assert harness.ask("sessions.describe", key=child)["session"]["hasActiveRun"]
    harness.ask("sessions.abort", key=child)


def test_a_reset_that_is_sent_twice_leaves_those_of_the_new_conversation_at_work(harness: World) -> None:
    reset = {"sessionKey": "agent:main:again", "message": "/new", "idempotencyKey": "reset-again"}
    harness.ask("chat.send", **reset)
    child = spawned(harness, "agent:main:again", "!sleep 600")["childSessionKey"]
    assert harness.ask("chat.send", **reset)["status"] == "ok"
    assert harness.ask("sessions.describe", key=child)["session"]["hasActiveRun"]
    harness.ask("sessions.abort", key=child)


def test_a_message_that_interrupts_leaves_them_at_work(harness: World) -> None:
    child = spawned(harness, "agent:main:on", "!sleep 600")["childSessionKey"]
    harness.say("agent:main:on", "!say something else")

    assert harness.ask("sessions.describe", key=child)["session"]["hasActiveRun"]


def test_methods_say_what_is_missing(harness: World) -> None:
    for params, words in (
        ({"action": "list"}, "sessionKey is required"),
        ({"action": "fly", "sessionKey": "main"}, "unsupported action: fly"),
        ({"action": "kill", "sessionKey": "main"}, "name the sub-agent"),
        ({"action": "steer", "sessionKey": "main", "target": "x"}, "message is required"),
    ):
        with pytest.raises(Refused, match=words):
            harness.ask("sessions.subagents", **params)
    with pytest.raises(Refused, match="task is required"):
        harness.ask("sessions.spawn", sessionKey="main", task="  ")
    assert harness.ask("sessions.subagents", sessionKey="agent:main:nobody", action=None)["runs"] == []


def test_a_model_of_a_provider_no_one_set_up_sends_no_one_off(harness: World) -> None:
    arguments = {"sessionKey": "agent:main:models", "task": "think", "agentId": "thinker", "model": "nosuch/m"}

    received = harness.ask("sessions.spawn", **arguments)

    assert received["status"] == "error"
    assert received["error"].startswith('the model "nosuch/m" is of a provider that is not configured')
    assert harness.ask("sessions.list", spawnedBy="agent:main:models")["sessions"] == []


def test_an_operator_spawns_for_a_session(harness: World) -> None:
    spawned = harness.ask(
        "sessions.spawn", sessionKey="agent:main:op", task="!say done for you", agentId="helper", model=None
    )

    assert spawned["childSessionKey"].startswith("agent:helper:subagent:")
    assert "done for you" in announced(harness, "agent:main:op", spawned["childSessionKey"])


def test_a_request_that_comes_twice_sends_one_off(harness: World) -> None:
    arguments = {"sessionKey": "agent:main:twice", "task": "!say ANNOUNCE_SKIP", "idempotencyKey": "k-1"}
    first, again = harness.ask("sessions.spawn", **arguments), harness.ask("sessions.spawn", **arguments)
    other = harness.ask("sessions.spawn", **{**arguments, "idempotencyKey": "k-2"})

    assert first["childSessionKey"] == again["childSessionKey"] != other["childSessionKey"]
    assert len(harness.ask("sessions.list", spawnedBy="agent:main:twice")["sessions"]) == 2


def test_a_child_that_is_to_be_forgotten_leaves_no_session(harness: World) -> None:
    child = spawned(harness, "agent:main:tidy", "!say swept", cleanup="delete")

    assert "swept" in announced(harness, "agent:main:tidy", child["childSessionKey"])
    assert comes(lambda: harness.ask("sessions.describe", key=child["childSessionKey"])["session"] is None)


def test_a_child_has_no_more_rights_than_who_sent_it(harness: World) -> None:
    child = spawned(harness, "agent:main:rights", '!tool gateway {"action": "config.get"}\n!tool cron {}')
    received = announced(harness, "agent:main:rights", child["childSessionKey"])

    assert "gateway is refused: a sub-agent is denied gateway" in received


def test_what_was_going_when_the_gateway_died_is_reported_afterwards(tmp_path: Path) -> None:
    with world(tmp_path, {"agents": AGENTS}) as harness:
        child = spawned(harness, "main", "!sleep 600", label="cut")
        harness.served.child.kill()
        harness.served.child.wait(10)
    with serving(tmp_path) as served, joined(served) as harness:
        assert comes(lambda: any("cut short" in text for text in harness.texts("main", "user")))

        def listed() -> dict[str, str]:
            (run,) = harness.ask("sessions.subagents", sessionKey="main", action="list")["runs"]
            return dict(run)

        assert comes(lambda: listed()["deliveryStatus"] == "delivered")
        run = listed()
        assert run["status"] == "error"
        received = [text for text in harness.texts("main", "user") if "The sub-agent for" in text]
        assert len(received) == 1
        assert child["childSessionKey"] == run["childSessionKey"]


def test_a_stop_leaves_word_for_the_next_start(tmp_path: Path) -> None:
    with world(tmp_path, {"agents": AGENTS}) as harness:
        spawned(harness, "main", "!sleep 600", label="interrupted")
        harness.served.child.terminate()
        assert harness.served.child.wait(20) == 0
    with serving(tmp_path) as served, joined(served) as harness:
        assert comes(lambda: any('"interrupted" has failed' in text for text in harness.texts("main", "user")))
