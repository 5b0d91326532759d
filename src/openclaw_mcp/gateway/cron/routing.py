"""Where the results and failure alerts of a job go, and sending them there."""

import contextlib
from collections.abc import Callable
from typing import Final

from msgspec import structs

from ...core.channel import ChatAddress
from ...core.config.cron import CronSettings
from ...core.jobs import CronJob, FailureAlert, JobDelivery, JobFiring, QueuedEvent, SystemEventPayload
from . import views
from .delivery import DeliveryTarget, Destination, NoRoute, ResultDelivery, delivery_target
from .results import AlertOutcome, DeliveryDetail, DeliveryPlace, DeliveryReport, FiringResult, suppression_reason
from .session_targets import SessionTargets

ALERT_AFTER: Final = 2  # failures in a row
ALERT_COOLDOWN_MS: Final = 3_600_000


class ResultRouter:
    def __init__(
        self,
        delivery: ResultDelivery,
        *,
        targets: Callable[[], SessionTargets],
        settings: Callable[[], CronSettings],
        now: Callable[[], int],
    ) -> None:
        self._delivery, self._targets, self._settings, self._now = delivery, targets, settings, now

    # ---- results -------------------------------------------------------------------------------------------------

    async def deliver(self, firing: JobFiring, result: FiringResult) -> tuple[FiringResult, QueuedEvent | None]:
        """The result with what became of its delivery, and an event for the main session when it did not arrive."""
        delivery = firing.job.spec.delivery
        if delivery is None:
            return result, None
        if delivery.mode == "none":
            detail = DeliveryDetail(intended=DeliveryPlace(source="explicit"))
            return structs.replace(result, delivery=detail), None
        if result.status == "error" and delivery.mode == "announce":
            return result.with_report(DeliveryReport(status="unknown", error=result.error)), None
        reason = None if result.status == "error" else suppression_reason(result.summary)
        if reason is not None:
            report = DeliveryReport(status="not-delivered", delivered=False)
            return result.with_report(report, suppressed=reason), None
        event, best_effort = None, bool(delivery.best_effort)
        if delivery.mode == "webhook":
            report = await self._post(delivery.to or "", firing, result)
            return result.apply_report(report, best_effort=best_effort), None
        report = await self._announce(firing, result)
        if delivery.completion_destination is not None:
            await self._post(delivery.completion_destination.to, firing, result)
        if report.status == "not-delivered":
            # The result is not lost: the main session's agent learns of it and can read it. The event is read as the
            # owner's text, so it holds neither the run's answer nor the job's name.
            text = f"A job could not deliver its result. The tool cron shows it: action runs, jobId {firing.job.id}."
            session = self._targets().main_session(firing.job)
            event = QueuedEvent(session=session, text=text, at=self._now(), key=firing.run_id, owner=True)
        return result.apply_report(report, best_effort=best_effort), event

    async def _post(self, url: str, firing: JobFiring, result: FiringResult) -> DeliveryReport:
        body = views.log_entry(firing, result, self._now())
        return await self._delivery.post_webhook(url, body, key=firing.run_id, by_operator=firing.job.origin is None)

    async def _announce(self, firing: JobFiring, result: FiringResult) -> DeliveryReport:
        job = firing.job
        target, sessions = self._announce_target(job, result.session_key)
        in_session = job.spec.session_target not in ("isolated", "main")
        if in_session and not target.is_explicit and await self._delivery.find_address(sessions[0]) is None:
            return DeliveryReport(status="delivered", delivered=True)  # the session it was meant for has it already
        return await self._delivery.announce(
            target, result.summary or "", key=firing.run_id, sessions=sessions,
            mirror_session=self._targets().main_session(job), run=result.run,
        )  # fmt: skip

    async def announce_reply(self, firing: JobFiring, key: str, result: FiringResult) -> None:
        """Send what the main session's agent answered to an event, if there is a channel to send it by."""
        if result.status != "ok" or suppression_reason(result.summary) is not None or not self._delivery.has_channels:
            return
        target, sessions = self._announce_target(firing.job, key)
        await self._delivery.announce(
            target, result.summary or "", key=firing.run_id, sessions=sessions, mirror_session=None, run=result.run
        )

    # ---- addresses -----------------------------------------------------------------------------------------------

    async def result_address(self, job: CronJob) -> ChatAddress | None:
        """The conversation the job's result goes to; for a result that goes to none, the conversation of the session
        that made the job."""
        delivery, target = job.spec.delivery, None
        if delivery is not None and delivery.mode == "announce":
            target = delivery_target(delivery)
        elif job.origin is not None:
            target = DeliveryTarget()
        if target is None:
            return None
        sessions = tuple(key for key in (job.spec.session_key, job.origin, self._targets().main_session(job)) if key)
        with contextlib.suppress(NoRoute):
            return await self._delivery.resolve(target, sessions)
        return None

    async def answers_in_session(self, job: CronJob, key: str) -> bool:
        """Whether the answer of the job's run in this session is announced to the session's own conversation."""
        delivery = job.spec.delivery
        is_announced = isinstance(job.spec.payload, SystemEventPayload) or (delivery and delivery.mode == "announce")
        if not is_announced or (own := await self._delivery.find_address(key)) is None:
            return False
        with contextlib.suppress(NoRoute):
            address = await self._delivery.resolve(*self._announce_target(job, key))
            return (address.channel, address.account, address.to) == (own.channel, own.account, own.to)
        return False

    def _announce_target(self, job: CronJob, key: str | None) -> tuple[DeliveryTarget, tuple[str, ...]]:
        """Where the answer of the job's run in session `key` is announced, as far as the job names it, and the
        sessions whose conversations supply the rest."""
        target = delivery_target(job.spec.delivery) if job.spec.delivery else DeliveryTarget()
        main = self._targets().main_session(job)
        if isinstance(job.spec.payload, SystemEventPayload):
            return target, (key or main,)
        in_session = job.spec.session_target not in ("isolated", "main")
        named = (job.spec.session_key or (key if in_session else None), main)
        return target, tuple(dict.fromkeys(session for session in named if session))

    # ---- failure alerts ------------------------------------------------------------------------------------------

    async def send_alert(self, firing: JobFiring, result: FiringResult) -> FiringResult:
        """Send a notice when a job keeps failing, at most once within its cooldown."""
        spec, own, default = firing.job.spec, firing.job.spec.failure_alert, self._settings().failure_alert
        alert = None if isinstance(own, bool) else own
        if own is False or (alert is None and default is not None and not default.enabled):
            return result
        rules = alert or default
        streak = self._alert_streak(firing, result, rules)
        destination = _alert_destination(alert, spec.delivery, rules)
        if streak is None or destination is None:
            return result
        text, key = f"The job {spec.name!r} failed {streak} times in a row: {result.error}", f"{firing.run_id}:alert"
        if destination.mode == "webhook" and destination.to:
            body = views.log_entry(firing, result, self._now()) | {"alert": text}
            by_operator = firing.job.origin is None or destination is default
            report = await self._delivery.post_webhook(destination.to, body, key=key, by_operator=by_operator)
        else:
            main = self._targets().main_session(firing.job)
            sessions = tuple(session for session in (spec.session_key, main) if session)
            report = await self._delivery.announce(
                delivery_target(destination), text, key=key, sessions=sessions, mirror_session=None
            )
        outcome = AlertOutcome(delivered=bool(report.delivered), status=report.status, error=report.error or None)
        return structs.replace(result, alert=outcome)

    def _alert_streak(self, firing: JobFiring, result: FiringResult, rules: FailureAlert | None) -> int | None:
        """How many times the job failed in a row; None when no alert is due for it."""
        state, rules = firing.job.state, rules or FailureAlert()
        cooldown = ALERT_COOLDOWN_MS if rules.cooldown_ms is None else rules.cooldown_ms
        counts = result.status == "error" or (result.status == "skipped" and rules.include_skipped)
        streak = (state.consecutive_errors or 0) + (state.consecutive_skipped or 0) + 1
        cooled_down = self._now() - (state.last_failure_alert_at_ms or 0) >= cooldown
        return streak if counts and cooled_down and streak >= (rules.after or ALERT_AFTER) else None


def _alert_destination(
    alert: FailureAlert | None, delivery: JobDelivery | None, rules: FailureAlert | None
) -> Destination | None:
    if alert is not None and alert.to:
        return alert
    destination = (delivery and delivery.failure_destination) or rules
    if destination is None and delivery is not None and delivery.mode == "announce" and not delivery.best_effort:
        return delivery
    return destination
