"""What the methods on sessions and those on chats share: keys, rows, and the reset that channels use too."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from ...core.agents import AgentRoster
from ...core.ports import RunExecutor
from ...core.repositories import SessionRepository
from ...core.session_keys import new_session, normalize_key
from ...core.sessions import Session
from . import views
from .run_events import RunEventPublisher
from .views import SessionChanged, SessionRow

STOP_WAIT: Final = 10.0  # seconds a run has to end before its session is reset or deleted


class SessionOperations(Struct, frozen=True, kw_only=True):
    sessions: SessionRepository
    runner: RunExecutor
    events: RunEventPublisher
    roster: Callable[[], AgentRoster]

    def canonical_key(self, key: str, agent_id: str | None = None) -> str:
        return normalize_key(key, self.roster(), agent_id=agent_id)

    async def session_row(self, session: Session, **include: bool) -> SessionRow:
        """The session's row, with the runs that are active now; `include` as in `views.session_rows`."""
        active = await self.sessions.active_runs([session.key])
        return views.session_row(session, self.roster(), active=active.get(session.key, ()), **include)

    async def change_result(self, session: Session) -> SessionChanged:
        """The answer of methods that create, change or reset a session."""
        resolved = views.model_selection(session.agent_id, self.roster())
        return {"ok": True, "key": session.key, "entry": await self.session_row(session), "resolved": resolved}

    async def reset_session(self, key: str) -> SessionChanged:
        """Stop the session's runs, then begin a new transcript."""
        await self.stop_runs(key, reason="reset")
        session = await self.sessions.reset(key)
        if session is None:
            session, _ = await self.sessions.create(new_session(key, self.roster()))
        self.events.publish_session(session, reason="reset")
        return await self.change_result(session)

    async def stop_runs(self, key: str, *, reason: str) -> None:
        for run_id in await self.runner.abort(key, reason=reason):
            await self.runner.wait(run_id, seconds=STOP_WAIT)
