"""What `health` and `status` say of sessions and agents."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ...core.agents import AgentRoster
from ...core.model import Json
from ...core.repositories import SessionRepository
from ...core.rpc import RpcMethod
from ...core.sessions import RunEnded, RunEvent, SessionQuery, now_ms
from .runs import StoreServices

REFRESH_INTERVAL: Final = 1.0  # seconds between two looks at the sessions for `health`
NO_HEARTBEAT: Final = {
    "enabled": False, "every": "disabled", "everyMs": None, "prompt": "", "target": "none", "ackMaxChars": 0,
}  # fmt: skip


class StatusReport:
    """What `health` and `status` say of sessions and agents, from a recent count."""

    def __init__(self, services: StoreServices, roster: Callable[[], AgentRoster]) -> None:
        self._sessions: SessionRepository = services.sessions
        self._path = services.store.location
        self._roster = roster
        self._dirty = asyncio.Event()
        self._totals: Json = {"path": self._path, "count": 0, "recent": []}
        self._by_agent: dict[str, Json] = {}
        services.runs.events.connect(self._on_run_event)

    def methods(self) -> Sequence[RpcMethod]:
        return ()

    def _on_run_event(self, event: RunEvent) -> None:
        if isinstance(event, RunEnded):
            self._dirty.set()

    async def refresh(self) -> None:
        self._totals = await self._count_sessions(None)
        self._by_agent = {card.id: await self._count_sessions(card.id) for card in self._roster().agents}

    async def _count_sessions(self, agent_id: str | None) -> Json:
        page = await self._sessions.page(SessionQuery(limit=5, agent_id=agent_id))
        recent = [{"key": s.key, "updatedAt": s.updated_at, "age": now_ms() - s.updated_at} for s in page.sessions]
        return {"path": self._path, "count": page.total, "recent": recent}

    async def refresh_on_change(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self.refresh()
            await asyncio.sleep(REFRESH_INTERVAL)

    def health(self) -> Json:
        roster = self._roster()
        nothing: Json = {"path": self._path, "count": 0, "recent": []}
        agents = [
            {
                "agentId": card.id,
                "isDefault": card.id == roster.default_id,
                "heartbeat": NO_HEARTBEAT,
                "sessions": self._by_agent.get(card.id, nothing),
            }
            for card in roster.agents
        ]
        return {"defaultAgentId": roster.default_id, "agents": agents, "sessions": self._totals}

    def status(self) -> Json:
        seen = {name: self._totals[name] for name in ("count", "recent")}
        by_agent = [{"agentId": name, **counted} for name, counted in self._by_agent.items()]
        return {"sessions": {"paths": [self._path], "defaults": {}, "byAgent": by_agent, **seen}}
