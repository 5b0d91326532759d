"""Sessions in this process's memory, and in a file for the next one: the engine of a proxy that runs alone."""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self

from ...net.tasks import finish
from .app_session import NO_SUCH_SESSION, AppRegistration, AppSession, AppSessionStatus, SessionGone, StoreDown
from .bridge import Bridge
from .engine import SessionEngine
from .limits import SessionLimits
from .quotas import SessionQuota
from .tool_list import ToolManifest, parse_stored_manifest

if TYPE_CHECKING:
    from .session_file import KeptSession, SessionFile

SWEEP_INTERVAL: Final = 15.0  # seconds between two sweeps of expired sessions, at most
RESTORED_AT_ONCE: Final = 16  # sessions of the process before that are read between two requests
NUMBERS_PER_SECOND: Final = 1_000_000  # more than the calls that any bridge makes


class MemoryEngine(SessionEngine):
    def __init__(
        self, *, ttl: float, limits: SessionLimits, ping: float, max_tools: int, file: "SessionFile | None" = None
    ) -> None:
        super().__init__(ping=ping, sweep_interval=min(SWEEP_INTERVAL, ttl / 2))
        self._ttl = ttl
        self._quota = SessionQuota(limits)
        self._max_tools = max_tools
        self._file = file
        self._restored = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Raises StateBroken."""
        if self._file is None:
            self._restored.set()
        else:
            await self._file.__aenter__()
            try:
                kept = await self._file.read_all()
            except BaseException:
                await self._file.__aexit__()
                raise
            # Thousands of lists of tools take seconds to read: what needs no session is served meanwhile.
            self._tasks.spawn(self._restore(self._file, kept), name="restoring the sessions")
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        if self._file is not None:
            await self._file.__aexit__()

    async def _restore(self, file: "SessionFile", stored: "Sequence[KeptSession]") -> None:
        try:
            await self._take_over(file, stored)
        finally:  # without those that can't be used: every request waits for this
            self._restored.set()

    async def _take_over(self, file: "SessionFile", stored: "Sequence[KeptSession]") -> None:
        """Take the sessions of the process before as if each had just been used, the newest that there is room for."""
        fitting, now = [], self._clock()
        for number, kept in enumerate(stored):
            if number % RESTORED_AT_ONCE == 0:
                await asyncio.sleep(0)
            registration, manifest = kept.registration, parse_stored_manifest(kept.tools, max_tools=self._max_tools)
            if self._quota.refusal(registration.peer, self._quota.added_bytes(registration, manifest)) is None:
                session = AppSession(registration, manifest, now=now)
                # An app may answer a call of the process before: no call of this one has the same number.
                session.last_call_number = int((time.time() - registration.created) * NUMBERS_PER_SECOND)
                self._quota.add(registration, manifest, now)
                fitting.append(session)
            else:
                file.remove_later(registration.id)
        for session in reversed(fitting):  # the oldest is the first to give way
            self.sessions[session.registration.id] = session
            self._quota.claim(session.registration.id)
            self._quota.unclaim(session.registration.id, now)

    def find_cached(self, id: str) -> AppSession | None:
        session = self.sessions.get(id)
        if session is None:
            return None
        now = self._clock()
        if session.bridge is None and now - session.last_used > self._ttl:
            self._expire(session)
            return None
        session.last_used = now
        return session

    async def find(self, id: str) -> AppSession | None:
        await self._restored.wait()
        return self.find_cached(id)

    async def add(self, registration: AppRegistration, manifest: ToolManifest) -> None:
        await self._restored.wait()
        before = self.sessions.get(registration.id)
        if before is not None:
            self._end_session(before)
        quota, peer = self._quota, registration.peer
        if quota.refusal(peer, quota.added_bytes(registration, manifest)) is not None:
            await self._sweep()
        while (refusal := quota.refusal(peer, quota.added_bytes(registration, manifest))) is not None:
            self._expire(self.sessions[quota.pick_evictable(peer, self._clock(), refusal)])
        session = self.sessions[registration.id] = AppSession(registration, manifest, now=self._clock())
        quota.add(registration, manifest, self._clock())
        if self._file is not None:
            try:
                await self._file.put(registration, manifest.raw)
            except StoreDown:
                if self.sessions.get(registration.id) is session:
                    self._end_session(session)
                raise

    async def remove(self, id: str) -> None:
        session = await self.find(id)
        if session is not None:
            self._end_session(session)
        if self._file is not None and (session is not None or self._file.has_ended(id)):
            await self._file.remove(id)

    async def replace_tools(self, session: AppSession, manifest: ToolManifest) -> None:
        # To its end also when the app leaves meanwhile: else the file has other tools than are offered.
        await finish(self._replace_tools(session, manifest))

    async def _replace_tools(self, session: AppSession, manifest: ToolManifest) -> None:
        self._require_current(session)
        self._quota.replace_tools(session.registration, manifest)
        if self._file is not None:
            try:
                await self._file.put(session.registration, manifest.raw)
            except StoreDown:
                self._require_current(session)
                self._quota.replace_tools(session.registration, session.manifest)
                raise
            self._require_current(session)
        session.replace_tools(manifest)

    async def session_status(self, session: AppSession) -> AppSessionStatus:
        return AppSessionStatus(session.registration, session.manifest, session.bridge is not None)

    async def list_sessions(self, device: str | None, most: int) -> Sequence[AppSessionStatus]:
        await self._restored.wait()
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
                self._expire(session)
        if self._file is not None:
            self._file.remove_ended()

    def _expire(self, session: AppSession) -> None:
        """End it without being asked: it was not used, or gives way to another."""
        self._end_session(session)
        if self._file is not None:
            self._file.remove_later(session.registration.id)

    def _end_session(self, session: AppSession) -> None:
        self.sessions.pop(session.registration.id, None)
        self._quota.remove(session.registration.id)
        self._close_session(session)
