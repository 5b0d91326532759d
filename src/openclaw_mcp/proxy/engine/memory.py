"""Sessions in this process's memory: the engine of a proxy that runs alone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, Self

from .app_session import GONE, BridgeTaken, Entry, Guest, Session, SessionGone
from .bridge import SESSION_DELETED, Bridge
from .quotas import Places
from .rate_limits import Bucket, Buckets
from .tool_list import Menu

SWEEP: Final = 15.0  # seconds between two looks for expired sessions, at most
BEATS: Final = 4  # looks at each bridge within one ping interval

Part = Callable[[Guest], None]
Cancel = Callable[[Guest, str, str | int], None]

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """Where sessions live. Every method that may have to ask elsewhere can raise StoreDown."""

    guests: dict[str, Guest]
    """The sessions this process knows of."""

    def near(self, id: str) -> Guest | None:
        """A session known here for certain, renewed by being asked for; None = ask `find`."""

    async def find(self, id: str) -> Guest | None: ...

    async def add(self, session: Session, menu: Menu) -> None:
        """Raises TooManySessions."""

    async def remove(self, id: str) -> bool:
        """Whether there was such a session."""

    async def retool(self, guest: Guest, menu: Menu) -> None:
        """Raises TooManySessions when the tools take more bytes than there is room for, SessionGone."""

    async def entry(self, guest: Guest) -> Entry: ...

    async def entries(self, device: str | None, most: int) -> Sequence[Entry]:
        """The newest, newest first."""

    async def attach(self, guest: Guest, bridge: Bridge) -> None:
        """Raises BridgeTaken."""

    async def detach(self, guest: Guest, bridge: Bridge) -> None: ...

    async def take(self, buckets: Sequence[Bucket]) -> float:
        """0, or the seconds until the next request would be within the limits."""

    def cancel_elsewhere(self, guest: Guest, client: str, id: str | int) -> None:
        """A client cancels a request that is not served here."""

    async def count(self) -> int: ...


class Memory:
    """An `Engine`; an `async with` is its life."""

    def __init__(self, *, ttl: float, places: Places, ping: float, part: Part = lambda _: None) -> None:
        self.guests: dict[str, Guest] = {}
        self._ttl = ttl
        self._places = places
        self._beat = ping / BEATS
        self._part = part
        self._clock = asyncio.get_running_loop().time
        self._buckets = Buckets(self._clock)
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(keep(self.guests, self._beat, self._sweep, min(SWEEP, self._ttl / 2)))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))

    def near(self, id: str) -> Guest | None:
        guest = self.guests.get(id)
        if guest is None:
            return None
        now = self._clock()
        if guest.bridge is None and now - guest.used > self._ttl:
            self._forget(guest)
            return None
        guest.used = now
        return guest

    async def find(self, id: str) -> Guest | None:
        return self.near(id)

    async def add(self, session: Session, menu: Menu) -> None:
        places = self._places
        if places.refusal(session.peer, places.cost(session, menu)) is not None:
            await self._sweep()
        while (refusal := places.refusal(session.peer, places.cost(session, menu))) is not None:
            self._forget(self.guests[places.giving_way(session.peer, self._clock(), refusal)])
        self.guests[session.id] = Guest(session, menu, now=self._clock())
        places.add(session, menu, self._clock())

    async def remove(self, id: str) -> bool:
        guest = self.near(id)
        if guest is not None:
            self._forget(guest)
        return guest is not None

    async def retool(self, guest: Guest, menu: Menu) -> None:
        self._check(guest)
        self._places.retool(guest.session, menu)
        guest.retool(menu)

    async def entry(self, guest: Guest) -> Entry:
        return Entry(guest.session, guest.menu, guest.bridge is not None)

    async def entries(self, device: str | None, most: int) -> Sequence[Entry]:
        found = [guest for guest in self.guests.values() if device is None or guest.session.device == device]
        found.sort(key=lambda guest: guest.session.created)
        return [await self.entry(guest) for guest in reversed(found[-most:])]

    async def attach(self, guest: Guest, bridge: Bridge) -> None:
        while guest.bridge is not None:
            if await guest.bridge.probe():
                raise BridgeTaken("a bridge is already attached to this session, and alive")
            leave(guest)
        self._check(guest)
        bridge.count = guest.count
        guest.bridge = bridge
        self._places.claim(guest.session.id)

    def _check(self, guest: Guest) -> None:
        """Whoever found the session may have waited since. Raises SessionGone."""
        if self.guests.get(guest.session.id) is not guest:
            raise SessionGone(GONE)

    async def detach(self, guest: Guest, bridge: Bridge) -> None:
        if guest.bridge is bridge:
            leave(guest)
            guest.used = self._clock()
            self._places.unclaim(guest.session.id, guest.used)

    async def take(self, buckets: Sequence[Bucket]) -> float:
        return self._buckets.take(buckets)

    def cancel_elsewhere(self, guest: Guest, client: str, id: str | int) -> None:
        return  # there is no elsewhere

    async def count(self) -> int:
        return len(self.guests)

    async def _sweep(self) -> None:
        limit = self._clock() - self._ttl
        for guest in [g for g in self.guests.values() if g.bridge is None and g.used < limit]:
            self._forget(guest)

    def _forget(self, guest: Guest) -> None:
        self.guests.pop(guest.session.id, None)
        self._places.remove(guest.session.id)
        depart(guest, self._part)


def leave(guest: Guest) -> None:
    """The bridge is gone; the next one counts on from its last call."""
    if guest.bridge is not None:
        guest.count = guest.bridge.count
        guest.bridge = None


def depart(guest: Guest, part: Part) -> None:
    """The session is over: whoever waits on its bridge or listens at its door is told."""
    if guest.bridge is not None:
        guest.bridge.close(SESSION_DELETED, "the session was deleted")
        leave(guest)
    part(guest)


async def keep(guests: dict[str, Guest], beat: float, sweep: Callable[[], Awaitable[None]], every: float) -> None:
    """Look at every bridge each `beat` seconds, and sweep each `every`."""
    clock = asyncio.get_running_loop().time
    swept = clock()
    while True:
        await asyncio.sleep(min(beat, every))
        now = clock()
        for guest in list(guests.values()):
            if guest.bridge is not None:
                guest.bridge.beat(now)
        if now - swept >= every:
            swept = now
            try:
                await sweep()
            except OSError:  # the shared store is away; the next sweep tries again
                continue
            except Exception:  # without a keeper nobody is pinged, and nothing expires
                logger.exception("a sweep of the sessions failed")
