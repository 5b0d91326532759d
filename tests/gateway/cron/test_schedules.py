"""A year of schedules against an oracle that knows no calendar: every minute of the year, looked at one by one."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_mcp.core.errors import BadRequest
from openclaw_mcp.core.jobs import AtSchedule, CronSchedule, IntervalSchedule, OnExitSchedule, Schedule, StreamSchedule
from openclaw_mcp.gateway.cron.schedule import is_recurring, iterate_due, next_due, parse_at, to_iso, validate_schedule
from tests.effort import often

YEAR = 2028  # a leap year
ZONES = ("Europe/Vienna", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Kolkata")
"""Both hemispheres, a shift of half an hour, one at midnight, and none at all."""

EXPRESSIONS: dict[str, "Fields"] = {
    # expression: minutes, hours, days, months, weekdays (Sunday 0)
    "30 2 * * *": ({30}, {2}, None, None, None),
    "0 9 * * 1-5": ({0}, {9}, None, None, {1, 2, 3, 4, 5}),
    "15,45 1-3 * * *": ({15, 45}, {1, 2, 3}, None, None, None),
    "*/20 2 * * *": ({0, 20, 40}, {2}, None, None, None),
    "0 */2 * * *": ({0}, set(range(0, 24, 2)), None, None, None),
    "0 0 * * *": ({0}, {0}, None, None, None),
    "59 23 31 * *": ({59}, {23}, {31}, None, None),
    "0 12 29 2 *": ({0}, {12}, {29}, {2}, None),
    "30 * * * *": ({30}, None, None, None, None),
    "*/15 * 1-14,25-31 3,4,9-11 *": ({0, 15, 30, 45}, None, {*range(1, 15), *range(25, 32)}, {3, 4, 9, 10, 11}, None),
    "7 0-23 * 3,10 *": ({7}, None, None, {3, 10}, None),
}
Fields = tuple[set[int] | None, set[int] | None, set[int] | None, set[int] | None, set[int] | None]
Minute = tuple[int, int, int, int, int, int]
"""When it is in UTC, then minute, hour, day, month and weekday as the clocks in the zone show them."""
MINUTE = timedelta(minutes=1)


class Almanac:
    """Every minute of the year, and where the clocks jump."""

    def __init__(self, zone: str) -> None:
        info, moment = ZoneInfo(zone), datetime(YEAR, 1, 1, tzinfo=UTC)
        end, before = datetime(YEAR + 1, 1, 1, tzinfo=UTC), moment.astimezone(info).replace(tzinfo=None) - MINUTE
        self.minutes: list[Minute] = []
        self.skipped: list[Minute] = []
        """Minutes no clock ever showed, with the moment the clocks had passed them."""
        self.again: set[int] = set()
        """Moments that show what was shown an hour, or half of one, before."""
        latest = before
        while moment < end:
            wall, at = moment.astimezone(info).replace(tzinfo=None), round(moment.timestamp() * 1000)
            while (before := before + MINUTE) < wall:
                self.skipped.append(minute_of(at, before))
            if wall <= latest:
                self.again.add(at)
            self.minutes.append(minute_of(at, wall))
            before, latest, moment = wall, max(latest, wall), moment + MINUTE

    def expected(self, fields: Fields) -> list[int]:
        due = chosen(self.minutes, fields)
        if fields[1] is None:
            return due
        return sorted({at for at in due if at not in self.again} | set(chosen(self.skipped, fields)))


def minute_of(at: int, wall: datetime) -> Minute:
    return at, wall.minute, wall.hour, wall.day, wall.month, wall.isoweekday() % 7


def chosen(rows: list[Minute], fields: Fields) -> list[int]:
    minutes, hours, days, months, weekdays = fields
    assert minutes is not None
    return [
        at
        for at, minute, hour, day, month, weekday in rows
        if minute in minutes
        and (hours is None or hour in hours)
        and (days is None or day in days)
        and (months is None or month in months)
        and (weekdays is None or weekday in weekdays)
    ]


@pytest.mark.parametrize("zone", ZONES)
def test_a_year_of_every_schedule_fires_when_it_should_and_never_twice(zone: str) -> None:
    begin, end = parse_at(f"{YEAR}-01-01T00:00:00Z") - 1, parse_at(f"{YEAR + 1}-01-01T00:00:00Z")
    almanac = Almanac(zone)
    for expr, fields in EXPRESSIONS.items():
        found = []
        for due in iterate_due(CronSchedule(expr=expr, tz=zone, stagger_ms=0), begin, job_id="j"):
            if due >= end:
                break
            found.append(due)
        assert found == almanac.expected(fields), (expr, zone)
        assert len(set(found)) == len(found)


def wall(expr: str, zone: str, after: str, n: int, **more: int) -> list[str]:
    times = iterate_due(CronSchedule(expr=expr, tz=zone, **more), parse_at(after), job_id="j")
    return [datetime.fromtimestamp(next(times) / 1000, ZoneInfo(zone)).isoformat() for _ in range(n)]


def test_a_time_the_clocks_skip_fires_when_they_have_moved_and_a_repeated_one_once() -> None:
    assert wall("30 2 * * *", "Europe/Vienna", "2027-03-27T12:00:00Z", 2) == [
        "2027-03-28T03:00:00+02:00",
        "2027-03-29T02:30:00+02:00",
    ]
    assert wall("30 2 * * *", "Europe/Vienna", "2027-10-30T12:00:00Z", 2) == [
        "2027-10-31T02:30:00+02:00",
        "2027-11-01T02:30:00+01:00",
    ]
    # Asked within the repeated hour: its first time is past, and there is no second.
    assert wall("30 2 * * *", "Europe/Vienna", "2027-10-31T01:10:00Z", 1) == ["2027-11-01T02:30:00+01:00"]


def test_seconds_come_first_and_years_last() -> None:
    assert wall("15 30 2 * * *", "Europe/Vienna", "2027-10-30T12:00:00Z", 2) == [
        "2027-10-31T02:30:15+02:00",
        "2027-11-01T02:30:15+01:00",
    ]
    assert wall("0 0 12 29 2 * 2028-2040/8", "UTC", "2027-01-01T00:00:00Z", 2) == [
        "2028-02-29T12:00:00+00:00",
        "2036-02-29T12:00:00+00:00",
    ]
    assert wall("@monthly", "UTC", "2027-01-01T00:00:00Z", 1) == ["2027-02-01T00:00:00+00:00"]
    assert wall("0 9 ? * MON#1", "UTC", "2027-01-01T00:00:00Z", 1) == ["2027-01-04T09:00:00+00:00"]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (CronSchedule(expr="99 * * * *"), "bad minute"),
        (CronSchedule(expr="* * *"), "has 3 fields"),
        (CronSchedule(expr="0 0 30 2 *"), "bad day-of-month"),
        (CronSchedule(expr="0 9 * * *", tz="Mars/Olympus"), "there is no time zone 'Mars/Olympus'"),
        (CronSchedule(expr="0 9 * * *", tz="../../etc/passwd"), "there is no time zone"),
        (CronSchedule(expr="0 0 0 1 1 * 1999"), "is never due"),
        (CronSchedule(expr="0 0 0 1 1 * 20x"), "the year field"),
        (AtSchedule(at="soon"), "expected ISO-8601"),
        (AtSchedule(at="2020-01-01T00:00:00Z"), "is in the past: 2020-01-01T00:00:00.000Z"),
        (AtSchedule(at="2220-01-01T00:00:00Z"), "more than ten years away"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_with_the_reason(
    schedule: AtSchedule | CronSchedule, words: str
) -> None:
    with pytest.raises(BadRequest, match=words):
        validate_schedule(schedule, parse_at("2027-01-01T00:00:00Z"), job_id="j")


def test_a_time_without_a_zone_is_utc() -> None:
    assert validate_schedule(AtSchedule(at="2027-05-01 09:00"), parse_at("2027-01-01"), job_id="j") == AtSchedule(
        at="2027-05-01T09:00:00.000Z"
    )
    assert to_iso(parse_at("2027-05-01T09:00:00.250+02:00")) == "2027-05-01T07:00:00.250Z"


def test_jobs_of_the_full_hour_are_spread_and_each_keeps_its_place() -> None:
    hour = parse_at("2027-01-01T10:00:00Z")

    def delays(expr: str, **more: int) -> set[int]:
        schedule = CronSchedule(expr=expr, tz="UTC", **more)
        return {(next_due(schedule, hour - 1, job_id=f"job {n}") or 0) - hour for n in range(50)}

    spread = delays("0 * * * *")
    assert len(spread) > 40
    assert spread == delays("0 * * * *")
    assert all(0 <= delay < 300_000 for delay in spread)
    assert delays("0 * * * *", stagger_ms=0) == {0}
    assert delays("0 10 * * *") == {0}
    assert max(delays("0 10 * * *", stagger_ms=1000)) < 1000
    assert delays("0 10 * * *", stagger_ms=1) == {0}


@pytest.mark.parametrize(
    ("job", "stagger", "delay"),
    [("a", None, 226_610), ("b", None, 40_566), ("job 1", None, 158_983), ("a", 1000, 610), ("b", 1000, 566)],
)
def test_another_version_leaves_a_job_in_its_place(job: str, stagger: int | None, delay: int) -> None:
    hour = parse_at("2027-01-01T10:00:00Z")
    assert next_due(CronSchedule(expr="0 * * * *", tz="UTC", stagger_ms=stagger), hour, job_id=job) == hour + delay


@pytest.mark.parametrize(
    ("away", "words"),
    [
        (-60_001, r"is in the past: 2026-12-31T23:58:59.999Z \(1 minutes ago\)"),
        (-180_000, r"\(3 minutes ago\). Current time: 2027-01-01T00:00:00.000Z"),
        (-60_000, None),
        (0, None),
        (316_224_000_000, None),
        (316_224_000_001, "more than ten years away"),
    ],
)
def test_a_time_is_neither_past_nor_too_far_away(away: int, words: str | None) -> None:
    now = parse_at("2027-01-01")
    wanted = AtSchedule(at=to_iso(now + away))
    if words is None:
        assert validate_schedule(wanted, now, job_id="j") == wanted
    else:
        with pytest.raises(BadRequest, match=words):
            validate_schedule(wanted, now, job_id="j")


@pytest.mark.parametrize(
    ("schedule", "after", "due"),
    [
        (AtSchedule(at="1970-01-01T00:00:05Z"), 4999, 5000),
        (AtSchedule(at="1970-01-01T00:00:05Z"), 5000, None),
        (AtSchedule(at="1970-01-01T00:00:05Z"), 5001, None),
        (IntervalSchedule(every_ms=10, anchor_ms=100), 99, 100),
        (IntervalSchedule(every_ms=10, anchor_ms=100), 100, 110),
        (IntervalSchedule(every_ms=10, anchor_ms=100), 109, 110),
        (IntervalSchedule(every_ms=10, anchor_ms=100), 110, 120),
        (IntervalSchedule(every_ms=10), 0, 10),
        (IntervalSchedule(every_ms=10), 15, 20),
        (CronSchedule(expr="* * * * *", tz="UTC"), 59_999, 60_000),
        (CronSchedule(expr="* * * * *", tz="UTC"), 60_000, 120_000),
        (OnExitSchedule(command="true"), 0, None),
        (StreamSchedule(command=["true"]), 0, None),
    ],
)
def test_due_is_the_first_time_later_than_asked(schedule: Schedule, after: int, due: int | None) -> None:
    assert next_due(schedule, after, job_id="j") == due


@pytest.mark.parametrize(
    ("schedule", "expected", "again"),
    [
        (AtSchedule(at=" 2027-05-01 09:00 "), AtSchedule(at="2027-05-01T09:00:00.000Z"), False),
        (IntervalSchedule(every_ms=10), IntervalSchedule(every_ms=10, anchor_ms=1_798_761_600_000), True),
        (IntervalSchedule(every_ms=10, anchor_ms=0), IntervalSchedule(every_ms=10, anchor_ms=0), True),
        (CronSchedule(expr="0 9 * * *"), CronSchedule(expr="0 9 * * *"), True),
        (OnExitSchedule(command="true"), OnExitSchedule(command="true"), False),
        (StreamSchedule(command=["true"]), StreamSchedule(command=["true"]), True),
    ],
)
def test_what_a_schedule_leaves_open_is_filled_in(schedule: Schedule, expected: Schedule, again: bool) -> None:
    assert validate_schedule(schedule, parse_at("2027-01-01"), job_id="j") == expected
    assert is_recurring(expected) is again


@given(anchor=st.integers(0, 10**13), span=st.integers(1, 10**10), after=st.integers(0, 2 * 10**13))
@settings(max_examples=often(100, 1000))
def test_every_keeps_its_beat_whenever_it_is_asked(anchor: int, span: int, after: int) -> None:
    due = next_due(IntervalSchedule(every_ms=span, anchor_ms=anchor), after, job_id="j")
    assert due is not None
    assert due > after or due == anchor > after
    assert (due - anchor) % span == 0
    assert due - after <= span or due == anchor
