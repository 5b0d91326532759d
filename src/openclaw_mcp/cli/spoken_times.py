"""Times as people say them: `18:00`, `tomorrow 9am`, `friday at noon`, `in 20 minutes`, `2027-01-31T09:00`."""

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from ..core.config.cron import parse_duration
from ..core.errors import BadRequest
from ..core.numbers import parse_whole_number
from ..gateway.cron.expression import find_zone

WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
EXAMPLES: Final = 'write 18:00, "tomorrow 9am", 2027-01-31T09:00, or a duration from now such as 20m'
_CLOCK: Final = re.compile(r"(?P<hour>[0-9]{1,2})(:(?P<minute>[0-9]{2})(:(?P<second>[0-9]{2}))?)?\s*(?P<half>am|pm)?")
_NAMED_TIMES: Final = {"noon": time(12), "midday": time(12), "midnight": time(0)}


def parse_moment(text: str, tz: str | None, now: datetime) -> datetime:
    """The moment that is meant, in the zone `tz`, else this machine's; a date and time in ISO 8601 without a zone is
    UTC unless `tz` is given, as gateways have it. Raises BadRequest."""
    moment = _parse(text, tz, now)
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise BadRequest(f"--at {text[:60]!r} is no time that can be reached; {EXAMPLES}") from None
    return moment


def _parse(text: str, tz: str | None, now: datetime) -> datetime:
    said = " ".join(text.lower().split())
    zone = find_zone(tz)
    try:
        moment = datetime.fromisoformat(text.strip())
        if not re.fullmatch(r"[0-9-]+", said):  # a date alone has no time
            return moment if moment.tzinfo else moment.replace(tzinfo=zone if tz else UTC)
    except ValueError:
        pass
    try:
        if parse_whole_number(said) is not None:
            raise BadRequest("a bare number may be an hour or a duration")
        return now.astimezone(zone) + timedelta(milliseconds=parse_duration(said.removeprefix("in ")))
    except (BadRequest, OverflowError):
        pass
    return _find_moment(text, said, now.astimezone(zone))


def _find_moment(text: str, said: str, now: datetime) -> datetime:
    day_word, clock = _split_day(said)
    at = _parse_clock(clock)
    if at is None:
        missing = f"; it has no time of day: {EXAMPLES}" if day_word and not clock else f"; {EXAMPLES}"
        raise BadRequest(f"--at {text[:60]!r} is no time{missing}")
    if day_word is None or day_word in WEEKDAYS:
        ahead = 0 if day_word is None else (WEEKDAYS.index(day_word) - now.weekday()) % 7
        found = datetime.combine(now.date() + timedelta(days=ahead), at, now.tzinfo)
        return found if found > now else found + timedelta(days=1 if day_word is None else 7)
    days = {"today": now.date(), "tonight": now.date(), "tomorrow": now.date() + timedelta(days=1)}
    found = datetime.combine(days.get(day_word) or date.fromisoformat(day_word), at, now.tzinfo)
    if found <= now:
        raise BadRequest(f"--at {text[:60]!r} is past; it was {found:%Y-%m-%d %H:%M %Z}")
    return found


def _split_day(said: str) -> tuple[str | None, str]:
    """The day, and what remains: the time of day."""
    words = [word for word in said.replace(",", " ").split() if word not in ("at", "on", "next", "this")]
    for word in words:
        day = next((name for name in WEEKDAYS if len(word) >= 3 and name.startswith(word)), word)
        if day in (*WEEKDAYS, "today", "tonight", "tomorrow") or _is_date(day):
            words.remove(word)
            return day, " ".join(words)
    return None, " ".join(words)


def _is_date(word: str) -> bool:
    try:
        date.fromisoformat(word)
    except ValueError:
        return False
    return "-" in word


def _parse_clock(text: str) -> time | None:
    """`18:00`, `9am`, `9:30 pm`, `noon`; None for anything else. A bare number is no time."""
    found = _CLOCK.fullmatch(text)
    if text in _NAMED_TIMES or found is None or (found["minute"] is None and found["half"] is None):
        return _NAMED_TIMES.get(text)
    hour = int(found["hour"])
    if found["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if found["half"] == "pm" else 0)
    try:
        return time(hour, int(found["minute"] or 0), int(found["second"] or 0))
    except ValueError:
        return None
