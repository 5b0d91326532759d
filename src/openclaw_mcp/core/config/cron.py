"""`cron` of openclaw.json, and durations as text."""

import logging
import re
from typing import Annotated, Final, Literal

from ..errors import BadRequest
from ..jobs import FailureAlert
from ..numbers import MAX_INT64, parse_whole_number
from .keys import ADDRESS, FREE, HISTORY, LIMIT, PERMISSIONS, PROGRAM, SECRET, Section, key

logger = logging.getLogger(__name__)

DURATION_PATTERN: Final = r"^\s*(\d+(\.\d+)?\s*(ms|s|m|h|d|w)?\s*)+$"
_UNIT_NAMES: Final = {
    1: "ms millisecond milliseconds",
    1000: "s sec secs second seconds",
    60_000: "m min mins minute minutes",
    3_600_000: "h hr hrs hour hours",
    86_400_000: "d day days",
    604_800_000: "w week weeks",
}
_UNITS: Final = {name: length for length, names in _UNIT_NAMES.items() for name in names.split()}
_SPAN: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([a-z]+)")
DAY_MS: Final = 86_400_000


class WebhookRules(Section, frozen=True):
    """Where webhooks may go."""

    allowed_hostnames: Annotated[
        tuple[str, ...], key("Hosts on this machine or its network that may be reached", ADDRESS)
    ] = ()
    blocked_hostnames: Annotated[tuple[str, ...], key("Hosts that may not be reached", ADDRESS)] = ()
    dangerously_allow_private_network: Annotated[bool, key("Every host on this machine or its network", ADDRESS)] = (
        False
    )


class RunLogRules(Section, frozen=True):
    """The log of runs."""

    keep_lines: Annotated[int, key("Runs kept of each job", HISTORY, ge=1, le=100_000)] = 2000  # OpenClaw's own limit


class TriggerRules(Section, frozen=True):
    """Jobs that programs make due."""

    enabled: Annotated[bool, key("Streams may be added and run", PROGRAM)] = True


class DefaultFailureAlert(FailureAlert, Section, frozen=True):
    """Alerts about jobs that keep failing."""

    enabled: Annotated[bool, key("At all", HISTORY)] = True
    after: Annotated[int, key("Failures in a row", HISTORY, ge=1)] = 2
    cooldown_ms: Annotated[int, key("Milliseconds between two of one job", HISTORY, ge=0)] = 3_600_000
    include_skipped: Annotated[bool, key("Skipped runs count too", HISTORY)] = False
    mode: Annotated[Literal["announce", "webhook"] | None, key("To a conversation, or to a URL", ADDRESS)] = None
    channel: Annotated[str, key("Channel, or last", ADDRESS, min_length=1)] | None = None
    to: Annotated[str, key("Conversation, or URL", ADDRESS, min_length=1)] | None = None
    account_id: Annotated[str, key("Account of the channel", ADDRESS, min_length=1)] | None = None


class CronSettings(Section, frozen=True):
    """Scheduled jobs."""

    enabled: Annotated[
        bool, key("false: nothing becomes due; jobs can still be changed and run by hand", PERMISSIONS)
    ] = True
    max_concurrent_runs: Annotated[int, key("Agents and commands at work at once", LIMIT, ge=1, le=256)] = 8
    skip_missed_jobs: Annotated[bool, key("After downtime recurring jobs wait for their next time", FREE)] = False
    session_retention: Annotated[
        Annotated[str, key("Duration", pattern=DURATION_PATTERN)] | bool,
        key("How long a run's own session is kept; a bare number is hours, false or 0h is for ever", HISTORY),
    ] = "24h"
    run_log: Annotated[RunLogRules, key(reload="hot")] = RunLogRules()
    webhook_token: Annotated[str, key("Bearer token of webhooks", SECRET, min_length=1)] | None = None
    webhook_ssrf_policy: Annotated[WebhookRules, key(reload="hot")] = WebhookRules()
    failure_alert: Annotated[DefaultFailureAlert | None, key(reload="hot")] = None
    triggers: Annotated[TriggerRules, key(reload="hot")] = TriggerRules()

    @property
    def retention_ms(self) -> int | None:
        """How long a run's own session is kept; None = for ever."""
        if isinstance(self.session_retention, bool):
            return DAY_MS if self.session_retention else None
        text = self.session_retention.strip()
        return parse_duration(f"{text}h" if parse_whole_number(text) is not None else text) or None


def check_cron_settings(settings: CronSettings) -> CronSettings:
    """The settings. The schema accepts a few durations that have no meaning ("1 2"): with one, the defaults apply."""
    try:
        _ = settings.retention_ms
    except BadRequest as exc:
        logger.warning("config: cron.sessionRetention is not understood (%s), the defaults of cron apply", exc)
        return CronSettings(enabled=settings.enabled)
    return settings


def parse_duration(text: str) -> int:
    """`90s`, `10m`, `1h30m`, `2d`, `10 minutes`; a bare number is milliseconds. Raises BadRequest."""
    text = text.strip().lower()
    number = parse_whole_number(text)
    if number is not None:
        return number
    parts = _SPAN.findall(text)
    is_whole = "".join(number + unit for number, unit in parts) == text.replace(" ", "")
    if not parts or not is_whole or not all(unit in _UNITS for _, unit in parts):
        raise BadRequest(f'{text[:40]!r} is no duration; write 90s, 10m, "10 minutes", 1h30m or 2d')
    return min(MAX_INT64, round(sum(float(number) * _UNITS[unit] for number, unit in parts)))
