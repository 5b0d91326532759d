"""Programs a job runs or waits for: bounded in time and output, ended with everything they started."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Struct

from ...core.errors import OpenClawError
from ...core.ports import ProcessGuard

MAX_OUTPUT: Final = 256 * 1024  # bytes kept of each stream: a summary for a person, not an archive
END_GRACE: Final = 2.0  # seconds between asking a group of processes to end and ending it
CHUNK_SIZE: Final = 64 * 1024
_PRIVATE_VARIABLES: Final = ("OPENCLAW_GATEWAY_TOKEN", "OPENCLAW_STORE_URL")
"""What the gateway knows and a program it starts need not."""


class ProgramStartError(OpenClawError):
    code = "cannot_start"


class JobProgramResult(Struct, frozen=True, kw_only=True):
    exit_code: int | None
    stdout: str
    stderr: str
    stop_reason: str | None = None
    """Why it was ended before it ended by itself."""


class ProgramLimits(Struct, frozen=True, kw_only=True):
    seconds: float
    quiet_seconds: float | None = None
    """Seconds without a word after which it is taken for stuck."""
    bytes: int = MAX_OUTPUT


@asynccontextmanager
async def start_program(
    argv: Sequence[str], *, cwd: str | None, env: dict[str, str] | None = None, has_stdin: bool = False,
    guard: ProcessGuard | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:  # fmt: skip
    """A program in a process group of its own, which is gone when the block ends; `guard` sees to that should we be
    killed. Raises CannotStart."""
    known = {name: value for name, value in os.environ.items() if name not in _PRIVATE_VARIABLES}
    if guard is not None:
        guard.prepare()
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env={**known, **(env or {})},
            stdin=asyncio.subprocess.PIPE if has_stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as exc:
        where = f" in {cwd}" if cwd else ""
        raise ProgramStartError(f"{argv[0]} can't be started{where}: {getattr(exc, 'strerror', None) or exc}") from exc
    try:
        if guard is not None:
            guard.watch(process.pid)
        yield process
    finally:
        await asyncio.shield(_end_group(process, guard))


async def _end_group(process: asyncio.subprocess.Process, guard: ProcessGuard | None) -> None:
    """The whole group: asked first, unless its leader is gone already."""
    if process.returncode is None:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_GRACE)
    _signal_group(process, signal.SIGKILL)
    await process.wait()
    if guard is not None:
        guard.unwatch(process.pid)


def _signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def run_program(
    argv: Sequence[str],
    limits: ProgramLimits,
    *,
    cwd: str | None,
    env: dict[str, str] | None = None,
    stdin_text: str | None = None,
    guard: ProcessGuard | None = None,
) -> JobProgramResult:
    """Run it to its end, or to the limit. Raises CannotStart."""
    async with start_program(argv, cwd=cwd, env=env, has_stdin=stdin_text is not None, guard=guard) as process:
        heard = _OutputCollector(limits.bytes)
        reading = [
            asyncio.ensure_future(heard.read(process.stdout, heard.out)),
            asyncio.ensure_future(heard.read(process.stderr, heard.err)),
        ]
        try:
            if stdin_text is not None:
                await _write_stdin(process, stdin_text)
            stopped = await _wait_finish(process, heard, limits)
            if stopped is None:
                # What it started may hold its output open; nobody waits for that.
                await asyncio.wait(reading, timeout=END_GRACE)
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    return JobProgramResult(
        exit_code=process.returncode,
        stdout=_decode_output(heard.out),
        stderr=_decode_output(heard.err),
        stop_reason=stopped,
    )


class _OutputCollector:
    def __init__(self, most: int) -> None:
        self.out, self.err = bytearray(), bytearray()
        self._most = most
        self.last_output_at = asyncio.get_running_loop().time()

    async def read(self, stream: asyncio.StreamReader | None, into: bytearray) -> None:
        assert stream is not None
        while piece := await stream.read(CHUNK_SIZE):
            self.last_output_at = asyncio.get_running_loop().time()
            into += piece[: self._most - len(into)]  # the rest is read, so that it does not block, and dropped


async def _write_stdin(process: asyncio.subprocess.Process, text: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(text.encode())
        process.stdin.close()


async def _wait_finish(
    process: asyncio.subprocess.Process, output: _OutputCollector, limits: ProgramLimits
) -> str | None:
    """None once it has ended by itself; else why it may not go on."""
    loop = asyncio.get_running_loop()
    waiting = asyncio.ensure_future(process.wait())
    deadline = loop.time() + limits.seconds
    try:
        while True:
            quiet = None if not limits.quiet_seconds else output.last_output_at + limits.quiet_seconds
            until = deadline if quiet is None else min(deadline, quiet)
            done, _ = await asyncio.wait({waiting}, timeout=max(0.0, until - loop.time()))
            if done:
                return None
            if loop.time() >= deadline:
                return f"it took longer than {limits.seconds:g} s"
            if quiet is not None and loop.time() >= output.last_output_at + (limits.quiet_seconds or 0):
                return f"it said nothing for {limits.quiet_seconds:g} s"
    finally:
        waiting.cancel()


def _decode_output(data: bytearray) -> str:
    return bytes(data).decode(errors="replace").strip()
