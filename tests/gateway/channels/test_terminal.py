"""The channels as people use them: `openclaw chat`, `channels` and `outbox` against a real gateway."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.wiring.gateways import serving
from tests.gateway.wiring.test_gateway import Served, environment
from tests.gateway.wiring.test_shared_store import ask
from tests.running import OPENCLAW

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
