"""Sessions in this process's memory: the engine of a proxy that runs alone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, Self

from .app_session import NO_SUCH_SESSION, AppRegistration, AppSession, AppSessionStatus, BridgeTaken, SessionGone
from .bridge import SESSION_DELETED, Bridge
from .quotas import SessionQuota
from .rate_limits import RateBucket, RequestRateLimiter
from .tool_list import ToolManifest

SWEEP_INTERVAL: Final = 15.0  # seconds between two looks for expired sessions, at most
CHECKS_PER_PING: Final = 4  # looks at each bridge within one ping interval

SessionEndHandler = Callable[[AppSession], None]
CancelHandler = Callable[[AppSession, str, str | int], None]

logger = logging.getLogger(__name__)


class SessionEngine(Protocol):
    """Where sessions live. Every method that may have to ask elsewhere can raise StoreDown."""

    sessions: dict[str, AppSession]
    """The sessions this process knows of."""

    def find_cached(self, id: str) -> AppSession | None:
        """A session known here for certain, renewed by being asked for; None = ask `find`."""

    async def find(self, id: str) -> AppSession | None: ...

    async def add(self, registration: AppRegistration, manifest: ToolManifest) -> None:
        """Raises TooManySessions."""

    async def remove(self, id: str) -> bool:
        """Whether there was such a session."""

    async def replace_tools(self, session: AppSession, manifest: ToolManifest) -> None:
        """Raises TooManySessions when the tools take more bytes than there is room for, SessionGone."""

    async def session_status(self, session: AppSession) -> AppSessionStatus: ...

    async def list_sessions(self, device: str | None, most: int) -> Sequence[AppSessionStatus]:
        """The newest, newest first."""

    async def attach(self, session: AppSession, bridge: Bridge) -> None:
        """Raises BridgeTaken."""

    async def detach(self, session: AppSession, bridge: Bridge) -> None: ...

    async def take_tokens(self, buckets: Sequence[RateBucket]) -> float:
        """0, or the seconds until the next request would be within the limits."""

    def cancel_remote_request(self, session: AppSession, client: str, request_id: str | int) -> None:
        """A client cancels a request that is not served here."""

    async def count(self) -> int: ...


class MemoryEngine:
    """An `Engine`; an `async with` is its life."""

    def __init__(
        self, *, ttl: float, quota: SessionQuota, ping: float, on_end: SessionEndHandler = lambda _: None
    ) -> None:
        self.sessions: dict[str, AppSession] = {}
        self._ttl = ttl
        self._quota = quota
        self._check_interval = ping / CHECKS_PER_PING
        self._on_end = on_end
        self._clock = asyncio.get_running_loop().time
        self._rate_limiter = RequestRateLimiter(self._clock)
        self._maintenance: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._maintenance = asyncio.create_task(
            run_maintenance(self.sessions, self._check_interval, self._sweep, min(SWEEP_INTERVAL, self._ttl / 2))
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.wait((self._maintenance,))

    def find_cached(self, id: str) -> AppSession | None:
        guest = self.sessions.get(id)
        if guest is None:
            return None
        now = self._clock()
        if guest.bridge is None and now - guest.last_used > self._ttl:
            self._end_session(guest)
            return None
        guest.last_used = now
        return guest

    async def find(self, id: str) -> AppSession | None:
        return self.find_cached(id)

    async def add(self, registration: AppRegistration, manifest: ToolManifest) -> None:
        places = self._quota
        if places.refusal(registration.peer, places.added_bytes(registration, manifest)) is not None:
            await self._sweep()
        while (refusal := places.refusal(registration.peer, places.added_bytes(registration, manifest))) is not None:
            self._end_session(self.sessions[places.pick_evictable(registration.peer, self._clock(), refusal)])
        self.sessions[registration.id] = AppSession(registration, manifest, now=self._clock())
        places.add(registration, manifest, self._clock())

    async def remove(self, id: str) -> bool:
        guest = self.find_cached(id)
        if guest is not None:
            self._end_session(guest)
        return guest is not None

    async def replace_tools(self, session: AppSession, manifest: ToolManifest) -> None:
        self._require_current(session)
        self._quota.replace_tools(session.registration, manifest)
        session.replace_tools(manifest)

    async def session_status(self, session: AppSession) -> AppSessionStatus:
        return AppSessionStatus(session.registration, session.manifest, session.bridge is not None)

    async def list_sessions(self, device: str | None, most: int) -> Sequence[AppSessionStatus]:
        found = [guest for guest in self.sessions.values() if device is None or guest.registration.device == device]
        found.sort(key=lambda guest: guest.registration.created)
        return [await self.session_status(guest) for guest in reversed(found[-most:])]

    async def attach(self, session: AppSession, bridge: Bridge) -> None:
        while session.bridge is not None:
            if await session.bridge.probe():
                raise BridgeTaken("a bridge is already attached to this session, and alive")
            detach_bridge(session)
        self._require_current(session)
        bridge.last_call_number = session.last_call_number
        session.bridge = bridge
        self._quota.claim(session.registration.id)

    def _require_current(self, session: AppSession) -> None:
        """Whoever found the session may have waited since. Raises SessionGone."""
        if self.sessions.get(session.registration.id) is not session:
            raise SessionGone(NO_SUCH_SESSION)

    async def detach(self, session: AppSession, bridge: Bridge) -> None:
        if session.bridge is bridge:
            detach_bridge(session)
            session.last_used = self._clock()
            self._quota.unclaim(session.registration.id, session.last_used)

    async def take_tokens(self, buckets: Sequence[RateBucket]) -> float:
        return self._rate_limiter.take_tokens(buckets)

    def cancel_remote_request(self, session: AppSession, client: str, request_id: str | int) -> None:
        return  # there is no elsewhere

    async def count(self) -> int:
        return len(self.sessions)

    async def _sweep(self) -> None:
        limit = self._clock() - self._ttl
        for guest in [g for g in self.sessions.values() if g.bridge is None and g.last_used < limit]:
            self._end_session(guest)

    def _end_session(self, session: AppSession) -> None:
        self.sessions.pop(session.registration.id, None)
        self._quota.remove(session.registration.id)
        end_session(session, self._on_end)


def detach_bridge(session: AppSession) -> None:
    """The bridge is gone; the next one counts on from its last call."""
    if session.bridge is not None:
        session.last_call_number = session.bridge.last_call_number
        session.bridge = None


def end_session(session: AppSession, on_end: SessionEndHandler) -> None:
    """The session is over: whoever waits on its bridge or listens at its door is told."""
    if session.bridge is not None:
        session.bridge.close(SESSION_DELETED, "the session was deleted")
        detach_bridge(session)
    on_end(session)


async def run_maintenance(
    sessions: dict[str, AppSession], check_interval: float, sweep: Callable[[], Awaitable[None]], sweep_interval: float
) -> None:
    """Look at every bridge each `beat` seconds, and sweep each `every`."""
    clock = asyncio.get_running_loop().time
    swept = clock()
    while True:
        await asyncio.sleep(min(check_interval, sweep_interval))
        now = clock()
        for guest in list(sessions.values()):
            if guest.bridge is not None:
                guest.bridge.check_liveness(now)
        if now - swept >= sweep_interval:
            swept = now
            try:
                await sweep()
            except OSError:  # the shared store is away; the next sweep tries again
                continue
            except Exception:  # without a keeper nobody is pinged, and nothing expires
                logger.exception("a sweep of the sessions failed")
