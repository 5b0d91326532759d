"""Programs kept running whose lines start a job: one source for each job, read in batches."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ...core.errors import OpenClawError
from ...core.jobs import CronJob, StreamSchedule
from ...core.ports import ProcessGuard
from ...net.process_streams import Output
from ...net.processes import Ending, ProcessStartError
from ...net.tasks import Tasks, run_all
from . import programs

BATCH_MS: Final = (250, 50, 5000)  # milliseconds of silence that end a batch: default, least, most
BATCH_BYTES: Final = (16_384, 1024, 65_536)
MAX_LINE_LENGTH: Final = 8192  # bytes; the rest of a longer one is a line of its own
RECHECK_SECONDS: Final = 15.0  # seconds between checks of the job: another process may switch it off
IDLE_SECONDS: Final = 120.0  # seconds after which a source without a reader is ended: its job is gone or elsewhere
CLOSE_WAIT: Final = 30.0  # seconds for sources that are being ended already
TRUNCATED: Final = "[truncated]"
SWITCHED_OFF: Final = "the job was switched off, changed or removed"
_ENDING: Final = Ending(term_grace=programs.END_GRACE, leader_only=True, drain=None)


class StreamStopped(OpenClawError):
    """The source was ended on purpose."""

    code = "stopped"


class StreamSource:
    """One program and its lines that have not been taken yet, at most one batch of them."""

    def __init__(self, schedule: StreamSchedule, guard: ProcessGuard | None) -> None:
        self.schedule, self._guard = schedule, guard
        self._quiet = _clamp(schedule.batch_ms, BATCH_MS) / 1000
        self._max_bytes = _clamp(schedule.max_batch_bytes, BATCH_BYTES)
        self._lines: list[str] = []
        self._size = 0
        self._changed = asyncio.Event()
        self._end: str | None = None
        self._stopped = False
        self._tasks = Tasks("cron stream")
        self._tasks.spawn(self._run(), name=schedule.command[0])

    async def aclose(self) -> None:
        self._stopped = True
        await self._tasks.aclose()
        self._set_end("it was stopped")

    @property
    def is_over(self) -> bool:
        return self._end is not None and not self._lines

    async def next_batch(self) -> str:
        """The lines since the last batch, once the program pauses. Raises OpenClawError when it has ended,
        StreamStopped when we ended it."""
        while not self._lines or self._stopped:
            if self._stopped:
                raise StreamStopped(SWITCHED_OFF)
            if self._end is not None:
                raise OpenClawError(f"the stream's program ended: {self._end}; it is started again after a while")
            await self._wait_for_line()
        while self._end is None and self._size < self._max_bytes:
            try:
                async with asyncio.timeout(self._quiet):
                    await self._wait_for_line()
            except TimeoutError:
                break
        batch, self._lines, self._size = "\n".join(self._lines), [], 0
        return batch

    async def _wait_for_line(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _add_line(self, line: str) -> None:
        if self._size >= self._max_bytes:
            return
        self._size += len(line.encode()) + 1
        self._lines += [line] if self._size < self._max_bytes else [line[: self._max_bytes], TRUNCATED]
        self._changed.set()

    def _set_end(self, reason: str) -> None:
        self._end = self._end or reason
        self._changed.set()

    async def _run(self) -> None:
        schedule, (out, err) = self.schedule, (_LineCutter(self._add_line), _LineCutter(self._add_line))
        try:
            async with await programs.start_program(
                schedule.command, cwd=schedule.cwd, stdout=out, stderr=err, guard=self._guard, ending=_ENDING
            ) as process:
                self._set_end(f"exit status {await process.wait_finished()}")
        except ProcessStartError as exc:
            self._set_end(str(exc))
        finally:
            self._set_end("it failed; see the log")  # unless there is a better reason: a reader must not wait for ever


class _LineCutter(Output):
    """Lines as text; one over the limit is cut into several."""

    def __init__(self, add_line: Callable[[str], None]) -> None:
        super().__init__(self._cut, self._finish)
        self._add_line = add_line
        self._rest = b""

    def _cut(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_LINE_LENGTH):
            *lines, self._rest = (self._rest + data[start : start + MAX_LINE_LENGTH]).split(b"\n")
            if len(self._rest) > MAX_LINE_LENGTH:
                lines, self._rest = [*lines, self._rest], b""
            for line in lines:
                self._add_line(line.decode(errors="replace").rstrip("\r"))

    def _finish(self) -> None:
        if self._rest:
            self._add_line(self._rest.decode(errors="replace"))


class StreamSources:
    """The sources of this process."""

    def __init__(self, guard: ProcessGuard | None = None) -> None:
        self._guard = guard
        self._sources: dict[str, StreamSource] = {}
        self._idle_timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks = Tasks("cron streams")

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
        """End its source, if there is one; a reader that waits for it gets StreamStopped."""
        if job_id in self._sources:
            self._tasks.spawn(self.stop(job_id), name=f"end of the source of job {job_id}")

    async def stop(self, job_id: str) -> None:
        source = self._sources.pop(job_id, None)
        if source is not None:
            await source.aclose()

    async def aclose(self) -> None:
        for handle in self._idle_timers.values():
            handle.cancel()
        await run_all(self.stop(job_id) for job_id in list(self._sources))
        await self._tasks.finish(CLOSE_WAIT)


def _clamp(value: int | None, bounds: tuple[int, int, int]) -> int:
    usual, least, most = bounds
    return usual if value is None else min(max(value, least), most)
