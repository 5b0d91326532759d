"""Programs kept running whose lines make a job fire: one source for each job, heard in batches."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ...core.errors import OpenClawError
from ...core.jobs import CronJob, StreamSchedule
from ...core.ports import ProcessGuard
from . import programs

BATCH_MS: Final = (250, 50, 5000)  # of quiet that end a batch: unless told otherwise, at least, at most
BATCH_BYTES: Final = (16_384, 1024, 65_536)
MAX_LINE_LENGTH: Final = 8192  # bytes; the rest of a longer one is a line of its own
RECHECK_SECONDS: Final = 15.0  # seconds: a job may be switched off by another process
IDLE_SECONDS: Final = 120.0  # seconds after which a source nobody listens to is ended: its job is gone, or another's
TRUNCATED: Final = "[truncated]"
SWITCHED_OFF: Final = "the job was switched off, changed or removed"


class StreamStopped(OpenClawError):
    """Nobody is to hear it any more."""

    code = "stopped"


class StreamSource:
    """One program and what it said that nobody heard yet, no more than a batch."""

    def __init__(self, schedule: StreamSchedule, guard: ProcessGuard | None) -> None:
        self.schedule = schedule
        self._guard = guard
        self._quiet = _clamp(schedule.batch_ms, BATCH_MS) / 1000
        self._most = _clamp(schedule.max_batch_bytes, BATCH_BYTES)
        self._lines: list[str] = []
        self._size = 0
        self._changed = asyncio.Event()
        self._end: str | None = None
        self._stopped = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        self._stopped = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._set_end("it was stopped")

    @property
    def is_over(self) -> bool:
        return self._end is not None and not self._lines

    async def next_batch(self) -> str:
        """What it said since the last time, once it pauses. Raises OpenClawError when it has ended, Stopped by us."""
        while not self._lines or self._stopped:
            if self._stopped:
                raise StreamStopped(SWITCHED_OFF)
            if self._end is not None:
                raise OpenClawError(f"the stream's program ended: {self._end}; it is started again after a while")
            await self._wait_for_line()
        while self._end is None and self._size < self._most:
            try:
                async with asyncio.timeout(self._quiet):
                    await self._wait_for_line()
            except TimeoutError:
                break
        said, self._lines, self._size = "\n".join(self._lines), [], 0
        return said

    async def _wait_for_line(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _add_line(self, line: str) -> None:
        if self._size >= self._most:
            return
        self._size += len(line.encode()) + 1
        self._lines += [line] if self._size < self._most else [line[: self._most], TRUNCATED]
        self._changed.set()

    def _set_end(self, reason: str) -> None:
        self._end = self._end or reason
        self._changed.set()

    async def _run(self) -> None:
        try:
            async with programs.start_program(
                self.schedule.command, cwd=self.schedule.cwd, guard=self._guard
            ) as process:
                async with asyncio.TaskGroup() as tasks:
                    for stream in (process.stdout, process.stderr):
                        tasks.create_task(self._read(stream))
                self._set_end(f"exit status {await process.wait()}")
        except programs.ProgramStartError as exc:
            self._set_end(str(exc))

    async def _read(self, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        rest = b""
        while piece := await stream.read(MAX_LINE_LENGTH):
            *whole, rest = (rest + piece).split(b"\n")
            if len(rest) > MAX_LINE_LENGTH:
                whole, rest = [*whole, rest], b""
            for line in whole:
                self._add_line(line.decode(errors="replace").rstrip("\r"))
        if rest:
            self._add_line(rest.decode(errors="replace"))


class StreamSources:
    """The sources of this process."""

    def __init__(self, guard: ProcessGuard | None = None) -> None:
        self._guard = guard
        self._sources: dict[str, StreamSource] = {}
        self._idle_timers: dict[str, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def next_batch(
        self, job: CronJob, schedule: StreamSchedule, is_current: Callable[[], Awaitable[bool]]
    ) -> str:
        """The next batch of the job's source, which is started if it does not run. Raises OpenClawError."""
        if job.id in self._idle_timers:
            self._idle_timers.pop(job.id).cancel()
        source = self._sources.get(job.id)
        if source is None or source.is_over or source.schedule != schedule:
            await self.stop(job.id)
            source = self._sources[job.id] = StreamSource(schedule, self._guard)
        try:
            while True:
                try:
                    async with asyncio.timeout(RECHECK_SECONDS):
                        return await source.next_batch()
                except TimeoutError:
                    if not await is_current():
                        await self.stop(job.id)
                        raise StreamStopped(SWITCHED_OFF) from None
        finally:
            loop = asyncio.get_running_loop()
            self._idle_timers[job.id] = loop.call_later(IDLE_SECONDS, self.stop_soon, job.id)

    def stop_soon(self, job_id: str) -> None:
        """End its source, if there is one; whoever waits for it hears so."""
        if job_id in self._sources:
            task = asyncio.get_running_loop().create_task(self.stop(job_id))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def stop(self, job_id: str) -> None:
        source = self._sources.pop(job_id, None)
        if source is not None:
            await source.aclose()

    async def aclose(self) -> None:
        for handle in self._idle_timers.values():
            handle.cancel()
        await asyncio.gather(*(self.stop(job_id) for job_id in list(self._sources)), *self._closing)


def _clamp(value: int | None, bounds: tuple[int, int, int]) -> int:
    usual, least, most = bounds
    return usual if value is None else min(max(value, least), most)
