"""The intercom: every connection to this gateway, the methods they may call, the events they hear."""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Protocol

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from ...core.clock import now_ms
from ...core.model import Json
from ...core.rpc import READ, RpcError, RpcEvent, RpcMethod
from ...core.signal import Signal
from ...net.gateway_client.acting_headers import TOOLS_CHANGED, read_session_address
from ...net.gateway_client.handshake import EPHEMERAL_MODES
from ...net.websocket_server import AcceptedWebSocket, make_untrusted_pool
from ...protocol import gateway_frames
from ...protocol.gateway_frames import EncodedEvent
from .authenticator import PROXY_HEADERS, Authenticator, PeerInfo
from .connection import RpcConnection, presence_entry
from .grants import GRANT_EVENTS
from .health import redact_health
from .pairing import DeviceRevocation
from .throttle import RateLimiter

WEBSOCKET_PATHS: Final = frozenset({"/", "/ws"})
PING_INTERVAL: Final = 25.0  # seconds between pings, and the time a peer has to answer one
MAX_CONNECTIONS: Final = 10_000  # in all; the next is turned away before it costs anything
REQUESTS_PER_TURN: Final = 2  # requests of one read that begin before others get their turn: some take milliseconds
STOP_GRACE: Final = 5.0  # seconds running requests get when the house closes

EVENTS: Final = (
    "connect.challenge", "agent", "chat", "chat.metadata.changed", "config.changed", "session.message",
    "session.operation", "session.tool", "sessions.changed", "presence", "tick", "shutdown", "health", "heartbeat",
    "cron", "task", "node.pair.requested", "node.pair.resolved", "node.presence", "node.hostStats",
    "node.invoke.cancel", "node.invoke.input", "node.invoke.request", "device.pair.changed", "device.pair.requested",
    "device.pair.resolved", "skills.changed", "exec.approval.requested", "exec.approval.resolved",
    "local.message", TOOLS_CHANGED,
)  # fmt: skip
"""Names announced in `hello-ok`; some come only once the room that sends them is there."""

logger = logging.getLogger(__name__)


class GatewayInfo(Protocol):
    """What the intercom says about the gateway it belongs to."""

    @property
    def version(self) -> str: ...

    def health(self) -> Json:
        """The `health` object, cheap: it is part of every hello."""

    def snapshot(self, scopes: frozenset[str]) -> Json:
        """Further keys of hello's `snapshot`, by what the newcomer may see."""

    def presence(self) -> Json:
        """The gateway's own presence entry."""

    def refusal_reason(self, client: Any, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """Why whoever asks so, from a page or under a name that is not ours, may not even knock."""


class RpcServer:
    """`async with` it while sockets are served. Its `socket` is what uvicorn takes as WebSocket protocol."""

    def __init__(
        self, authenticator: Authenticator, gateway: GatewayInfo, *, tick_interval: float = gateway_frames.TICK_INTERVAL
    ) -> None:
        self.authenticator = authenticator
        self.boot_id = str(uuid.uuid4())
        self.connected: Signal[RpcConnection] = Signal()
        self.disconnected: Signal[RpcConnection] = Signal()
        self.counters: Counter[tuple[str, ...]] = Counter()
        self.seconds_by_method: dict[str, float] = {}
        self._gateway = gateway
        self._tick_interval = tick_interval
        self._started_at = time.monotonic()
        self._methods: dict[str, RpcMethod] = {}
        self._connections: dict[str, RpcConnection] = {}
        self.untrusted = make_untrusted_pool()
        self._pending: dict[str, RpcConnection] = {}
        self._rate_limiter = RateLimiter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._versions = {"presence": 1, "health": 1}
        self._timers: list[asyncio.Task[None]] = []
        self._stopping = False
        authenticator.grants.ended.connect(self._on_grant_end)

    async def __aenter__(self) -> "RpcServer":
        loop = asyncio.get_running_loop()
        self._timers = [loop.create_task(self._tick_forever()), loop.create_task(self._ping_forever())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say goodbye to everybody, let running requests end, stop the clocks."""
        self.shut_down("gateway stopping")
        for timer in self._timers:
            timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_GRACE)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._timers, *self._tasks, return_exceptions=True)

    # ---- for the caretaker and the rooms ---------------------------------------------------------------------------

    def register(self, methods: Iterable[RpcMethod]) -> None:
        for method in methods:
            if method.name in self._methods:
                raise ValueError(f"two rooms offer the method {method.name}")
            self._methods[method.name] = method

    def find_method(self, name: str) -> RpcMethod | None:
        return self._methods.get(name)

    @property
    def methods(self) -> Sequence[RpcMethod]:
        return tuple(self._methods.values())

    @property
    def connections(self) -> Mapping[str, RpcConnection]:
        """Everybody who is in, by connection id."""
        return self._connections

    @property
    def uptime_ms(self) -> int:
        return int((time.monotonic() - self._started_at) * 1000)

    def publish(self, event: RpcEvent) -> None:
        """Tell everybody who may hear it. Never blocks."""
        hearers = [
            guest
            for guest in self._connections.values()
            if guest.may_receive(event.scope, event.name)
            and (event.topic is None or event.topic in guest.topics or event.other_topic in guest.topics)
        ]
        if not hearers:
            return
        announcement = EncodedEvent(event.name, event.payload, state_version=event.state_version)
        for guest in hearers:
            guest.publish_event(announcement)
        self.counters["events", event.name] += len(hearers)

    def announce_tools(self) -> None:
        """The rules about tools have changed: tell those who use tools which they have now."""
        for guest in self._connections.values():
            bound = guest.auth.policy_caller if guest.auth else None
            if bound is not None:
                guest.send_event(TOOLS_CHANGED, {"tools": self.authenticator.grants.list_tools(bound)})

    def list_presence(self) -> list[Json]:
        own = self._gateway.presence()
        return [own] + [presence_entry(guest) for guest in self._connections.values() if _is_present(guest)]

    def publish_health(self) -> None:
        self._versions["health"] += 1
        event = RpcEvent(name="health", payload=self._gateway.health(), scope=READ, state_version=dict(self._versions))
        self.publish(event)

    def disconnect_device(self, revocation: DeviceRevocation) -> None:
        """A device lost its standing: its connections end."""
        for guest in list(self._connections.values()):
            connect = guest.auth.connect if guest.auth else None
            if connect is None or connect.device is None or connect.device.id != revocation.device_id:
                continue
            if revocation.role is None or revocation.role == connect.role:
                guest.socket.close(4001, "device removed")

    def shut_down(self, reason: str, *, restart_expected_ms: int | None = None) -> None:
        """Tell everybody that we go, and close. Newcomers are turned away from here on."""
        if self._stopping:
            return
        self._stopping = True
        payload: Json = {"reason": reason}
        if restart_expected_ms is not None:
            payload["restartExpectedMs"] = restart_expected_ms
        self.publish(RpcEvent(name="shutdown", payload=payload, scope=None))
        for connection in [*self._connections.values(), *self._pending.values()]:
            connection.socket.close(1012, "service restart")

    def make_socket(
        self, config: Any, server_state: Any, app_state: Any, _loop: asyncio.AbstractEventLoop | None = None
    ) -> asyncio.Protocol:
        """A fresh socket in uvicorn's manner."""
        return RpcServerSocket(self, server_state.connections)

    # ---- for sockets and connections ------------------------------------------------------------------------------

    def refusal_reason(self, client: Any, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """Why a visitor is not heard at all; None: it is."""
        refusal = self._gateway.refusal_reason(client, headers)
        if refusal is not None:
            self.count_refusal("source-not-allowed")
        return refusal

    def accept(self, socket: AcceptedWebSocket, peer: PeerInfo) -> RpcConnection | str:
        """A connection for this visitor, or the reason why there is no room."""
        if self._stopping:
            return "the gateway is stopping; try again shortly"
        if len(self._connections) + len(self._pending) >= MAX_CONNECTIONS:
            self.count_refusal("full")
            return "the gateway has as many connections as it takes"
        connection = RpcConnection(self, socket, peer)
        self._pending[connection.id] = connection
        return connection

    def add_connection(self, connection: RpcConnection) -> Json:
        """The connection is in: its hello."""
        self._pending.pop(connection.id, None)
        self._connections[connection.id] = connection
        assert connection.auth is not None
        # What a client says it understands is a topic: rooms send the richer events only to those.
        connection.topics.update(f"cap:{cap}" for cap in connection.auth.connect.caps)
        self.counters["handshakes", "ok"] += 1
        if _is_present(connection):
            # After the hello, which holds the presence list: this is news for the others.
            asyncio.get_running_loop().call_soon(self._publish_presence)
        self.connected.emit(connection)
        return self._build_hello(connection)

    def remove_connection(self, connection: RpcConnection) -> None:
        self._pending.pop(connection.id, None)
        if self._connections.pop(connection.id, None) is None:
            return
        if _is_present(connection):
            self._publish_presence()
        self.disconnected.emit(connection)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run to its end; the house waits for it when it closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def check_rate(self, method: RpcMethod, address: str, name: str) -> None:
        """Count a call against its allowance. Raises Fault."""
        assert method.per_minute is not None
        wait = self._rate_limiter.take((method.name, address, name), method.per_minute, time.monotonic())
        if wait > 0:
            raise RpcError(
                f"rate limit exceeded for {method.name}; retry after {wait:.0f}s",
                kind="UNAVAILABLE",
                retryable=True,
                retry_after_ms=int(wait * 1000) + 1,
                details={"method": method.name, "limit": f"{method.per_minute} per 60s"},
            )

    def count_refusal(self, code: str) -> None:
        self.counters["handshakes", code] += 1

    def increment(self, what: str) -> None:
        self.counters[(what,)] += 1

    def record_request(self, method: str, outcome: str, seconds: float) -> None:
        known = method if method in self._methods else "unknown"
        self.counters["requests", known, outcome] += 1
        self.seconds_by_method[known] = self.seconds_by_method.get(known, 0.0) + seconds

    # ---- within --------------------------------------------------------------------------------------------------

    def _build_hello(self, connection: RpcConnection) -> Json:
        admitted = connection.auth
        assert admitted is not None
        auth: Json = {"method": admitted.method, "role": admitted.connect.role, "scopes": admitted.connect.scopes}
        if admitted.device_token is not None:
            auth |= {"deviceToken": admitted.device_token, "issuedAtMs": admitted.issued_at_ms}
        snapshot: Json = {"stateVersion": dict(self._versions), "uptimeMs": self.uptime_ms}
        features: Json = {"methods": self._method_names(), "events": EVENTS, "capabilities": []}
        if admitted.grant is None:
            snapshot |= {
                "presence": self.list_presence(),
                "health": redact_health(admitted.caller, self._gateway.health()),
            }
            snapshot |= self._gateway.snapshot(admitted.caller.scopes)
        else:  # a program of a run is told nothing of who else is there
            snapshot |= {"presence": [], "health": {"ok": True}}
            features["events"] = sorted(GRANT_EVENTS)
        if admitted.policy_caller is not None:
            features["tools"] = self.authenticator.grants.list_tools(admitted.policy_caller)
        return {
            "type": "hello-ok",
            "protocol": gateway_frames.PROTOCOL,
            "server": {"version": self._gateway.version, "bootId": self.boot_id, "connId": connection.id},
            "features": features,
            "snapshot": snapshot,
            "auth": auth,
            "policy": {
                "maxPayload": gateway_frames.MAX_FRAME,
                "maxBufferedBytes": gateway_frames.MAX_BACKLOG,
                "tickIntervalMs": int(self._tick_interval * 1000),
            },
        }

    def _method_names(self) -> Sequence[str]:
        return [method.name for method in self._methods.values() if method.advertised]

    def _on_grant_end(self, id: str) -> None:
        for guest in list(self._connections.values()):
            if guest.auth is not None and guest.auth.grant == id:
                guest.socket.close(4001, "the run is over")

    def _publish_presence(self) -> None:
        self._versions["presence"] += 1
        if self._stopping or not any(guest.may_receive(READ) for guest in self._connections.values()):
            return
        payload = {"presence": self.list_presence()}
        self.publish(RpcEvent(name="presence", payload=payload, state_version=dict(self._versions)))

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self._tick_interval)
            self.publish(RpcEvent(name="tick", payload={"ts": now_ms()}, scope=None))

    async def _ping_forever(self) -> None:
        """Who has not answered since the last round is gone."""
        while True:
            await asyncio.sleep(PING_INTERVAL)
            for guest in list(self._connections.values()):
                if not guest.expects_pong:
                    continue
                if not guest.socket.alive:
                    logger.info("connection %s answered no ping: cut off", guest.id)
                    guest.socket.abort()
                    continue
                guest.socket.alive = False
                guest.socket.ping()


class RpcServerSocket(AcceptedWebSocket):
    """One visitor's socket: nobody is known before the handshake."""

    frames_per_turn = REQUESTS_PER_TURN

    def __init__(self, server: RpcServer, connections: set[Any]) -> None:
        super().__init__(ServerProtocol(max_size=gateway_frames.MAX_FRAME), connections, server.untrusted)
        self._server = server

    def evict(self) -> None:
        self._server.count_refusal("too-many-strangers")
        super().evict()

    def shutdown(self) -> None:
        self._server.shut_down("gateway stopping")
        super().shutdown()

    def _refuse_frames(self) -> None:
        self._server.count_refusal("too-many-frames")
        super()._refuse_frames()

    def _refuse_size(self) -> None:
        self._server.count_refusal("preauth-payload-too-large")
        self.close(1009, "preauth payload too large")

    def _handle_handshake(self, event: Request | Response) -> None:
        assert isinstance(event, Request)
        given = [
            (name.lower().encode(), value.encode("latin-1", "replace")) for name, value in event.headers.raw_items()
        ]
        refusal = self._server.refusal_reason(self.address, given)
        if refusal is not None:
            self.send_handshake(self._server_codec.reject(403, f"{refusal}\n"))
            return
        if event.path.partition("?")[0] not in WEBSOCKET_PATHS:
            self.send_handshake(self._server_codec.reject(404, "the gateway's WebSocket is at /\n"))
            return
        response = self._server_codec.accept(event)
        if response.status_code != 101:
            self.send_handshake(response)
            return
        welcome = self._server.accept(self, self._peer_info(event.headers))
        if isinstance(welcome, str):
            self.send_handshake(self._server_codec.reject(503, f"{welcome}\n"))
            return
        self.send_handshake(response)
        self.listener = welcome
        welcome.on_open()

    def _peer_info(self, headers: Headers) -> PeerInfo:
        peer = self.address
        origins = headers.get_all("Origin")
        return PeerInfo(
            address=str(peer[0]) if peer else "unknown",
            origin=",".join(origins) if origins else None,  # two origins are none we allow
            proxied=any(name in headers for name in PROXY_HEADERS),
            session_address=read_session_address({name.lower(): headers.get_all(name) for name in headers}),
        )


def _is_present(connection: RpcConnection) -> bool:
    assert connection.auth is not None
    return connection.auth.connect.client.mode not in EPHEMERAL_MODES
