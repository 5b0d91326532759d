"""How many sessions a peer may have, so that nobody fills the proxy for everybody."""

from collections import Counter

from .guest import TooManySessions
from .limits import UNCLAIMED


class Places:
    """Counts sessions by peer, and knows those no bridge was ever attached to, oldest first."""

    def __init__(self, *, of_a_peer: int, in_all: int, unclaimed: float = UNCLAIMED) -> None:
        self._unclaimed_for = unclaimed
        self._of_a_peer = of_a_peer
        self._in_all = in_all
        self._peers: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._unclaimed: dict[str, dict[str, float]] = {}

    def full(self, peer: str) -> bool:
        return len(self._peers) >= self._in_all or self._counts[peer] >= self._of_a_peer

    def giving_way(self, peer: str, now: float) -> str:
        """The session that gives way to a new one of this peer. Raises TooManySessions when none does."""
        own = self._counts[peer] >= self._of_a_peer
        queues = [self._unclaimed.get(peer, {})] if own else list(self._unclaimed.values())
        oldest = [(since, id) for queue in queues for id, since in list(queue.items())[:1]]
        since, id = min(oldest, default=(now, ""))
        if not id or now - since <= self._unclaimed_for:
            raise too_many(self._of_a_peer if own else self._in_all, of_a_peer=own)
        return id

    def add(self, id: str, peer: str, now: float) -> None:
        self._peers[id] = peer
        self._counts[peer] += 1
        self._unclaimed.setdefault(peer, {})[id] = now

    def claim(self, id: str) -> None:
        """Its app has come."""
        peer = self._peers.get(id)
        queue = None if peer is None else self._unclaimed.get(peer)
        if peer is not None and queue is not None:
            queue.pop(id, None)
            if not queue:
                del self._unclaimed[peer]

    def remove(self, id: str) -> None:
        self.claim(id)
        peer = self._peers.pop(id, None)
        if peer is not None:
            self._counts[peer] -= 1
            if not self._counts[peer]:
                del self._counts[peer]


def too_many(count: int, *, of_a_peer: bool) -> TooManySessions:
    if of_a_peer:
        words = "sessions are open already from your address; delete some, wait until they expire, or have"
        return TooManySessions(f"{count} {words} OPENCLAW_PROXY_MAX_SESSIONS_PER_PEER raised")
    return TooManySessions(f"{count} sessions are open already; delete some or wait until they expire")
