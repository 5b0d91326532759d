"""Times as people say them, heard on a Wednesday at half past three in Vienna."""

from datetime import UTC, datetime

import pytest

from openclaw_mcp.cli.spoken_times import parse_moment
from openclaw_mcp.core.config.cron import parse_duration
from openclaw_mcp.core.errors import BadRequest

NOW = datetime(2026, 11, 18, 14, 30, tzinfo=UTC)


def heard(text: str, tz: str | None = "Europe/Vienna") -> str:
    return parse_moment(text, tz, NOW).isoformat()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("18:00", "2026-11-18T18:00:00+01:00"),
        ("9:30", "2026-11-19T09:30:00+01:00"),
        ("6pm", "2026-11-18T18:00:00+01:00"),
        ("12 am", "2026-11-19T00:00:00+01:00"),
        ("12:15 pm", "2026-11-19T12:15:00+01:00"),
        ("Tomorrow 9am", "2026-11-19T09:00:00+01:00"),
        ("9am tomorrow", "2026-11-19T09:00:00+01:00"),
        ("tomorrow at noon", "2026-11-19T12:00:00+01:00"),
        ("tonight 21:00", "2026-11-18T21:00:00+01:00"),
        ("friday 18:00", "2026-11-20T18:00:00+01:00"),
        ("wed 9:00", "2026-11-25T09:00:00+01:00"),
        ("wed 16:00", "2026-11-18T16:00:00+01:00"),
        ("next monday at 8:05:30", "2026-11-23T08:05:30+01:00"),
        ("2027-06-30 18:00", "2027-06-30T18:00:00+02:00"),
        ("2027-06-30 6pm", "2027-06-30T18:00:00+02:00"),
        ("2027-01-31T09:00", "2027-01-31T09:00:00+01:00"),
        ("2027-01-31T09:00Z", "2027-01-31T09:00:00+00:00"),
        ("20m", "2026-11-18T15:50:00+01:00"),
        ("in 1 hour 30 minutes", "2026-11-18T17:00:00+01:00"),
    ],
)
def test_what_is_meant(text: str, meant: str) -> None:
    assert heard(text) == meant


def test_a_whole_timestamp_without_a_zone_is_utc_as_gateways_have_it() -> None:
    assert heard("2027-01-31T09:00", None) == "2027-01-31T09:00:00+00:00"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tomorrow", "it has no time of day"),
        ("2027-01-31", "it has no time of day"),
        ("today 9am", "is past; it was 2026-11-18 09:00 CET"),
        ("25:00", "is no time"),
        ("13pm", "is no time"),
        ("9", "is no time"),
        ("tomorrow morning", "is no time"),
        ("friday saturday 9am", "is no time"),
        ("", "is no time"),
    ],
)
def test_what_is_no_time_is_said_so(text: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        heard(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("10 minutes", 600_000),
        ("1 hour", 3_600_000),
        ("2 days 3 hrs", 183_600_000),
        ("1h30m", 5_400_000),
        ("90s", 90_000),
    ],
)
def test_a_duration_in_words(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["ten minutes", "10 minutos", "10 mi", "minutes", "1 hour soon"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is no duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9999-12-31T23:59-14:00", "0001-01-01T00:00+14:00", "9999-12-31 11pm"])
def test_a_moment_beyond_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is no time that can be reached"):
        heard(text, "America/Lima")
