"""A job's next state: after it was claimed, after it ran, after it was changed. Pure: no clock, no store."""

import logging
from typing import Final

from msgspec import structs

from ...core.errors import BadRequest
from ...core.jobs import AtSchedule, CronJob, JobFiring, OnExitSchedule, StreamSchedule, replace_job
from .results import FiringResult
from .schedule import is_recurring, next_due, parse_at

logger = logging.getLogger(__name__)

BACK_OFF_MS: Final = (30_000, 60_000, 300_000, 900_000, 3_600_000)  # after the first, second… failure in a row
STREAM_GAP_MS: Final = 30_000  # between two firings of a stream, as OpenClaw has it; lines that come meanwhile wait
REFIRE_GAP_MS: Final = 2000  # between two firings of one job: a schedule of every millisecond must not be a busy loop


def plan_next(job: CronJob, now: int) -> int | None:
    """When a job claimed now is due next. A schedule that can't be computed is dealt with after the run."""
    try:
        due = _next_due_after(job, now) if is_recurring(job.spec.schedule) else None
    except BadRequest:
        logger.exception("cron: schedule of job %s can't be computed; its next time is decided after the run", job.id)
        return None
    return None if due is None else max(due, now + REFIRE_GAP_MS)


def schedule_next(job: CronJob, now: int, *, activated: bool) -> CronJob:
    """The job with its next time computed again; `activated`: its schedule changed, or whether it is enabled."""
    due = _first_due(job, now) if job.spec.enabled else None
    job = replace_job(job, next_run_at_ms=due)
    if not activated:
        return job
    errors = 0 if job.spec.enabled else job.state.consecutive_errors
    return replace_job(job, schedule_activated_at_ms=now, auto_disabled=None, consecutive_errors=errors)


def _first_due(job: CronJob, now: int) -> int | None:
    if isinstance(job.spec.schedule, AtSchedule):
        due = parse_at(job.spec.schedule.at)
        return None if (job.state.last_run_at_ms or -1) >= due else due
    if isinstance(job.spec.schedule, OnExitSchedule | StreamSchedule):
        return now  # its command is to be started now
    return next_due(job.spec.schedule, now, job_id=job.id)


def _next_due_after(job: CronJob, now: int) -> int | None:
    if isinstance(job.spec.schedule, StreamSchedule):
        return now + STREAM_GAP_MS
    return next_due(job.spec.schedule, now, job_id=job.id)


def apply_result(job: CronJob, firing: JobFiring, result: FiringResult, now: int) -> CronJob | None:
    """The job after one of its firings; None when it is done and to be removed."""
    job = structs.replace(_record_result(job, firing, result, now), updated_at=max(now, job.updated_at + 1))
    if isinstance(job.spec.schedule, AtSchedule | OnExitSchedule):
        expected = firing.job.state.next_run_at_ms if firing.manual else None
        if job.state.next_run_at_ms != expected or not job.spec.enabled:
            return job  # rescheduled meanwhile, or disabled and run by hand
        if job.spec.delete_after_run and result.status == "ok" and result.completion == "succeeded":
            return None
        return replace_job(job, enabled=False, next_run_at_ms=None)
    if not is_recurring(job.spec.schedule) or not job.spec.enabled:
        return job
    return _reschedule(job, firing, result, now)


def _reschedule(job: CronJob, firing: JobFiring, result: FiringResult, now: int) -> CronJob:
    due = job.state.next_run_at_ms
    if due is None or due <= now:
        try:
            due = _next_due_after(job, now)
        except BadRequest as exc:
            disabled = {"reason": "schedule-errors", "atMs": now, "consecutiveErrors": 1}
            return replace_job(job, enabled=False, next_run_at_ms=None, auto_disabled=disabled, last_error=str(exc))
    if due is not None and result.status == "error" and not firing.manual:
        streak = job.state.consecutive_errors or 1
        due = max(due, now + BACK_OFF_MS[min(streak, len(BACK_OFF_MS)) - 1])
    return replace_job(job, next_run_at_ms=None if due is None else max(due, firing.at + REFIRE_GAP_MS))


def _record_result(job: CronJob, firing: JobFiring, result: FiringResult, now: int) -> CronJob:
    failed, skipped = result.status == "error", result.status == "skipped"
    errors = job.state.consecutive_errors or 0
    job = replace_job(
        job,
        running_at_ms=None,
        last_run_at_ms=firing.at,
        last_run_status=result.status,
        last_status=result.status,
        last_error=result.error,
        last_duration_ms=max(0, now - firing.at),
        consecutive_errors=errors + 1 if failed else errors if skipped else 0,
        consecutive_skipped=(job.state.consecutive_skipped or 0) + 1 if skipped else 0,
        last_delivered=result.delivered,
        last_delivery_status=result.delivery_status,
        last_delivery_error=result.delivery_error,
        delivery_suppression_reason=result.suppressed,
    )
    alert = result.alert
    if alert is None:
        return replace_job(job, last_failure_notification_delivery_status="not-requested")
    return replace_job(
        job,
        last_failure_alert_at_ms=now,
        last_failure_notification_delivered=alert.delivered,
        last_failure_notification_delivery_status=alert.status,
        last_failure_notification_delivery_error=alert.error,
    )
