"""Sessions in this process's memory: the engine of a proxy that runs alone."""

from collections.abc import Sequence
from typing import Final

from .app_session import NO_SUCH_SESSION, AppRegistration, AppSession, AppSessionStatus, SessionGone
from .bridge import Bridge
from .engine import SessionEngine
from .limits import SessionLimits
from .quotas import SessionQuota
from .tool_list import ToolManifest

SWEEP_INTERVAL: Final = 15.0  # seconds between two sweeps of expired sessions, at most


class MemoryEngine(SessionEngine):
    def __init__(self, *, ttl: float, limits: SessionLimits, ping: float) -> None:
        super().__init__(ping=ping, sweep_interval=min(SWEEP_INTERVAL, ttl / 2))
        self._ttl = ttl
        self._quota = SessionQuota(limits)

    def find_cached(self, id: str) -> AppSession | None:
        session = self.sessions.get(id)
        if session is None:
            return None
        now = self._clock()
        if session.bridge is None and now - session.last_used > self._ttl:
            self._end_session(session)
            return None
        session.last_used = now
        return session

    async def find(self, id: str) -> AppSession | None:
        return self.find_cached(id)

    async def add(self, registration: AppRegistration, manifest: ToolManifest) -> None:
        quota, peer = self._quota, registration.peer
        if quota.refusal(peer, quota.added_bytes(registration, manifest)) is not None:
            await self._sweep()
        while (refusal := quota.refusal(peer, quota.added_bytes(registration, manifest))) is not None:
            self._end_session(self.sessions[quota.pick_evictable(peer, self._clock(), refusal)])
        self.sessions[registration.id] = AppSession(registration, manifest, now=self._clock())
        quota.add(registration, manifest, self._clock())

    async def remove(self, id: str) -> bool:
        session = self.find_cached(id)
        if session is not None:
            self._end_session(session)
        return session is not None

    async def replace_tools(self, session: AppSession, manifest: ToolManifest) -> None:
        self._require_current(session)
        self._quota.replace_tools(session.registration, manifest)
        session.replace_tools(manifest)

    async def session_status(self, session: AppSession) -> AppSessionStatus:
        return AppSessionStatus(session.registration, session.manifest, session.bridge is not None)

    async def list_sessions(self, device: str | None, most: int) -> Sequence[AppSessionStatus]:
        found = [each for each in self.sessions.values() if device is None or each.registration.device == device]
        found.sort(key=lambda session: session.registration.created)
        return [await self.session_status(session) for session in reversed(found[-most:])]

    async def attach(self, session: AppSession, bridge: Bridge) -> None:
        await self._displace_dead_bridge(session)
        self._require_current(session)
        session.attach_bridge(bridge, first_number=session.last_call_number)
        self._quota.claim(session.registration.id)

    def _require_current(self, session: AppSession) -> None:
        """The caller may have waited since it found the session. Raises SessionGone."""
        if self.sessions.get(session.registration.id) is not session:
            raise SessionGone(NO_SUCH_SESSION)

    async def detach(self, session: AppSession, bridge: Bridge) -> None:
        if session.bridge is bridge:
            session.detach_bridge()
            session.last_used = self._clock()
            self._quota.unclaim(session.registration.id, session.last_used)

    def cancel_remote_request(self, session: AppSession, client: str, request_id: str | int) -> None:
        return  # there is no other instance

    async def count(self) -> int:
        return len(self.sessions)

    async def _sweep(self) -> None:
        limit = self._clock() - self._ttl
        for session in list(self.sessions.values()):
            if session.bridge is None and session.last_used < limit:
                self._end_session(session)

    def _end_session(self, session: AppSession) -> None:
        self.sessions.pop(session.registration.id, None)
        self._quota.remove(session.registration.id)
        self._close_session(session)
