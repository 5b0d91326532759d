"""A job that keeps failing is told of, now and then."""

from collections.abc import Callable
from typing import Any, Final

from ...core.config.cron import CronSettings
from ...core.jobs import JobFiring
from . import views
from .delivery import ResultDelivery, delivery_target
from .job_state import FiringResult

ALERT_AFTER: Final = 2  # failures in a row
ALERT_COOLDOWN_MS: Final = 3_600_000


class FailureAlerts:
    def __init__(
        self, delivery: ResultDelivery, *, settings: Callable[[], CronSettings], now: Callable[[], int]
    ) -> None:
        self._delivery, self._settings, self._now = delivery, settings, now

    async def send_alert(self, firing: JobFiring, result: FiringResult, *, main_session: str) -> FiringResult:
        """Tell somebody of a job that keeps failing, now and then."""
        spec, state, own = firing.job.spec, firing.job.state, firing.job.spec.failure_alert
        alert = None if isinstance(own, bool) else own
        wide = self._settings().failure_alert
        if own is False or (alert is None and wide is not None and not wide.enabled):
            return result
        rules: Any = alert or wide
        counted = result.status == "error" or (result.status == "skipped" and rules and rules.include_skipped)
        streak = (state.consecutive_errors or 0) + (state.consecutive_skipped or 0) + 1
        cooldown = rules.cooldown_ms if rules and rules.cooldown_ms is not None else ALERT_COOLDOWN_MS
        rested = self._now() - (state.last_failure_alert_at_ms or 0) >= cooldown
        if not counted or not rested or streak < ((rules and rules.after) or ALERT_AFTER):
            return result
        where: Any = alert if alert and alert.to else (spec.delivery and spec.delivery.failure_destination) or rules
        if where is None and (spec.delivery is None or spec.delivery.mode != "announce" or spec.delivery.best_effort):
            return result
        where = where or spec.delivery
        text = f"The job {spec.name!r} failed {streak} times in a row: {result.error}"
        if getattr(where, "mode", None) == "webhook" and where.to:
            body = views.finish_event(firing, result, self._now(), None) | {"alert": text}
            chosen = firing.job.origin is None or where is wide
            report = await self._delivery.post_webhook(where.to, body, key=f"{firing.run_id}:alert", by_operator=chosen)
        else:
            sessions = tuple(k for k in (spec.session_key, main_session) if k)
            key = f"{firing.run_id}:alert"
            report = await self._delivery.announce(
                delivery_target(where), text, key=key, sessions=sessions, mirror_session=None
            )
        told = {"delivered": bool(report.delivered), "status": report.status}
        return views.with_alert(result, told | ({"error": report.error} if report.error else {}))
