"""Child processes: each in a group of its own, ended by that group's id, every wait bounded. Linux only."""

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

GRACE = 3.0  # a server that ignores the end of its input, or a signal, must not hold the run
ANSWER_LIMIT = 30.0  # longer than the slowest cold start seen on a busy machine, several times over
CHUNK = 1 << 18
TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
TUNING = ("PYTHON", "NODE_", "FASTMCP_", "UVICORN_")


class ChildFailed(Exception):
    """A child said nothing in time, or left before it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running child; `started` was read just before it was spawned."""

    name: str
    process: subprocess.Popen[bytes]
    started: float
    exit_notice: int
    errors: IO[bytes]

    def exited(self, *, within: float) -> bool:
        """Wait for the exit itself; the standard library's bounded wait sleeps up to 50 ms past it."""
        poll = select.poll()
        poll.register(self.exit_notice, select.POLLIN)
        return bool(poll.poll(within * 1000))

    def failed(self, what: str) -> ChildFailed:
        self.errors.seek(0)
        output = self.errors.read()[-1500:].decode(errors="replace").strip()
        return ChildFailed(f"{self.name} {what}" + (f"; it said:\n{output}" if output else ""))

    def end(self) -> None:
        """Close its input, then ask, then insist; then sweep its group while the id is still ours."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            self.exited(within=GRACE)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.exited(within=0):
                break
            os.killpg(self.process.pid, number)
            self.exited(within=GRACE)
        os.killpg(self.process.pid, signal.SIGKILL)  # unreaped, so the id cannot have been given away
        self.process.wait(timeout=GRACE)
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self.exit_notice)


class Talk:
    """Bytes to and from a child's pipes; no read waits longer than ANSWER_LIMIT."""

    def __init__(self, child: Child) -> None:
        if child.process.stdin is None or child.process.stdout is None:
            raise child.failed("has no pipes")
        self.child = child
        self._into = child.process.stdin.fileno()
        self._from = child.process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._from, select.POLLIN)

    def send(self, data: bytes) -> None:
        """Never waits: what is in flight stays far below a pipe's 64 KiB."""
        try:
            os.write(self._into, data)
        except BrokenPipeError as exc:
            raise self.child.failed("left") from exc

    def read(self) -> bytes:
        if not self._poll.poll(ANSWER_LIMIT * 1000):
            raise self.child.failed(f"said nothing for {ANSWER_LIMIT:.0f} s")
        data = os.read(self._from, CHUNK)
        if not data:
            raise self.child.failed("closed its output")
        return data

    def ask(self, line: bytes) -> bytes:
        """Send one line; the answer is the one line that comes back."""
        self.send(line)
        answer = self.read()
        while not answer.endswith(b"\n"):
            answer += self.read()
        return answer

    def rest(self) -> bytes:
        """Everything up to the end of its output."""
        output = b""
        while self._poll.poll(ANSWER_LIMIT * 1000):
            data = os.read(self._from, CHUNK)
            if not data:
                return output
            output += data
        raise self.child.failed(f"said nothing for {ANSWER_LIMIT:.0f} s")


def leave_nothing_behind() -> None:
    """Let a termination unwind like an interrupt, so that children are ended on that way out too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Ours without what tunes the subjects: a forbidden bytecode cache would be all a cold start shows."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith(TUNING)}
    return variables | (extra or {})


@contextmanager
def talking(argv: Sequence[str], *, name: str, extra: dict[str, str] | None = None) -> Iterator[Child]:
    """A child on pipes."""
    with tempfile.TemporaryFile() as errors, _started(argv, name, errors, subprocess.PIPE, extra) as child:
        yield child


@contextmanager
def serving(argv: Sequence[str], *, name: str, extra: dict[str, str] | None = None) -> Iterator[Child]:
    """A child that serves a port: nothing on its input, its output kept for the day it fails."""
    with tempfile.TemporaryFile() as errors, _started(argv, name, errors, None, extra) as child:
        yield child


@contextmanager
def _started(
    argv: Sequence[str], name: str, errors: IO[bytes], pipe: int | None, extra: dict[str, str] | None
) -> Iterator[Child]:
    settings = environment(extra)
    started = time.perf_counter()
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL if pipe is None else pipe,
        stdout=errors if pipe is None else pipe,
        stderr=errors,
        bufsize=0,
        start_new_session=True,
        env=settings,
    )
    notice = os.pidfd_open(process.pid)
    child = Child(name=name, process=process, started=started, exit_notice=notice, errors=errors)
    try:
        yield child
    finally:
        child.end()


def group_members(group: int) -> list[int]:
    """The ids of the processes in this group."""
    running = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]
    return [pid for pid in running if _stat_fields(pid)[2:3] == [str(group)]]


def _stat_fields(pid: int) -> list[str]:
    """Fields of its stat after the command name; none when the process is gone."""
    return _proc_text(pid, "stat").rpartition(")")[2].split()


def _proc_text(pid: int, file: str) -> str:
    """Nothing when the process is gone: it may leave between being listed and being read."""
    try:
        return (PROC / str(pid) / file).read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def resident_mib(group: int) -> float:
    """Resident memory of the whole group, exact (smaps_rollup, not the batched counter)."""
    total = 0
    for pid in group_members(group):
        for line in _proc_text(pid, "smaps_rollup").splitlines():
            if line.startswith("Rss:"):
                total += int(line.split()[1])
    return total / 1024


def cpu_seconds(group: int) -> float:
    """Processor time the group has used so far, to a scheduler tick."""
    return sum(sum(map(int, _stat_fields(pid)[11:13])) for pid in group_members(group)) / TICKS
