"""Jobs, log entries and events as clients see them."""

import base64
import hashlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from ...core.jobs import AgentTurnPayload, CronJob, JobFiring, OnExitSchedule, StreamSchedule
from ...core.json_values import drop_none
from ...core.model import Json
from .results import Diagnostic, FiringResult
from .schedule import to_iso

DIAGNOSTIC_LENGTH = 500  # characters of a result repeated as a diagnostic
_TOP_LEVEL_STATE = (
    "nextRunAtMs", "lastRunAtMs", "lastRunStatus", "lastDelivered", "lastDeliveryStatus", "lastDeliveryError",
    "deliverySuppressionReason", "lastFailureNotificationDelivered", "lastFailureNotificationDeliveryStatus",
    "lastFailureNotificationDeliveryError",
)  # fmt: skip


def job_view(job: CronJob, *, agent: str | None = None) -> Json:
    spec, state = msgspec.to_builtins(job.spec), msgspec.to_builtins(job.state)
    if isinstance(job.spec.schedule, OnExitSchedule | StreamSchedule):
        state.pop("nextRunAtMs", None)  # unknown: a program decides
    view = {"id": job.id, **spec, "createdAtMs": job.created_at, "updatedAtMs": job.updated_at, "state": state}
    if isinstance(job.spec.payload, AgentTurnPayload):
        view["scheduledToolPolicy"] = {"version": 1, "mode": "trusted"}
    view["configRevision"] = revision(job)
    view |= {name: state[name] for name in _TOP_LEVEL_STATE if name in state}
    if "lastError" in state:
        view["lastRunError"] = state["lastError"]
    if agent is not None:
        view["effectiveAgentId"] = agent
    return view


def compact_view(job: CronJob, agent: str) -> Json:
    state, schedule = job.state, msgspec.to_builtins(job.spec.schedule)
    view = {
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
        view["lastDeliveryStatus"] = state.last_delivery_status
    return view


def revision(job: CronJob) -> str:
    """Changes with each change of the definition: an editor names the one it read."""
    return _digest(msgspec.json.encode(job.spec, order="deterministic"))


def snapshot_revision(jobs: Sequence[CronJob]) -> str:
    return _digest(msgspec.json.encode([(job.id, job.updated_at, job.state) for job in jobs]))


def _digest(data: bytes) -> str:
    return "sha256:" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


# ---- firings ---------------------------------------------------------------------------------------------------------


def log_entry(firing: JobFiring, result: FiringResult, now: int) -> Json:
    error = result.error or result.delivery_error
    undelivered = result.delivery_status == "not-delivered" and result.error == result.delivery_error
    entry = {
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
        "failureNotificationDelivery": result.alert,
        "sessionId": result.session_id,
        "sessionKey": result.session_key,
        "model": result.model,
        "provider": result.provider,
        "usage": result.usage,
    }
    notes = list(result.diagnostics)
    if error:
        source: Literal["delivery", "agent-run"] = "delivery" if result.error is None or undelivered else "agent-run"
        notes.append(Diagnostic(ts=now, source=source, severity="error", message=error))
    if notes:
        entry["diagnostics"] = {"summary": error or (result.summary or "")[:DIAGNOSTIC_LENGTH], "entries": notes}
    view: Json = msgspec.to_builtins(drop_none(entry))
    return view


def start_event(firing: JobFiring) -> dict[str, str | int]:
    return {"jobId": firing.job.id, "action": "started", "runAtMs": firing.at, "runId": firing.run_id}
