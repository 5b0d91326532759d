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
from .app_session import GONE, BridgeTaken, Carrier, Entry, Guest, Session, SessionGone, StoreDown, TooManySessions
from .bridge import ALREADY_ATTACHED, Bridge
from .frames import NOT_CONNECTED
from .memory import BEATS, Cancel, Part, depart, keep, leave
from .quotas import Room
from .rate_limits import Bucket, Buckets
from .redis_store import PREFIX, Kept, Store
from .relay import Far, Relay, channel
from .tool_list import Menu

FRESH: Final = 5.0  # seconds a session read from the store is trusted without asking again
CACHED: Final = 60.0  # seconds an unused session is kept in this process
EVERY: Final = 5.0  # seconds between two renewals of what lives here
QUIET: Final = 10.0  # seconds without a word from Redis before we ask whether it still hears us
FIRST_PAUSE: Final = 0.1  # seconds before listening again after Redis was lost; doubled each time
LONGEST_PAUSE: Final = 2.0
NUMBERS: Final = 1 << 20  # calls a bridge may make before its numbers could meet the next one's
NEWS: Final = PREFIX + "news"

Done = TypeVar("Done")

logger = logging.getLogger(__name__)


class News(Struct, array_like=True):
    """What every instance should know."""

    kind: str
    """`gone`, `tools`, `bridge`, or `cancel`."""
    session: str
    sender: str
    client: str = ""
    request: str | int = 0


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(News).decode


class Shared:
    """An `Engine`; an `async with` is its life."""

    def __init__(
        self,
        url: str,
        *,
        ttl: float,
        room: Room,
        ping: float,
        read: Callable[[bytes], Menu],
        part: Part = lambda _: None,
        cancel: Cancel = lambda *_: None,
    ) -> None:
        self.guests: dict[str, Guest] = {}
        self._store = Store(url, ttl=ttl, room=room)
        self._relay = Relay(self._store, self._bridge)
        self._read = read
        self._part = part
        self._cancel = cancel
        self._fresh = min(FRESH, ttl / 4)
        self._every = min(EVERY, ttl / 3)
        self._beat = ping / BEATS
        self._clock = asyncio.get_running_loop().time
        self._buckets = Buckets(self._clock)
        self._owners: dict[str, tuple[str | None, float]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asked: dict[str, asyncio.Task[Guest | None]] = {}
        self._hears = asyncio.Event()
        self._life = ""

    async def __aenter__(self) -> Self:
        try:
            self._life = await self._store.life()
        except StoreDown:
            await self._store.aclose()
            raise BadRequest("no Redis answers at OPENCLAW_PROXY_REDIS_URL; start it or correct the address") from None
        self._start(self._listen())
        await self._hears.wait()
        self._start(keep(self.guests, self._beat, self._sweep, self._every))
        return self

    async def __aexit__(self, *_: object) -> None:
        for guest in list(self.guests.values()):
            if guest.bridge is not None:
                with contextlib.suppress(StoreDown):
                    await self._store.give_up(guest.session.id, self._relay.instance, time.time())
        await self._relay.aclose()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._store.aclose()

    # ---- sessions ----

    def near(self, id: str) -> Guest | None:
        guest = self.guests.get(id)
        if guest is None:
            return None
        now = self._clock()
        if guest.bridge is None and now - guest.checked > self._fresh:
            return None
        guest.used = now
        return guest

    async def find(self, id: str) -> Guest | None:
        """Many who ask at once for the same session share one question."""
        asked = self._asked.get(id)
        if asked is None:
            asked = self._asked[id] = self._start(self._look_up(id))
            asked.add_done_callback(lambda _: self._asked.pop(id, None))
        return await asyncio.shield(asked)

    async def _look_up(self, id: str) -> Guest | None:
        known = self.guests.get(id)
        if known is not None:
            if await self._store.renew(known.session, time.time()):
                known.used = known.checked = self._clock()
                return known
            self._forget(id)
            return None
        kept = await self._store.find(id, time.time())
        if kept is None:
            return None
        now = self._clock()
        guest = self.guests.setdefault(id, Guest(kept.session, self._menu(kept), now=now, elsewhere=self._elsewhere))
        self._owners[id] = (kept.owner, now)
        return guest

    async def add(self, session: Session, menu: Menu) -> None:
        await self._store.add(session, menu.raw, time.time())

    async def remove(self, id: str) -> bool:
        there = await self._store.remove(id)
        self._forget(id)
        await self._tell("gone", id)
        return there

    async def retool(self, guest: Guest, menu: Menu) -> None:
        try:
            await self._store.retool(guest.session, menu.raw, time.time())
        except SessionGone:
            self._forget(guest.session.id)
            raise
        guest.retool(menu)
        await self._tell("tools", guest.session.id)

    async def entry(self, guest: Guest) -> Entry:
        connected = guest.bridge is not None or await self._store.owner(guest.session.id) is not None
        return Entry(guest.session, guest.menu, connected)

    async def entries(self, device: str | None, most: int) -> Sequence[Entry]:
        found = [kept for kept in await self._store.all() if device is None or kept.session.device == device]
        found.sort(key=lambda kept: kept.session.created, reverse=True)
        return [Entry(kept.session, self._menu(kept), kept.owner is not None) for kept in found[:most]]

    async def count(self) -> int:
        return await self._store.count(time.time())

    async def take(self, buckets: Sequence[Bucket]) -> float:
        try:
            return await self._store.take(buckets)
        except StoreDown:
            return self._buckets.take(buckets)  # each instance for itself until Redis is back

    # ---- bridges ----

    async def attach(self, guest: Guest, bridge: Bridge) -> None:
        id, displaced = guest.session.id, ""
        while True:
            if guest.bridge is not None:
                if await guest.bridge.probe():
                    raise _taken()
                leave(guest)
            number, owner = await self._store.claim(id, self._relay.instance, instead_of=displaced)
            if number > 0:
                break
            if number < 0:
                self._forget(id)
                raise SessionGone(GONE)
            if await self._store.listens(channel(owner)) and await self._relay.probe(owner, id):
                raise _taken()
            displaced = owner
        if self.guests.get(id) is not guest:  # deleted while the claim was on its way
            await self._store.give_up(id, self._relay.instance, time.time())
            raise SessionGone(GONE)
        bridge.count = (number - 1) * NUMBERS
        guest.bridge = bridge
        await self._tell("bridge", id)

    async def detach(self, guest: Guest, bridge: Bridge) -> None:
        if guest.bridge is not bridge:
            return
        leave(guest)
        guest.used = guest.checked = self._clock()
        id = guest.session.id
        self._owners.pop(id, None)
        with contextlib.suppress(StoreDown):  # the claim runs out by itself
            await self._store.give_up(id, self._relay.instance, time.time())
            await self._store.renew(guest.session, time.time())
            await self._tell("bridge", id)

    def _bridge(self, id: str) -> Bridge | None:
        guest = self.guests.get(id)
        return None if guest is None else guest.bridge

    async def _elsewhere(self, guest: Guest) -> Carrier | None:
        id = guest.session.id
        owner, at = self._owners.get(id, (None, 0.0))
        if owner is None or self._clock() - at > self._fresh:
            owner = await self._store.owner(id)
            self._owners[id] = (owner, self._clock())
        if owner is None or owner == self._relay.instance:
            return None
        return Far(self._relay, owner, id)

    def cancel_elsewhere(self, guest: Guest, client: str, id: str | int) -> None:
        self._start(self._tell("cancel", guest.session.id, client=client, request=id))

    # ---- news ----

    async def _tell(self, kind: str, id: str, *, client: str = "", request: str | int = 0) -> None:
        news = News(kind, id, self._relay.instance, client, request)
        await self._store.publish(NEWS, _pack(news))

    async def _listen(self) -> None:
        """Hear the others for as long as this engine lives, through every loss of Redis."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with self._store.ears() as ears:
                    await ears.subscribe(NEWS, channel(self._relay.instance))
                    self._hears.set()
                    pause = FIRST_PAUSE
                    await self._remind()
                    await self._hear(ears)
            except (RedisError, OSError, TimeoutError, OpenClawError) as exc:
                logger.warning("Redis is out of reach: %s", type(exc).__name__)
            except Exception:  # an instance that no longer listens is lost to all the others
                logger.exception("listening to Redis failed")
            self._relay.fail(StoreDown(f"{NOT_CONNECTED}: the proxy's shared store is out of reach"))
            self._unlearn()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _hear(self, ears: Any) -> None:
        own = channel(self._relay.instance).encode()
        heard = self._clock()
        while True:
            message = await ears.get_message(ignore_subscribe_messages=True, timeout=QUIET)
            if message is None:
                if self._clock() - heard > 3 * QUIET:
                    raise StoreDown("Redis says nothing")
                await ears.ping()
                continue
            heard = self._clock()
            if message["type"] != "message":
                continue
            try:
                if message["channel"] == own:
                    await self._relay.hear(message["data"])
                else:
                    self._note(_unpack(message["data"]))
            except (RedisError, OSError, OpenClawError):  # Redis itself: listen anew
                raise
            except ValueError:  # somebody else's, or another version's: what we understand goes on
                logger.warning("a message in Redis that no proxy of this version would send was passed over")
            except Exception:
                logger.exception("a message in Redis could not be used, and was passed over")

    def _note(self, news: News) -> None:
        guest = self.guests.get(news.session)
        if news.sender == self._relay.instance:
            return
        if news.kind == "gone":
            self._forget(news.session)
        elif news.kind == "bridge":
            self._owners.pop(news.session, None)
        elif guest is not None and news.kind == "tools":
            self._start(self._reread(guest))
        elif guest is not None and news.kind == "cancel":
            self._cancel(guest, news.client, news.request)

    async def _reread(self, guest: Guest) -> None:
        with contextlib.suppress(StoreDown):
            tools = await self._store.tools(guest.session.id)
            if tools is not None:
                guest.retool(self._read(tools))

    def _unlearn(self) -> None:
        """News may have been missed: what is not ours is read anew."""
        self._owners.clear()
        for guest in self.guests.values():
            guest.checked = float("-inf")

    # ---- keeping ----

    async def _sweep(self) -> None:
        """Renew what lives here, let go of what is gone or unused."""
        with contextlib.suppress(StoreDown):
            now = self._clock()
            guests = list(self.guests.values())
            there = await self._store.exists([guest.session.id for guest in guests])
            if await self._remind():  # asked last: what was missing may have been forgotten, not deleted
                return
            for guest in guests:
                id = guest.session.id
                if id not in there:
                    self._forget(id)
                elif guest.bridge is not None:
                    await self._renew(guest)
                elif now - guest.used > CACHED and not (guest.door is not None and guest.door.busy):
                    self.guests.pop(id, None)
                    self._owners.pop(id, None)

    async def _renew(self, guest: Guest) -> None:
        await self._store.renew(guest.session, time.time())
        kept = await self._store.keep(guest.session.id, self._relay.instance, time.time())
        if not kept and guest.bridge is not None:
            guest.bridge.close(ALREADY_ATTACHED, "the app has a bridge to another instance by now")

    async def _remind(self) -> bool:
        """Whether Redis was restarted, perhaps without its memory: what has a bridge here is then put back."""
        life = await self._store.life()
        if life == self._life:
            return False
        for guest in list(self.guests.values()):
            if guest.bridge is not None:
                if not await self._store.renew(guest.session, time.time()):
                    try:
                        await self._store.restore(guest.session, guest.menu.raw, time.time())
                    except TooManySessions:  # others came first; its app is told, and registers again
                        self._forget(guest.session.id)
                        continue
                await self._renew(guest)
        self._life = life
        return True

    def _forget(self, id: str) -> None:
        self._owners.pop(id, None)
        guest = self.guests.pop(id, None)
        if guest is not None:
            depart(guest, self._part)

    def _menu(self, kept: Kept) -> Menu:
        return self._read(kept.tools)

    def _start(self, work: Coroutine[Any, Any, Done]) -> asyncio.Task[Done]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _taken() -> BridgeTaken:
    return BridgeTaken("a bridge is already attached to this session, and alive")
