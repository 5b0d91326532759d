"""Programs the node runs to their ends, bounded in time and output: commands of a caller, and tools of its own."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...core.errors import ToolError, ToolTimeout, ToolUnavailable
from ...core.ports import ProcessGuard
from ...net.process_streams import KeptOutput, Output
from ...net.processes import Ending, Process, ProcessStartError, start_process

KEPT_HEAD: Final = 512 << 10  # bytes of the beginning of each stream
KEPT_TAIL: Final = 512 << 10  # and of its end, where errors are
PROGRESS_EVERY: Final = 1.0  # seconds between progress reports to the caller
MAX_REPORTED_LINE: Final = 200  # characters of output a progress report carries
MAX_STDERR: Final = 8192  # bytes kept of the stderr of a tool
_ENDING: Final = Ending(strays=True)

ProgressReporter = Callable[[float, str], Awaitable[None]]
"""Seconds since the start, and the last line of output so far."""


class ProcessResult(Struct, frozen=True, kw_only=True):
    stdout: str
    stderr: str
    exit_code: int
    """-1 when the time was up; minus the signal's number when a signal ended it."""
    timed_out: bool
    truncated: bool
    seconds: float


class ToolOutput(Struct, frozen=True):
    code: int
    output: bytes
    error_line: str
    """The last line of stderr."""


async def run_process(
    argv: Sequence[str],
    *,
    executable: str,
    cwd: Path | None,
    env: Mapping[str, str],
    seconds: float,
    report: ProgressReporter | None = None,
    guard: ProcessGuard | None = None,
) -> ProcessResult:
    """Run a caller's command until it exits, its time is up, or this task is cancelled. Nothing of its process group
    is left then; `guard` sees to that should we be killed."""
    began, timed_out = time.monotonic(), False
    out, err = KeptOutput(head=KEPT_HEAD, tail=KEPT_TAIL), KeptOutput(head=KEPT_HEAD, tail=KEPT_TAIL)
    try:
        process = await start_process(
            argv, executable=executable, cwd=cwd, env=env, stdout=out, stderr=err, guard=guard, ending=_ENDING
        )
    except ProcessStartError as exc:
        raise ToolError(f"The program could not be started: {exc}") from exc
    async with process:
        try:
            async with asyncio.timeout(seconds):
                await _wait_exit(process, began, (out, err), report)
        except TimeoutError:
            timed_out = True
        await process.end()
        if process.status is not None:
            await process.wait_finished()
    return ProcessResult(
        stdout=out.text(),
        stderr=err.text(),
        exit_code=-1 if timed_out else process.status or 0,
        timed_out=timed_out,
        truncated=bool(out.dropped_bytes or err.dropped_bytes),
        seconds=time.monotonic() - began,
    )


async def _wait_exit(
    process: Process, began: float, outputs: Sequence[Output], report: ProgressReporter | None
) -> None:
    while not await process.exits_within(PROGRESS_EVERY):
        if report is not None:
            piece = next((output.last_piece for output in outputs if output.last_piece), b"")
            lines = piece.decode(errors="replace").strip().splitlines()
            await report(time.monotonic() - began, lines[-1][:MAX_REPORTED_LINE] if lines else "")


async def start_tool(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    stdout: Output | None = None,
    stderr: Output | None = None,
) -> Process:
    """A program the node needs for its own work. Raises ToolUnavailable."""
    try:
        return await start_process(argv, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
    except ProcessStartError as exc:
        raise ToolUnavailable(f"{argv[0]} can't be started: install it or make it executable") from exc


async def run_tool(
    argv: Sequence[str],
    *,
    seconds: float,
    max_bytes: int,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
) -> ToolOutput:
    """Run a tool to its end. More than `max_bytes` of output or `seconds` of time stop it with an error."""
    out, err = KeptOutput(head=max_bytes, close_when_full=True), KeptOutput(tail=MAX_STDERR)
    async with await start_tool(argv, env=env, stdin=stdin, stdout=out, stderr=err) as process:
        try:
            async with asyncio.timeout(seconds):
                await out.closed.wait()
                if out.dropped_bytes:
                    raise ToolError(f"{argv[0]} gave more than {max_bytes} bytes and was stopped")
                code = await process.wait_finished()
        except TimeoutError:
            raise ToolTimeout(f"{argv[0]} took longer than {seconds:g} s and was stopped") from None
    return ToolOutput(code, out.data, err.last_line())
