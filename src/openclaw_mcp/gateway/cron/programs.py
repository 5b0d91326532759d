"""Programs a job runs or waits for: bounded in time and output, ended with everything they started."""

import asyncio
import os
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from ...core.ports import ProcessGuard
from ...net.process_streams import KeptOutput, Output
from ...net.processes import Ending, Process, ProcessStartError, start_process

MAX_OUTPUT: Final = 256 * 1024  # bytes kept of each stream: a summary for a person, not an archive
END_GRACE: Final = 2.0  # seconds between SIGTERM and SIGKILL, and for output that other processes hold open
_ENDING: Final = Ending(term_grace=END_GRACE, leader_only=True, drain=END_GRACE)
_PRIVATE_VARIABLES: Final = ("OPENCLAW_GATEWAY_TOKEN", "OPENCLAW_STORE_URL")
"""Variables of the gateway that a program it starts does not need."""


class JobProgramResult(Struct, frozen=True, kw_only=True):
    exit_code: int | None
    stdout: str
    stderr: str
    stop_reason: str | None = None
    """Why it was ended before it ended by itself."""


class ProgramLimits(Struct, frozen=True, kw_only=True):
    seconds: float
    quiet_seconds: float | None = None
    """Seconds without output after which the program counts as stuck."""
    bytes: int = MAX_OUTPUT


async def start_program(
    argv: Sequence[str],
    *,
    cwd: str | None,
    stdout: Output,
    stderr: Output,
    env: dict[str, str] | None = None,
    stdin: bytes | None = None,
    guard: ProcessGuard | None = None,
    ending: Ending = _ENDING,
) -> Process:
    """A program with the gateway's variables, except the secret ones, and `env`. Raises ProcessStartError."""
    known = {name: value for name, value in os.environ.items() if name not in _PRIVATE_VARIABLES}
    try:
        return await start_process(
            argv, cwd=cwd, env={**known, **(env or {})}, stdin=stdin, stdout=stdout, stderr=stderr, guard=guard,
            ending=ending,
        )  # fmt: skip
    except ProcessStartError as exc:
        where = f" in {cwd}" if cwd else ""
        raise ProcessStartError(f"{argv[0]} can't be started{where}: {exc}") from exc


async def run_program(
    argv: Sequence[str],
    limits: ProgramLimits,
    *,
    cwd: str | None,
    env: dict[str, str] | None = None,
    stdin_text: str | None = None,
    guard: ProcessGuard | None = None,
) -> JobProgramResult:
    """Run it to its end, or to the limit. Raises ProcessStartError."""
    out, err = KeptOutput(head=limits.bytes), KeptOutput(head=limits.bytes)
    stdin = None if stdin_text is None else stdin_text.encode()
    async with await start_program(argv, cwd=cwd, env=env, stdin=stdin, stdout=out, stderr=err, guard=guard) as process:
        stopped = await _wait_exit(process, (out, err), limits)
        if stopped is None:
            await process.wait_finished()
    return JobProgramResult(
        exit_code=process.status,
        stdout=out.data.decode(errors="replace").strip(),
        stderr=err.data.decode(errors="replace").strip(),
        stop_reason=stopped,
    )


async def _wait_exit(process: Process, outputs: Sequence[Output], limits: ProgramLimits) -> str | None:
    """None once it has exited by itself; else why it may not go on."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.seconds
    while True:
        quiet_until = max(output.last_time for output in outputs) + (limits.quiet_seconds or float("inf"))
        if await process.exits_within(max(0.0, min(deadline, quiet_until) - loop.time())):
            return None
        if loop.time() >= deadline:
            return f"it took longer than {limits.seconds:g} s"
        if limits.quiet_seconds and loop.time() >= max(o.last_time for o in outputs) + limits.quiet_seconds:
            return f"it printed nothing for {limits.quiet_seconds:g} s"
