"""Start a session's conversation again: for `sessions.reset`, `/new`, `/reset` and the channels' commands."""

from collections.abc import Callable
from typing import Final

from ...core.agents import AgentRoster
from ...core.model import Json
from ...core.ports import RunExecutor
from ...core.repositories import SessionRepository
from ...core.session_keys import new_session
from . import views
from .run_events import RunEventPublisher

STOP_WAIT: Final = 10.0  # seconds a run has to end before its session is reset or deleted


class SessionReset:
    def __init__(
        self,
        sessions: SessionRepository,
        runner: RunExecutor,
        events: RunEventPublisher,
        *,
        roster: Callable[[], AgentRoster],
    ) -> None:
        self._sessions = sessions
        self._runner = runner
        self._events = events
        self._roster = roster

    async def __call__(self, key: str) -> Json:
        """Stop the session's runs, then begin a new transcript."""
        await self.stop_runs(key)
        roster = self._roster()
        session = await self._sessions.reset(key)
        if session is None:
            session, _ = await self._sessions.create(new_session(key, roster))
        self._events.publish_session(session, reason="reset")
        active = await self._sessions.active_runs([key])
        row = views.session_row(session, roster, active=active.get(key, ()))
        return {"ok": True, "key": key, "entry": row, "resolved": views.model_selection(session.agent_id, roster)}

    async def stop_runs(self, key: str) -> None:
        for run_id in await self._runner.abort(key):
            await self._runner.wait(run_id, seconds=STOP_WAIT)
