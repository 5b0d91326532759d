"""Every command in the docs is run, in order, as a newcomer would: a home of its own, the usual ports, nothing set up.

In a block marked `console`, a line that begins with `$ ` is typed, and the lines below it are what it prints; `…`
stands for text that may differ. Each document is one visit, in a network of its own, so that the usual ports are free.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest

from openclaw_mcp.node.settings import NodeSettings
from tests.programs import need, need_own
from tests.running import ROOT

DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
NOT_OURS = frozenset(("claude", "gemini", "codex", "opencode", "code", "pip", "make", "sudo", "docker", "nginx"))
"""Other people's programs: those of them we depend on are driven by tests of their own."""
SERVERS = re.compile(
    r"^(\w+=\S+ )*openclaw (up|gateway|proxy|node|approvals|logs -f|echo --http|mcp-server --http)"
    r"( --?[a-z][a-z-]*([ =](?!-)\S+)?)*( +#.*)?$"
)
"""Commands that go on until they are stopped."""
PATIENCE = 60.0  # seconds for one command
WITH_LOOPBACK = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")


class Step(NamedTuple):
    line: int
    command: str
    printed: list[str]

    @property
    def program(self) -> str:
        words = [word for word in shlex.split(self.command, comments=True) if "=" not in word.partition("$")[0]]
        return words[0] if words else ""

    @property
    def stays(self) -> bool:
        return bool(SERVERS.match(self.command)) and "--detach" not in self.command and "--stdio" not in self.command


def steps(document: Path) -> Iterator[Step]:
    in_console, step = False, None
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            if step is not None:
                yield step
            in_console, step = line.startswith("```console"), None
        elif in_console and line.startswith("$ "):
            if step is not None:
                yield step
            step = Step(number, line[2:], [])
        elif in_console and step is not None:
            if step.command.endswith("\\") or _open(step.command):
                step = Step(step.line, f"{step.command}\n{line}", [])
            else:
                step.printed.append(line)


def _open(command: str) -> bool:
    """Whether a quotation mark in it has no partner yet, or a text put in goes on."""
    if put_in := re.search(r"<<'(\w+)'", command):
        return command.splitlines()[-1] != put_in[1]
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in line.strip().split("…")))


class Visit:
    """A shell in which one document is followed."""

    def __init__(self, home: Path, network: list[str]) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        settings = {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "TMPDIR": str(home / "tmp")}
        (home / "tmp").mkdir()
        (home / "work").mkdir()
        self._home = home
        self._log = home / "output"
        with self._log.open("wb") as output:
            self.shell = subprocess.Popen(
                [*network, *WITH_LOOPBACK, "bash", "--norc"],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                cwd=home / "work", env=settings, start_new_session=True, text=True,
            )  # fmt: skip

    def type(self, step: Step, number: int) -> tuple[int, str]:
        """Status and output of a command; of one that goes on, its output so far once it has said something."""
        before = self._log.stat().st_size
        end = f"@@{number}@@"
        assert self.shell.stdin is not None
        if step.stays:
            command = step.command.partition(" #")[0]
            self.shell.stdin.write(f"{command} < <(sleep 600) &\n")
        else:
            self.shell.stdin.write(f"{{ {step.command}\n}} < /dev/null\necho '{end}'$?\n")
        self.shell.stdin.flush()
        return self._await(before, end, step)

    def _await(self, before: int, end: str, step: Step) -> tuple[int, str]:
        deadline = time.monotonic() + PATIENCE
        wanted = [pattern(line) for line in step.printed]
        while time.monotonic() < deadline:
            output = self._log.read_bytes()[before:].decode(errors="replace")
            if step.stays:
                lines = output.splitlines()
                if lines and all(any(found.fullmatch(line.strip()) for line in lines) for found in wanted):
                    return self.type(Step(step.line, "sleep 0.3; kill -0 $!", []), -1)[0], output
            elif match := re.search(re.escape(end) + r"(\d+)\n", output):
                return int(match[1]), output[: match.start()]
            if self.shell.poll() is not None:
                break
            time.sleep(0.02)
        return -1, self._log.read_bytes()[before:].decode(errors="replace")

    def leave(self) -> None:
        """Every process started here ends, also one that put itself in the background."""
        ours = [one for one in psutil.process_iter() if _is_in(one, self._home)]
        for one in ours:
            with contextlib.suppress(psutil.Error):
                one.terminate()
        _, left = psutil.wait_procs(ours, timeout=15)
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        assert self.shell.stdin is not None
        with contextlib.suppress(OSError):
            self.shell.stdin.close()
        self.shell.wait(15)


def _is_in(process: psutil.Process, home: Path) -> bool:
    try:  # some write their title over their environment
        return process.environ().get("HOME") == str(home) or Path(process.cwd()).is_relative_to(home)
    except (psutil.Error, OSError):
        return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_the_document_says_to_type_works(document: Path, tmp_path: Path) -> None:
    followed = [step for step in steps(document) if step.program not in NOT_OURS]
    if not followed:
        return
    need("ip", package="iproute2")
    visit = Visit(tmp_path, need_own("network"))
    try:
        for number, step in enumerate(followed):
            status, output = visit.type(step, number)
            where = f"{document.name}:{step.line}: $ {step.command}"
            refused = bool(step.printed) and status == 1  # a refusal that is shown is what is meant
            assert status == 0 or refused, f"{where}\nstatus {status}\n{output}"
            lines = [line.strip() for line in output.splitlines()]
            for line in step.printed:
                assert not line.strip() or any(pattern(line).fullmatch(found) for found in lines), f"{where}\n{output}"
    finally:
        visit.leave()


def test_every_setting_of_the_node_is_in_its_reference() -> None:
    reference = (ROOT / "docs" / "reference" / "node.md").read_text()

    assert [
        field.encode_name for field in msgspec.structs.fields(NodeSettings) if f"`{field.encode_name}" not in reference
    ] == []
