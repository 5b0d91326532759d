"""The clock: sleeps until the next job is due, claims what is, and hands it over. One timer for all jobs."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self

from ...core.errors import StoreError
from ...core.jobs import CronBook
from ...core.repositories import SessionBook
from ...core.sessions import now_ms
from .executor import Errands
from .job_state import planned
from .settings import Settings

logger = logging.getLogger(__name__)

LOOK_AGAIN_MS: Final = 15_000  # another process may have added jobs or died, the machine may have slept
MOST_PER_CLAIM: Final = 500  # jobs taken in one commit: others waiting to write are not kept long
MOST_AT_ONCE: Final = 1000  # firings held in memory; what else is due waits in the store
CATCH_UP_AT_ONCE: Final = 5  # overdue jobs begun at once after downtime
CATCH_UP_GAP_MS: Final = 5000  # between those that follow
CATCH_UP_WITHIN_MS: Final = 600_000  # however many they are, within ten minutes all have begun
LATE_MS: Final = 10_000  # a job this late at start-up was missed, not merely due
REAP_EVERY_MS: Final = 600_000
FIRST_REAP_MS: Final = 60_000  # not while the gateway starts
REAPED_AT_ONCE: Final = 100
TROUBLE_WAIT_MS: Final = 1000


class Time(Protocol):
    """What time it is, and waiting for another."""

    def now(self) -> int: ...

    async def until(self, at: int, woken: asyncio.Event) -> None:
        """Return at that time, or when woken."""


class WallTime:
    def now(self) -> int:
        return now_ms()

    async def until(self, at: int, woken: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(max(0, at - now_ms()) / 1000):
                await woken.wait()
        except TimeoutError:
            return


class Clock:
    """Entering ends what a crash left and begins to watch; leaving stops the firings of this process."""

    def __init__(
        self, book: CronBook, errands: Errands, sessions: SessionBook, *, settings: Callable[[], Settings], time: Time
    ) -> None:
        self._book, self._errands, self._sessions = book, errands, sessions
        self._settings, self._time = settings, time
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._reap_at = time.now() + FIRST_REAP_MS
        errands.ended = self.wake

    async def __aenter__(self) -> Self:
        if self._settings().enabled:
            await self._catch_up()
        self._task = asyncio.get_running_loop().create_task(self._go())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._errands.aclose()

    def wake(self) -> None:
        """Something changed: look again."""
        self._woken.set()

    async def _go(self) -> None:
        while True:
            self._woken.clear()
            try:
                until = await self._round()
            except StoreError as exc:
                logger.warning("the clock can't look at its jobs now: %s", exc)
                until = self._time.now() + TROUBLE_WAIT_MS
            except Exception:  # a clock that stands still is the worst that can happen to it
                logger.exception("the clock stumbled; it goes on")
                until = self._time.now() + TROUBLE_WAIT_MS
            await self._time.until(until, self._woken)

    async def _round(self) -> int:
        """Do what is due; when to look again."""
        for firing in await self._book.adopt():
            logger.warning("cron job %s: taking up a firing its process left", firing.job.id)
            self._errands.begin(firing)
        await self._reap()
        later = self._time.now() + LOOK_AGAIN_MS
        if not self._settings().enabled:
            return later
        while (room := MOST_AT_ONCE - len(self._errands)) > 0:
            due = await self._book.next_due()
            now = self._time.now()
            if due is None or due > now:
                return later if due is None else min(later, due)
            most = min(room, MOST_PER_CLAIM)
            for one in await self._book.claim(now, most=most, plan=planned, at_once=self._errands.at_once()):
                if one.ending is None:
                    self._errands.begin(one.firing)
                else:
                    self._errands.over(one)
        return later

    async def _catch_up(self) -> None:
        """What was missed while nothing ran: each job once, not all at the same moment."""
        now = self._time.now()
        missed = await self._book.overdue(now - LATE_MS)
        if not missed:
            return
        if self._settings().skip_missed_jobs:
            missed = await self._skipped(missed, now)
        waiting = missed[CATCH_UP_AT_ONCE:]
        gap = min(CATCH_UP_GAP_MS, CATCH_UP_WITHIN_MS // max(1, len(waiting)))
        logger.info("%d cron jobs were missed while the gateway was down; catching up", len(missed))
        await self._book.put_off([(id, had, now + gap * n) for n, (id, had) in enumerate(waiting, 1)])

    async def _skipped(self, missed: Sequence[tuple[str, int]], now: int) -> Sequence[tuple[str, int]]:
        kept, moved = [], []
        for job_id, had in missed:
            job = await self._book.get(job_id)
            following = None if job is None else planned(job, now)
            if following is None:
                kept.append((job_id, had))
            else:
                moved.append((job_id, had, following))
        await self._book.put_off(moved)
        return kept

    async def _reap(self) -> None:
        """Forget the sessions of old runs."""
        now = self._time.now()
        if now < self._reap_at:
            return
        keys = await self._book.reap(now, most=REAPED_AT_ONCE)
        for key in keys:
            await self._sessions.delete(key, transcript=True)
        self._reap_at = now if len(keys) == REAPED_AT_ONCE else now + REAP_EVERY_MS
