"""`openclaw chat` at a terminal: typed while the agent works, stopped, interrupted, and across a restart."""

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from openclaw_mcp.net import listen
from tests.cli.screens import Terminal
from tests.gateway.channels.test_terminal import wait_until_working
from tests.gateway.wiring.gateways import serving
from tests.gateway.wiring.test_gateway import Served, environment
from tests.gateway.wiring.test_shared_store import ask
from tests.running import OPENCLAW, process

WAIT = 60.0  # seconds anything may take on a busy machine
SCREEN = os.terminal_size((100, 200))
UNSEEN = re.compile(r"\x1b\[\?2004[hl]")
IDLE = "\n>"
WORKING = "(working; Ctrl-C stops) >"


class Chat:
    """A person at `openclaw chat` in a terminal of their own."""

    def __init__(self, child: "subprocess.Popen[bytes]", terminal: int, patience: float) -> None:
        self.child = child
        self._patience = patience
        self._terminal = terminal
        self._screen = Terminal(SCREEN.columns, SCREEN.lines)

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def see(self, fits: str | Callable[[str], bool]) -> str:
        """What is on the screen once it fits: when it ends so, or holds it."""
        end = time.monotonic() + self._patience
        while not (fits(self._screen.text) if callable(fits) else self._screen.text.endswith(fits)):
            ready, _, _ = select.select([self._terminal], [], [], max(0, end - time.monotonic()))
            assert ready, f"{fits} was never seen:\n{self._screen.text}"
            data = os.read(self._terminal, 65536).decode()
            self._screen.write(UNSEEN.sub("", data).replace("\r\n", "\n"))
        return self._screen.text


@contextmanager
def open_chat(env: dict[str, str], *words: str, patience: float = WAIT) -> Iterator[Chat]:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (SCREEN.lines, SCREEN.columns))
    try:
        with process(OPENCLAW, "chat", *words, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as child:
            os.close(theirs)
            chat = Chat(child, ours, patience)
            chat.see(IDLE)
            yield chat
    finally:
        os.close(ours)


@contextmanager
def chatting(served: Served, *words: str) -> Iterator[Chat]:
    env = environment(served.folder, OPENCLAW_GATEWAY_PORT=served.port, TERM="xterm")
    with open_chat(env, *words) as chat:
        yield chat


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("state")) as gateway:
        yield gateway


def test_a_line_is_typed_and_read_while_the_agent_works(served: Served) -> None:
    with chatting(served, "busy") as chat:
        chat.see(lambda screen: "Ctrl-C stops the agent, or leaves" in screen)
        chat.type("!sleep 100\r")
        chat.see(WORKING)
        chat.type("and then this\r")
        chat.see(f"> and then this\n-- waits: answered when this turn ends\n{WORKING}")
        chat.type("/stop\r")
        chat.see("> /stop\nStopped.\n>")


def test_of_pasted_lines_the_first_does_not_wait(served: Served) -> None:
    with chatting(served, "pasted") as chat:
        chat.type("!sleep 100\rand then this\r")
        screen = chat.see(f"> and then this\n-- waits: answered when this turn ends\n{WORKING}")
        assert screen.count("-- waits") == 1
        chat.type("/stop\r")
        chat.see("> /stop\nStopped.\n>")


def test_ctrl_c_stops_the_turn_and_the_next_one_leaves(served: Served) -> None:
    with chatting(served, "interrupted") as chat:
        chat.type("!sleep 100\r")
        chat.see(WORKING)
        chat.type("kept")
        chat.child.send_signal(signal.SIGINT)
        chat.see("Stopped.\n> kept")
        chat.child.send_signal(signal.SIGINT)  # takes back what is typed
        chat.see("Stopped.\n>")
        assert ask(served, "sessions.list", {"activeOnly": True})["sessions"] == []
        chat.child.send_signal(signal.SIGINT)
        assert chat.child.wait(WAIT) == 0


def test_ctrl_d_and_quit_leave(served: Served) -> None:
    for keys in ("\x04", "/quit\r"):
        with chatting(served, "left") as chat:
            chat.type(keys)
            assert chat.child.wait(WAIT) == 0


def test_another_terminal_s_messages_are_shown_with_their_answers(served: Served) -> None:
    with chatting(served, "shared") as first, chatting(served, "shared") as second:
        first.type("!say the answer\r")
        first.see("> !say the answer\nthe answer\n>")
        second.see("\nowner: !say the answer\nthe answer\n>")


def test_a_named_agent_answers_in_its_own_session(tmp_path: Path) -> None:
    (tmp_path / "openclaw.json").write_text('{"agents": {"list": [{"id": "main"}, {"id": "research"}]}}')
    with serving(tmp_path) as served, chatting(served, "--agent", "research") as chat:
        chat.type("!say hello\r")
        chat.see("> !say hello\nhello\n>")
        chat.type("!sleep 100\r")
        chat.see(WORKING)
        chat.child.send_signal(signal.SIGINT)
        chat.see("Stopped.\n>")
        chat.type("/hlep\r")
        chat.see(lambda text: "There is no command /hlep: there are /new, " in text)
        sessions = [row["key"] for row in ask(served, "sessions.list")["sessions"]]
        assert sessions == ["agent:research:main"]
        words = [OPENCLAW, "chat", "--agent", "nope", "-m", "x"]
        env = environment(served.folder, OPENCLAW_GATEWAY_PORT=served.port)
        wrong = subprocess.run(words, env=env, capture_output=True, text=True, timeout=WAIT, check=False)
        assert wrong.stderr == "openclaw chat: there is no agent 'nope'; there are: main, research\n"


@pytest.mark.parametrize("options", [(), ("--agent", "main")], ids=["the local channel", "a named agent"])
def test_a_chat_outlives_its_gateway_and_shows_what_came_meanwhile_once(tmp_path: Path, options: Sequence[str]) -> None:
    with listen.bind("127.0.0.1", 0) as listener:
        port = str(listener.getsockname()[1])

    @contextmanager
    def gateway() -> Iterator[Served]:
        words = (OPENCLAW, "gateway", "--port", port)
        with process(*words, env=environment(tmp_path), stdout=subprocess.PIPE) as child:
            yield Served(child, tmp_path)

    with gateway() as served, chatting(served, *options) as chat:
        chat.type("!say before\r")
        chat.see("> !say before\nbefore\n>")
        chat.type("!sleep 100\r")
        chat.see(WORKING)
        wait_until_working(served, "agent:main:main")
        os.killpg(served.child.pid, signal.SIGKILL)
        chat.see("(reconnecting; Ctrl-C leaves) >")
        chat.type("!say after\r")
        chat.see("> !say after\n(reconnecting; Ctrl-C leaves) >")
        with gateway():
            text = chat.see(lambda text: text.endswith("\nafter\n>"))
        assert [text.count(each) for each in ("\nbefore\n", "\nafter\n", "⚠️ ")] == [1, 1, 1], text
        assert "; reconnecting\n" in text
        assert "\n-- connected again\n" in text
