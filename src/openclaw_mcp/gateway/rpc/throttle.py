"""Limits by address: failed logins, and calls a minute. Pure: the caller gives the time."""

from collections import deque
from typing import Final

from ...net.peers import is_loopback

MAX_FAILURES: Final = 10  # wrong credentials within WINDOW before an address is locked out
WINDOW_SECONDS: Final = 60.0
LOCKOUT_SECONDS: Final = 300.0
MAX_ADDRESSES: Final = 10_000  # kept at once; the oldest is dropped first, so that memory stays bounded


class LoginThrottle:
    """Failed logins by address. This machine's own addresses are never locked out: its owner must get back in."""

    def __init__(self) -> None:
        self._failures: dict[str, deque[float]] = {}
        self._locked: dict[str, float] = {}

    def retry_after(self, address: str, now: float) -> float:
        """Seconds until this address may try again; 0 = now."""
        until = self._locked.get(address)
        if until is None:
            return 0.0
        if now >= until:
            del self._locked[address]
            return 0.0
        return until - now

    def record_failure(self, address: str, now: float) -> None:
        if is_loopback(address):
            return
        failures = self._failures.pop(address, None) or deque(maxlen=MAX_FAILURES)
        failures.append(now)
        self._failures[address] = failures  # last in order: the longest silent is dropped first
        while len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        if len(failures) == MAX_FAILURES and now - failures[0] <= WINDOW_SECONDS:
            self._locked[address] = now + LOCKOUT_SECONDS
            while len(self._locked) > MAX_ADDRESSES:
                del self._locked[next(iter(self._locked))]

    def record_success(self, address: str) -> None:
        self._failures.pop(address, None)


class RateLimiter:
    """A limit of calls a minute for each key; for writes to the control plane."""

    def __init__(self) -> None:
        self._calls: dict[object, deque[float]] = {}

    def take(self, key: object, limit: int, now: float) -> float:
        """0 when the call may be made, and it is counted; else the seconds until one may."""
        calls = self._calls.pop(key, None) or deque()
        while calls and now - calls[0] >= WINDOW_SECONDS:
            calls.popleft()
        self._calls[key] = calls
        while len(self._calls) > MAX_ADDRESSES:
            del self._calls[next(iter(self._calls))]
        if len(calls) >= limit:
            return WINDOW_SECONDS - (now - calls[0])
        calls.append(now)
        return 0.0
