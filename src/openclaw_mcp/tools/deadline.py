"""One clock for every call at a desk.

A timer for each call costs more than most calls do. So the clock looks at all running calls a few times a second, and
only a deadline shorter than that gets a timer of its own.
"""

import asyncio
from types import TracebackType
from typing import Final

TICK: Final = 0.25  # seconds between two looks: how late a deadline may be noticed


class Deadlines:
    """`with deadlines.bound(seconds) as bound:` raises TimeoutError in a task that runs over; `bound.expired` tells."""

    __slots__ = ("_loop", "_running", "_timer")

    def __init__(self) -> None:
        self._running: set[Bound] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def bound(self, seconds: float) -> "Bound":
        return Bound(self, seconds)

    def _begin(self, bound: "Bound", loop: asyncio.AbstractEventLoop) -> None:
        self._running.add(bound)
        if self._timer is None or self._loop is not loop:
            self._loop = loop
            self._timer = loop.call_later(TICK, self._look)

    def _end(self, bound: "Bound") -> None:
        self._running.discard(bound)

    def _look(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        for bound in list(self._running):
            if bound.due <= now:
                self._running.discard(bound)
                bound.expire()
        # Kept going while anything runs; the first call after a quiet moment winds it up again.
        self._timer = self._loop.call_later(TICK, self._look) if self._running else None


class Bound:
    """One call's time. Nests as `asyncio.timeout` does: a cancellation from elsewhere passes through."""

    __slots__ = ("_cancelling", "_deadlines", "_seconds", "_task", "_timer", "due", "expired")

    def __init__(self, deadlines: Deadlines, seconds: float) -> None:
        self.expired = False
        self._deadlines = deadlines
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> "Bound":
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self.due = loop.time() + self._seconds
        if self._seconds < TICK:
            self._timer = loop.call_at(self.due, self.expire)
        else:
            self._deadlines._begin(self, loop)  # noqa: SLF001  two halves of one thing
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        else:
            self._deadlines._end(self)  # noqa: SLF001
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        self.expired = True
        self._task.cancel()
