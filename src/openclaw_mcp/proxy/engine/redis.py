"""Sessions shared by many instances through Redis: any of them serves any session, wherever its bridge is.

Calls to an app whose bridge is here need no Redis at all, so they go on while it is away.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec import Struct
from redis.exceptions import RedisError

from ...core.errors import BadRequest, OpenClawError
from .app_session import (
    NO_SUCH_SESSION,
    AppRegistration,
    AppSession,
    AppSessionStatus,
    BridgeTaken,
    SessionGone,
    StoreDown,
    ToolInvoker,
    TooManySessions,
)
from .bridge import ALREADY_ATTACHED, Bridge
from .frames import NOT_CONNECTED
from .memory import CHECKS_PER_PING, CancelHandler, SessionEndHandler, detach_bridge, end_session, run_maintenance
from .quotas import SessionLimits
from .rate_limits import RateBucket, RequestRateLimiter
from .redis_store import PREFIX, RedisSessionStore, StoredAppSession
from .relay import InstanceRelay, RemoteBridge, channel_name
from .tool_list import ToolManifest

RECHECK_AFTER: Final = 5.0  # seconds a session read from the store is trusted without asking again
EVICT_AFTER: Final = 60.0  # seconds an unused session is kept in this process
RENEW_INTERVAL: Final = 5.0  # seconds between two renewals of what lives here
SILENCE_BEFORE_PING: Final = 10.0  # seconds without a word from Redis before we ask whether it still hears us
FIRST_PAUSE: Final = 0.1  # seconds before listening again after Redis was lost; doubled each time
MAX_PAUSE: Final = 2.0
CALLS_PER_BRIDGE: Final = 1 << 20  # calls a bridge may make before its numbers could meet the next one's
EVENTS_CHANNEL: Final = PREFIX + "news"

Done = TypeVar("Done")

logger = logging.getLogger(__name__)


class InstanceEvent(Struct, array_like=True):
    """What every instance should know."""

    kind: str
    """`gone`, `tools`, `bridge`, or `cancel`."""
    session_id: str
    sender: str
    client: str = ""
    request: str | int = 0


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(InstanceEvent).decode


class RedisEngine:
    """An `Engine`; an `async with` is its life."""

    def __init__(
        self,
        url: str,
        *,
        ttl: float,
        limits: SessionLimits,
        ping: float,
        parse_manifest: Callable[[bytes], ToolManifest],
        on_end: SessionEndHandler = lambda _: None,
        on_cancel: CancelHandler = lambda *_: None,
    ) -> None:
        self.sessions: dict[str, AppSession] = {}
        self._store = RedisSessionStore(url, ttl=ttl, limits=limits)
        self._relay = InstanceRelay(self._store, self._find_bridge)
        self._parse_manifest = parse_manifest
        self._on_end = on_end
        self._on_cancel = on_cancel
        self._recheck_after = min(RECHECK_AFTER, ttl / 4)
        self._renew_interval = min(RENEW_INTERVAL, ttl / 3)
        self._check_interval = ping / CHECKS_PER_PING
        self._clock = asyncio.get_running_loop().time
        self._rate_limiter = RequestRateLimiter(self._clock)
        self._owners: dict[str, tuple[str | None, float]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lookups: dict[str, asyncio.Task[AppSession | None]] = {}
        self._subscribed = asyncio.Event()
        self._redis_run_id = ""

    async def __aenter__(self) -> Self:
        try:
            self._redis_run_id = await self._store.server_run_id()
        except StoreDown:
            await self._store.aclose()
            raise BadRequest("no Redis answers at OPENCLAW_PROXY_REDIS_URL; start it or correct the address") from None
        self._start_task(self._listen_forever())
        await self._subscribed.wait()
        self._start_task(run_maintenance(self.sessions, self._check_interval, self._sweep, self._renew_interval))
        return self

    async def __aexit__(self, *_: object) -> None:
        for guest in list(self.sessions.values()):
            if guest.bridge is not None:
                with contextlib.suppress(StoreDown):
                    await self._store.release(guest.registration.id, self._relay.instance, time.time())
        await self._relay.aclose()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._store.aclose()

    # ---- sessions ----

    def find_cached(self, id: str) -> AppSession | None:
        guest = self.sessions.get(id)
        if guest is None:
            return None
        now = self._clock()
        if guest.bridge is None and now - guest.last_verified > self._recheck_after:
            return None
        guest.last_used = now
        return guest

    async def find(self, id: str) -> AppSession | None:
        """Many who ask at once for the same session share one question."""
        asked = self._lookups.get(id)
        if asked is None:
            asked = self._lookups[id] = self._start_task(self._look_up(id))
            asked.add_done_callback(lambda _: self._lookups.pop(id, None))
        return await asyncio.shield(asked)

    async def _look_up(self, id: str) -> AppSession | None:
        known = self.sessions.get(id)
        if known is not None:
            if await self._store.renew(known.registration, time.time()):
                known.last_used = known.last_verified = self._clock()
                return known
            self._end_session(id)
            return None
        kept = await self._store.find(id, time.time())
        if kept is None:
            return None
        now = self._clock()
        guest = self.sessions.setdefault(
            id, AppSession(kept.registration, self._manifest_of(kept), now=now, find_remote=self._find_remote_bridge)
        )
        self._owners[id] = (kept.owner, now)
        return guest

    async def add(self, registration: AppRegistration, manifest: ToolManifest) -> None:
        await self._store.add(registration, manifest.raw, time.time())

    async def remove(self, id: str) -> bool:
        there = await self._store.remove(id)
        self._end_session(id)
        await self._publish_event("gone", id)
        return there

    async def replace_tools(self, session: AppSession, manifest: ToolManifest) -> None:
        try:
            await self._store.replace_tools(session.registration, manifest.raw, time.time())
        except SessionGone:
            self._end_session(session.registration.id)
            raise
        session.replace_tools(manifest)
        await self._publish_event("tools", session.registration.id)

    async def session_status(self, session: AppSession) -> AppSessionStatus:
        connected = session.bridge is not None or await self._store.owner(session.registration.id) is not None
        return AppSessionStatus(session.registration, session.manifest, connected)

    async def list_sessions(self, device: str | None, most: int) -> Sequence[AppSessionStatus]:
        found = [kept for kept in await self._store.list_all() if device is None or kept.registration.device == device]
        found.sort(key=lambda kept: kept.registration.created, reverse=True)
        return [
            AppSessionStatus(kept.registration, self._manifest_of(kept), kept.owner is not None)
            for kept in found[:most]
        ]

    async def count(self) -> int:
        return await self._store.count(time.time())

    async def take_tokens(self, buckets: Sequence[RateBucket]) -> float:
        try:
            return await self._store.take_tokens(buckets)
        except StoreDown:
            return self._rate_limiter.take_tokens(buckets)  # each instance for itself until Redis is back

    # ---- bridges ----

    async def attach(self, session: AppSession, bridge: Bridge) -> None:
        id, displaced = session.registration.id, ""
        while True:
            if session.bridge is not None:
                if await session.bridge.probe():
                    raise _bridge_taken_error()
                detach_bridge(session)
            number, owner = await self._store.claim(id, self._relay.instance, instead_of=displaced)
            if number > 0:
                break
            if number < 0:
                self._end_session(id)
                raise SessionGone(NO_SUCH_SESSION)
            if await self._store.has_subscribers(channel_name(owner)) and await self._relay.probe(owner, id):
                raise _bridge_taken_error()
            displaced = owner
        if self.sessions.get(id) is not session:  # deleted while the claim was on its way
            await self._store.release(id, self._relay.instance, time.time())
            raise SessionGone(NO_SUCH_SESSION)
        bridge.last_call_number = (number - 1) * CALLS_PER_BRIDGE
        session.bridge = bridge
        await self._publish_event("bridge", id)

    async def detach(self, session: AppSession, bridge: Bridge) -> None:
        if session.bridge is not bridge:
            return
        detach_bridge(session)
        session.last_used = session.last_verified = self._clock()
        id = session.registration.id
        self._owners.pop(id, None)
        with contextlib.suppress(StoreDown):  # the claim runs out by itself
            await self._store.release(id, self._relay.instance, time.time())
            await self._store.renew(session.registration, time.time())
            await self._publish_event("bridge", id)

    def _find_bridge(self, id: str) -> Bridge | None:
        guest = self.sessions.get(id)
        return None if guest is None else guest.bridge

    async def _find_remote_bridge(self, session: AppSession) -> ToolInvoker | None:
        id = session.registration.id
        owner, at = self._owners.get(id, (None, 0.0))
        if owner is None or self._clock() - at > self._recheck_after:
            owner = await self._store.owner(id)
            self._owners[id] = (owner, self._clock())
        if owner is None or owner == self._relay.instance:
            return None
        return RemoteBridge(self._relay, owner, id)

    def cancel_remote_request(self, session: AppSession, client: str, request_id: str | int) -> None:
        self._start_task(self._publish_event("cancel", session.registration.id, client=client, request_id=request_id))

    # ---- news ----

    async def _publish_event(self, kind: str, id: str, *, client: str = "", request_id: str | int = 0) -> None:
        news = InstanceEvent(kind, id, self._relay.instance, client, request_id)
        await self._store.publish(EVENTS_CHANNEL, _pack(news))

    async def _listen_forever(self) -> None:
        """Hear the others for as long as this engine lives, through every loss of Redis."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with self._store.open_pubsub() as ears:
                    await ears.subscribe(EVENTS_CHANNEL, channel_name(self._relay.instance))
                    self._subscribed.set()
                    pause = FIRST_PAUSE
                    await self._restore_after_restart()
                    await self._read_events(ears)
            except (RedisError, OSError, TimeoutError, OpenClawError) as exc:
                logger.warning("Redis is out of reach: %s", type(exc).__name__)
            except Exception:  # an instance that no longer listens is lost to all the others
                logger.exception("listening to Redis failed")
            self._relay.fail_pending(StoreDown(f"{NOT_CONNECTED}: the proxy's shared store is out of reach"))
            self._invalidate_cache()
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    async def _read_events(self, pubsub: Any) -> None:
        own = channel_name(self._relay.instance).encode()
        heard = self._clock()
        while True:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=SILENCE_BEFORE_PING)
            if message is None:
                if self._clock() - heard > 3 * SILENCE_BEFORE_PING:
                    raise StoreDown("Redis says nothing")
                await pubsub.ping()
                continue
            heard = self._clock()
            if message["type"] != "message":
                continue
            try:
                if message["channel"] == own:
                    await self._relay.handle_data(message["data"])
                else:
                    self._apply_event(_unpack(message["data"]))
            except (RedisError, OSError, OpenClawError):  # Redis itself: listen anew
                raise
            except ValueError:  # somebody else's, or another version's: what we understand goes on
                logger.warning("a message in Redis that no proxy of this version would send was passed over")
            except Exception:
                logger.exception("a message in Redis could not be used, and was passed over")

    def _apply_event(self, event: InstanceEvent) -> None:
        guest = self.sessions.get(event.session_id)
        if event.sender == self._relay.instance:
            return
        if event.kind == "gone":
            self._end_session(event.session_id)
        elif event.kind == "bridge":
            self._owners.pop(event.session_id, None)
        elif guest is not None and event.kind == "tools":
            self._start_task(self._reload_tools(guest))
        elif guest is not None and event.kind == "cancel":
            self._on_cancel(guest, event.client, event.request)

    async def _reload_tools(self, session: AppSession) -> None:
        with contextlib.suppress(StoreDown):
            tools = await self._store.read_tools(session.registration.id)
            if tools is not None:
                session.replace_tools(self._parse_manifest(tools))

    def _invalidate_cache(self) -> None:
        """News may have been missed: what is not ours is read anew."""
        self._owners.clear()
        for guest in self.sessions.values():
            guest.last_verified = float("-inf")

    # ---- keeping ----

    async def _sweep(self) -> None:
        """Renew what lives here, let go of what is gone or unused."""
        with contextlib.suppress(StoreDown):
            now = self._clock()
            guests = list(self.sessions.values())
            there = await self._store.exists([guest.registration.id for guest in guests])
            if await self._restore_after_restart():  # asked last: what was missing may have been forgotten, not deleted
                return
            for guest in guests:
                id = guest.registration.id
                if id not in there:
                    self._end_session(id)
                elif guest.bridge is not None:
                    await self._renew_session(guest)
                elif now - guest.last_used > EVICT_AFTER and not (
                    guest.session_server is not None and guest.session_server.is_busy
                ):
                    self.sessions.pop(id, None)
                    self._owners.pop(id, None)

    async def _renew_session(self, session: AppSession) -> None:
        await self._store.renew(session.registration, time.time())
        kept = await self._store.renew_claim(session.registration.id, self._relay.instance, time.time())
        if not kept and session.bridge is not None:
            session.bridge.close(ALREADY_ATTACHED, "the app has a bridge to another instance by now")

    async def _restore_after_restart(self) -> bool:
        """Whether Redis was restarted, perhaps without its memory: what has a bridge here is then put back."""
        life = await self._store.server_run_id()
        if life == self._redis_run_id:
            return False
        for guest in list(self.sessions.values()):
            if guest.bridge is not None:
                if not await self._store.renew(guest.registration, time.time()):
                    try:
                        await self._store.restore(guest.registration, guest.manifest.raw, time.time())
                    except TooManySessions:  # others came first; its app is told, and registers again
                        self._end_session(guest.registration.id)
                        continue
                await self._renew_session(guest)
        self._redis_run_id = life
        return True

    def _end_session(self, id: str) -> None:
        self._owners.pop(id, None)
        guest = self.sessions.pop(id, None)
        if guest is not None:
            end_session(guest, self._on_end)

    def _manifest_of(self, stored: StoredAppSession) -> ToolManifest:
        return self._parse_manifest(stored.tools)

    def _start_task(self, work: Coroutine[Any, Any, Done]) -> asyncio.Task[Done]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _bridge_taken_error() -> BridgeTaken:
    return BridgeTaken("a bridge is already attached to this session, and alive")
