"""Runs of the method `agent` as tasks, in the format of the protocol's clients. Pure."""

from typing import Final

from .json_values import drop_none
from .model import Json
from .sessions import Run

TITLE_LENGTH: Final = 120  # characters of the message that name the task
STATUSES: Final = {"queued": "queued", "running": "running", "ok": "completed", "aborted": "cancelled"}


def is_task(run: Run) -> bool:
    """Whether clients see it as a task: it was begun by `agent`, with no chat around it."""
    return run.options.is_task


def run_task(run: Run) -> Json:
    failed = "timed_out" if run.stop_reason == "timeout" else "failed"
    status = STATUSES.get(run.status, failed)
    execution = {"queued": "unknown", "running": "running"}.get(run.status, "finished")
    return drop_none(
        {
            "id": run.run_id, "taskId": run.run_id, "kind": "cli", "runtime": "cli", "status": status,
            "execution": {"state": execution}, "title": " ".join(run.message.split())[:TITLE_LENGTH],
            "agentId": run.agent_id, "sessionKey": run.session_key, "childSessionKey": run.session_key,
            "ownerKey": run.session_key, "hasTranscript": True, "runId": run.run_id, "sourceId": run.run_id,
            "createdAt": run.accepted_at, "updatedAt": run.ended_at or run.started_at or run.accepted_at,
            "startedAt": run.started_at, "endedAt": run.ended_at, "deliveryStatus": "not_applicable",
            "terminalSummary": None if not run.is_over else run.error or status,
        }
    )  # fmt: skip
