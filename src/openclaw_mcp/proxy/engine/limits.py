"""What one bridge, one peer and all sessions may take: sizes, counts, and rates as token buckets."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from ...core.errors import BadRequest

MAX_BUCKETS: Final = 100_000  # buckets kept; the oldest are dropped first, they are full again
MAX_BYTES: Final = 128 << 20  # of registrations kept at once; parsed they take several times as much memory
UNCLAIMED_TIMEOUT: Final = 10.0  # seconds after which a session without an app is evicted where there is no room
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_RATE = re.compile(r"([0-9]{1,15})/([smh])(?::([0-9]{1,15}))?")


class BridgeLimits(Struct, frozen=True, kw_only=True):
    calls: int = 2048
    """Calls waiting on one bridge."""
    result: int = 16 << 20
    """Characters of one frame from the app."""
    ping: float = 20.0
    """Seconds of silence before a ping, and from there to giving up."""
    unsent: int = 32 << 20
    """Bytes waiting for an app that reads slowly: more calls are refused, and twice as many end the bridge."""


class SessionLimits(Struct, frozen=True):
    """What there is room for. An engine in Redis has the same numbers."""

    sessions: int
    sessions_per_peer: int
    bytes: int = MAX_BYTES
    bytes_per_peer: int = MAX_BYTES
    unclaimed_timeout: float = UNCLAIMED_TIMEOUT
    """Seconds after which a session without an app is evicted where there is no room."""


class Rate(Struct, frozen=True):
    per_second: float
    burst: float
    """How many may come at once after a pause."""


class RateBucket(Struct, frozen=True):
    name: str
    rate: Rate


def parse_rate(text: str) -> Rate | None:
    """`100/s`, `600/m`, `5/h`, with a burst `100/s:500`; empty or `off` is no limit. Raises BadRequest."""
    if text in ("", "off"):
        return None
    found = _RATE.fullmatch(text)
    if found is None or int(found[1]) == 0 or found[3] == "0":
        raise BadRequest(f"{text!r} is no rate; write 100/s, 600/m or 100/s:500 for a burst of 500")
    return Rate(int(found[1]) / _SECONDS[found[2]], float(found[3] or found[1]))


class RequestRateLimiter:
    """Token buckets in this process's memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._levels: dict[str, tuple[float, float]] = {}

    def take_tokens(self, buckets: Sequence[RateBucket]) -> float:
        """Take one token from each bucket, or none at all: 0, or the seconds until there is one in each."""
        now = self._clock()
        levels = []
        wait = 0.0
        for bucket in buckets:
            level, at = self._levels.get(bucket.name, (bucket.rate.burst, now))
            level = min(bucket.rate.burst, level + (now - at) * bucket.rate.per_second)
            levels.append(level)
            wait = max(wait, (1 - level) / bucket.rate.per_second)
        if wait > 0:
            return wait
        for bucket, level in zip(buckets, levels, strict=True):
            self._levels[bucket.name] = (level - 1, now)
        if len(self._levels) > MAX_BUCKETS:
            self._prune(now)
        return 0.0

    def _prune(self, now: float) -> None:
        """Drop the oldest half: at these sizes they have long filled up again."""
        oldest = sorted(self._levels, key=lambda name: self._levels[name][1])
        for name in oldest[: len(oldest) // 2]:
            del self._levels[name]
