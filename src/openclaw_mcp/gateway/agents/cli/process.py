"""A CLI agent as a process: it gets its input once, prints lines, and is ended with everything it started."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final, Literal, Self

from msgspec import Struct

from ....core.config.agents import AgentSettings
from ....core.errors import OpenClawError
from ....core.ports import ProcessGuard
from ....net.process_streams import KeptOutput, LineOutput
from ....net.processes import RUN_MARK_VARIABLE, Ending, Process, start_process

MAX_LINE_LENGTH: Final = 64 << 20  # bytes; a picture in base64 fits, a runaway program does not fill our memory
MAX_BUFFERED_LINES: Final = 1000  # lines read and not yet taken; beyond that the program waits for us
STDERR_TAIL: Final = 16 << 10  # bytes of the end of stderr
DRAIN_SECONDS: Final = 0.3  # seconds for what is in the pipe after the exit; an orphan may hold it for ever
TERM_GRACE: Final = 1.5  # seconds a group gets between SIGTERM and SIGKILL; a run's owner waits five in all
KILL_WAIT: Final = 2.0  # seconds for the kernel to end a killed process; one stuck in a dead disk must not hold us


class CliSilentError(OpenClawError):
    """The program printed nothing for too long."""

    code = "silent"

    def __init__(self, when: Literal["start", "later"], seconds: float) -> None:
        super().__init__(f"no output within {seconds:g} s")
        self.when = when
        self.seconds = seconds


class CliCommand(Struct, frozen=True, kw_only=True):
    argv: Sequence[str]
    env: Mapping[str, str]
    """With RUN_MARK_VARIABLE in it, every process that inherits it ends with the program."""
    cwd: str
    stdin: bytes = b""


class CliProcess:
    """`async with await CliProcess.start(command, …) as program: async for line in program.lines(): …`. Afterwards
    its process group is gone, and so are the descendants that had left it."""

    def __init__(self, process: Process, settings: AgentSettings, output: LineOutput, errors: KeptOutput) -> None:
        self._process = process
        self._settings = settings
        self._output = output
        self._errors = errors

    @classmethod
    async def start(cls, command: CliCommand, settings: AgentSettings, guard: ProcessGuard | None = None) -> Self:
        """Raises ProcessStartError."""
        output = LineOutput(max_length=MAX_LINE_LENGTH, max_waiting=MAX_BUFFERED_LINES)
        errors = KeptOutput(tail=STDERR_TAIL)
        mark = command.env.get(RUN_MARK_VARIABLE)
        process = await start_process(
            command.argv, env=command.env, cwd=command.cwd, stdin=command.stdin, stdout=output, stderr=errors,
            guard=guard, ending=Ending(
                term_grace=TERM_GRACE, kill_wait=KILL_WAIT, strays=True, mark=mark, drain=DRAIN_SECONDS
            ),
        )  # fmt: skip
        return cls(process, settings, output, errors)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._process.aclose()

    @property
    def status(self) -> int | None:
        """Its exit status once it has ended; minus the signal's number when a signal ended it."""
        return self._process.status

    @property
    def stderr(self) -> str:
        """The end of it."""
        return self._errors.data.decode(errors="replace")

    async def lines(self) -> AsyncGenerator[bytes | None]:
        """Each line; None for one that was dropped for its length. Raises CliSilentError."""
        when: Literal["start", "later"] = "start"
        while True:
            settings = self._settings
            seconds = settings.runtime_startup_seconds if when == "start" else settings.runtime_idle_seconds
            try:
                async with asyncio.timeout(seconds):
                    if not await self._output.wait_line():
                        return
            except TimeoutError:
                raise CliSilentError(when, seconds) from None
            when = "later"
            yield self._output.take_line()

    async def wait_exit(self) -> None:
        """Wait for the exit of a program that has closed its output. Raises CliSilentError."""
        try:
            async with asyncio.timeout(self._settings.runtime_idle_seconds):
                await self._process.wait()
        except TimeoutError:
            raise CliSilentError("later", self._settings.runtime_idle_seconds) from None
