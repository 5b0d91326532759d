"""Who counts as one peer, and connections of a peer that wait to be known."""

import ipaddress
from functools import lru_cache
from typing import Any, Final, Protocol

HERE: Final = "this machine"


def peer_of(client: Any) -> str:
    """Who counts as one: this machine whatever address it uses, an IPv4 address, the /64 of an IPv6 address."""
    try:
        return _of_address(client[0])
    except (ValueError, TypeError, IndexError, AttributeError):
        return ""


@lru_cache(maxsize=1024)
def _of_address(text: str) -> str:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif not address.is_loopback:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return HERE if address.is_loopback else str(address)


class Guarded(Protocol):
    """A connection that waits for the rest of what its peer has to say."""

    @property
    def peer(self) -> str: ...

    def make_way(self) -> None:
        """End: it waited longest, and another came."""


class Waiting:
    """Connections that wait, oldest first, by peer. One too many ends the oldest, so that nobody is kept out.

    A peer may be a whole machine behind one address, or a load balancer: its other clients must still come in. What
    they send is whole within milliseconds; what has waited longest is least likely to be one of them.
    """

    def __init__(self, *, of_a_peer: int, in_all: int | None = None) -> None:
        self._of_a_peer = of_a_peer
        self._in_all = in_all
        self._peers: dict[str, dict[Guarded, None]] = {}
        self._all: dict[Guarded, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: Guarded) -> None:
        own = self._peers.setdefault(connection.peer, {})
        own[connection] = self._all[connection] = None
        if len(own) > self._of_a_peer:
            self._end(next(iter(own)))
        elif self._in_all is not None and len(self._all) > self._in_all:
            self._end(next(iter(self._all)))

    def discard(self, connection: Guarded) -> None:
        if connection in self._all:
            del self._all[connection]
            own = self._peers[connection.peer]
            del own[connection]
            if not own:
                del self._peers[connection.peer]

    def _end(self, connection: Guarded) -> None:
        self.discard(connection)
        connection.make_way()


class Begun:
    """How many bytes have come of what is not whole yet. Over the bound, the peer with most of them gives way.

    Of its connections that have at least half of what they have on average, the first to begin: who sends in earnest is
    done sooner than those that only hold what they have, and what is small frees nothing.
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._peers: dict[str, dict[Guarded, int]] = {}
        self._of_peers: dict[str, int] = {}
        self._all = 0

    def set(self, connection: Guarded, size: int) -> None:
        peer = connection.peer
        own = self._peers.setdefault(peer, {})
        more = size - own.get(connection, 0)
        own[connection] = size
        self._all += more
        self._of_peers[peer] = self._of_peers.get(peer, 0) + more
        while self._all > self._most:
            peer, total = max(self._of_peers.items(), key=lambda entry: entry[1])
            own = self._peers[peer]
            first = next(each for each, taken in own.items() if 2 * taken * len(own) >= total)
            self.remove(first)
            first.make_way()

    def remove(self, connection: Guarded) -> None:
        own = self._peers.get(connection.peer, {})
        size = own.pop(connection, 0)
        self._all -= size
        if own:
            self._of_peers[connection.peer] -= size
        else:
            self._peers.pop(connection.peer, None)
            self._of_peers.pop(connection.peer, None)
