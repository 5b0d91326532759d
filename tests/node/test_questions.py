"""Questions reach a person: in a terminal, on the desktop, in the calling client. Real processes, a real bus."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.node.consent import CONSENTS_FILE, BadConsents, ConsentStore
from openclaw_mcp.node.questions import PromptAnswer, PromptRouter, UserQuestion, make_question
from openclaw_mcp.node.terminal_questions import TerminalPrompter, watch_questions
from tests.programs import need
from tests.running import OPENCLAW, process, read_line, stdio_server
from tests.web_client import Answer, rpc, send

from .media.making import call
from .running import RunningNode, running_node
from .test_system import Person

WAIT = 30.0
ASK = '{"defaultAction": "prompt", "rules": []}'


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    (tmp_path / "exec-policy.json").write_text(ASK)
    with running_node(tmp_path) as node:
        yield node


def run(node: RunningNode, *argv: str) -> Answer:
    params = {"name": "system.run", "arguments": {"command": list(argv)}}
    return send(node.address, "POST", rpc("tools/call", params), **node.bearer)


class Calling(threading.Thread):
    """A call under way."""

    def __init__(self, node: RunningNode, *argv: str) -> None:
        super().__init__(daemon=True)
        self._node, self._argv = node, argv
        self._answer: Answer | None = None
        self.start()

    def run(self) -> None:
        self._answer = run(self._node, *self._argv)

    @property
    def text(self) -> str:
        self.join(WAIT)
        assert self._answer is not None
        return str(self._answer.json["result"]["content"][0]["text"])


@contextlib.contextmanager
def terminal(state: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = (OPENCLAW, "approvals", "--state-dir", str(state))
    with process(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        assert b"Waiting for questions" in read_line(child)
        yield child


def until(child: subprocess.Popen[bytes], text: bytes) -> bytes:
    output = b""
    while text not in output:
        output += read_line(child, WAIT)
    return output


def type_(child: subprocess.Popen[bytes], text: str) -> None:
    assert child.stdin is not None
    child.stdin.write(text.encode() + b"\n")


def present(node: RunningNode) -> None:
    """Wait until the terminal has found the node: its socket has a peer."""
    path = str(next(node.state.glob("approvals-*.sock")))
    end = time.monotonic() + WAIT
    while sum(path in line and " 03 " in line for line in Path("/proc/net/unix").read_text().splitlines()) < 1:
        assert time.monotonic() < end
        time.sleep(0.02)


# ---- in a terminal ----


def test_a_person_in_a_terminal_sees_the_command_and_decides(node: RunningNode) -> None:
    with terminal(node.state) as screen:
        present(node)
        calling = Calling(node, "expr", "1", "+", "1")
        output = until(screen, b"[y]es once, [a]lways, [n]o")
        assert b"expr 1 + 1" in output
        assert b"mcp-client" in output
        type_(screen, "y")
        assert json.loads(calling.text)["stdout"] == "2\n"

        calling = Calling(node, "expr", "1", "+", "1")
        until(screen, b"[n]o")
        type_(screen, "what?")
        assert "denied by a person" in calling.text

        calling = Calling(node, "expr", "1", "+", "1")
        until(screen, b"[n]o")
        type_(screen, "a")
        assert json.loads(calling.text)["stdout"] == "2\n"
    assert json.loads(run(node, "expr", "1", "+", "1").json["result"]["content"][0]["text"])["stdout"] == "2\n"


def test_always_is_no_answer_where_it_was_not_offered(node: RunningNode) -> None:
    with terminal(node.state) as screen:
        present(node)
        calling = Calling(node, "sh", "-c", "for i in 1 2; do expr $i; done")
        assert b"[a]lways" not in until(screen, b"[n]o")
        type_(screen, "always")

        assert "denied by a person" in calling.text


def test_a_person_who_leaves_the_terminal_has_not_answered_yes(node: RunningNode) -> None:
    with terminal(node.state) as screen:
        present(node)
        calling = Calling(node, "expr", "1")
        until(screen, b"[n]o")

    assert "no person answered" in calling.text


def test_a_question_in_the_first_moment_of_a_node_waits_for_the_terminal_that_is_open(tmp_path: Path) -> None:
    (tmp_path / "exec-policy.json").write_text(ASK)
    with terminal(tmp_path) as screen, running_node(tmp_path) as node:
        calling = Calling(node, "expr", "1", "+", "1")
        until(screen, b"[n]o")
        type_(screen, "y")
        assert json.loads(calling.text)["stdout"] == "2\n"


class Elsewhere:
    """Another way to a person, who never answers there."""

    keeps_questions = False

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def is_available(self) -> bool:
        return True

    async def ask(self, question: UserQuestion) -> PromptAnswer | None:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


def test_a_terminal_opened_after_the_question_shows_it_and_one_after_that_too(tmp_path: Path) -> None:
    async def test() -> None:
        prompter, elsewhere = TerminalPrompter(tmp_path), Elsewhere()
        router = PromptRouter([elsewhere, prompter], seconds=lambda: WAIT, ask_in_client=lambda: False)
        question = make_question("exec", title="?", detail="ls", why="w", asker="a", always=False)
        async with prompter.listen():
            asking = asyncio.ensure_future(router.ask(call("system.run"), question, how_to_allow=""))
            await elsewhere.asked.wait()
            for last in (False, True):
                async with watch_questions(prompter.path) as watcher:
                    shown = await anext(aiter(watcher.messages()))
                    assert shown["question"]["detail"] == "ls"
                    if last:
                        watcher.answer(shown["question"]["id"], "once")
                        assert await asking == "once"

    async def bounded() -> None:
        async with asyncio.timeout(WAIT):
            await test()

    asyncio.run(bounded())


def test_the_socket_of_a_killed_node_is_swept_by_the_next_and_a_living_ones_stays(tmp_path: Path) -> None:
    words = (OPENCLAW, "node", "--stdio", "--state-dir", str(tmp_path))

    def sockets() -> set[str]:
        return {path.name for path in tmp_path.glob("approvals-*.sock")}

    with stdio_server(*words) as living, stdio_server(*words) as killed:
        for server in (living, killed):
            assert "result" in server.ask("tools/call", {"name": "device.info", "arguments": {}})
        stays, stale = (f"approvals-{server.child.pid}.sock" for server in (living, killed))
        killed.child.kill()
        killed.child.wait(WAIT)
        assert sockets() == {stays, stale}

        with stdio_server(*words) as next_one:
            assert "result" in next_one.ask("tools/call", {"name": "device.info", "arguments": {}})
            assert sockets() == {stays, f"approvals-{next_one.child.pid}.sock"}
            assert next_one.hang_up() == 0
        assert living.hang_up() == 0
    assert sockets() == set()


def test_rules_and_consents_are_kept_from_the_command_line(tmp_path: Path) -> None:
    def approvals(*words: str) -> subprocess.CompletedProcess[str]:
        command = [OPENCLAW, "approvals", "--state-dir", str(tmp_path), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)

    assert approvals("test", "expr 1").returncode == 1
    assert approvals("allow", "expr *").returncode == 0
    assert approvals("test", "expr 1").returncode == 0
    assert approvals("test", "expr 1; rm x").returncode == 1
    assert approvals("forget", "expr *").returncode == 0
    assert approvals("forget", "expr *").returncode == 1
    assert approvals("default", "deny").returncode == 0
    assert approvals("grant", "camera").returncode == 0
    listed = approvals("list").stdout
    assert "deny    everything else" in listed
    assert "allow   camera" in listed
    assert approvals("revoke", "camera").returncode == 0
    assert "ask     camera" in approvals("list").stdout
    assert approvals("grant", "the keys").returncode == 2


def test_options_may_stand_after_the_verb_as_well(tmp_path: Path) -> None:
    words = [OPENCLAW, "approvals", "list", "--json", "--state-dir", str(tmp_path)]
    after = subprocess.run(words, capture_output=True, text=True, timeout=WAIT, check=False)
    words = [OPENCLAW, "approvals", "--json", "--state-dir", str(tmp_path), "list"]
    before = subprocess.run(words, capture_output=True, text=True, timeout=WAIT, check=False)

    assert json.loads(after.stdout)["policy"]["defaultAction"] == "prompt"
    assert (tmp_path / "exec-policy.json").exists()
    assert before.stdout == after.stdout


# ---- in the calling client ----


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("allow", [True, False])
def test_the_calling_client_asks_its_user(node: RunningNode, mode: str, allow: bool) -> None:
    questions: list[str] = []

    async def elicited(context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={"allow": allow})

    async def visit() -> Any:
        web = httpx2.AsyncClient(headers=node.bearer, timeout=WAIT)
        transport = streamable_http_client(node.address, http_client=web)
        async with (
            asyncio.timeout(WAIT),
            web,
            Client(transport, mode=mode, elicitation_callback=elicited) as client,
        ):
            return await client.call_tool("system.run", {"command": ["expr", "2", "+", "2"]})

    result = asyncio.run(visit())

    assert "expr 2 + 2" in questions[0]
    assert result.is_error is not allow
    assert ("4" in result.content[0].text) is allow


# ---- on the desktop ----

DAEMON = """
import asyncio, sys
from dbus_fast.aio import MessageBus
from dbus_fast.service import ServiceInterface, method, signal
from dbus_fast import BusType

class Daemon(ServiceInterface):
    def __init__(self, press):
        super().__init__("org.freedesktop.Notifications")
        self.press = press
    @method()
    def GetCapabilities(self) -> "as":
        return ["actions", "body"]
    @method()
    def Notify(self, app: "s", id: "u", icon: "s", title: "s", body: "s", actions: "as", hints: "a{sv}", t: "i") -> "u":
        print([title, body, actions], flush=True)
        if self.press.startswith("other "):
            asyncio.get_running_loop().create_task(other(self.press.partition(" ")[2]))
        elif self.press == "dismiss":
            asyncio.get_running_loop().call_later(0.05, lambda: self.NotificationClosed(7, 2))
        elif self.press:
            asyncio.get_running_loop().call_later(0.05, lambda: self.ActionInvoked(7, self.press))
        return 7
    @method()
    def CloseNotification(self, id: "u"):
        print("closed", flush=True)
    @signal()
    def ActionInvoked(self, id: "u", key: "s") -> "us":
        return [id, key]
    @signal()
    def NotificationClosed(self, id: "u", reason: "u") -> "uu":
        return [id, reason]

async def other(press):
    # Another program on the bus presses first; then the daemon says that the notification was dismissed.
    bus = await MessageBus(bus_type=BusType.SESSION).connect()
    stranger = Daemon("")
    bus.export("/org/freedesktop/Notifications", stranger)
    stranger.ActionInvoked(7, press)
    await bus.introspect("org.freedesktop.DBus", "/org/freedesktop/DBus")  # the signal has gone out before this returns
    daemon.NotificationClosed(7, 2)

async def main():
    global daemon
    daemon = Daemon(sys.argv[1])
    bus = await MessageBus(bus_type=BusType.SESSION).connect()
    bus.export("/org/freedesktop/Notifications", daemon)
    await bus.request_name("org.freedesktop.Notifications")
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def session_bus(tmp_path: Path) -> Iterator[str]:
    """A real session bus; yields its address."""
    daemon = need("dbus-daemon", package="dbus-daemon")
    words = (daemon, "--session", "--nofork", "--print-address", f"--address=unix:path={tmp_path}/bus.sock")
    with process(*words, stdout=subprocess.PIPE) as child:
        yield read_line(child, WAIT).decode().strip()


@pytest.mark.parametrize(
    ("press", "runs"),
    [
        ("once", True),
        ("always", True),
        ("deny", False),
        ("dismiss", False),
        ("default", False),
        ("other once", False),
        ("other always", False),
    ],
)
def test_a_notification_with_buttons_asks_and_its_button_answers(tmp_path: Path, press: str, runs: bool) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "exec-policy.json").write_text(ASK)
    script = tmp_path / "daemon.py"
    script.write_text(DAEMON)
    with session_bus(tmp_path) as bus:
        env = {**os.environ, "DBUS_SESSION_BUS_ADDRESS": bus}
        with (
            process(sys.executable, str(script), press, stdout=subprocess.PIPE, env=env) as daemon,
            running_node(state, env={"DBUS_SESSION_BUS_ADDRESS": bus}) as node,
        ):
            assert read_line(daemon, WAIT) == b"ready\n"
            calling = Calling(node, "expr", "<b>1</b>")
            output = read_line(daemon, WAIT).decode()

            assert "&lt;b&gt;1&lt;/b&gt;" in output
            assert "Allow once" in output
            assert ("denied by a person" not in calling.text) is runs
            rules = json.loads((state / "exec-policy.json").read_text())["rules"]
            assert bool(rules) is (press == "always")


def test_a_command_too_long_for_a_notification_is_not_approved_by_one(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "exec-policy.json").write_text(ASK)
    script = tmp_path / "daemon.py"
    script.write_text(DAEMON)
    with session_bus(tmp_path) as bus:
        env = {**os.environ, "DBUS_SESSION_BUS_ADDRESS": bus}
        with (
            process(sys.executable, str(script), "once", stdout=subprocess.PIPE, env=env) as daemon,
            running_node(state, env={"DBUS_SESSION_BUS_ADDRESS": bus}) as node,
        ):
            assert read_line(daemon, WAIT) == b"ready\n"
            hidden = tmp_path / "touched"
            assert "no person answered" in Calling(node, "touch", *[str(tmp_path / ("x" * 100))] * 20, str(hidden)).text
            assert not hidden.exists()


def test_a_real_notification_daemon_shows_what_system_notify_sends(tmp_path: Path) -> None:
    dunst, dunstctl = need("dunst", package="dunst"), need("dunstctl", package="dunst")
    xvfb = need("Xvfb", package="xvfb")
    with (
        session_bus(tmp_path) as bus,
        process(xvfb, "-displayfd", "1", "-nolisten", "tcp", stdout=subprocess.PIPE) as x,
    ):
        display = f":{read_line(x, WAIT).decode().strip()}"
        env = {**os.environ, "DBUS_SESSION_BUS_ADDRESS": bus, "DISPLAY": display}
        with (
            process(dunst, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
            running_node(tmp_path / "state", env={"DBUS_SESSION_BUS_ADDRESS": bus}) as node,
        ):
            params = {"name": "system.notify", "arguments": {"title": "Tea", "body": "is <ready> & hot"}}
            end = time.monotonic() + WAIT
            while True:
                result = send(node.address, "POST", rpc("tools/call", params), **node.bearer).json["result"]
                if not result["isError"]:
                    break
                assert "notification daemon" in result["content"][0]["text"]  # dunst is not up yet
                assert time.monotonic() < end
                time.sleep(0.1)
            assert result["structuredContent"] == {"sent": True}
            subprocess.run([dunstctl, "close-all"], env=env, check=True, timeout=WAIT)
            history = subprocess.run([dunstctl, "history"], env=env, capture_output=True, text=True, check=True).stdout
            summaries = [entry["summary"]["data"] for entry in json.loads(history)["data"][0]]
            bodies = [entry["body"]["data"] for entry in json.loads(history)["data"][0]]
            assert "Tea" in summaries
            assert "is &lt;ready&gt; &amp; hot" in bodies or "is <ready> & hot" in bodies


def test_a_bus_without_a_daemon_reaches_no_person(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "exec-policy.json").write_text(ASK)
    with session_bus(tmp_path) as bus, running_node(state, env={"DBUS_SESSION_BUS_ADDRESS": bus}) as node:
        assert "no person answered" in Calling(node, "expr", "1").text


# ---- consent ----


def consents(tmp_path: Path, *people: Person) -> ConsentStore:
    return ConsentStore(
        state_dir=tmp_path, prompt_router=PromptRouter(people, seconds=lambda: 2, ask_in_client=lambda: True)
    )


def test_consent_is_asked_for_once_remembered_and_revocable(tmp_path: Path) -> None:
    person = Person("always")
    store = consents(tmp_path, person)

    for command in ("camera.snap", "camera.clip"):
        asyncio.run(store(call(command), "take a picture"))
    assert len(person.asked) == 1

    store.revoke("camera")
    person.answer = "deny"
    with pytest.raises(ToolDenied, match="said no to camera"):
        asyncio.run(store(call("camera.snap"), "take a picture"))
    assert len(person.asked) == 2


def test_consent_to_one_thing_is_not_consent_to_another(tmp_path: Path) -> None:
    store = consents(tmp_path)
    store.record("camera", "allow")

    asyncio.run(store(call("camera.snap"), "take a picture"))
    with pytest.raises(ToolDenied, match=r"openclaw approvals grant screen\.record"):
        asyncio.run(store(call("screen.record"), "film the screen"))


def test_a_refusal_is_remembered_and_consents_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    store = consents(tmp_path, Person("always"))
    store.record("camera", "deny")
    with pytest.raises(ToolDenied, match="does not consent"):
        asyncio.run(store(call("camera.snap"), "take a picture"))

    (tmp_path / CONSENTS_FILE).write_text("{")
    with pytest.raises(BadConsents):
        asyncio.run(store(call("camera.snap"), "take a picture"))
