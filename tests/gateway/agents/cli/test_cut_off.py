"""A tool server that dies when the gateway has done what it asked and before it wrote that down: nothing is lost."""

import json
import shlex
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ...wiring.gateways import serving
from ...wiring.test_gateway import WAIT, Served
from .test_gateway_runs import answered, ask

ANSWER = "The answer you asked for is forty-two."
PROMISE = "I'll remind you to water the plants."
JOB = {
    "name": "water",
    "schedule": {"kind": "every", "everyMs": 3600000},
    "payload": {"kind": "agentTurn", "message": "water the plants"},
}


def unlucky(folder: Path, *calls: tuple[str, Any], says: str, dies: bool = False) -> Path:
    """The state directory of a gateway whose one agent is a CLI that loses its server at the last of these calls."""
    state, program = folder / "state", folder / "claude"
    state.mkdir()
    wanted = json.dumps({"calls": calls, "says": says, "dies": dies})
    stand_in = [sys.executable, str(Path(__file__).with_name("cut_off.py")), wanted]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(stand_in)} "$@"\n')
    program.chmod(0o755)
    agent = {"id": "main", "runtime": "claude", "runtimeCommand": str(program), "workspace": str(folder / "work")}
    quiet = {"id": "quiet", "runtime": "demo"}
    tools = {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True, "allow": ["*"]}}
    (state / "openclaw.json").write_text(json.dumps({"agents": {"list": [agent, quiet]}, "tools": tools}))
    return state


def events(served: Served, *, status: str = "ok") -> Any:
    """Write in the conversation `room`; the run, once it is over."""
    run = ask(served, "local.send", {"conversation": "room", "text": "do it"})["runId"]
    ended = answered(served, run)
    assert ended["status"] == status, ended
    return run


def replies(served: Served, conversation: str, least: int) -> list[str]:
    """What the agent's side said there once it is so much, and a moment later: there must not be more."""
    end = time.monotonic() + WAIT
    while True:
        messages = ask(served, "local.read", {"conversation": conversation})["messages"]
        mine = [message["text"] for message in messages if message["fromMe"]]
        if len(mine) >= least or time.monotonic() > end:
            return mine
        time.sleep(0.05)


def recorded(state: Path, run: str) -> Any:
    """What the run is known to have done to others."""
    with sqlite3.connect(state / "openclaw.sqlite") as store:
        (result,) = store.execute("select result from runs where run_id = ?", (run,)).fetchone()
    return json.loads(result)["effects"]


def no_secret_in(folder: Path) -> bool:
    words = ["grep", "-rlaE", "ocg_[A-Za-z0-9_-]{20}", str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout == ""


@pytest.mark.parametrize("tool", ["message_send", "message_reply", "message_broadcast"])
def test_a_message_whose_server_died_is_recorded_and_not_said_again(tmp_path: Path, tool: str) -> None:
    where: dict[str, Any] = {
        "message_send": {"target": "room"},
        "message_reply": {},
        "message_broadcast": {"targets": ["room", "elsewhere"]},
    }
    state = unlucky(tmp_path, (tool, {"message": ANSWER, **where[tool]}), says=ANSWER)
    with serving(state) as served:
        run = events(served)
        assert replies(served, "room", 1) == [ANSWER]
        effects = recorded(state, run)
        ask(served, "local.send", {"conversation": "room", "text": "/stop"})
        assert replies(served, "room", 2) == [ANSWER, "Nothing was going on."]
    sent = [(one["tool"], one["provider"], one["to"], one["text"]) for one in effects["sent"]]
    targets = where[tool].get("targets", ["room"])
    assert sent == [("message", "local", target, ANSWER) for target in targets]
    assert effects["unsure"] == []
    assert no_secret_in(tmp_path)


def test_a_message_whose_cli_was_killed_is_recorded_and_not_said_again(tmp_path: Path) -> None:
    state = unlucky(tmp_path, ("message_send", {"target": "room", "message": ANSWER}), says=ANSWER, dies=True)
    with serving(state) as served:
        run = events(served, status="error")
        assert [one["text"] for one in recorded(state, run)["sent"]] == [ANSWER]
        ask(served, "local.send", {"conversation": "room", "text": "/stop"})
        assert replies(served, "room", 2) == [ANSWER, "Nothing was going on."]
        assert list((state / "runs").rglob("server.env")) == []
    assert no_secret_in(tmp_path)


def test_a_job_whose_server_died_is_recorded_and_keeps_the_promise(tmp_path: Path) -> None:
    state = unlucky(tmp_path, ("cron_add", {"job": JOB}), says=PROMISE)
    with serving(state) as served:
        run = events(served)
        assert replies(served, "room", 1) == [PROMISE]  # without the note that nothing was scheduled
        (job,) = ask(served, "cron.list", {})["jobs"]
        assert [one["job_id"] for one in recorded(state, run)["cron_added"]] == [job["id"]]


def test_words_to_another_session_whose_server_died_are_recorded(tmp_path: Path) -> None:
    received = {"sessionKey": "agent:quiet:main", "message": "are you there?", "timeout": 0}
    state = unlucky(tmp_path, ("sessions_send", received), says="It is asked.")
    with serving(state) as served:
        run = events(served)
        assert replies(served, "room", 1) == ["It is asked."]
        sent = [(one["tool"], one["to"], one["text"]) for one in recorded(state, run)["sent"]]
    assert sent == [("sessions_send", "agent:quiet:main", "are you there?")]


def test_each_is_recorded_once_whether_its_server_lived_or_not(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "note.txt").write_text("a file")
    received = {"sessionKey": "agent:quiet:main", "message": "six", "timeout": 0}
    calls: list[tuple[str, Any]] = [
        ("message_send", {"target": "elsewhere", "message": "one"}),
        ("message_reply", {"message": "two"}),
        ("message_thread_reply", {"threadId": "t9", "message": "three"}),
        ("message_broadcast", {"targets": ["here", "there"], "message": "four"}),
        ("message_send_with_effect", {"target": "elsewhere", "message": "five", "effectId": "confetti"}),
        ("sessions_send", received),
        (
            "message_send_attachment",
            {"target": "elsewhere", "file": str(tmp_path / "work/note.txt"), "caption": "seven"},
        ),
        ("cron_add", {"job": JOB}),
        ("message_send", {"target": "elsewhere", "message": "one"}),
    ]
    state = unlucky(tmp_path, *calls, says="All is done.")
    with serving(state) as served:
        run = events(served)
        effects = recorded(state, run)
        (job,) = ask(served, "cron.list", {})["jobs"]
    texts = [one["text"] for one in effects["sent"]]
    assert texts == ["one", "two", "three", "four", "four", "five", "six", "seven", "one"]
    assert [one["job_id"] for one in effects["cron_added"]] == [job["id"]]
    assert (effects["unsure"], effects["skipped"]) == ([], 0)


def run_job(served: Served, job: Any) -> Any:
    """Have it done now, its result announced in `room`; what the log says of it."""
    where = {"mode": "announce", "channel": "local", "to": "room"}
    id = ask(served, "cron.add", {**job, "sessionTarget": "isolated", "wakeMode": "now", "delivery": where})["id"]
    ask(served, "cron.run", {"id": id, "mode": "force"})
    end = time.monotonic() + WAIT
    while not (entries := ask(served, "cron.runs", {"id": id})["entries"]) and time.monotonic() < end:
        time.sleep(0.05)
    (entry,) = entries
    return entry


def test_a_jobs_agent_that_used_the_gateways_own_tool_has_delivered_it(tmp_path: Path) -> None:
    """The same without a program: the demo agent sends with the `message` tool."""
    arguments = {"action": "send", "channel": "local", "target": "room", "message": ANSWER}
    payload = {"kind": "agentTurn", "message": f"!tool message {json.dumps(arguments)}\n!say {ANSWER}"}
    with serving(tmp_path) as served:
        entry = run_job(served, {**JOB, "payload": payload})
        assert (entry["status"], entry["deliveryStatus"]) == ("ok", "delivered"), entry
        assert replies(served, "room", 1) == [ANSWER]
        entry = run_job(served, {**JOB, "name": "other", "payload": {"kind": "agentTurn", "message": "!say water"}})
        assert entry["deliveryStatus"] == "delivered"
        assert [text[-5:] for text in replies(served, "room", 2)] == [ANSWER[-5:], "water"]


def test_a_jobs_agent_that_wrote_to_where_its_result_goes_has_delivered_it(tmp_path: Path) -> None:
    sent = {"channel": "local", "target": "room", "message": ANSWER}
    state = unlucky(tmp_path, ("message_send", {**sent, "target": "elsewhere"}), ("message_send", sent), says=ANSWER)
    with serving(state) as served:
        entry = run_job(served, JOB)
        assert (entry["status"], entry["deliveryStatus"]) == ("ok", "delivered"), entry
        assert replies(served, "room", 1) == [ANSWER]
