"""Sleeps until the next job is due, claims what is due, and starts it. One timer for all jobs."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self

from ...core.config.cron import CronSettings
from ...core.errors import StoreError
from ...core.jobs import CronJobRepository
from ...core.repositories import SessionRepository
from ...core.sessions import now_ms
from ...net.tasks import Tasks
from .executor import JobExecutor
from .job_state import plan_next

logger = logging.getLogger(__name__)

RECHECK_MS: Final = 15_000  # another process may have added jobs or died, the machine may have slept
MAX_PER_CLAIM: Final = 500  # jobs taken in one commit: other writers are not kept waiting long
MOST_CONCURRENT_FIRINGS: Final = 1000  # firings held in memory; other due jobs wait in the store
CATCH_UP_AT_ONCE: Final = 5  # overdue jobs started at once after downtime
CATCH_UP_GAP_MS: Final = 5000  # between those that follow
CATCH_UP_WITHIN_MS: Final = 600_000  # all have begun within ten minutes, however many they are
LATE_MS: Final = 10_000  # a job this late at start-up was missed, not merely due
REAP_EVERY_MS: Final = 600_000
FIRST_REAP_MS: Final = 60_000  # not while the gateway starts
REAP_BATCH: Final = 100
ERROR_WAIT_MS: Final = 1000


class TimeSource(Protocol):
    """The current time, and waiting for a later one."""

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
    """Entering takes up what was missed and begins to watch; leaving stops the firings of this process."""

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
        self._tasks = Tasks("cron")
        self._reap_at = time.now() + FIRST_REAP_MS
        executor.finished.connect(lambda _: self.wake())

    async def __aenter__(self) -> Self:
        if self._settings().enabled:
            await self._catch_up()
        self._tasks.loop(self._step, name="scheduler", on_failure="restart")
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._tasks.aclose()
        await self._executor.aclose()

    def wake(self) -> None:
        """Something changed: check again what is due."""
        self._woken.set()

    async def _step(self) -> None:
        self._woken.clear()
        try:
            until = await self._run_due()
        except StoreError as exc:
            logger.warning("cron: due jobs can't be read (%s), next attempt in %d ms", exc, ERROR_WAIT_MS)
            until = self._time.now() + ERROR_WAIT_MS
        except Exception:  # nothing may stop the scheduler
            logger.exception("cron: a pass of the scheduler failed, next attempt in %d ms", ERROR_WAIT_MS)
            until = self._time.now() + ERROR_WAIT_MS
        await self._time.wait_until(until, self._woken)

    async def _run_due(self) -> int:
        """Start what is due; when to check again."""
        for firing in await self._jobs.adopt():
            logger.warning(
                "cron: firing %s of job %s taken over from a process that died", firing.run_id, firing.job.id
            )
            self._executor.start(firing)
        await self._delete_old_sessions()
        later = self._time.now() + RECHECK_MS
        if not self._settings().enabled:
            return later
        while (free := MOST_CONCURRENT_FIRINGS - len(self._executor)) > 0:
            due = await self._jobs.next_due()
            now = self._time.now()
            if due is None or due > now:
                return later if due is None else min(later, due)
            most = min(free, MAX_PER_CLAIM)
            for one in await self._jobs.claim(
                now, limit=most, plan=plan_next, instant_outcome=self._executor.instant_outcome()
            ):
                if one.outcome is None:
                    self._executor.start(one.firing)
                else:
                    self._executor.publish_instant_end(one, one.outcome)
        return later

    async def _catch_up(self) -> None:
        """Start what was missed while no process ran: each job once, not all at the same moment."""
        now = self._time.now()
        missed = await self._jobs.list_overdue(now - LATE_MS)
        if not missed:
            return
        if self._settings().skip_missed_jobs:
            missed = await self._skip_overdue(missed, now)
        waiting = missed[CATCH_UP_AT_ONCE:]
        gap = min(CATCH_UP_GAP_MS, CATCH_UP_WITHIN_MS // max(1, len(waiting)))
        logger.info("cron: %d jobs were missed while the gateway was down, each runs once now", len(missed))
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
        """Delete the sessions of old runs, a batch at a time."""
        now = self._time.now()
        if now < self._reap_at:
            return
        keys = await self._jobs.reap_sessions(now, limit=REAP_BATCH)
        for key in keys:
            await self._sessions.delete(key, transcript=True)
        self._reap_at = now if len(keys) == REAP_BATCH else now + REAP_EVERY_MS
