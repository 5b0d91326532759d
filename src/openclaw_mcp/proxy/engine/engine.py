"""What holds the sessions: the interface of both engines, and what they have in common."""

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from ...core.errors import BadRequest
from ...core.signal import Signal
from ...net.tasks import Tasks
from ...protocol.bridge import SERVER_FAILED, SESSION_DELETED
from .app_session import AppRegistration, AppSession, AppSessionStatus, BridgeTaken
from .bridge import Bridge
from .limits import RateBucket, RequestRateLimiter
from .tool_list import ToolManifest

if TYPE_CHECKING:
    from ..settings import ProxySettings
    from .session_file import SessionFile

NO_FILE: Final = "off"
CHECKS_PER_PING: Final = 4  # checks of each bridge within one ping interval

logger = logging.getLogger(__name__)


class CancelledRequest(Struct, frozen=True):
    """A client of another instance cancelled a request that is perhaps served here."""

    session: AppSession
    client: str
    request_id: str | int


class SessionEngine(ABC):
    """Every method that may have to ask the shared store can raise StoreDown. Its life is an `async with`."""

    def __init__(self, *, ping: float, sweep_interval: float) -> None:
        self.sessions: dict[str, AppSession] = {}
        """The sessions this process knows of."""
        self.ended: Signal[AppSession] = Signal()
        self.cancelled: Signal[CancelledRequest] = Signal()
        self._clock = asyncio.get_running_loop().time
        self._rate_limiter = RequestRateLimiter(self._clock)
        self._tasks = Tasks("proxy engine")
        self._check_interval = ping / CHECKS_PER_PING
        self._sweep_interval = sweep_interval

    async def __aenter__(self) -> Self:
        self._tasks.loop(
            self._check_bridges, name="checking the bridges", every=self._check_interval, on_failure="restart"
        )
        self._tasks.loop(self._sweep, name="sweeping the sessions", every=self._sweep_interval, on_failure="restart")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    @abstractmethod
    def find_cached(self, id: str) -> AppSession | None:
        """A session known here for certain, renewed by being asked for; None = ask `find`."""

    @abstractmethod
    async def find(self, id: str) -> AppSession | None: ...

    @abstractmethod
    async def add(self, registration: AppRegistration, manifest: ToolManifest) -> None:
        """One of this id that is there ends, and the new one takes its place. Raises TooManySessions, StoreDown."""

    @abstractmethod
    async def remove(self, id: str) -> None:
        """End it, if there is such a session."""

    @abstractmethod
    async def replace_tools(self, session: AppSession, manifest: ToolManifest) -> None:
        """Raises TooManySessions when the tools take more bytes than there is room for, SessionGone."""

    @abstractmethod
    async def session_status(self, session: AppSession) -> AppSessionStatus: ...

    @abstractmethod
    async def list_sessions(self, device: str | None, most: int) -> Sequence[AppSessionStatus]:
        """The newest, newest first."""

    @abstractmethod
    async def attach(self, session: AppSession, bridge: Bridge) -> None:
        """Raises BridgeTaken, SessionGone."""

    @abstractmethod
    async def detach(self, session: AppSession, bridge: Bridge) -> None: ...

    @abstractmethod
    async def count(self) -> int: ...

    async def take_tokens(self, buckets: Sequence[RateBucket]) -> float:
        """0, or the seconds until the next request would be within the limits."""
        return self._rate_limiter.take_tokens(buckets)

    @abstractmethod
    def cancel_remote_request(self, session: AppSession, client: str, request_id: str | int) -> None:
        """A client cancels a request that is not served here, but perhaps by another instance."""

    @abstractmethod
    async def _sweep(self) -> None:
        """End what has expired."""

    async def _check_bridges(self) -> None:
        now = self._clock()
        for session in list(self.sessions.values()):
            bridge = session.bridge
            if bridge is None:
                continue
            try:
                bridge.check_liveness(now)
            except Exception:  # one bridge's failure must not leave the others unchecked
                logger.exception("proxy engine: a bridge could not be checked, it is closed")
                bridge.close(SERVER_FAILED, "the proxy failed; its log says more")

    async def _displace_dead_bridge(self, session: AppSession) -> None:
        """Raises BridgeTaken when the session's bridge is alive."""
        while session.bridge is not None:
            if await session.bridge.probe():
                raise bridge_taken_error()
            session.detach_bridge()

    def _close_session(self, session: AppSession) -> None:
        """The session is over: calls on its bridge fail, and listeners are notified."""
        if session.bridge is not None:
            session.bridge.close(SESSION_DELETED, "the session was deleted")
            session.detach_bridge()
        self.ended.emit(session)


def bridge_taken_error() -> BridgeTaken:
    return BridgeTaken("a bridge is already attached to this session, and alive")


@asynccontextmanager
async def open_engine(settings: "ProxySettings") -> AsyncIterator[SessionEngine]:
    """The engine that the settings ask for. Raises BadRequest."""
    if settings.redis_url:
        try:
            # Here for start-up: a proxy that runs alone needs no Redis, nor the extra that brings its client.
            from .redis import RedisEngine
        except ModuleNotFoundError:
            raise BadRequest("OPENCLAW_PROXY_REDIS_URL needs an extra: pip install 'openclaw-mcp[redis]'") from None
        engine: SessionEngine = RedisEngine(
            settings.redis_url,
            ttl=settings.session_ttl,
            limits=settings.session_limits,
            ping=settings.bridge.ping,
            max_tools=settings.most_tools,
        )
    else:
        # Here for start-up: a proxy that shares its sessions needs none in memory.
        from .memory import MemoryEngine

        engine = MemoryEngine(
            ttl=settings.session_ttl,
            limits=settings.session_limits,
            ping=settings.bridge.ping,
            max_tools=settings.most_tools,
            file=_make_session_file(settings.sessions_file),
        )
    async with engine:
        yield engine


def _make_session_file(path: str) -> "SessionFile | None":
    if path in ("", NO_FILE):
        return None
    # Here for start-up: a proxy that keeps nothing needs no database.
    from .session_file import SessionFile

    return SessionFile(Path(os.path.expanduser(path)).absolute())  # noqa: PTH111 - Path.expanduser raises for a user there is not
