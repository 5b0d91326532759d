"""The config's `cron` section, and how long things are in words."""

import logging
import re
from typing import Final

import msgspec
from msgspec import Struct

from ...core.errors import BadRequest
from ...core.jobs import FailureAlert
from ...core.model import Json
from ...core.numbers import MAX_INT64, parse_whole_number

logger = logging.getLogger(__name__)

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SPAN: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(ms|s|m|h|d|w)")
DAY_MS: Final = 86_400_000


class WebhookRules(Struct, frozen=True, kw_only=True, rename="camel"):
    allowed_hostnames: list[str] = []
    """Hosts a webhook may reach although they are on this machine or its network."""
    blocked_hostnames: list[str] = []
    """Hosts a webhook may not reach wherever they are."""
    dangerously_allow_private_network: bool = False


class RunLogRules(Struct, frozen=True, kw_only=True, rename="camel"):
    keep_lines: int = 2000
    """Runs kept of each job; the reference's own limit."""


class TriggerRules(Struct, frozen=True, kw_only=True):
    enabled: bool = True
    """Whether streams may go. Scripts, which this switches too in the reference, are not served here."""


class DefaultFailureAlert(FailureAlert, frozen=True, kw_only=True):
    enabled: bool = True


class CronSettings(Struct, frozen=True, kw_only=True, rename="camel"):
    enabled: bool = True
    max_concurrent_runs: int = 8
    """Agent turns and commands at once: each may hold a model or a process."""
    webhook_token: str | None = None
    webhook_ssrf_policy: WebhookRules = WebhookRules()
    session_retention: str | bool = "24h"
    run_log: RunLogRules = RunLogRules()
    skip_missed_jobs: bool = False
    failure_alert: DefaultFailureAlert | None = None
    triggers: TriggerRules = TriggerRules()

    @property
    def retention_ms(self) -> int | None:
        """How long a run's own session is kept; None = for good."""
        if isinstance(self.session_retention, bool):
            return DAY_MS if self.session_retention else None
        text = self.session_retention.strip()
        return parse_duration(f"{text}h" if parse_whole_number(text) is not None else text) or None


def parse_cron_settings(section: Json) -> CronSettings:
    """What can't be read is as if it were not there; the log says so."""
    try:
        read = msgspec.convert(section, CronSettings)
        _ = read.retention_ms
    except (msgspec.ValidationError, BadRequest) as exc:
        logger.error("the config's cron section is not understood, its defaults are used: %s", exc)  # noqa: TRY400  (the sentence is all there is)
        return CronSettings(enabled=section.get("enabled") is not False)
    return read


def parse_duration(text: str) -> int:
    """`90s`, `10m`, `1h30m`, `2d`; a bare number is milliseconds. Raises BadRequest."""
    text = text.strip().lower()
    number = parse_whole_number(text)
    if number is not None:
        return number
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.replace(" ", ""):
        raise BadRequest(f"{text[:40]!r} is no duration; write 90s, 10m, 1h30m or 2d")
    return min(MAX_INT64, round(sum(float(number) * _UNITS[unit] for number, unit in parts)))
