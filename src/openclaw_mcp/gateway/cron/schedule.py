"""When a job is due. Pure: whoever asks says what time it is."""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from ...core.errors import BadRequest
from ...core.jobs import At, Cron, Every, Schedule, Stream

HOURLY_STAGGER_MS: Final = 5 * 60_000  # jobs of every full hour spread over five minutes: not all models at once
LATEST_AT_MS: Final = 10 * 366 * 86_400_000  # ten years: a time beyond that is a slip of the pen
PAST_GRACE_MS: Final = 60_000  # what was "now" when it was written may be a little past when it arrives


def next_due(schedule: Schedule, after: int, *, job_id: str) -> int | None:
    """The first time later than `after`; None when there is none, or when it is not time that makes the job due.

    Raises BadRequest for a schedule that makes no sense.
    """
    match schedule:
        case At(at=at):
            due = at_ms(at)
            return due if due > after else None
        case Every(every_ms=span, anchor_ms=anchor):
            begin = anchor or 0
            return begin if after < begin else begin + ((after - begin) // span + 1) * span
        case Cron():
            return _cron(schedule, after, job_id)
        case _:
            return None


def upcoming(schedule: Schedule, after: int, *, job_id: str) -> Iterator[int]:
    """One after another, for as long as there are any."""
    due = next_due(schedule, after, job_id=job_id)
    while due is not None:
        yield due
        due = next_due(schedule, due, job_id=job_id)


def recurring(schedule: Schedule) -> bool:
    return isinstance(schedule, Every | Cron | Stream)


def _cron(schedule: Cron, after: int, job_id: str) -> int | None:
    # Here for start-up: a gateway without such jobs needs neither the calendar nor the zones.
    from .expression import expression

    read = expression(schedule.expr, schedule.tz)
    window = schedule.stagger_ms
    if window is None:
        window = HOURLY_STAGGER_MS if read.on_the_hour else 0
    delay = _share(job_id, window)
    found = read.after(datetime.fromtimestamp((after - delay) / 1000, UTC))
    return None if found is None else round(found.timestamp() * 1000) + delay


def _share(job_id: str, window: int) -> int:
    """This job's own delay within the window: always the same, unlike any other's."""
    if not window:
        return 0
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:4], "big") % window


def at_ms(text: str) -> int:
    """Raises BadRequest for what is no time."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadRequest(f"Invalid schedule.at: expected ISO-8601 timestamp (got {text[:60]})") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def iso(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def checked(schedule: Schedule, now: int, *, job_id: str) -> Schedule:
    """The schedule with what it left open filled in. Raises BadRequest when it can never come true."""
    match schedule:
        case At(at=at):
            due = at_ms(at)
            if due < now - PAST_GRACE_MS:
                ago = (now - due) // 60_000
                raise BadRequest(
                    f"schedule.at is in the past: {iso(due)} ({ago} minutes ago). Current time: {iso(now)}"
                )
            if due > now + LATEST_AT_MS:
                raise BadRequest(f"schedule.at is more than ten years away: {iso(due)}")
            return At(at=iso(due))
        case Every(every_ms=span, anchor_ms=anchor):
            return Every(every_ms=span, anchor_ms=now if anchor is None else anchor)
        case Cron():
            if next_due(schedule, now, job_id=job_id) is None:
                raise BadRequest(f"the expression {schedule.expr[:80]!r} never comes true")
            return schedule
        case _:
            return schedule
