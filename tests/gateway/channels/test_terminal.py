"""The channels as people use them: `openclaw chat`, `channels` and `outbox` against a real gateway."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.wiring.gateways import serving
from tests.gateway.wiring.test_gateway import Served, environment
from tests.gateway.wiring.test_shared_store import ask
from tests.running import OPENCLAW, process, read_line

WAIT = 60


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("state")) as gateway:
        yield gateway


def openclaw(served: Served, *words: str, typed: str | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [OPENCLAW, *words],
        env=environment(served.folder, OPENCLAW_GATEWAY_PORT=served.port),
        input=typed,
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )


def test_one_question_one_answer(served: Served) -> None:
    result = openclaw(served, "chat", "-m", "!say good morning")
    assert (result.returncode, result.stdout, result.stderr) == (0, "good morning\n", "")


def test_a_conversation_goes_on_line_by_line_and_is_remembered(served: Served) -> None:
    result = openclaw(served, "chat", "workshop", typed="!say one\n\n/whoami\n!say two\n")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[1:] == ["one", "You are owner on local, account default.", "two"]
    again = openclaw(served, "chat", "workshop", typed="")
    assert again.stdout.splitlines()[:2] == ["owner: !say one", "agent: one"]
    listed = ask(served, "local.conversations")["conversations"]
    assert "workshop" in [conversation["name"] for conversation in listed]


def test_words_after_new_are_answered_too(served: Served) -> None:
    result = openclaw(served, "chat", "anew", "-m", "/new !say first")
    assert (result.stdout, result.returncode) == ("A new conversation begins.\nfirst\n", 0)
    result = openclaw(served, "chat", "anew", typed="/reset !say second\n!say third\n")
    assert result.stdout.endswith("A new conversation begins.\nsecond\nthird\n")


def test_a_word_that_is_no_command_is_not_sent_to_the_agent(served: Served) -> None:
    result = openclaw(served, "chat", "-m", "/hlep me")
    assert result.stdout.startswith("There is no command /hlep: there are /new, /reset, /stop, ")
    assert openclaw(served, "chat", "-m", "//hlep me").stdout.strip().endswith("/hlep me")
    assert openclaw(served, "chat", "-m", "/etc/hosts is wrong").stdout.strip().endswith("/etc/hosts is wrong")


def test_a_message_is_read_from_standard_input(served: Served) -> None:
    result = openclaw(served, "chat", "-m", "-", typed="!say one\n!say two\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "onetwo\n", "")
    empty = openclaw(served, "chat", "-m", "-", typed=" \n")
    assert (empty.returncode, empty.stderr) == (
        1, "openclaw chat: there is nothing to send: standard input is empty\n",
    )  # fmt: skip
    long = openclaw(served, "chat", "-m", "-", typed="x" * ((1 << 20) + 1))
    assert long.returncode == 1
    assert long.stderr.startswith("openclaw chat: standard input is longer than 1048576 bytes; ")


def test_a_line_of_a_pipe_that_is_too_long_is_one_sentence(served: Served) -> None:
    result = openclaw(served, "chat", typed="x" * (3 << 20))
    assert result.returncode == 1
    assert result.stderr == "openclaw chat: a line is longer than 2097152 bytes; send it as a file or in parts\n"


def test_an_empty_message_is_refused(served: Served) -> None:
    result = openclaw(served, "chat", "-m", " ")
    assert (result.returncode, result.stderr) == (1, "openclaw chat: there is nothing to send: the message is empty\n")


def test_input_that_the_event_loop_can_not_wait_for_is_read(served: Served, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("!say from a file\n")
    for source, expected in ((lines, "from a file\n"), (Path(os.devnull), "")):
        with source.open() as stdin:
            env = environment(served.folder, OPENCLAW_GATEWAY_PORT=served.port)
            result = subprocess.run(
                [OPENCLAW, "chat", f"from-{source.name}"], env=env, stdin=stdin, capture_output=True, text=True,
                timeout=WAIT, check=False,
            )  # fmt: skip
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.partition("\n")[2] == expected


def test_the_answer_to_another_message_is_not_taken_for_ours(served: Served) -> None:
    with process(
        OPENCLAW, "chat", "busy", "-m", "!sleep 2", env=environment(served.folder, OPENCLAW_GATEWAY_PORT=served.port),
        stdout=subprocess.PIPE,
    ) as first:  # fmt: skip
        wait_until_working(served, "agent:main:local:direct:busy")
        second = openclaw(served, "chat", "busy", "-m", "!say the second")
        assert (second.returncode, second.stdout) == (0, "the second\n")
        assert first.wait(WAIT) == 0
        assert first.stdout is not None
        assert b"the second" not in first.stdout.read()


def test_an_answer_in_several_parts_is_printed_whole(served: Served) -> None:
    text = "word " * 15_000  # the local channel sends 32,000 characters in one part
    result = openclaw(served, "chat", "long", "-m", "-", typed=f"!say {text}")
    assert result.stdout.split() == text.split()


def test_a_stop_in_a_pipe_stops_the_turn_before_it(served: Served) -> None:
    with process(
        OPENCLAW, "chat", "piped", env=environment(served.folder, OPENCLAW_GATEWAY_PORT=served.port),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        read_line(child)
        child.stdin.write(b"!sleep 100\n")
        child.stdin.flush()
        wait_until_working(served, "agent:main:local:direct:piped")
        child.stdin.write(b"/stop\n!say next\n")
        child.stdin.close()
        assert read_line(child) == b"Stopped.\n"
        assert read_line(child) == b"next\n"
        assert child.wait(WAIT) == 0


def test_ctrl_c_stops_the_turn_it_waits_for(served: Served) -> None:
    key = "agent:main:local:direct:cut"
    with process(
        OPENCLAW, "chat", "cut", "-m", "!sleep 100",
        env=environment(served.folder, OPENCLAW_GATEWAY_PORT=served.port), stdout=subprocess.PIPE,
    ) as child:  # fmt: skip
        wait_until_working(served, key)
        child.send_signal(signal.SIGINT)
        assert child.wait(WAIT) == 130
    assert ask(served, "sessions.describe", {"key": key})["session"]["hasActiveRun"] is False


def wait_until_working(served: Served, key: str) -> None:
    for _ in range(200):
        session = ask(served, "sessions.describe", {"key": key})["session"]
        if session is not None and session["hasActiveRun"]:
            return
    pytest.fail("the agent never began")


def test_an_agent_that_keeps_silent_ends_the_wait(served: Served) -> None:
    result = openclaw(served, "chat", "-m", "!say NO_REPLY")
    assert (result.returncode, result.stdout) == (0, "")


def test_a_person_at_the_terminal_speaks_to_the_agent_in_a_group_too(served: Served) -> None:
    result = openclaw(served, "chat", "#kitchen", "-m", "!say here I am")
    assert (result.returncode, result.stdout.strip()[-9:]) == (0, "here I am")


def test_an_agent_that_fails_says_so(served: Served) -> None:
    result = openclaw(served, "chat", "-m", "!fail out of ideas")
    assert (result.returncode, result.stdout) == (1, "⚠️ Agent failed before reply: out of ideas\n")


def test_an_answer_that_takes_too_long_is_not_waited_for(served: Served) -> None:
    result = openclaw(served, "chat", "slow", "-m", "!sleep 30", "--timeout", "1.5")
    assert result.returncode == 1
    assert result.stderr == "openclaw chat: no answer within 1.5 s\n"
    assert openclaw(served, "chat", "slow", "-m", "/stop").stdout == "Stopped.\n"


def test_an_unknown_sender_is_admitted_by_a_code(served: Served) -> None:
    words = openclaw(served, "chat", "door", "--as", "bob", "-m", "!say hello").stdout
    assert "Your pairing code is " in words
    code = words.partition("Your pairing code is ")[2][:8]
    assert code in openclaw(served, "channels", "pairing", "list").stdout
    wrong = openclaw(served, "channels", "pairing", "approve", "local", "WRONG222")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("openclaw channels: no sender on local waits with this code")
    assert openclaw(served, "channels", "pairing", "approve", "local", code).stdout == "bob may write on local now.\n"
    assert openclaw(served, "chat", "door", "--as", "bob", "-m", "!say hello").stdout == "hello\n"
    assert openclaw(served, "channels", "pairing", "remove", "local", "bob").stdout == "Removed.\n"


def test_channels_and_outbox_show_how_things_are(served: Served) -> None:
    assert openclaw(served, "channels").stdout.split() == ["local", "default", "running"]
    status: Any = json.loads(openclaw(served, "channels", "--json").stdout)
    assert status["channels"]["local"]["connected"] is True
    openclaw(served, "chat", "-m", "!say sent")
    assert openclaw(served, "outbox").stdout == "Nothing waits and nothing failed.\n"
    assert "local → " in openclaw(served, "outbox", "list", "--status", "sent").stdout
    assert json.loads(openclaw(served, "outbox", "--json").stdout) == []
    assert json.loads(openclaw(served, "outbox", "list", "--json").stdout) == []
    assert json.loads(openclaw(served, "channels", "pairing", "list", "--json").stdout)["approved"] == []
    lost = openclaw(served, "outbox", "retry", "no-such")
    assert (lost.returncode, lost.stderr) == (
        1, "openclaw outbox: no message no-such waits or has failed; outbox.list (openclaw outbox) lists them\n",
    )  # fmt: skip


def test_a_change_of_the_config_is_followed_without_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as gateway:
        assert ask(gateway, "health")["channels"] == {"local": {"configured": True, "running": True}}
        ask(
            gateway, "config.patch", {"raw": json.dumps({"channels": {"local": {"accounts": {"desk": {}, "lab": {}}}}})}
        )
        for _ in range(50):
            rows = ask(gateway, "channels.status")["channelAccounts"].get("local", [])
            if [row["accountId"] for row in rows] == ["desk", "lab"]:
                break
        else:
            pytest.fail("the accounts of the config never came")
        ask(gateway, "local.send", {"accountId": "lab", "text": "!say from the lab"})
        off = json.dumps({"channels": {"local": {"enabled": False}}})
        ask(gateway, "config.patch", {"raw": off, "baseHash": ask(gateway, "config.get")["hash"]})
        for _ in range(50):
            if ask(gateway, "channels.status")["channelOrder"] == []:
                break
        else:
            pytest.fail("the channel was never switched off")


def test_the_gateway_tells_what_happens_in_a_conversation(served: Served) -> None:
    result = openclaw(served, "chat", "shown", "-m", "!say visible")
    assert result.stdout == "visible\n"
    messages = ask(served, "local.read", {"conversation": "shown"})["messages"]
    assert [(message["text"], message["fromMe"]) for message in messages] == [
        ("!say visible", False),
        ("visible", True),
    ]


def test_the_tool_is_on_the_gateways_menu(served: Served) -> None:
    result = ask(served, "tools.invoke", {
        "name": "message", "args": {"action": "send", "channel": "local", "target": "menu", "message": "by tool"},
    })  # fmt: skip
    assert result["ok"] is True
    assert [m["text"] for m in ask(served, "local.read", {"conversation": "menu"})["messages"]] == ["by tool"]
