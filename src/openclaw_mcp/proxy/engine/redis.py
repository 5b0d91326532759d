"""Sessions shared by many instances through Redis: any of them serves any session, wherever its bridge is.

Calls to an app whose bridge is here need no Redis at all, so they continue while it is away.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any, Final, Literal, Self

import msgspec
from msgspec import Struct
from redis.exceptions import RedisError

from ...core.errors import BadRequest, OpenClawError
from ...protocol.bridge import ALREADY_ATTACHED, NOT_CONNECTED
from .app_session import (
    NO_SUCH_SESSION,
    AppRegistration,
    AppSession,
    AppSessionStatus,
    SessionGone,
    StoreDown,
    ToolInvoker,
    TooManySessions,
)
from .bridge import Bridge
from .engine import CancelledRequest, SessionEngine, bridge_taken_error
from .limits import RateBucket, SessionLimits
from .redis_store import PREFIX, RedisSessionStore, StoredAppSession
from .relay import InstanceRelay, RemoteBridge, channel_name
from .tool_list import ToolManifest, parse_stored_manifest

RECHECK_AFTER: Final = 5.0  # seconds a session read from the store is trusted without asking again
EVICT_AFTER: Final = 60.0  # seconds an unused session is kept in this process
RENEW_INTERVAL: Final = 5.0  # seconds between two renewals of what lives here
SILENCE_BEFORE_PING: Final = 10.0  # seconds without a message from Redis before we check that it still answers
FIRST_PAUSE: Final = 0.1  # seconds before listening again after Redis was lost; doubled each time
MAX_PAUSE: Final = 2.0
CALLS_PER_BRIDGE: Final = 1 << 20  # calls a bridge may make before its numbers could meet the next one's
EVENTS_CHANNEL: Final = PREFIX + "news"

EventKind = Literal["gone", "tools", "bridge", "cancel"]

logger = logging.getLogger(__name__)


class InstanceEvent(Struct, array_like=True):
    """A change that every instance should know of."""

    kind: EventKind
    session_id: str
    sender: str
    client: str = ""
    request: str | int = 0


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(InstanceEvent).decode


class RedisEngine(SessionEngine):
    def __init__(self, url: str, *, ttl: float, limits: SessionLimits, ping: float, max_tools: int) -> None:
        super().__init__(ping=ping, sweep_interval=min(RENEW_INTERVAL, ttl / 3))
        self._store = RedisSessionStore(url, ttl=ttl, limits=limits)
        self._relay = InstanceRelay(self._store, self._find_bridge)
        self._max_tools = max_tools
        self._recheck_after = min(RECHECK_AFTER, ttl / 4)
        self._owners: dict[str, tuple[str | None, float]] = {}
        self._lookups: dict[str, asyncio.Task[AppSession | None]] = {}
        self._subscribed = asyncio.Event()
        self._pause = FIRST_PAUSE
        self._redis_run_id = ""

    async def __aenter__(self) -> Self:
        try:
            self._redis_run_id = await self._store.server_run_id()
        except StoreDown:
            await self._store.aclose()
            raise BadRequest("no Redis answers at OPENCLAW_PROXY_REDIS_URL; start it or correct the address") from None
        self._tasks.loop(self._listen, name="listening to Redis", on_failure="restart")
        await self._subscribed.wait()
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        for session in list(self.sessions.values()):
            if session.bridge is not None:
                with contextlib.suppress(StoreDown):
                    await self._store.release(session.registration.id, self._relay.instance, time.time())
        await self._relay.aclose()
        await super().__aexit__()
        await self._store.aclose()

    # ---- sessions ----

    def find_cached(self, id: str) -> AppSession | None:
        session = self.sessions.get(id)
        if session is None:
            return None
        now = self._clock()
        if session.bridge is None and now - session.last_verified > self._recheck_after:
            return None
        session.last_used = now
        return session

    async def find(self, id: str) -> AppSession | None:
        """Requests for the same session at once share one look-up."""
        asked = self._lookups.get(id)
        if asked is None:
            asked = self._lookups[id] = self._tasks.spawn(self._look_up(id), name="look-up", on_failure="raise")
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
        stored = await self._store.find(id, time.time())
        if stored is None:
            return None
        now = self._clock()
        session = self.sessions.setdefault(
            id,
            AppSession(stored.registration, self._manifest_of(stored), now=now, find_remote=self._find_remote_bridge),
        )
        self._owners[id] = (stored.owner, now)
        return session

    async def add(self, registration: AppRegistration, manifest: ToolManifest) -> None:
        await self._store.add(registration, manifest.raw, time.time())

    async def remove(self, id: str) -> None:
        await self._store.remove(id)
        self._end_session(id)
        await self._publish_event("gone", id)

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
        everything = await self._store.list_all()
        found = [stored for stored in everything if device is None or stored.registration.device == device]
        found.sort(key=lambda stored: stored.registration.created, reverse=True)
        return [
            AppSessionStatus(stored.registration, self._manifest_of(stored), stored.owner is not None)
            for stored in found[:most]
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
            await self._displace_dead_bridge(session)
            number, owner = await self._store.claim(id, self._relay.instance, instead_of=displaced)
            if number > 0:
                break
            if number < 0:
                self._end_session(id)
                raise SessionGone(NO_SUCH_SESSION)
            if await self._store.has_subscribers(channel_name(owner)) and await self._relay.probe(owner, id):
                raise bridge_taken_error()
            displaced = owner
        if self.sessions.get(id) is not session:  # deleted while the claim was on its way
            await self._store.release(id, self._relay.instance, time.time())
            raise SessionGone(NO_SUCH_SESSION)
        session.attach_bridge(bridge, first_number=(number - 1) * CALLS_PER_BRIDGE)
        await self._publish_event("bridge", id)

    async def detach(self, session: AppSession, bridge: Bridge) -> None:
        if session.bridge is not bridge:
            return
        session.detach_bridge()
        session.last_used = session.last_verified = self._clock()
        id = session.registration.id
        self._owners.pop(id, None)
        with contextlib.suppress(StoreDown):  # the claim runs out by itself
            await self._store.release(id, self._relay.instance, time.time())
            await self._store.renew(session.registration, time.time())
            await self._publish_event("bridge", id)

    def _find_bridge(self, id: str) -> Bridge | None:
        session = self.sessions.get(id)
        return None if session is None else session.bridge

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
        self._tasks.spawn(self._publish_cancel(session, client, request_id), name="cancelling at other instances")

    async def _publish_cancel(self, session: AppSession, client: str, request_id: str | int) -> None:
        with contextlib.suppress(StoreDown):  # calls between instances fail too while it is away
            await self._publish_event("cancel", session.registration.id, client=client, request_id=request_id)

    # ---- events ----

    async def _publish_event(self, kind: EventKind, id: str, *, client: str = "", request_id: str | int = 0) -> None:
        event = InstanceEvent(kind, id, self._relay.instance, client, request_id)
        await self._store.publish(EVENTS_CHANNEL, _pack(event))

    async def _listen(self) -> None:
        """Handle what other instances send, until Redis is lost; then wait a while."""
        try:
            async with self._store.open_pubsub() as pubsub:
                await pubsub.subscribe(EVENTS_CHANNEL, channel_name(self._relay.instance))
                self._subscribed.set()
                self._pause = FIRST_PAUSE
                await self._restore_after_restart()
                await self._read_events(pubsub)
        except (RedisError, OSError, TimeoutError, OpenClawError) as exc:
            logger.warning("proxy engine: Redis is lost (%s), next attempt in %g s", type(exc).__name__, self._pause)
        finally:
            self._relay.fail_pending(StoreDown(f"{NOT_CONNECTED}: the proxy's shared store is out of reach"))
            self._invalidate_cache()
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE)

    async def _read_events(self, pubsub: Any) -> None:
        own = channel_name(self._relay.instance).encode()
        last_message = self._clock()
        while True:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=SILENCE_BEFORE_PING)
            if message is None:
                if self._clock() - last_message > 3 * SILENCE_BEFORE_PING:
                    raise StoreDown("Redis says nothing")
                await pubsub.ping()
                continue
            last_message = self._clock()
            if message["type"] != "message":
                continue
            try:
                if message["channel"] == own:
                    await self._relay.handle_data(message["data"])
                else:
                    self._apply_event(_unpack(message["data"]))
            except (RedisError, OSError, OpenClawError):  # Redis itself: listen again
                raise
            except ValueError:  # another program's, or another version's
                logger.warning("proxy engine: a message in Redis that is none of this version's was skipped")
            except Exception:
                logger.exception("proxy engine: a message in Redis could not be used, it was skipped")

    def _apply_event(self, event: InstanceEvent) -> None:
        session = self.sessions.get(event.session_id)
        if event.sender == self._relay.instance:
            return
        if event.kind == "gone":
            self._end_session(event.session_id)
        elif event.kind == "bridge":
            self._owners.pop(event.session_id, None)
        elif session is not None and event.kind == "tools":
            self._tasks.spawn(self._reload_tools(session), name="reloading tools")
        elif session is not None and event.kind == "cancel":
            self.cancelled.emit(CancelledRequest(session, event.client, event.request))

    async def _reload_tools(self, session: AppSession) -> None:
        with contextlib.suppress(StoreDown):
            tools = await self._store.read_tools(session.registration.id)
            if tools is not None:
                session.replace_tools(parse_stored_manifest(tools, max_tools=self._max_tools))

    def _invalidate_cache(self) -> None:
        """Events may have been missed: what is not ours is read again."""
        self._owners.clear()
        for session in self.sessions.values():
            session.last_verified = float("-inf")

    # ---- maintenance ----

    async def _sweep(self) -> None:
        """Renew the sessions that have a bridge here, drop those that are gone or unused."""
        with contextlib.suppress(StoreDown):
            now = self._clock()
            sessions = list(self.sessions.values())
            there = await self._store.exists([session.registration.id for session in sessions])
            if await self._restore_after_restart():  # after `exists`: what is missing may be lost by Redis, not deleted
                return
            for session in sessions:
                id = session.registration.id
                if id not in there:
                    self._end_session(id)
                elif session.bridge is not None:
                    await self._renew_session(session)
                elif now - session.last_used > EVICT_AFTER and not session.active_requests:
                    self.sessions.pop(id, None)
                    self._owners.pop(id, None)

    async def _renew_session(self, session: AppSession) -> None:
        await self._store.renew(session.registration, time.time())
        kept = await self._store.renew_claim(session.registration.id, self._relay.instance, time.time())
        if not kept and session.bridge is not None:
            session.bridge.close(ALREADY_ATTACHED, "the app has a bridge to another instance by now")

    async def _restore_after_restart(self) -> bool:
        """Whether Redis was restarted, perhaps without its data: sessions with a bridge here are then stored again."""
        run_id = await self._store.server_run_id()
        if run_id == self._redis_run_id:
            return False
        for session in list(self.sessions.values()):
            if session.bridge is not None:
                if not await self._store.renew(session.registration, time.time()):
                    try:
                        await self._store.add(session.registration, session.manifest.raw, time.time())
                    except TooManySessions:  # others came first; its app learns so, and registers again
                        self._end_session(session.registration.id)
                        continue
                await self._renew_session(session)
        self._redis_run_id = run_id
        return True

    def _end_session(self, id: str) -> None:
        self._owners.pop(id, None)
        session = self.sessions.pop(id, None)
        if session is not None:
            self._close_session(session)

    def _manifest_of(self, stored: StoredAppSession) -> ToolManifest:
        return parse_stored_manifest(stored.tools, max_tools=self._max_tools)
