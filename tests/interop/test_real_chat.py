"""`openclaw chat` on a real OpenClaw, behind which stands the scripted model."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..cli.test_chat_terminal import WORKING, Chat, open_chat
from ..gateway.agents.models.fake import FakeModel, Request, Step, say
from ..running import OPENCLAW
from . import real
from .test_real_models import CARD

PATIENCE = 180.0  # seconds; the first turn of a real gateway is slow


def answer(request: Request) -> Step:
    """What the last message asks for: a word about the picnic, or no answer at all."""
    messages = json.dumps(request.body["messages"])
    is_unanswered = messages.rfind("wait for ever") > messages.rfind("picnic")
    return say("too late", hang=600) if is_unanswered else say("heard a picnic")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    real.program()
    card = {**CARD, "contextWindow": 128000, "maxTokens": 8192}
    with FakeModel(answer) as model:
        entry = {"baseUrl": f"{model.url}/v1", "apiKey": "k", "api": "openai-completions", "models": [card]}
        models = {"mode": "merge", "providers": {"fake": entry}}
        agents = {"defaults": {"model": {"primary": "fake/m-1"}}}
        with real.gateway(tmp_path_factory.mktemp("real"), models=models, agents=agents) as url:
            yield url


def environment(url: str, folder: Path) -> dict[str, str]:
    more = {"OPENCLAW_GATEWAY_URL": url, "OPENCLAW_GATEWAY_TOKEN": real.TOKEN, "TERM": "xterm"}
    return real.environment(folder, **more)


def chat(url: str, folder: Path, *words: str, typed: str | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [OPENCLAW, "chat", *words], env=environment(url, folder), input=typed, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip


@contextmanager
def chatting(url: str, folder: Path, *words: str) -> Iterator[Chat]:
    with open_chat(environment(url, folder), *words, patience=PATIENCE) as person:
        yield person


def test_one_question_one_answer(theirs: str, tmp_path: Path) -> None:
    result = chat(theirs, tmp_path, "-m", "-", typed="what about the picnic?\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "heard a picnic\n", "")


def test_their_commands_are_theirs_and_unknown_ones_are_not_sent(theirs: str, tmp_path: Path) -> None:
    status = chat(theirs, tmp_path, "-m", "/status")
    assert "OpenClaw 20" in status.stdout
    unknown = chat(theirs, tmp_path, "-m", "/hlep")
    assert unknown.stdout.startswith("There is no command /hlep: /help lists them; ")
    assert unknown.returncode == 1


def test_what_cannot_be_had_there_is_said(theirs: str, tmp_path: Path) -> None:
    assert chat(theirs, tmp_path, "--as", "bob", "-m", "x").stderr == (
        "openclaw chat: this gateway has no local channel, so you write as yourself; leave out --as\n"
    )
    assert "there is no agent 'nope'; there are: main" in chat(theirs, tmp_path, "--agent", "nope", "-m", "x").stderr


def test_a_turn_is_stopped_and_the_conversation_goes_on_and_is_remembered(theirs: str, tmp_path: Path) -> None:
    with chatting(theirs, tmp_path, "room") as person:
        person.type("wait for ever\r")
        person.see(WORKING)
        person.child.send_signal(signal.SIGINT)
        person.see("Stopped.\n>")
        person.type("a picnic then\r")
        person.see("> a picnic then\nheard a picnic\n>")
    with chatting(theirs, tmp_path, "room") as person:
        person.see(lambda screen: "user: a picnic then\nagent: heard a picnic\n-- room; " in screen)
