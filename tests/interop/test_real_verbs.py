"""The real command line in a terminal, on our gateway: each verb works, or says in a sentence that there is none."""

import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..gateway.agents.models.fake import FakeModel, call, say
from ..gateway.wiring.test_gateway import Served, serving
from ..running import END_WAIT, process
from . import real

CARD = {"id": "m-1", "name": "Scripted", "contextWindow": 64000, "input": ["text"], "cost": {"input": 1, "output": 2}}
COLUMNS = "160"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway whose agent has answered once, with a tool."""
    real.program()
    folder = tmp_path_factory.mktemp("ours")
    with FakeModel(call("sessions_list"), say("Done.")) as model:
        entry = {"baseUrl": f"{model.url}/v1", "apiKey": "k", "api": "openai", "models": [CARD]}
        config = {"models": {"providers": {"fake": entry}}, "agents": {"defaults": {"model": "fake/m-1"}}}
        (folder / "openclaw.json").write_text(json.dumps(config))
        with serving(folder) as served:
            asked = json.dumps({"message": "List", "sessionKey": "main", "idempotencyKey": "verbs-1"})
            result = served.call("agent", asked)
            assert result.returncode == 0, result.stderr
            yield served


def in_terminal(home: Path, ours: Served, *words: str) -> tuple[int, str]:
    """The command line in a terminal: its exit status, and what it showed."""
    node, entry = real.program()
    ours_end, theirs = pty.openpty()
    env = real.environment(
        home, OPENCLAW_GATEWAY_URL=ours.ws, OPENCLAW_GATEWAY_TOKEN=ours.token, TERM="xterm", COLUMNS=COLUMNS
    )
    with process(node, entry, *words, env=env, stdin=theirs, stdout=theirs, stderr=subprocess.STDOUT) as child:
        os.close(theirs)
        try:
            shown = _read_terminal(ours_end)
        finally:
            os.close(ours_end)
        return child.wait(END_WAIT), shown.decode(errors="replace").replace("\r\n", "\n")


def _read_terminal(descriptor: int) -> bytes:
    """Until the program has closed its side."""
    shown, end = b"", time.monotonic() + real.CLI_WAIT
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"it did not end within {real.CLI_WAIT} s; so far {shown[-500:]!r}"
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # so Linux tells that the other side is closed
            return shown
        if not data:
            return shown
        shown += data


@pytest.mark.parametrize(
    ("words", "status", "shown"),
    [
        (("models", "list"), 0, ("fake/m-1", "default")),
        (("audit",), 0, ("tool_action", "succeeded", "main", "tool.action.finished:sessions_list")),
        (("audit", "--kind", "message"), 0, ("TIME",)),
        (("skills", "list"), 0, ("No skills found",)),
        (("users", "list"), 0, ("No user profiles found",)),
        (("secrets", "reload"), 0, ("Secrets reloaded",)),
        (("gateway", "usage-cost"), 0, ("Usage cost (30 days)", "220 tokens")),
        (("gateway", "stability"), 1, ("this gateway keeps no record of stability events",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_verb_of_the_real_command_line(
    ours: Served, tmp_path: Path, words: tuple[str, ...], status: int, shown: tuple[str, ...]
) -> None:
    code, text = in_terminal(tmp_path, ours, *words)
    assert code == status, text
    for part in shown:
        assert part in text
