"""Who counts as one peer, and connections of a peer that wait to be known."""

import ipaddress
from functools import lru_cache
from typing import Any, Final, Protocol

LOCAL_PEER: Final = "this machine"


def peer_key(client: Any) -> str:
    """Who counts as one: this machine with any of its addresses, an IPv4 address, the /64 of an IPv6 address."""
    try:
        return _address_key(client[0])
    except (ValueError, TypeError, IndexError, AttributeError):
        return ""


def is_loopback(host: str) -> bool:
    """Whether a host, by name or address, is this machine itself."""
    try:
        return host == "localhost" or _address_key(host) == LOCAL_PEER
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def _address_key(text: str) -> str:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif not address.is_loopback:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return LOCAL_PEER if address.is_loopback else str(address)


class EvictableConnection(Protocol):
    """A connection that waits for the rest of what its peer has to say."""

    @property
    def peer(self) -> str: ...

    def evict(self) -> None:
        """End: it waited longest, and another came."""


class PendingConnections:
    """Connections that wait, oldest first, by peer. One too many ends the oldest, so that no peer is kept out.

    A peer may be a whole machine behind one address, or a load balancer: its other clients must still come in. What
    they send is whole within milliseconds; what has waited longest is least likely to be one of them.
    """

    def __init__(self, *, per_peer: int, total: int | None = None) -> None:
        self._max_per_peer = per_peer
        self._max_total = total
        self._peers: dict[str, dict[EvictableConnection, None]] = {}
        self._all: dict[EvictableConnection, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: EvictableConnection) -> None:
        own = self._peers.setdefault(connection.peer, {})
        own[connection] = self._all[connection] = None
        if len(own) > self._max_per_peer:
            self._evict(next(iter(own)))
        elif self._max_total is not None and len(self._all) > self._max_total:
            self._evict(next(iter(self._all)))

    def discard(self, connection: EvictableConnection) -> None:
        if connection in self._all:
            del self._all[connection]
            own = self._peers[connection.peer]
            del own[connection]
            if not own:
                del self._peers[connection.peer]

    def _evict(self, connection: EvictableConnection) -> None:
        self.discard(connection)
        connection.evict()


class PendingBytes:
    """How many bytes have come of what is not whole yet. Over the bound, the peer with most of them gives way.

    Of its connections that have at least half of what they have on average, the first to begin: who sends in earnest is
    done sooner than those that only hold what they have, and what is small frees nothing.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._peers: dict[str, dict[EvictableConnection, int]] = {}
        self._bytes_by_peer: dict[str, int] = {}
        self._total = 0

    def set(self, connection: EvictableConnection, size: int) -> None:
        peer = connection.peer
        own = self._peers.setdefault(peer, {})
        more = size - own.get(connection, 0)
        own[connection] = size
        self._total += more
        self._bytes_by_peer[peer] = self._bytes_by_peer.get(peer, 0) + more
        while self._total > self._max_bytes:
            peer, total = max(self._bytes_by_peer.items(), key=lambda entry: entry[1])
            own = self._peers[peer]
            first = next(each for each, taken in own.items() if 2 * taken * len(own) >= total)
            self.remove(first)
            first.evict()

    def remove(self, connection: EvictableConnection) -> None:
        own = self._peers.get(connection.peer, {})
        size = own.pop(connection, 0)
        self._total -= size
        if own:
            self._bytes_by_peer[connection.peer] -= size
        else:
            self._peers.pop(connection.peer, None)
            self._bytes_by_peer.pop(connection.peer, None)
