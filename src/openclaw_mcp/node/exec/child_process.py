"""A child program in a process group of its own that does not outlive the call it works for."""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from ...core.errors import ToolError, ToolTimeout, ToolUnavailable

END_WAIT: Final = 5.0  # seconds a killed process may take to be gone
MOST_STDERR: Final = 8192  # bytes kept of what a program says on stderr
MAX_REASON_LENGTH: Final = 200  # characters of that which reach the caller
CHUNK: Final = 1 << 16


class ChildProcessResult(Struct, frozen=True):
    code: int
    output: bytes
    error_line: str
    """The last line the program said on stderr."""


@contextlib.asynccontextmanager
async def child_process(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[Process]:
    """A running program; however the block ends, its whole process group has ended after it."""
    environ = None if env is None else dict(env)  # uvloop takes nothing that merely looks like one
    try:
        process = await asyncio.create_subprocess_exec(*argv, start_new_session=True, env=environ, **options)
    except (FileNotFoundError, PermissionError) as exc:
        raise ToolUnavailable(f"{argv[0]} can't be started: install it or make it executable") from exc
    try:
        yield process
    finally:
        await end_process(process)


async def end_process(process: Process) -> None:
    """Kill the process group, and wait until the leader is gone."""
    if os.name == "nt":
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    else:
        # Also after the leader has ended: what it left behind belongs to the same group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.shield(asyncio.wait_for(process.wait(), END_WAIT))


async def run_program(
    argv: Sequence[str],
    *,
    seconds: float,
    most: int,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
) -> ChildProcessResult:
    """Run a program to its end. More than `most` bytes of output or `seconds` of time stop it with an error."""
    async with child_process(
        argv, stdin=DEVNULL if stdin is None else PIPE, stdout=PIPE, stderr=PIPE, env=env
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                output = tasks.create_task(_read_output(process.stdout, most, argv[0]))
                complaint = tasks.create_task(read_last_line(process.stderr))
                if stdin is not None:
                    tasks.create_task(_write_stdin(process, stdin))
                code = tasks.create_task(process.wait())
        except TimeoutError:
            raise ToolTimeout(f"{argv[0]} took longer than {seconds:g} s and was stopped") from None
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
    return ChildProcessResult(code.result(), output.result(), complaint.result())


async def read_last_line(stream: asyncio.StreamReader) -> str:
    """Read to the end; the last line with something in it, short enough to be passed on."""
    kept = b""
    while data := await stream.read(CHUNK):
        kept = (kept + data)[-MOST_STDERR:]
    lines = [line.strip() for line in kept.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:MAX_REASON_LENGTH] if lines else ""


async def _read_output(stream: asyncio.StreamReader, most: int, name: str) -> bytes:
    parts, size = [], 0
    while data := await stream.read(CHUNK):
        parts.append(data)
        size += len(data)
        if size > most:
            raise ToolError(f"{name} gave more than {most} bytes and was stopped")
    return b"".join(parts)


async def _write_stdin(process: Process, data: bytes) -> None:
    assert process.stdin is not None
    # A program that has read enough may close its input early; its exit status tells the rest.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()
