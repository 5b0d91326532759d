"""How long a call may take, watched by one sweep for all calls of a dispatcher.

A timer for each call costs more than most calls. Only a deadline shorter than the sweep's interval gets one of its own.
"""

import asyncio
from types import TracebackType
from typing import Final

from ..net.periodic_sweep import PeriodicSweep

CHECK_INTERVAL: Final = 0.25  # seconds between two looks: how late a deadline may be noticed


class Deadlines:
    """`with deadlines.timeout(seconds) as deadline:` raises TimeoutError when the time is over, and sets `expired`."""

    __slots__ = ("_sweep",)

    def __init__(self) -> None:
        self._sweep: PeriodicSweep[CallDeadline] = PeriodicSweep(CHECK_INTERVAL, _expire_if_due)

    def timeout(self, seconds: float) -> "CallDeadline":
        return CallDeadline(self._sweep, seconds)


class CallDeadline:
    """One call's time. Nests as `asyncio.timeout` does: a cancellation from elsewhere passes through."""

    __slots__ = ("_cancelling", "_seconds", "_sweep", "_task", "_timer", "due", "expired")

    def __init__(self, sweep: "PeriodicSweep[CallDeadline]", seconds: float) -> None:
        self.expired = False
        self._sweep = sweep
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> "CallDeadline":
        loop = self._sweep.loop
        task = asyncio.current_task(loop)
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self.due = loop.time() + self._seconds
        if self._seconds < CHECK_INTERVAL:
            self._timer = loop.call_at(self.due, self.expire)
        else:
            self._sweep.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        else:
            self._sweep.discard(self)
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        self.expired = True
        self._sweep.discard(self)
        self._task.cancel()


def _expire_if_due(deadline: CallDeadline, now: float) -> None:
    if deadline.due <= now:
        deadline.expire()
