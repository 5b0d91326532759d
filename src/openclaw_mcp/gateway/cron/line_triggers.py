"""Programs kept running whose lines make a job fire: one source for each job, heard in batches."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ...core.errors import OpenClawError
from ...core.jobs import Job, Stream
from ...core.ports import Guard
from . import programs

BATCH_MS: Final = (250, 50, 5000)  # of quiet that end a batch: unless told otherwise, at least, at most
BATCH_BYTES: Final = (16_384, 1024, 65_536)
LONGEST_LINE: Final = 8192  # bytes; the rest of a longer one is a line of its own
LOOK_AGAIN: Final = 15.0  # seconds: a job may be switched off by another process
UNASKED: Final = 120.0  # seconds after which a source nobody listens to is ended: its job is gone, or another's
TRUNCATED: Final = "[truncated]"
SWITCHED_OFF: Final = "the job was switched off, changed or removed"


class Stopped(OpenClawError):
    """Nobody is to hear it any more."""

    code = "stopped"


class Source:
    """One program and what it said that nobody heard yet, no more than a batch."""

    def __init__(self, schedule: Stream, guard: Guard | None) -> None:
        self.schedule = schedule
        self._guard = guard
        self._quiet = _within(schedule.batch_ms, BATCH_MS) / 1000
        self._most = _within(schedule.max_batch_bytes, BATCH_BYTES)
        self._lines: list[str] = []
        self._size = 0
        self._news = asyncio.Event()
        self._end: str | None = None
        self._stopped = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        self._stopped = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._ended("it was stopped")

    @property
    def over(self) -> bool:
        return self._end is not None and not self._lines

    async def batch(self) -> str:
        """What it said since the last time, once it pauses. Raises OpenClawError when it has ended, Stopped by us."""
        while not self._lines or self._stopped:
            if self._stopped:
                raise Stopped(SWITCHED_OFF)
            if self._end is not None:
                raise OpenClawError(f"the stream's program ended: {self._end}; it is started again after a while")
            await self._heard()
        while self._end is None and self._size < self._most:
            try:
                async with asyncio.timeout(self._quiet):
                    await self._heard()
            except TimeoutError:
                break
        said, self._lines, self._size = "\n".join(self._lines), [], 0
        return said

    async def _heard(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _add(self, line: str) -> None:
        if self._size >= self._most:
            return
        self._size += len(line.encode()) + 1
        self._lines += [line] if self._size < self._most else [line[: self._most], TRUNCATED]
        self._news.set()

    def _ended(self, why: str) -> None:
        self._end = self._end or why
        self._news.set()

    async def _run(self) -> None:
        try:
            async with programs.started(self.schedule.command, cwd=self.schedule.cwd, guard=self._guard) as process:
                async with asyncio.TaskGroup() as tasks:
                    for stream in (process.stdout, process.stderr):
                        tasks.create_task(self._read(stream))
                self._ended(f"exit status {await process.wait()}")
        except programs.CannotStart as exc:
            self._ended(str(exc))

    async def _read(self, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        rest = b""
        while piece := await stream.read(LONGEST_LINE):
            *whole, rest = (rest + piece).split(b"\n")
            if len(rest) > LONGEST_LINE:
                whole, rest = [*whole, rest], b""
            for line in whole:
                self._add(line.decode(errors="replace").rstrip("\r"))
        if rest:
            self._add(rest.decode(errors="replace"))


class Streams:
    """The sources of this process."""

    def __init__(self, guard: Guard | None = None) -> None:
        self._guard = guard
        self._sources: dict[str, Source] = {}
        self._unasked: dict[str, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def batch(self, job: Job, schedule: Stream, still: Callable[[], Awaitable[bool]]) -> str:
        """The next batch of the job's source, which is started if it does not run. Raises OpenClawError."""
        if job.id in self._unasked:
            self._unasked.pop(job.id).cancel()
        source = self._sources.get(job.id)
        if source is None or source.over or source.schedule != schedule:
            await self.stop(job.id)
            source = self._sources[job.id] = Source(schedule, self._guard)
        try:
            while True:
                try:
                    async with asyncio.timeout(LOOK_AGAIN):
                        return await source.batch()
                except TimeoutError:
                    if not await still():
                        await self.stop(job.id)
                        raise Stopped(SWITCHED_OFF) from None
        finally:
            loop = asyncio.get_running_loop()
            self._unasked[job.id] = loop.call_later(UNASKED, self.forget, job.id)

    def forget(self, job_id: str) -> None:
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
        for handle in self._unasked.values():
            handle.cancel()
        await asyncio.gather(*(self.stop(job_id) for job_id in list(self._sources)), *self._closing)


def _within(chosen: int | None, bounds: tuple[int, int, int]) -> int:
    usual, least, most = bounds
    return usual if chosen is None else min(max(chosen, least), most)
