"""What a connection may do before its request is whole, and how many such connections a peer may have."""

from collections.abc import Iterable
from typing import Any, Protocol

from msgspec import Struct


class Bounds(Struct, frozen=True, kw_only=True):
    """The numbers of one server. Time is in seconds, sizes are in bytes."""

    head_bytes: int = 64 << 10
    """Of a request line with its headers; also of what frames a chunked body between two pieces of it, and its end."""
    headers: int = 256
    """How many of them; a client sends a dozen, and each costs more memory than its bytes."""
    head_seconds: float = 15.0
    """From a connection's first byte to the end of the headers, and how long a new connection may say nothing."""
    body_seconds: float = 30.0
    """From the end of the headers to the end of the body, and"""
    body_rate: int = 32 << 10
    """one second more for each so many bytes of a body that have come."""
    drained: int = 16 << 20
    """Of a body that is read to be dropped, behind an answer that did not wait for it."""
    silent: int = 4096
    """Connections of one peer that have not sent a byte: a burst of as many clients as may wait for `accept`, twice."""
    begun: int = 256
    """Connections of one peer with the beginning of a request. The next one ends the oldest."""
    begun_in_all: int = 1024
    bodies: int = 2048
    """Connections of one peer with the beginning of a body."""


class _Open(Protocol):
    """A connection, as far as it matters who gives way."""

    @property
    def peer(self) -> str: ...

    def make_way(self) -> None: ...


def make_room(connections: Iterable[Any]) -> bool:
    """End the sixteenth part of the idle connections that are so for longest; whether there was any.

    Without idle ones, of those whose peers owe us something: of the peer that has most of them, so that others stay.
    """
    idle: list[tuple[float, int, _Open]] = []
    waiting: dict[str, list[tuple[float, int, _Open]]] = {}
    for number, each in enumerate(connections):
        if (since := getattr(each, "idle_since", None)) is not None:
            idle.append((since, number, each))
        elif (since := getattr(each, "waits_since", None)) is not None:
            waiting.setdefault(each.peer, []).append((since, number, each))
    giving_way = idle or max(waiting.values(), key=len, default=[])
    giving_way.sort(key=lambda entry: entry[:2])
    for _, _, connection in giving_way[: -(-len(giving_way) // 16)]:
        connection.make_way()
    return bool(giving_way)
