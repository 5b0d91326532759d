"""The config's `cron`: every key there is, is followed; any other is refused by name."""

from typing import Any

import msgspec
import pytest

from openclaw_mcp.config.schema import ConfigSchema
from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.core.config.cron import DAY_MS, CronSettings, parse_duration
from openclaw_mcp.core.errors import BadRequest

HOUR_MS = DAY_MS // 24


def names(kind: Any) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def test_what_the_schema_allows_is_what_the_clock_reads() -> None:
    cron = ConfigSchema().json_schema["properties"]["cron"]["properties"]
    assert set(cron) == names(CronSettings)
    for part in ("runLog", "webhookSsrfPolicy", "triggers"):
        field = next(field for field in msgspec.structs.fields(CronSettings) if field.encode_name == part)
        assert set(cron[part]["properties"]) == names(field.type), part


@pytest.mark.parametrize(
    ("section", "path", "words"),
    [
        ({"enable": False}, "cron", 'Unrecognized key: "enable"'),
        ({"runLog": {"maxBytes": 1}}, "cron.runLog", 'Unrecognized key: "maxBytes"'),
        ({"maxConcurrentRuns": 0}, "cron.maxConcurrentRuns", "minimum"),
        ({"sessionRetention": "a while"}, "cron.sessionRetention", ""),
        ({"failureAlert": {"after": 0}}, "cron.failureAlert.after", "minimum"),
        ({"triggers": {"enable": True}}, "cron.triggers", 'Unrecognized key: "enable"'),
    ],
)
def test_a_setting_that_is_not_followed_is_refused_by_name(section: Any, path: str, words: str) -> None:
    (issue,) = ConfigSchema().find_issues({"cron": section})
    assert issue["path"] == path
    assert words in issue["message"]


@pytest.mark.parametrize(
    ("retention", "milliseconds"),
    [("24h", DAY_MS), ("1h30m", HOUR_MS * 3 // 2), ("2", 2 * HOUR_MS), ("0h", None), (False, None), (True, DAY_MS)],
)
def test_a_session_is_kept_as_long_as_is_set(retention: str | bool, milliseconds: int | None) -> None:
    section = {"sessionRetention": retention}
    assert ConfigSchema().find_issues({"cron": section}) == []
    assert read_config({"cron": section}).cron.retention_ms == milliseconds


@pytest.mark.parametrize(
    "text", ["9" * 5000, "9" * 400 + "d", "9" * 16 + "s", "\u0663", "\u0663h", "1." + "9" * 400 + "h"]
)
def test_a_span_that_is_no_number_of_ours_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is no duration"):
        parse_duration(text)
