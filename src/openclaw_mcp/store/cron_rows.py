"""Jobs and firings as rows, and back."""

from typing import Any, Final

import msgspec
from sqlalchemy import Row

from ..core.jobs import CronJob, FiringOutcome, JobFiring, JobSpec, JobState
from ..core.sessions import now_ms
from .rows import to_json

LONGEST_SEARCH_TEXT: Final = 4000  # characters searched of a job or a log entry

_decode_spec = msgspec.json.Decoder(JobSpec).decode
_decode_state = msgspec.json.Decoder(JobState).decode


def job_columns(job: CronJob) -> dict[str, Any]:
    spec, state = job.spec, job.state
    text = getattr(spec.payload, "message", None) or getattr(spec.payload, "text", None) or ""
    kept = msgspec.structs.replace(state, next_run_at_ms=None, running_at_ms=None)  # these have columns of their own
    return {
        "name": spec.name,
        "enabled": spec.enabled,
        "kind": spec.schedule.__struct_config__.tag,
        "agent_id": spec.agent_id,
        "session_key": spec.session_key,
        "origin": job.origin,
        "declaration_key": spec.declaration_key,
        "updated_at": job.updated_at,
        "next_at": state.next_run_at_ms,
        "last_status": state.last_run_status,
        "words": f"{spec.name}\n{spec.display_name or ''}\n{spec.description or ''}\n{text}".lower()[
            :LONGEST_SEARCH_TEXT
        ],
        "spec": to_json(spec),
        "state": to_json(kept),
    }


def job_from_row(row: Row[Any]) -> CronJob:
    state = msgspec.structs.replace(_decode_state(row.state), next_run_at_ms=row.next_at, running_at_ms=row.running_at)
    return CronJob(
        id=row.id, spec=_decode_spec(row.spec), state=state, created_at=row.created_at, updated_at=row.updated_at,
        origin=row.origin, running=row.running,
    )  # fmt: skip


class _StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the row of a running firing holds it: the job itself may be changed or deleted meanwhile."""

    id: str
    spec: JobSpec
    state: JobState
    created: int
    updated: int
    origin: str | None


_decode_stored_job = msgspec.json.Decoder(_StoredJob).decode


def active_run_row(firing: JobFiring, owner: str) -> dict[str, Any]:
    job = firing.job
    stored = _StoredJob(
        id=job.id, spec=job.spec, state=job.state, created=job.created_at, updated=job.updated_at, origin=job.origin
    )
    return {**firing_columns(firing, owner), "status": "running", "job": to_json(stored)}


def firing_columns(firing: JobFiring, owner: str) -> dict[str, Any]:
    return {
        "run_id": firing.run_id, "job_id": firing.job.id, "agent_id": firing.job.spec.agent_id,
        "manual": firing.manual, "owner": owner, "due_at": firing.due_at, "at": firing.at, "note": firing.note,
    }  # fmt: skip


def firing_from_row(row: Row[Any]) -> JobFiring:
    kept = _decode_stored_job(row.job)
    job = CronJob(
        id=kept.id, spec=kept.spec, state=kept.state, created_at=kept.created, updated_at=kept.updated,
        origin=kept.origin, running=row.run_id,
    )  # fmt: skip
    return JobFiring(
        run_id=row.run_id, job=job, due_at=row.due_at, at=row.at, manual=row.manual, begun=row.begun, note=row.note
    )


def ending_columns(outcome: FiringOutcome, next_run_at: int | None) -> dict[str, Any]:
    entry = outcome.entry if next_run_at is None else {**outcome.entry, "nextRunAtMs": next_run_at}
    text = f"{entry.get('jobName', '')}\n{entry.get('summary', '')}\n{entry.get('error', '')}"
    return {
        "status": entry["status"], "ended_at": entry.get("ts", now_ms()),
        "delivery_status": entry.get("deliveryStatus"), "words": text.lower().replace("\0", "")[:LONGEST_SEARCH_TEXT],
        "entry": to_json(entry), "session_key": entry.get("sessionKey"), "reap_at": outcome.reap_at, "job": None,
    }  # fmt: skip
