"""Every authenticated connection of a gateway, and the events published to them."""

from collections.abc import Iterator, Mapping
from typing import Final

from ...core.rpc import RpcEvent
from ...core.signal import Signal
from ...protocol.gateway_frames import EncodedEvent
from .connection import RpcConnection
from .metrics import RpcMetrics

MAX_TOTAL_BACKLOG: Final = 256 << 20  # bytes of events that wait for all readers together; one may have 50 MB


class Connections(Mapping[str, RpcConnection]):
    """By connection id. Made before anything else of a gateway: everything may publish, and nothing need know more."""

    def __init__(self) -> None:
        self.max_backlog = MAX_TOTAL_BACKLOG
        self.connected: Signal[RpcConnection] = Signal()
        self.disconnected: Signal[RpcConnection] = Signal()
        self.metrics = RpcMetrics()
        self._by_id: dict[str, RpcConnection] = {}

    def __getitem__(self, id: str) -> RpcConnection:
        return self._by_id[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, connection: RpcConnection) -> None:
        self._by_id[connection.id] = connection
        self.connected.emit(connection)

    def remove(self, connection: RpcConnection) -> bool:
        """Whether it was there."""
        if self._by_id.pop(connection.id, None) is None:
            return False
        self.disconnected.emit(connection)
        return True

    def publish(self, event: RpcEvent) -> None:
        """Send an event to every connection that may receive it. Never blocks."""
        receivers = [
            connection
            for connection in self._by_id.values()
            if connection.may_receive(event.scope, event.name)
            and connection.id != event.except_for
            and (event.topic is None or event.topic in connection.topics or event.other_topic in connection.topics)
        ]
        if not receivers:
            return
        encoded = EncodedEvent(event.name, event.payload, state_version=event.state_version)
        for connection in receivers:
            connection.publish_event(encoded)
        self._bound_backlog()
        self.metrics.counters["events", event.name] += len(receivers)

    def _bound_backlog(self) -> None:
        """Each may have much that waits for it, but not all of them together: the slowest give way."""
        total = sum(connection.socket.backlog_bytes for connection in self._by_id.values())
        if total <= self.max_backlog:
            return
        waiting = [(connection.socket.backlog_bytes, connection) for connection in self._by_id.values()]
        for size, slowest in sorted(waiting, key=lambda entry: entry[0], reverse=True):
            slowest.close_slow()
            slowest.socket.abort()  # what waits is let go of now, not once the peer had time to answer
            total -= size
            if total <= self.max_backlog:
                return

    def connected_devices(self) -> set[str]:
        return {connection.auth.connect.device.id for connection in self.values() if connection.auth.connect.device}
