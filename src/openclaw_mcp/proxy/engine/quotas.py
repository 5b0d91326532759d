"""How many sessions a peer may have, and of how many bytes, so that no peer fills the proxy for all others."""

from collections import Counter
from typing import Final

from msgspec import Struct

from .app_session import Session, TooManySessions
from .rate_limits import UNCLAIMED
from .tool_list import Menu

MOST_BYTES: Final = 128 << 20  # of registrations kept at once; parsed they take several times as much memory


class Room(Struct, frozen=True):
    """What there is room for. An engine in Redis knows the same numbers."""

    sessions: int
    sessions_of_a_peer: int
    bytes: int = MOST_BYTES
    bytes_of_a_peer: int = MOST_BYTES
    unclaimed: float = UNCLAIMED
    """Seconds after which a session without an app gives way where there is no room."""


class Places:
    """Counts sessions and their bytes by peer, and knows the sessions without a bridge, longest without first.

    Sessions of one peer that register the same tools share them, and are counted so.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._peers: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._menus: dict[str, Menu] = {}
        self._holders: Counter[tuple[str, int]] = Counter()
        """How many sessions of a peer have a menu."""
        self._abouts: dict[str, int] = {}
        self._bytes: Counter[str] = Counter()
        self._all_bytes = 0
        self._unclaimed: dict[str, dict[str, float]] = {}

    def refusal(self, peer: str, size: int) -> TooManySessions | None:
        """Why a session of `size` bytes can't be taken now; None: it can."""
        room = self._room
        if self._counts[peer] >= room.sessions_of_a_peer:
            return too_many(room.sessions_of_a_peer, of_a_peer=True)
        if len(self._peers) >= room.sessions:
            return too_many(room.sessions, of_a_peer=False)
        if self._bytes[peer] + size > room.bytes_of_a_peer:
            return too_large(room.bytes_of_a_peer, of_a_peer=True)
        if self._all_bytes + size > room.bytes:
            return too_large(room.bytes, of_a_peer=False)
        return None

    def giving_way(self, peer: str, now: float, refusal: TooManySessions) -> str:
        """The session that gives way to a new one of this peer. Raises `refusal` when none does."""
        queues = [self._unclaimed.get(peer, {})] if refusal.of_a_peer else list(self._unclaimed.values())
        oldest = [(since, id) for queue in queues for id, since in list(queue.items())[:1]]
        since, id = min(oldest, default=(now, ""))
        if not id or now - since <= self._room.unclaimed:
            raise refusal
        return id

    def cost(self, session: Session, menu: Menu) -> int:
        """Bytes that one more session with this menu adds."""
        shared = (session.peer, id(menu)) in self._holders
        return len(session.about) + (0 if shared else len(menu.raw))

    def add(self, session: Session, menu: Menu, now: float) -> None:
        peer = session.peer
        self._peers[session.id] = peer
        self._counts[peer] += 1
        self._abouts[session.id] = len(session.about)
        self._charge(peer, len(session.about))
        self._hold(session.id, menu)
        self._unclaimed.setdefault(peer, {})[session.id] = now

    def retool(self, session: Session, menu: Menu) -> None:
        """It has other tools now. Raises TooManySessions when they take more bytes than there are."""
        old = self._menus.get(session.id)
        if old is None:
            return
        self._let_go(session.id)
        size = 0 if (session.peer, id(menu)) in self._holders else len(menu.raw)
        for most, used, of_a_peer in (
            (self._room.bytes_of_a_peer, self._bytes[session.peer], True),
            (self._room.bytes, self._all_bytes, False),
        ):
            if used + size > most:
                self._hold(session.id, old)
                raise too_large(most, of_a_peer=of_a_peer)
        self._hold(session.id, menu)

    def claim(self, id: str) -> None:
        """Its app has come."""
        peer = self._peers.get(id)
        queue = None if peer is None else self._unclaimed.get(peer)
        if peer is not None and queue is not None:
            queue.pop(id, None)
            if not queue:
                del self._unclaimed[peer]

    def unclaim(self, id: str, now: float) -> None:
        """Its app has gone."""
        peer = self._peers.get(id)
        if peer is not None:
            self._unclaimed.setdefault(peer, {})[id] = now

    def remove(self, id: str) -> None:
        self.claim(id)
        peer = self._peers.get(id)
        if peer is None:
            return
        self._let_go(id)
        self._charge(peer, -self._abouts.pop(id))
        self._counts[peer] -= 1
        if not self._counts[peer]:
            del self._counts[peer], self._bytes[peer]
        del self._peers[id]

    def _hold(self, session: str, menu: Menu) -> None:
        peer = self._peers[session]
        self._menus[session] = menu
        self._holders[peer, id(menu)] += 1
        if self._holders[peer, id(menu)] == 1:
            self._charge(peer, len(menu.raw))

    def _let_go(self, session: str) -> None:
        peer, menu = self._peers[session], self._menus.pop(session)
        self._holders[peer, id(menu)] -= 1
        if not self._holders[peer, id(menu)]:
            del self._holders[peer, id(menu)]
            self._charge(peer, -len(menu.raw))

    def _charge(self, peer: str, size: int) -> None:
        self._bytes[peer] += size
        self._all_bytes += size


def too_many(count: int, *, of_a_peer: bool) -> TooManySessions:
    if of_a_peer:
        words = "sessions are open already from your address; delete some, wait until they expire, or have"
        return TooManySessions(f"{count} {words} OPENCLAW_PROXY_MAX_SESSIONS_PER_PEER raised", of_a_peer=True)
    return TooManySessions(f"{count} sessions are open already; delete some or wait until they expire", of_a_peer=False)


def too_large(count: int, *, of_a_peer: bool) -> TooManySessions:
    where = " from your address" if of_a_peer else ""
    words = (
        "would take more bytes in all; delete some, register less, or have OPENCLAW_PROXY_MAX_REGISTERED_BYTES raised"
    )
    return TooManySessions(f"with this, the sessions open{where} {words} ({count} now)", of_a_peer=of_a_peer)
