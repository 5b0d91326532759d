"""Cron expressions in a time zone, through both changes of the clocks. Pure: no clock of its own.

An expression that names hours (`30 2 * * *`) follows the wall clock: a time the clocks skip fires the moment they have
moved, a time they repeat fires once. One that takes every hour (`*/15 * * * *`) follows elapsed time.
CronSim parses the expression and walks a calendar without zones; the effect of the zone is computed here.
"""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from ...core.errors import BadRequest
from ...core.numbers import parse_whole_number

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
FIRST_YEAR, LAST_YEAR = 1970, 2199
LONGEST_EXPRESSION: Final = 256  # characters; usual ones have twenty
SECOND: Final = timedelta(seconds=1)
EXAMPLE: Final = 'such as "0 9 * * 1-5", or six with seconds first, or seven with the year last'


class CronExpression:
    """Raises BadRequest that names the wrong field."""

    def __init__(self, expr: str, zone: ZoneInfo) -> None:
        self._zone = zone
        fields = NICKNAMES.get(expr.strip().lower(), expr)[:LONGEST_EXPRESSION].replace("?", "*").split()
        if len(fields) not in (5, 6, 7):
            raise BadRequest(f"{expr[:80]!r} has {len(fields)} fields; a cron expression has five, {EXAMPLE}")
        self._years = _parse_years(fields.pop()) if len(fields) == 7 else None
        if len(fields) == 5:
            fields.insert(0, "0")
        try:
            read = CronSim(" ".join(fields), datetime(2000, 1, 1))  # noqa: DTZ001  (a calendar without zones)
        except (CronSimError, ValueError, AssertionError) as exc:
            raise BadRequest(
                f"{expr[:80]!r} is no cron expression ({str(exc).lower()}); write five fields, {EXAMPLE}"
            ) from None
        self.is_every_hour = len(read.hours) == 24
        self.is_on_the_hour = read.minutes == {0} and read.seconds == {0} and "*" in fields[2]
        self._fields = " ".join(fields)

    def next_after(self, moment: datetime) -> datetime | None:
        """The first time later than `moment`, in UTC; None when there is none in fifty years."""
        moment = moment.astimezone(UTC)
        return self._next_by_elapsed_time(moment) if self.is_every_hour else self._next_by_wall_clock(moment)

    def _next_by_wall_clock(self, moment: datetime) -> datetime | None:
        local = moment.astimezone(self._zone).replace(tzinfo=None)
        for wall in self._calendar_times(local):
            found = self._to_instant(wall)
            if found > moment:  # else it was its first time already, before the clocks were turned back
                return found
        return None

    def _next_by_elapsed_time(self, moment: datetime) -> datetime | None:
        offset = self._offset(moment)
        while True:
            wall = next(self._calendar_times((moment + offset).replace(tzinfo=None)), None)
            if wall is None:
                return None
            found = wall.replace(tzinfo=UTC) - offset
            if self._offset(found) == offset:
                return found
            change = self._find_clock_change(moment, found)
            offset, moment = self._offset(change), change - SECOND

    def _calendar_times(self, after: datetime) -> Iterator[datetime]:
        walk = CronSim(self._fields, after)
        while True:
            try:
                wall = next(walk)
            except (StopIteration, RuntimeError, OverflowError, ValueError):
                return
            if self._years is None or wall.year in self._years:
                yield wall
                continue
            year = min((year for year in self._years if year > wall.year), default=None)
            if year is None:
                return
            walk = CronSim(self._fields, datetime(year, 1, 1) - SECOND)  # noqa: DTZ001  (as above)

    def _to_instant(self, wall: datetime) -> datetime:
        """A wall time as a moment: the first of two, or the end of the gap it falls into."""
        early = wall.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        if early.astimezone(self._zone).replace(tzinfo=None, fold=0) == wall:
            return early
        late = wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        return self._find_clock_change(min(early, late), max(early, late))

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self._zone).utcoffset() or timedelta(0)

    def _find_clock_change(self, before: datetime, after: datetime) -> datetime:
        """The second at which the clocks change, somewhere after `before` and not after `after`."""
        offset, low, high = self._offset(before), 0, int((after - before).total_seconds())
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._offset(before + middle * SECOND) == offset else (low, middle)
        return before + high * SECOND


def _parse_years(field: str) -> frozenset[int] | None:
    """`*`, `2027`, `2027,2029`, `2027-2030`, `2027/2`."""
    if field == "*":
        return None
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        first = str(FIRST_YEAR) if first == "*" else first
        last = last if dash else (str(LAST_YEAR) if step else first)
        begin, end, every = parse_whole_number(first), parse_whole_number(last), parse_whole_number(step or "1")
        if begin is None or end is None or not every:
            raise BadRequest(f"the year field {field!r} is wrong; write 2027, 2027-2030 or 2027,2029")
        if not FIRST_YEAR <= begin <= end <= LAST_YEAR:
            raise BadRequest(f"the year field {field!r} is wrong; years go from {FIRST_YEAR} to {LAST_YEAR}")
        found.update(range(begin, end + 1, every))
    return frozenset(found)


@lru_cache(maxsize=1024)
def parse_expression(expr: str, tz: str | None) -> CronExpression:
    return CronExpression(expr, find_zone(tz))


def find_zone(name: str | None) -> ZoneInfo:
    """Raises BadRequest for an unknown zone. None is this machine's own."""
    if not name:
        return host_zone()
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadRequest(f"there is no time zone {name[:60]!r}; give an IANA name such as Europe/Vienna") from None


@lru_cache(maxsize=1)
def host_zone() -> ZoneInfo:
    """$TZ, else what /etc/localtime points to, else UTC."""
    try:
        return ZoneInfo(os.environ["TZ"].lstrip(":"))
    except (KeyError, ZoneInfoNotFoundError, ValueError, OSError):
        pass
    try:
        return ZoneInfo(str(Path("/etc/localtime").resolve()).partition("zoneinfo/")[2])
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo("UTC")
