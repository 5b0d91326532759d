"""What `health` and `status` say of sessions and agents."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ...core.agents import Roster
from ...core.model import Json
from ...core.repositories import SessionBook
from ...core.rpc import Method
from ...core.sessions import RunNews, RunOver, SessionQuery, now_ms
from .runs import Memory

COUNT_AT_MOST: Final = 1.0  # seconds between two looks at the sessions for `health`
NO_HEARTBEAT: Final = {
    "enabled": False, "every": "disabled", "everyMs": None, "prompt": "", "target": "none", "ackMaxChars": 0,
}  # fmt: skip


class Report:
    """What `health` and `status` say of sessions and agents, from a recent count."""

    def __init__(self, memory: Memory, roster: Callable[[], Roster]) -> None:
        self._sessions: SessionBook = memory.sessions
        self._path = memory.store.where
        self._roster = roster
        self._dirty = asyncio.Event()
        self._seen: Json = {"path": self._path, "count": 0, "recent": []}
        self._by_agent: dict[str, Json] = {}
        memory.runs.news.listen(self._heard)

    def methods(self) -> Sequence[Method]:
        return ()

    def _heard(self, news: RunNews) -> None:
        if isinstance(news, RunOver):
            self._dirty.set()

    async def count(self) -> None:
        self._seen = await self._counted(None)
        self._by_agent = {card.id: await self._counted(card.id) for card in self._roster().agents}

    async def _counted(self, agent_id: str | None) -> Json:
        page = await self._sessions.page(SessionQuery(limit=5, agent_id=agent_id))
        recent = [{"key": s.key, "updatedAt": s.updated_at, "age": now_ms() - s.updated_at} for s in page.sessions]
        return {"path": self._path, "count": page.total, "recent": recent}

    async def keep_counting(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self.count()
            await asyncio.sleep(COUNT_AT_MOST)

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
        return {"defaultAgentId": roster.default_id, "agents": agents, "sessions": self._seen}

    def status(self) -> Json:
        seen = {name: self._seen[name] for name in ("count", "recent")}
        by_agent = [{"agentId": name, **counted} for name, counted in self._by_agent.items()]
        return {"sessions": {"paths": [self._path], "defaults": {}, "byAgent": by_agent, **seen}}
