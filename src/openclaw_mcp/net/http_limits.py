"""What a connection may do before its request is whole, and how many such connections a peer may have."""

from collections.abc import Iterable
from typing import Any, Final

import uvicorn
from msgspec import Struct

from .flow_control import TurnQueue
from .peers import EvictableConnection, PendingBytes, PendingConnections

STAGE_SILENT: Final = "silent"  # nothing has come: a new connection
STAGE_HEAD: Final = "head"
STAGE_BODY: Final = "body"
DROP_PAUSE: Final = 0.005  # seconds between two turns of dropping unread bodies: some 50 MB a second, all together


class ConnectionBounds(Struct, frozen=True, kw_only=True):
    """The numbers of one server. Time is in seconds, sizes are in bytes."""

    head_bytes: int = 64 << 10
    """Of a request line with its headers; also of what frames a chunked body between two pieces of it, and its end."""
    max_headers: int = 256
    """How many of them; a client sends a dozen, and each costs more memory than its bytes."""
    head_seconds: float = 15.0
    """From a connection's first byte to the end of the headers, and how long a new connection may say nothing."""
    body_seconds: float = 30.0
    """From the end of the headers to the end of the body, and"""
    body_rate: int = 32 << 10
    """one second more for each so many bytes of a body that have come."""
    max_dropped_bytes: int = 16 << 20
    """Of a body that is read to be dropped, behind an answer that did not wait for it."""
    silent_per_peer: int = 4096
    """Connections of one peer that have not sent a byte: a burst of as many clients as may wait for `accept`, twice."""
    heads_per_peer: int = 256
    """Connections of one peer with the beginning of a request. The next one ends the oldest."""
    heads_total: int = 1024
    bodies_per_peer: int = 2048
    """Connections of one peer with the beginning of a body."""
    body_bytes: int = 128 << 20
    """Of all bodies that have begun together: beyond, the largest gives way."""
    unread_seconds: float = 10.0
    """How long an answer may wait for its reader before its connection may be ended for another, when all are taken."""


EVICTION_REASONS: Final = ("waits_since", "unread_since", "queued_since", "listens_since")
"""Attributes of a connection: the time since when it could be ended for that reason; None while it could not. Its peer
owes the rest of a request, does not read the answer, asked for more before it was answered, or reads a stream of
events, which it can open again. `idle_since`, when all it asked for is answered, comes before them all."""


def evict_connections(connections: Iterable[Any]) -> bool:
    """End the sixteenth part of the idle connections that are so for longest; whether there was any.

    Without idle ones, of those whose peers owe us something, then of those that do not read, that ask for much at once,
    and of streams: each time of the peer that has most of them, so that others stay.
    """
    there = [(number, each) for number, each in enumerate(connections) if hasattr(each, "evict")]
    idle = _since_entries(there, "idle_since")
    if idle:
        _evict_oldest(idle)
        return True
    for reason in EVICTION_REASONS:
        by_peer: dict[str, list[tuple[float, int, EvictableConnection]]] = {}
        for entry in _since_entries(there, reason):
            by_peer.setdefault(entry[2].peer, []).append(entry)
        if by_peer:
            _evict_oldest(max(by_peer.values(), key=len))
            return True
    return False


def _since_entries(connections: Iterable[tuple[int, Any]], reason: str) -> list[tuple[float, int, EvictableConnection]]:
    found = ((getattr(each, reason, None), number, each) for number, each in connections)
    return [(since, number, each) for since, number, each in found if since is not None]


def _evict_oldest(connections: list[tuple[float, int, EvictableConnection]]) -> None:
    connections.sort(key=lambda entry: entry[:2])
    for _, _, connection in connections[: -(-len(connections) // 16)]:
        connection.evict()


class BoundedConfig(uvicorn.Config):
    """Also what the connections of one server share."""

    def __init__(self, app: Any, *, bounds: ConnectionBounds, max_connections: int, **options: Any) -> None:
        super().__init__(app, **options)
        self.bounds = bounds
        self.max_connections = max_connections
        """Connections at once; the next one ends some that are idle, or is not taken."""
        self.is_closing = False
        """Whether the server is shutting down: a connection that comes now would be neither served nor closed."""
        self.request_turns: TurnQueue[Any] = TurnQueue(lambda connection: connection.resume_requests())
        self.drop_turns: TurnQueue[Any] = TurnQueue(lambda connection: connection.resume_drop(), pause=DROP_PAUSE)
        self.pending_by_stage = {
            STAGE_SILENT: PendingConnections(per_peer=bounds.silent_per_peer),
            STAGE_HEAD: PendingConnections(per_peer=bounds.heads_per_peer, total=bounds.heads_total),
            STAGE_BODY: PendingConnections(per_peer=bounds.bodies_per_peer),
        }
        self.pending_bodies = PendingBytes(max_bytes=bounds.body_bytes)
