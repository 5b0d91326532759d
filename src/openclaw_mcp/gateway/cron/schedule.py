"""When a job is due. Pure: the caller gives the current time."""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from ...core.errors import BadRequest
from ...core.jobs import AtSchedule, CronSchedule, IntervalSchedule, Schedule, StreamSchedule

HOURLY_STAGGER_MS: Final = 5 * 60_000  # hourly jobs are spread over five minutes: not all models are asked at once
LATEST_AT_MS: Final = 10 * 366 * 86_400_000  # ten years: a later time is a typing error
PAST_GRACE_MS: Final = 60_000  # "now" may be a little past when the request arrives


def next_due(schedule: Schedule, after: int, *, job_id: str) -> int | None:
    """The first time later than `after`; None when there is none, or when the job is due by something else than time.

    Raises BadRequest for a schedule that makes no sense.
    """
    match schedule:
        case AtSchedule(at=at):
            due = parse_at(at)
            return due if due > after else None
        case IntervalSchedule(every_ms=span, anchor_ms=anchor):
            begin = anchor or 0
            return begin if after < begin else begin + ((after - begin) // span + 1) * span
        case CronSchedule():
            return _next_cron_due(schedule, after, job_id)
        case _:
            return None


def iterate_due(schedule: Schedule, after: int, *, job_id: str) -> Iterator[int]:
    """All due times after `after`, in order."""
    due = next_due(schedule, after, job_id=job_id)
    while due is not None:
        yield due
        due = next_due(schedule, due, job_id=job_id)


def is_recurring(schedule: Schedule) -> bool:
    return isinstance(schedule, IntervalSchedule | CronSchedule | StreamSchedule)


def _next_cron_due(schedule: CronSchedule, after: int, job_id: str) -> int | None:
    # Here for start-up: a gateway without such jobs needs neither the calendar nor the zones.
    from .expression import parse_expression

    read = parse_expression(schedule.expr, schedule.tz)
    window = schedule.stagger_ms
    if window is None:
        window = HOURLY_STAGGER_MS if read.is_on_the_hour else 0
    delay = _stagger_delay(job_id, window)
    found = read.next_after(datetime.fromtimestamp((after - delay) / 1000, UTC))
    return None if found is None else round(found.timestamp() * 1000) + delay


def _stagger_delay(job_id: str, window: int) -> int:
    """This job's own delay within the window: the same each time, different from other jobs'."""
    if not window:
        return 0
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:4], "big") % window


def parse_at(text: str) -> int:
    """Unix milliseconds. Raises BadRequest."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadRequest(f"Invalid schedule.at: expected ISO-8601 timestamp (got {text[:60]})") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def to_iso(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def validate_schedule(schedule: Schedule, now: int, *, job_id: str) -> Schedule:
    """The schedule with its defaults filled in. Raises BadRequest when it can never be due."""
    match schedule:
        case AtSchedule(at=at):
            due = parse_at(at)
            if due < now - PAST_GRACE_MS:
                ago = (now - due) // 60_000
                raise BadRequest(
                    f"schedule.at is in the past: {to_iso(due)} ({ago} minutes ago). Current time: {to_iso(now)}"
                )
            if due > now + LATEST_AT_MS:
                raise BadRequest(f"schedule.at is more than ten years away: {to_iso(due)}")
            return AtSchedule(at=to_iso(due))
        case IntervalSchedule(every_ms=span, anchor_ms=anchor):
            return IntervalSchedule(every_ms=span, anchor_ms=now if anchor is None else anchor)
        case CronSchedule():
            if next_due(schedule, now, job_id=job_id) is None:
                raise BadRequest(f"the expression {schedule.expr[:80]!r} is never due")
            return schedule
        case _:
            return schedule
