"""Alarms that are set often and almost never ring: a limit on each call costs the loop no timer of its own."""

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

Ring = Callable[[], None]


class Alarm:
    """Every alarm of one delay, on one loop. They fall due in the order they were set, so one timer serves all."""

    __slots__ = ("_delay", "_loop", "_set", "_timer")

    def __init__(self, delay: float, loop: asyncio.AbstractEventLoop) -> None:
        self._delay = delay
        self._loop = loop
        self._set: dict[object, tuple[float, Ring]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, key: object, ring: Ring) -> None:
        """Call `ring` after the delay, unless `key` is cleared before."""
        self._set[key] = (self._loop.time() + self._delay, ring)
        if self._timer is None:
            self._timer = self._loop.call_later(self._delay, self._look)

    def clear(self, key: object) -> None:
        self._set.pop(key, None)

    def _look(self) -> None:
        now = self._loop.time()
        due: list[object] = []
        self._timer = None
        for key, (at, _) in self._set.items():
            if at > now:
                self._timer = self._loop.call_later(at - now, self._look)
                break
            due.append(key)
        for ring in [self._set.pop(key)[1] for key in due]:
            ring()


_KEPT: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float, Alarm]]] = WeakKeyDictionary()
MOST_DELAYS: Final = 1024  # distinct delays kept ready; more get an alarm of their own


def alarm(delay: float) -> Alarm:
    """The running loop's alarm for `delay` seconds. Keep it where it is set often."""
    loop = asyncio.get_running_loop()
    kept = _KEPT.get(loop)
    if kept is None:
        kept = _KEPT[loop] = {}
    found = kept.get(delay)
    if found is None:
        found = Alarm(delay, loop)
        if len(kept) < MOST_DELAYS:
            kept[delay] = found
    return found
