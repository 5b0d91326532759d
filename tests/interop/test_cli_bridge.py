"""A message in a conversation starts a real CLI; it uses our tools through our server; its reply comes back once."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ..gateway.agents.cli.scripted_model import ScriptedModel
from ..gateway.wiring.test_gateway import Served, serving
from ..mcp.client.servers import ECHO
from ..running import END_WAIT
from .cli_clients import path
from .clis import CLIS, MODEL, environment, program

PATIENCE = 180.0  # seconds a turn may take on a busy machine
JOB = {
    "name": "water",
    "schedule": {"kind": "every", "everyMs": 3600000},
    "payload": {"kind": "agentTurn", "message": "water the plants"},
}
SESSION = "agent:main:local:direct:room"


@pytest.fixture(params=CLIS)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A gateway whose one agent is this CLI."""
    cli, state = str(request.param), tmp_path / "state"
    state.mkdir()
    with ScriptedModel() as model:
        env = {**path(), **environment(cli, tmp_path / "home", model.url)}
        agent = {"id": "main", "runtime": cli, "runtimeCommand": program(cli, tmp_path), "runtimeEnv": env}
        agent |= {"workspace": str(tmp_path / "work")} | ({"model": MODEL[cli]} if cli in MODEL else {})
        config = {"agents": {"list": [agent]}, "mcp": {"servers": {"mine": ECHO, "lent": ECHO}}}
        config |= {"channels": {"local": {"dmPolicy": "open", "allowFrom": ["*"]}}}
        config |= {"tools": {"alsoAllow": ["mcp/lent"]}}
        (state / "openclaw.json").write_text(json.dumps(config))
        with serving(state) as harness:
            yield harness


def ask(served: Served, method: str, params: Any) -> Any:
    result = served.call(method, json.dumps(params))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def secrets_in(folder: Path) -> list[str]:
    """Files that hold anything that begins like a grant."""
    words = ["grep", "-rlaE", "ocg_[A-Za-z0-9_-]{20}", str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()


def write(served: Served, text: str, **more: Any) -> Any:
    """Say something in the conversation `room`, and wait until the agent's run is over."""
    received = ask(served, "local.send", {"conversation": "room", "text": text, **more})
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        run = ask(served, "agent.wait", {"runId": received["runId"], "timeoutMs": 15000})
        if run["status"] != "timeout":
            return run
    pytest.fail("no end")


def read(served: Served, conversation: str, count: int, *, within: float = 20.0) -> list[str]:
    """What the agent's side said there, once it is that many messages; a moment longer, should there be more."""
    end = time.monotonic() + within
    while True:
        messages = ask(served, "local.read", {"conversation": conversation})["messages"]
        texts = [message["text"] for message in messages if message["fromMe"]]
        if len(texts) >= count or time.monotonic() > end:
            return texts
        time.sleep(0.2)


def test_a_message_is_answered_once_and_the_tools_do_what_they_say(served: Served) -> None:
    steps = [
        "[[call sessions_list {}]]",
        f"[[call cron_add {json.dumps({'job': JOB})}]]",
        '[[call message_send {"target": "elsewhere", "message": "hello over there"}]]',
        "[[say All is done. I will remind you to water the plants.]]",
    ]
    ended = write(served, " ".join(steps))
    assert ended["status"] == "ok", ended
    assert ended["terminalReceipt"]["successfulToolNames"] == ["sessions_list", "cron_add", "message_send"]
    # No note that nothing was scheduled: something was.
    assert read(served, "room", 1) == ["All is done. I will remind you to water the plants."]
    assert read(served, "elsewhere", 1) == ["hello over there"]
    jobs = ask(served, "cron.list", {})["jobs"]
    assert [(job["name"], job["delivery"]["to"]) for job in jobs] == [("water", "room")]
    history = ask(served, "chat.history", {"sessionKey": SESSION})["messages"]
    listed = next(message for message in history if message.get("toolName") == "sessions_list")
    assert SESSION in listed["content"][0]["text"]
    assert secrets_in(served.folder.parent) == []


def test_the_tools_of_the_gateways_mcp_servers_are_the_agents_too(served: Served) -> None:
    ended = write(served, '[[call mine__echo {"text": "by a server of the gateway"}]] [[say It said: {result}]]')
    assert ended["status"] == "ok", ended
    assert ended["terminalReceipt"]["successfulToolNames"] == ["mine__echo"]
    [answer] = read(served, "room", 1)
    assert "by a server of the gateway" in answer


def test_another_sender_has_the_tools_that_were_lent(served: Served) -> None:
    steps = '[[call lent__echo {"text": "lent"}]] [[call mine__echo {"text": "refused"}]] [[say tried]]'
    ended = write(served, steps, sender={"id": "mallory", "name": "Mallory"})
    assert ended["status"] == "ok", ended
    assert ended["terminalReceipt"]["successfulToolNames"] == ["lent__echo"]


def test_what_the_agent_sent_itself_is_not_sent_again(served: Served) -> None:
    sent = "The answer you asked for is forty-two."
    ended = write(served, f'[[call message_send {{"target": "room", "message": "{sent}"}}]] [[say {sent}]]')
    assert ended["status"] == "ok", ended
    assert write(served, "[[say And now something else.]]")["status"] == "ok"
    assert read(served, "room", 2) == [sent, "And now something else."]


def test_a_gateway_killed_in_the_middle_leaves_no_process_no_secret_and_sends_nothing_twice(served: Served) -> None:
    steps = '[[call message_send {"target": "elsewhere", "message": "only once"}]] [[hang 120]] [[say never]]'
    ask(served, "local.send", {"conversation": "room", "text": steps})
    assert read(served, "elsewhere", 1, within=PATIENCE) == ["only once"]
    home = str(served.folder.parent / "home")
    assert started_in(home)
    os.kill(served.child.pid, signal.SIGKILL)
    served.child.wait(END_WAIT)
    end = time.monotonic() + 20
    while started_in(home) and time.monotonic() < end:
        time.sleep(0.1)
    assert [process.cmdline() for process in started_in(home)] == []
    with serving(served.folder) as again:
        assert write(again, "[[say Here I am.]]")["status"] == "ok"
        assert read(again, "room", 2)[-1] == "Here I am."
        assert read(again, "elsewhere", 1) == ["only once"]
    assert secrets_in(served.folder.parent) == []


def started_in(home: str) -> list[psutil.Process]:
    """The processes whose home that is: the CLI and every process it started."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOME") == home and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_who_may_write_but_is_not_the_owner_gets_none_of_the_owners_tools(served: Served) -> None:
    config = json.loads((served.folder / "openclaw.json").read_text())
    owner_rules = {"channels": {"local": {"allowFrom": ["ann"]}}, "commands": {"ownerAllowFrom": ["local:bob"]}}
    raw = json.dumps({**config, **owner_rules})
    current = ask(served, "config.get", {})
    ask(served, "config.set", {"raw": raw, "baseHash": current["hash"]})
    prompt = f"[[call cron_add {json.dumps({'job': JOB})}]] [[say Tried: {{result}}]]"
    ended = write(served, prompt, sender={"id": "ann", "name": "Ann"})
    assert ended["status"] == "ok", ended
    assert "no tool cron_add" in read(served, "room", 1)[0]
    assert ask(served, "cron.list", {})["jobs"] == []
