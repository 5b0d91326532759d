"""The gateway's RPC server: sockets accepted and authenticated, methods offered, presence, ticks and pings sent."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol

from msgspec import json
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from ...core.agent import MAX_ATTACHMENT_BYTES
from ...core.clock import now_ms
from ...core.json_values import drop_none
from ...core.model import Caller, Json
from ...core.rpc import READ, RpcEvent, RpcMethod, has_scope
from ...net.forwarded_requests import FORWARDED_FOR, RequestRefusal, client_address, is_forwarded
from ...net.gateway_client.acting_headers import TOOLS_CHANGED, read_session_address
from ...net.tasks import Tasks
from ...net.websocket_server import AcceptedWebSocket, make_untrusted_pool
from ...protocol import gateway_frames
from .authenticator import Authenticator, AuthResult, PeerInfo
from .connection import PresenceEntry, RpcConnection, RpcServices, presence_entry
from .connections import Connections
from .grants import GRANT_EVENTS
from .handshake import Handshake
from .pairing import DeviceRevocation
from .throttle import RateLimiter

WEBSOCKET_PATHS: Final = frozenset({"/", "/ws"})
PING_INTERVAL: Final = 25.0  # seconds between pings, and the time a peer has to answer one
MAX_CONNECTIONS: Final = 10_000  # in all; the next is refused before it costs anything
REQUESTS_PER_TURN: Final = 2  # requests of one read that begin before others get their turn: some take milliseconds
STOP_GRACE: Final = 5.0  # seconds running requests get when the gateway stops

EVENTS: Final = (
    "connect.challenge", "agent", "chat", "chat.metadata.changed", "config.changed", "session.message",
    "session.operation", "session.tool", "sessions.changed", "presence", "tick", "shutdown", "health", "heartbeat",
    "cron", "task", "node.pair.requested", "node.pair.resolved", "node.presence", "node.hostStats",
    "node.invoke.cancel", "node.invoke.input", "node.invoke.request", "device.pair.changed", "device.pair.requested",
    "device.pair.resolved", "skills.changed", "exec.approval.requested", "exec.approval.resolved",
    "local.message", TOOLS_CHANGED,
)  # fmt: skip
"""Names announced in `hello-ok`; some are only sent once the module that sends them is there."""
CAPABILITIES: Final = ("published-model-catalog", "session-scoped-chat-metadata")
"""What OpenClaw's clients ask for by name: `models.list` as its command line reads it, `chat.metadata` of a session."""

logger = logging.getLogger(__name__)


class GatewayInfo(Protocol):
    """What the server says about the gateway it belongs to."""

    version: str

    @property
    def uptime_ms(self) -> int: ...

    def health(self) -> Json:
        """The `health` object, cheap: it is part of every hello."""

    def snapshot(self, scopes: frozenset[str]) -> Json:
        """Further keys of hello's `snapshot`, by what the client may see."""

    def presence(self) -> PresenceEntry:
        """The gateway's own presence entry."""


class SourceCheck(Protocol):
    def __call__(self, client: Any, headers: Sequence[tuple[bytes, bytes]], /) -> RequestRefusal | None:
        """Why a request from there (a page of another site, a Host that is not ours) is refused; None: it is not."""


class RpcServer:
    """`async with` it while sockets are served. `make_socket` is what uvicorn takes as WebSocket protocol."""

    def __init__(
        self,
        authenticator: Authenticator,
        gateway: GatewayInfo,
        *,
        connections: Connections,
        refusal_reason: SourceCheck,
        trusted_proxies: Callable[[], Sequence[str]] = tuple,
        tick_interval: float = gateway_frames.TICK_INTERVAL,
    ) -> None:
        self.boot_id = str(uuid.uuid4())
        self.connections = connections
        self.untrusted = make_untrusted_pool()
        self._authenticator = authenticator
        self._gateway = gateway
        self._refusal_reason = refusal_reason
        self.trusted_proxies = trusted_proxies
        self._tick_interval = tick_interval
        self._methods: dict[str, RpcMethod] = {}
        self._metrics = connections.metrics
        self._handshakes: set[Handshake] = set()
        self._tasks = Tasks("rpc")
        self._timers = Tasks("rpc")
        self._services = RpcServices(
            methods=self._methods, grants=authenticator.grants, rate_limiter=RateLimiter(), metrics=self._metrics,
            tasks=self._tasks,
        )  # fmt: skip
        self._versions = {"presence": 1, "health": 1}
        self._stopping = False
        authenticator.grants.ended.connect(self._on_grant_end)

    async def __aenter__(self) -> "RpcServer":
        # A tick that fails is logged and tried again: without ticks every client drops its connection.
        self._timers.loop(self._tick, name="tick", every=self._tick_interval, on_failure="restart")
        self._timers.loop(self._ping, name="ping", every=PING_INTERVAL, on_failure="restart")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell every client that we stop, let running requests end."""
        self.shut_down("gateway stopping")
        await self._timers.aclose()
        await self._tasks.finish(STOP_GRACE)

    # ---- for the gateway and its modules -------------------------------------------------------------------------

    def register(self, methods: Iterable[RpcMethod]) -> None:
        for method in methods:
            if method.name in self._methods:
                raise ValueError(f"two modules offer the method {method.name}")
            self._methods[method.name] = method

    def find_method(self, name: str) -> RpcMethod | None:
        return self._methods.get(name)

    @property
    def methods(self) -> Sequence[RpcMethod]:
        return tuple(self._methods.values())

    def announce_tools(self) -> None:
        """The tools or the rules about them have changed: tell those clients that use tools which they have now."""
        for connection in self.connections.values():
            caller = connection.auth.policy_caller
            if caller is not None:
                connection.send_event(TOOLS_CHANGED, {"tools": self._authenticator.grants.list_tools(caller)})

    def list_presence(self) -> list[PresenceEntry]:
        listed = [presence_entry(connection) for connection in self.connections.values() if connection.is_listed]
        return [self._gateway.presence(), *listed]

    def publish_health(self) -> None:
        self._versions["health"] += 1
        self.connections.publish(
            RpcEvent(name="health", payload=self._gateway.health(), scope=READ, state_version=dict(self._versions))
        )

    def disconnect_device(self, revocation: DeviceRevocation) -> None:
        """A device lost a role, or was removed: its connections end."""
        for connection in list(self.connections.values()):
            connect = connection.auth.connect
            if connect.device is None or connect.device.id != revocation.device_id:
                continue
            if revocation.role is None or revocation.role == connect.role:
                connection.socket.close(4001, "device removed")

    def shut_down(self, reason: str, *, restart_expected_ms: int | None = None) -> None:
        """Tell every client that we stop, and close. New connections are refused from here on."""
        if self._stopping:
            return
        self._stopping = True
        payload = drop_none({"reason": reason, "restartExpectedMs": restart_expected_ms})
        self.connections.publish(RpcEvent(name="shutdown", payload=payload, scope=None))
        sockets = [each.socket for each in self.connections.values()] + [each.socket for each in self._handshakes]
        for socket in sockets:
            socket.close(1012, "service restart")

    # ---- for sockets ---------------------------------------------------------------------------------------------

    def make_socket(
        self, config: Any, server_state: Any, app_state: Any, _loop: asyncio.AbstractEventLoop | None = None
    ) -> asyncio.Protocol:
        """A new socket, with uvicorn's parameters."""
        return RpcServerSocket(self, server_state.connections)

    def count_refusal(self, code: str) -> None:
        self._metrics.count_handshake(code)

    def refusal_reason(self, client: Any, headers: Sequence[tuple[bytes, bytes]]) -> RequestRefusal | None:
        """Why the upgrade is refused; None if it is not."""
        refusal = self._refusal_reason(client, headers)
        if refusal is not None:
            self.count_refusal("source-not-allowed")
        return refusal

    def accept(self, socket: AcceptedWebSocket, peer: PeerInfo) -> Handshake | str:
        """The handshake of a new socket, or the reason why it is refused."""
        if self._stopping:
            return "the gateway is stopping; try again shortly"
        if len(self.connections) + len(self._handshakes) >= MAX_CONNECTIONS:
            self.count_refusal("full")
            return "the gateway has as many connections as it takes"
        handshake = Handshake(
            socket, peer, authenticate=self._authenticator.authenticate, admit=self._admit,
            on_end=self._handshakes.discard, metrics=self._metrics, tasks=self._tasks,
        )  # fmt: skip
        self._handshakes.add(handshake)
        return handshake

    def _admit(self, handshake: Handshake, auth: AuthResult, request_id: str) -> tuple[RpcConnection, bytes]:
        connection = RpcConnection(
            handshake.id, handshake.socket, auth, handshake.peer_info, since_ms=handshake.since_ms,
            services=self._services, on_end=self._remove,
        )  # fmt: skip
        self._handshakes.discard(handshake)
        self.connections.add(connection)
        try:
            hello = gateway_frames.encode_response(request_id, self._build_hello(connection))
        except BaseException:
            self.connections.remove(connection)
            raise
        self._metrics.count_handshake("ok")
        if connection.is_listed:
            # After the hello, which holds the presence list: this tells the others.
            asyncio.get_running_loop().call_soon(self._publish_presence)
        return connection, hello

    def _remove(self, connection: RpcConnection) -> None:
        if self.connections.remove(connection) and connection.is_listed:
            self._publish_presence()

    def _build_hello(self, connection: RpcConnection) -> Json:
        admitted = connection.auth
        snapshot: Json = {"presence": [], "health": {"ok": True}}  # a program of a run learns nothing of others
        if admitted.grant is None:
            health = redact_health(admitted.caller, self._gateway.health())
            snapshot = {"presence": self.list_presence(), "health": health}
            snapshot |= self._gateway.snapshot(admitted.caller.scopes)
        policy_caller = admitted.policy_caller
        features = {
            "methods": [method.name for method in self._methods.values() if method.advertised],
            "events": EVENTS if admitted.grant is None else sorted(GRANT_EVENTS),
            "capabilities": CAPABILITIES,
            "tools": None if policy_caller is None else self._authenticator.grants.list_tools(policy_caller),
        }
        auth = {
            "method": admitted.method,
            "role": admitted.connect.role,
            "scopes": admitted.connect.scopes,
            "deviceToken": admitted.device_token,
            "issuedAtMs": admitted.issued_at_ms,
        }
        return {
            "type": "hello-ok",
            "protocol": gateway_frames.PROTOCOL,
            "server": {"version": self._gateway.version, "bootId": self.boot_id, "connId": connection.id},
            "features": drop_none(features),
            "snapshot": {**snapshot, "stateVersion": self._versions, "uptimeMs": self._gateway.uptime_ms},
            "auth": drop_none(auth),
            "policy": {
                "maxPayload": gateway_frames.MAX_FRAME,
                "maxBufferedBytes": gateway_frames.MAX_BACKLOG,
                "tickIntervalMs": int(self._tick_interval * 1000),
                "attachments": {"maxBytes": MAX_ATTACHMENT_BYTES, "maxImageBytes": MAX_ATTACHMENT_BYTES},
            },
        }

    def _on_grant_end(self, id: str) -> None:
        for connection in list(self.connections.values()):
            if connection.auth.grant == id:
                connection.socket.close(4001, "the run is over")

    def _publish_presence(self) -> None:
        self._versions["presence"] += 1
        if self._stopping or not any(connection.may_receive(READ) for connection in self.connections.values()):
            return
        payload = {"presence": self.list_presence()}
        self.connections.publish(RpcEvent(name="presence", payload=payload, state_version=dict(self._versions)))

    async def _tick(self) -> None:
        self.connections.publish(RpcEvent(name="tick", payload={"ts": now_ms()}, scope=None))

    async def _ping(self) -> None:
        """Cut off who has not answered since the last ping, ping the others."""
        for connection in list(self.connections.values()):
            if not connection.expects_pong:
                continue
            if connection.socket.alive:
                connection.socket.alive = False
                connection.socket.ping()
            else:
                logger.info("rpc: connection %s answered no ping, cutting it off", connection.id)
                connection.socket.abort()


class RpcServerSocket(AcceptedWebSocket):
    """One client's socket; its peer is untrusted until the handshake is over."""

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
        headers = [
            (name.lower().encode(), value.encode("latin-1", "replace")) for name, value in event.headers.raw_items()
        ]
        refusal = self._server.refusal_reason(self.address, headers)
        if refusal is not None:
            response = self._server_codec.reject(403, json.encode(refusal.body()).decode())
            del response.headers["Content-Type"]
            response.headers["Content-Type"] = "application/json; charset=utf-8"
            self.send_handshake(response)
            return
        if event.path.partition("?")[0] not in WEBSOCKET_PATHS:
            self.send_handshake(self._server_codec.reject(404, "the gateway's WebSocket is at /\n"))
            return
        response = self._server_codec.accept(event)
        if response.status_code != 101:
            self.send_handshake(response)
            return
        handshake = self._server.accept(self, self._peer_info(event.headers))
        if isinstance(handshake, str):
            self.send_handshake(self._server_codec.reject(503, f"{handshake}\n"))
            return
        self.send_handshake(response)
        self.listener = handshake
        handshake.on_open()

    def _peer_info(self, headers: Headers) -> PeerInfo:
        peer = str(self.address[0]) if self.address else "unknown"
        origins, forwarded = headers.get_all("Origin"), is_forwarded(name.lower() for name in headers)
        client = client_address(
            peer, forwarded=forwarded, forwarded_for=headers.get_all(FORWARDED_FOR),
            trusted=self._server.trusted_proxies(),
        )  # fmt: skip
        return PeerInfo(
            address=client or peer,
            origin=",".join(origins) if origins else None,  # two origins are none we allow
            proxied=forwarded,
            session_address=read_session_address({name.lower(): headers.get_all(name) for name in headers}),
        )


def redact_health(caller: Caller, health: Json) -> Json:
    """Sessions, agents and folders are named only to operators who may read: not to nodes."""
    if caller.kind != "node" and (caller.is_owner or has_scope(caller.scopes, READ)):
        return health
    return {**health, "sessions": {"path": "", "count": 0, "recent": []}, "agents": []}
