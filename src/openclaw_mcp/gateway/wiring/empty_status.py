"""What `health` and `status` hold in a gateway without rooms: each room then says its own part instead."""

from typing import Any, Final

from ...core.model import Json

TASK_STATUSES: Final = ("queued", "running", "succeeded", "failed", "timed_out", "cancelled", "lost")
TASK_RUNTIMES: Final = ("subagent", "acp", "cli", "cron")
TASK_PROBLEMS: Final = (
    "stale_queued", "stale_running", "lost", "delivery_failed", "missing_cleanup", "inconsistent_timestamps",
)  # fmt: skip


def empty_health(**overrides: Any) -> Json:
    return {
        "ok": True,
        "durationMs": 0,
        "plugins": {"loaded": [], "errors": [], "unavailable": []},
        "configReload": {"hotReloadStatus": "active"},
        "channels": {},
        "channelOrder": [],
        "channelLabels": {},
        "heartbeatSeconds": 0,
        "defaultAgentId": "main",
        "agents": [],
        "modelRuntime": {"degraded": False, "pendingAgents": []},
        **overrides,
    }


def empty_status(**overrides: Any) -> Json:
    return {
        "heartbeat": {"defaultAgentId": "main", "agents": []},
        "channelSummary": [],
        "queuedSystemEvents": [],
        "degradedSecretOwners": [],
        "degradedPlugins": [],
        "tasks": _empty_task_counts(),
        "taskAudit": {"total": 0, "warnings": 0, "errors": 0, "byCode": dict.fromkeys(TASK_PROBLEMS, 0)},
        "sessions": {"paths": [], "count": 0, "defaults": {}, "recent": [], "byAgent": []},
        "modelRuntime": {"degraded": False, "pendingAgents": []},
        "workerPools": {},
        **overrides,
    }


def _empty_task_counts() -> Json:
    return {
        "total": 0,
        "active": 0,
        "terminal": 0,
        "failures": 0,
        "byStatus": dict.fromkeys(TASK_STATUSES, 0),
        "byRuntime": dict.fromkeys(TASK_RUNTIMES, 0),
    }
