"""Jobs and firings as rows, and back."""

from typing import Any, Final

import msgspec
from sqlalchemy import Row

from ..core.jobs import Firing, Job, JobState, Spec
from ..core.model import Json
from ..core.sessions import now_ms
from .rows import from_json, to_json

WORDS: Final = 4000  # characters searched of a job or a log entry

_spec = msgspec.json.Decoder(Spec).decode
_state = msgspec.json.Decoder(JobState).decode


def columns(job: Job) -> dict[str, Any]:
    spec, state = job.spec, job.state
    said = getattr(spec.payload, "message", None) or getattr(spec.payload, "text", None) or ""
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
        "words": f"{spec.name}\n{spec.display_name or ''}\n{spec.description or ''}\n{said}".lower()[:WORDS],
        "spec": to_json(spec),
        "state": to_json(kept),
    }


def job_of(row: Row[Any]) -> Job:
    state = msgspec.structs.replace(_state(row.state), next_run_at_ms=row.next_at, running_at_ms=row.running_at)
    return Job(
        id=row.id,
        spec=_spec(row.spec),
        state=state,
        created_at=row.created_at,
        updated_at=row.updated_at,
        origin=row.origin,
        running=row.running,
    )


def going_row(firing: Firing, owner: str) -> dict[str, Any]:
    job = firing.job
    kept = {"id": job.id, "spec": job.spec, "state": job.state, "created": job.created_at, "updated": job.updated_at}
    return {
        "run_id": firing.run_id,
        "job_id": job.id,
        "agent_id": job.spec.agent_id,
        "status": "running",
        "manual": firing.manual,
        "owner": owner,
        "due_at": firing.due_at,
        "at": firing.at,
        "note": firing.note,
        "job": to_json({**kept, "origin": job.origin}),
    }


def ended_row(firing: Firing, entry: Json, reap_at: int | None, owner: str) -> dict[str, Any]:
    """Of a firing that is over as soon as it is claimed."""
    job = firing.job
    return {
        "run_id": firing.run_id,
        "job_id": job.id,
        "agent_id": job.spec.agent_id,
        "manual": firing.manual,
        "owner": owner,
        "due_at": firing.due_at,
        "at": firing.at,
        "note": firing.note,
        **ended(entry, reap_at),
    }


def firing_of(row: Row[Any]) -> Firing:
    kept = from_json(row.job)
    job = Job(
        id=kept["id"],
        spec=msgspec.convert(kept["spec"], Spec),
        state=msgspec.convert(kept["state"], JobState),
        created_at=kept["created"],
        updated_at=kept["updated"],
        origin=kept["origin"],
        running=row.run_id,
    )
    return Firing(
        run_id=row.run_id, job=job, due_at=row.due_at, at=row.at, manual=row.manual, begun=row.begun, note=row.note
    )


def ended(entry: Json, reap_at: int | None) -> dict[str, Any]:
    said = f"{entry.get('jobName', '')}\n{entry.get('summary', '')}\n{entry.get('error', '')}"
    return {
        "status": entry["status"],
        "ended_at": entry.get("ts", now_ms()),
        "delivery_status": entry.get("deliveryStatus"),
        "words": said.lower().replace("\0", "")[:WORDS],
        "entry": to_json(entry),
        "session_key": entry.get("sessionKey"),
        "reap_at": reap_at,
        "job": None,
    }
