"""The clock: sleeps until the next job is due, claims what is, and hands it over. One timer for all jobs."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self

from ...core.config.cron import CronSettings
from ...core.errors import StoreError
from ...core.jobs import CronJobRepository
from ...core.repositories import SessionRepository
from ...core.sessions import now_ms
from .executor import JobExecutor
from .job_state import plan_next

logger = logging.getLogger(__name__)

RECHECK_MS: Final = 15_000  # another process may have added jobs or died, the machine may have slept
MAX_PER_CLAIM: Final = 500  # jobs taken in one commit: others waiting to write are not kept long
MOST_CONCURRENT_FIRINGS: Final = 1000  # firings held in memory; what else is due waits in the store
CATCH_UP_AT_ONCE: Final = 5  # overdue jobs begun at once after downtime
CATCH_UP_GAP_MS: Final = 5000  # between those that follow
CATCH_UP_WITHIN_MS: Final = 600_000  # however many they are, within ten minutes all have begun
LATE_MS: Final = 10_000  # a job this late at start-up was missed, not merely due
REAP_EVERY_MS: Final = 600_000
FIRST_REAP_MS: Final = 60_000  # not while the gateway starts
REAP_BATCH: Final = 100
ERROR_WAIT_MS: Final = 1000


class TimeSource(Protocol):
    """What time it is, and waiting for another."""

    def now(self) -> int: ...

    async def wait_until(self, at: int, woken: asyncio.Event) -> None:
        """Return at that time, or when woken."""


class SystemTime:
    def now(self) -> int:
        return now_ms()

    async def wait_until(self, at: int, woken: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(max(0, at - now_ms()) / 1000):
                await woken.wait()
        except TimeoutError:
            return


class JobScheduler:
    """Entering ends what a crash left and begins to watch; leaving stops the firings of this process."""

    def __init__(
        self,
        jobs: CronJobRepository,
        executor: JobExecutor,
        sessions: SessionRepository,
        *,
        settings: Callable[[], CronSettings],
        time: TimeSource,
    ) -> None:
        self._jobs, self._executor, self._sessions = jobs, executor, sessions
        self._settings, self._time = settings, time
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._reap_at = time.now() + FIRST_REAP_MS
        executor.on_end = self.wake

    async def __aenter__(self) -> Self:
        if self._settings().enabled:
            await self._catch_up()
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._executor.aclose()

    def wake(self) -> None:
        """Something changed: look again."""
        self._woken.set()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                until = await self._run_due()
            except StoreError as exc:
                logger.warning("the clock can't look at its jobs now: %s", exc)
                until = self._time.now() + ERROR_WAIT_MS
            except Exception:  # a clock that stands still is the worst that can happen to it
                logger.exception("the clock stumbled; it goes on")
                until = self._time.now() + ERROR_WAIT_MS
            await self._time.wait_until(until, self._woken)

    async def _run_due(self) -> int:
        """Do what is due; when to look again."""
        for firing in await self._jobs.adopt():
            logger.warning("cron job %s: taking up a firing its process left", firing.job.id)
            self._executor.start(firing)
        await self._delete_old_sessions()
        later = self._time.now() + RECHECK_MS
        if not self._settings().enabled:
            return later
        while (room := MOST_CONCURRENT_FIRINGS - len(self._executor)) > 0:
            due = await self._jobs.next_due()
            now = self._time.now()
            if due is None or due > now:
                return later if due is None else min(later, due)
            most = min(room, MAX_PER_CLAIM)
            for one in await self._jobs.claim(
                now, limit=most, plan=plan_next, instant_outcome=self._executor.instant_outcome()
            ):
                if one.outcome is None:
                    self._executor.start(one.firing)
                else:
                    self._executor.publish_instant_end(one)
        return later

    async def _catch_up(self) -> None:
        """What was missed while nothing ran: each job once, not all at the same moment."""
        now = self._time.now()
        missed = await self._jobs.list_overdue(now - LATE_MS)
        if not missed:
            return
        if self._settings().skip_missed_jobs:
            missed = await self._skip_overdue(missed, now)
        waiting = missed[CATCH_UP_AT_ONCE:]
        gap = min(CATCH_UP_GAP_MS, CATCH_UP_WITHIN_MS // max(1, len(waiting)))
        logger.info("%d cron jobs were missed while the gateway was down; catching up", len(missed))
        await self._jobs.reschedule([(id, had, now + gap * n) for n, (id, had) in enumerate(waiting, 1)])

    async def _skip_overdue(self, missed: Sequence[tuple[str, int]], now: int) -> Sequence[tuple[str, int]]:
        kept, moved = [], []
        for job_id, had in missed:
            job = await self._jobs.get(job_id)
            following = None if job is None else plan_next(job, now)
            if following is None:
                kept.append((job_id, had))
            else:
                moved.append((job_id, had, following))
        await self._jobs.reschedule(moved)
        return kept

    async def _delete_old_sessions(self) -> None:
        """Forget the sessions of old runs."""
        now = self._time.now()
        if now < self._reap_at:
            return
        keys = await self._jobs.reap_sessions(now, limit=REAP_BATCH)
        for key in keys:
            await self._sessions.delete(key, transcript=True)
        self._reap_at = now if len(keys) == REAP_BATCH else now + REAP_EVERY_MS
