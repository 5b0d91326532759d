"""How long a call may take, watched by one sweep for all calls of a dispatcher.

A timer for each call costs more than most calls. Only a deadline shorter than the sweep's interval gets one of its own.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from msgspec import Struct

from ..core.model import InputRequest, Json
from ..core.ports import CallContext, LogLevel
from ..net.periodic_sweep import PeriodicSweep

CHECK_INTERVAL: Final = 0.25  # seconds between two looks: how late a deadline may be noticed


class ProgressExtension(Struct, frozen=True):
    """Each progress a tool reports gives its call the whole deadline again, up to `longest` seconds since it began."""

    longest: float
    deadline_setting: str
    """The setting that allows more time without progress,"""
    longest_setting: str
    """and the one that allows more time in all."""


class Deadlines:
    """`with deadlines.timeout(seconds) as deadline:` raises TimeoutError when the time is over, and sets `expired`."""

    __slots__ = ("_sweep",)

    def __init__(self) -> None:
        self._sweep: PeriodicSweep[CallDeadline] = PeriodicSweep(CHECK_INTERVAL, _expire_if_due)

    def timeout(self, seconds: float) -> "CallDeadline":
        return CallDeadline(self._sweep, seconds)


class CallDeadline:
    """One call's time. Nests as `asyncio.timeout` does: a cancellation from elsewhere passes through."""

    __slots__ = ("_cancelling", "_latest", "_seconds", "_sweep", "_task", "_timer", "due", "expired")

    def __init__(self, sweep: "PeriodicSweep[CallDeadline]", seconds: float) -> None:
        self.expired = False
        self._sweep = sweep
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._latest: float | None = None

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

    @property
    def is_exhausted(self) -> bool:
        """Whether it was extended as far as it may be."""
        return self.due == self._latest

    def extend(self, longest: float) -> None:
        """Begin its seconds again, but not past `longest` seconds since the beginning."""
        if self.expired:
            return
        loop = self._sweep.loop
        if self._latest is None:
            self._latest = self.due - self._seconds + max(longest, self._seconds)
        self.due = min(loop.time() + self._seconds, self._latest)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = loop.call_at(self.due, self.expire)

    def expire(self) -> None:
        self.expired = True
        self._sweep.discard(self)
        self._task.cancel()


class ExtendingContext:
    """A `CallContext` whose progress extends the call's deadline."""

    __slots__ = ("_context", "_deadline", "_longest")

    def __init__(self, context: CallContext, deadline: CallDeadline, longest: float) -> None:
        self._context = context
        self._deadline = deadline
        self._longest = longest

    async def progress(self, value: float, *, total: float | None = None, message: str | None = None) -> None:
        self._deadline.extend(self._longest)
        await self._context.progress(value, total=total, message=message)

    async def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> None:
        await self._context.log(level, data, logger=logger)

    def can_ask(self, capability: str, mode: str = "") -> bool:
        return self._context.can_ask(capability, mode)

    @property
    def asks_within_call(self) -> bool:
        return self._context.asks_within_call

    async def ask(self, questions: Mapping[str, InputRequest]) -> Mapping[str, Json]:
        return await self._context.ask(questions)

    async def detach(self) -> None:
        await self._context.detach()


def _expire_if_due(deadline: CallDeadline, now: float) -> None:
    if deadline.due <= now:
        deadline.expire()
