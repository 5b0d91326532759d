"""Jobs, log entries and events as clients see them."""

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from ...core.jobs import AgentTurnPayload, CronJob, JobFiring, OnExitSchedule, StreamSchedule
from ...core.model import Json
from .delivery import DeliveryReport
from .job_state import FiringResult
from .schedule import to_iso

DIAGNOSTIC_LENGTH = 500  # characters of a result repeated as a diagnosis
_TOP_LEVEL_STATE = (
    "nextRunAtMs", "lastRunAtMs", "lastRunStatus", "lastDelivered", "lastDeliveryStatus", "lastDeliveryError",
    "deliverySuppressionReason", "lastFailureNotificationDelivered", "lastFailureNotificationDeliveryStatus",
    "lastFailureNotificationDeliveryError",
)  # fmt: skip


def job_view(job: CronJob, *, agent: str | None = None) -> Json:
    spec: Json = msgspec.to_builtins(job.spec)
    state: Json = msgspec.to_builtins(job.state)
    if isinstance(job.spec.schedule, OnExitSchedule | StreamSchedule):
        state.pop("nextRunAtMs", None)  # nobody knows when
    shown: Json = {"id": job.id, **spec, "createdAtMs": job.created_at, "updatedAtMs": job.updated_at, "state": state}
    if isinstance(job.spec.payload, AgentTurnPayload):
        shown["scheduledToolPolicy"] = {"version": 1, "mode": "trusted"}
    shown["configRevision"] = revision(job)
    shown |= {name: state[name] for name in _TOP_LEVEL_STATE if name in state}
    if "lastError" in state:
        shown["lastRunError"] = state["lastError"]
    if agent is not None:
        shown["effectiveAgentId"] = agent
    return shown


def compact_view(job: CronJob, agent: str) -> Json:
    state, schedule = job.state, msgspec.to_builtins(job.spec.schedule)
    shown = {
        "id": job.id,
        "name": job.spec.name,
        "updatedAtMs": job.updated_at,
        "enabled": job.spec.enabled,
        "nextRunAt": None if state.next_run_at_ms is None else to_iso(state.next_run_at_ms),
        "nextRunAtMs": state.next_run_at_ms,
        "scheduleKind": schedule["kind"],
        "schedule": schedule,
        "lastRunAt": None if state.last_run_at_ms is None else to_iso(state.last_run_at_ms),
        "lastRunAtMs": state.last_run_at_ms,
        "lastRunStatus": state.last_run_status,
        "lastRunError": state.last_error,
        "effectiveAgentId": agent,
    }
    if state.last_delivery_status is not None:
        shown["lastDeliveryStatus"] = state.last_delivery_status
    return shown


def revision(job: CronJob) -> str:
    """Another one for each definition: whoever edits says which one they read."""
    return _digest(msgspec.json.encode(job.spec, order="deterministic"))


def snapshot_revision(jobs: Sequence[CronJob]) -> str:
    return _digest(msgspec.json.encode([(job.id, job.updated_at, job.state) for job in jobs]))


def _digest(data: bytes) -> str:
    return "sha256:" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


# ---- what came of it -------------------------------------------------------------------------------------------------


def log_entry(firing: JobFiring, result: FiringResult, now: int) -> Json:
    """A line of the log."""
    alert = result.alert and {
        name: result.alert[name] for name in ("delivered", "status", "error") if name in result.alert
    }
    trouble = result.error or result.delivery_error
    undelivered = result.delivery_status == "not-delivered" and result.error == result.delivery_error
    source = "delivery" if result.error is None or undelivered else "agent-run"
    said: Json = {
        "ts": now,
        "jobId": firing.job.id,
        "jobName": firing.job.spec.name,
        "action": "finished",
        "status": result.status,
        "completionStatus": result.completion,
        "error": result.error,
        "summary": result.summary or None,
        "runId": firing.run_id,
        "runAtMs": firing.at,
        "durationMs": max(0, now - firing.at),
        "delivered": result.delivered,
        "deliveryStatus": result.delivery_status,
        "deliveryError": result.delivery_error,
        "deliverySuppressionReason": result.suppressed,
        "delivery": result.delivery,
        "failureNotificationDelivery": alert,
        "sessionId": result.session_id,
        "sessionKey": result.session_key,
        **{name: result.more[name] for name in ("model", "provider", "usage") if name in result.more},
    }
    notes = list(result.diagnostics)
    if trouble:
        notes.append({"ts": now, "source": source, "severity": "error", "message": trouble})
    if notes:
        said["diagnostics"] = {"summary": trouble or (result.summary or "")[:DIAGNOSTIC_LENGTH], "entries": notes}
    return {name: value for name, value in said.items() if value is not None}


def start_event(firing: JobFiring) -> Json:
    return {"jobId": firing.job.id, "action": "started", "runAtMs": firing.at, "runId": firing.run_id}


def finish_event(firing: JobFiring, result: FiringResult, now: int, due: int | None) -> Json:
    return log_entry(firing, result, now) | ({} if due is None else {"nextRunAtMs": due})


def with_report(result: FiringResult, report: DeliveryReport, **more: Any) -> FiringResult:
    return msgspec.structs.replace(
        result,
        delivered=report.delivered,
        delivery_status=report.status,
        delivery_error=report.error,
        delivery=report.detail,
        **more,
    )


def with_alert(result: FiringResult, alert: Json) -> FiringResult:
    return msgspec.structs.replace(result, alert=alert)
