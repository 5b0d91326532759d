"""What a gateway says of itself: `health`, `status`, `system.info`, its presence entry and the snapshot of a hello."""

import asyncio
import os
import platform
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypedDict, runtime_checkable

from ... import __version__
from ...core.agents import AgentRoster
from ...core.model import Json
from ...core.repositories import SessionRepository
from ...core.rpc import ADMIN, READ, RpcCall, RpcMethod, RpcModule
from ...core.sessions import RunEnded, RunEvent, SessionQuery, now_ms
from ...net.gateway_client.identity import DeviceIdentity
from ..rpc.connection import PresenceEntry
from ..rpc.server import redact_health
from .process_stats import EventLoopMonitor, machine_info, resident_memory

REFRESH_INTERVAL: Final = 1.0  # seconds between two counts of the sessions
NO_HEARTBEAT: Final = {
    "enabled": False, "every": "disabled", "everyMs": None, "prompt": "", "target": "none", "ackMaxChars": 0,
}  # fmt: skip
HEALTHY_MODELS: Final = {"degraded": False, "pendingAgents": []}
TASK_STATUSES: Final = ("queued", "running", "succeeded", "failed", "timed_out", "cancelled", "lost")
TASK_RUNTIMES: Final = ("subagent", "acp", "cli", "cron")
TASK_PROBLEMS: Final = (
    "stale_queued", "stale_running", "lost", "delivery_failed", "missing_cleanup", "inconsistent_timestamps",
)  # fmt: skip


@runtime_checkable
class StatusProvider(Protocol):
    """A module that adds to `health` and `status`."""

    def health(self) -> Json: ...

    def status(self) -> Json: ...


class GatewayStatus:
    """An `RpcModule`; each other module that is a `StatusProvider` replaces its own part of the empty answers."""

    def __init__(self, folder: Path) -> None:
        self.version = __version__
        self.loop_monitor = EventLoopMonitor()
        self.port: int | None = None
        """Known once the gateway serves."""
        self._folder = folder
        self._instance_id = str(uuid.uuid4())
        self._started_at = time.monotonic()
        self._providers: list[StatusProvider] = []

    def add(self, module: RpcModule) -> None:
        # Asked here once: a check of a protocol at each request would take half the time of `health`.
        if isinstance(module, StatusProvider):
            self._providers.append(module)

    @property
    def uptime_ms(self) -> int:
        return int((time.monotonic() - self._started_at) * 1000)

    def health(self) -> Json:
        begun = time.perf_counter()
        health = {
            "ok": True, "durationMs": 0, "ts": now_ms(), "heartbeatSeconds": 0,
            "plugins": {"loaded": [], "errors": [], "unavailable": []},
            "configReload": {"hotReloadStatus": "active"}, "modelRuntime": HEALTHY_MODELS,
            "channels": {}, "channelOrder": [], "channelLabels": {},
            "defaultAgentId": "main", "agents": [], "sessions": {"path": str(self._folder), "count": 0, "recent": []},
            "eventLoop": self.loop_monitor.stats(),
        }  # fmt: skip
        for provider in self._providers:
            health |= provider.health()
        health["durationMs"] = round((time.perf_counter() - begun) * 1000)
        return health

    def status(self) -> Json:
        counts = dict.fromkeys(("total", "active", "terminal", "failures"), 0)
        by_status, by_runtime = dict.fromkeys(TASK_STATUSES, 0), dict.fromkeys(TASK_RUNTIMES, 0)
        status = {
            "heartbeat": {"defaultAgentId": "main", "agents": []}, "modelRuntime": HEALTHY_MODELS,
            "channelSummary": [], "queuedSystemEvents": [], "degradedSecretOwners": [], "degradedPlugins": [],
            "tasks": {**counts, "byStatus": by_status, "byRuntime": by_runtime},
            "taskAudit": {"total": 0, "warnings": 0, "errors": 0, "byCode": dict.fromkeys(TASK_PROBLEMS, 0)},
            "sessions": {"paths": [], "count": 0, "defaults": {}, "recent": [], "byAgent": []},
            "workerPools": {}, "runtimeVersion": self.version, "pid": os.getpid(), **self._process(),
        }  # fmt: skip
        for provider in self._providers:
            status |= provider.status()
        return status

    def snapshot(self, scopes: frozenset[str]) -> Json:
        defaults = {"defaultAgentId": "main", "mainKey": "main", "mainSessionKey": "agent:main:main"}
        snapshot = {"suspension": {"phase": "accepting"}, "sessionDefaults": {**defaults, "scope": "per-sender"}}
        if ADMIN not in scopes:
            return snapshot
        config_path = str(self._folder / "openclaw.json")
        return {**snapshot, "configPath": config_path, "stateDir": str(self._folder), "authMode": "token"}

    def presence(self) -> PresenceEntry:
        host = socket.gethostname()
        return PresenceEntry(
            host=host, version=self.version, platform=f"{platform.system().lower()} {platform.release()}",
            device_family=platform.system(), mode="gateway", reason="self", instance_id=self._instance_id,
            text=f"Gateway: {host} · app {self.version} · mode gateway · reason self", ts=now_ms(),
        )  # fmt: skip

    def _process(self) -> Json:
        return {
            "uptimeMs": self.uptime_ms,
            "eventLoop": self.loop_monitor.stats(),
            "processMemory": {"rssBytes": resident_memory(), "heapUsedBytes": 0, "heapTotalBytes": 0},
        }

    # ---- methods -------------------------------------------------------------------------------------------------

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("health", None, self._health, role="any"),
            RpcMethod("status", READ, self._status),
            RpcMethod("system.info", READ, self._system_info),
            RpcMethod("last-heartbeat", READ, self._last_heartbeat),
            RpcMethod("gateway.identity.get", READ, self._identity),
        )

    async def _health(self, call: RpcCall) -> Json:
        return redact_health(call.caller, self.health())

    async def _status(self, call: RpcCall) -> Json:
        return self.status()

    async def _system_info(self, call: RpcCall) -> Json:
        own = {"port": self.port, "processInstanceId": self._instance_id}
        return machine_info(self._folder) | own | self._process()

    async def _last_heartbeat(self, call: RpcCall) -> None:
        return None

    async def _identity(self, call: RpcCall) -> dict[str, str]:
        own = await asyncio.to_thread(DeviceIdentity.load, self._folder / "identity.json")
        return {"deviceId": own.id, "publicKey": own.public_key}


class RecentSession(TypedDict):
    key: str
    updatedAt: int
    age: int


class SessionCount(TypedDict):
    path: str
    count: int
    recent: list[RecentSession]


class SessionStatus:
    """The part of `health` and `status` on sessions and agents, from a recent count. An `RpcModule` without methods."""

    def __init__(self, sessions: SessionRepository, path: str, roster: Callable[[], AgentRoster]) -> None:
        """`path`: the store's location."""
        self._sessions = sessions
        self._path = path
        self._roster = roster
        self._changed = asyncio.Event()
        self._empty = SessionCount(path=path, count=0, recent=[])
        self._totals = self._empty
        self._by_agent: dict[str, SessionCount] = {}

    def methods(self) -> Sequence[RpcMethod]:
        return ()

    def on_run_event(self, event: RunEvent) -> None:
        if isinstance(event, RunEnded):
            self._changed.set()

    async def refresh(self) -> None:
        self._totals = await self._count(None)
        self._by_agent = {agent.id: await self._count(agent.id) for agent in self._roster().agents}

    async def refresh_on_change(self) -> None:
        """Wait for the next change and count again; a count that fails is repeated at the next call."""
        await self._changed.wait()
        self._changed.clear()
        try:
            await self.refresh()
        except BaseException:
            self._changed.set()
            raise
        await asyncio.sleep(REFRESH_INTERVAL)

    async def _count(self, agent_id: str | None) -> SessionCount:
        page = await self._sessions.page(SessionQuery(limit=5, agent_id=agent_id))
        recent = [RecentSession(key=s.key, updatedAt=s.updated_at, age=now_ms() - s.updated_at) for s in page.sessions]
        return SessionCount(path=self._path, count=page.total, recent=recent)

    def health(self) -> Json:
        roster = self._roster()
        agents = [
            {
                "agentId": agent.id,
                "isDefault": agent.id == roster.default_id,
                "heartbeat": NO_HEARTBEAT,
                "sessions": self._by_agent.get(agent.id, self._empty),
            }
            for agent in roster.agents
        ]
        return {"defaultAgentId": roster.default_id, "agents": agents, "sessions": self._totals}

    def status(self) -> Json:
        by_agent = [{"agentId": name, **count} for name, count in self._by_agent.items()]
        counted = {"count": self._totals["count"], "recent": self._totals["recent"]}
        return {"sessions": {"paths": [self._path], "defaults": {}, "byAgent": by_agent, **counted}}
