"""One authenticated connection, as the gateway sees it: requests in, responses and events out."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ...core.accepted_params import METHODS_WITHOUT_PARAMS
from ...core.claw_methods import FURTHER_TOOL_METHODS, GrantedCall
from ...core.errors import BadRequest, OpenClawError, ToolArguments, ToolDenied, Unauthorized
from ...core.model import Caller
from ...core.rpc import RpcCall, RpcError, RpcMethod, has_scope, refuse_params, scope_error
from ...net.gateway_client.handshake import EPHEMERAL_MODES
from ...net.tasks import Tasks
from ...net.websocket_server import AcceptedWebSocket
from ...protocol import gateway_frames
from ...protocol.gateway_frames import EncodedEvent, RequestFrame
from .authenticator import AuthResult, PeerInfo
from .grant_effects import EffectRecorder
from .grants import GRANT_EVENTS, RunGrants
from .metrics import RpcMetrics
from .throttle import RateLimiter

MAX_RUNNING: Final = 256  # requests of one connection at work; beyond, we stop reading until some are answered
MAX_UNAUTHORIZED: Final = 10  # wrong-role calls in a row; one more and the connection is closed

logger = logging.getLogger(__name__)


class PresenceEntry(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A connection, or the gateway itself, as `system-presence` lists it."""

    host: str
    version: str
    platform: str
    mode: str
    reason: str
    text: str
    ts: int
    client_id: str | None = None
    roles: tuple[str, ...] | None = None
    scopes: tuple[str, ...] | None = None
    online_since: int | None = None
    ip: str | None = None
    device_family: str | None = None
    model_identifier: str | None = None
    time_zone: str | None = None
    device_id: str | None = None
    instance_id: str | None = None


class RpcServices(Struct, frozen=True, kw_only=True):
    """What all connections of a server share."""

    methods: Mapping[str, RpcMethod]
    grants: RunGrants
    rate_limiter: RateLimiter
    metrics: RpcMetrics
    tasks: Tasks
    """Requests at work: they run to their end, also when their connection ends first."""


class RpcConnection:
    """The listener of an authenticated client's socket. Ends when its socket does."""

    def __init__(
        self,
        id: str,
        socket: AcceptedWebSocket,
        auth: AuthResult,
        peer_info: PeerInfo,
        *,
        since_ms: int,
        services: RpcServices,
        on_end: Callable[["RpcConnection"], None],
    ) -> None:
        self.id = id
        self.socket = socket
        self.auth = auth
        self.peer_info = peer_info
        # What a client says it understands is a topic: modules send the richer events only to those.
        self.topics = {f"cap:{cap}" for cap in auth.connect.caps}
        self.since_ms = since_ms
        self.caller: Caller = auth.caller
        self.is_node = auth.connect.role == "node"
        self.is_listed = auth.connect.client.mode not in EPHEMERAL_MODES
        """Whether `system-presence` lists it."""
        self._services = services
        self._on_end = on_end
        self._running = 0
        self._paused = False
        self._seq = 0
        self._unauthorized_calls = 0

    @property
    def expects_pong(self) -> bool:
        """Whether the client must answer pings: not while we ourselves have stopped reading."""
        return not self._paused

    def may_receive(self, scope: str | None, event: str = "") -> bool:
        if self.auth.grant is not None:  # a run's programs call methods; events of other sessions are not theirs
            return event in GRANT_EVENTS
        return scope is None or (not self.is_node and has_scope(self.caller.scopes, scope))

    # ---- outgoing ------------------------------------------------------------------------------------------------

    def publish_event(self, event: EncodedEvent) -> None:
        """A published event, numbered for this connection; nodes get theirs without a number."""
        if self.is_node:
            self.send(event.without_seq())
            return
        self._seq += 1
        self.send(event.with_seq(self._seq))

    def send_event(self, event: str, payload: Any) -> None:
        """An event for this connection alone."""
        self.send(EncodedEvent(event, payload).without_seq())

    def send(self, frame: bytes) -> None:
        self.socket.send(frame)
        if self.socket.backlog_bytes > gateway_frames.MAX_BACKLOG:
            self.close_slow()

    def close_slow(self) -> None:
        """End it, since too much waits for its client to read."""
        if self.socket.is_open:
            self._services.metrics.counters[("slow_consumers",)] += 1
            logger.warning("rpc: connection %s does not read (slow consumer), closing it", self.id)
            self.socket.close(1008, "slow consumer")

    # ---- the socket's listener -----------------------------------------------------------------------------------

    def start(self, hello: bytes, early_messages: Sequence[bytes]) -> None:
        """Answer `connect` with this frame, then the requests that came behind it."""
        self.send(hello)
        for message in early_messages:
            self.on_message(message)
        if not self._paused:
            self.socket.resume()

    def on_open(self) -> None:
        return

    def on_close(self, code: int, reason: str) -> None:
        self._on_end(self)

    def on_message(self, message: bytes) -> None:
        frame = gateway_frames.read_request(message)
        if frame is None:
            return
        if not isinstance(frame, RequestFrame):
            self.send(gateway_frames.encode_error(frame.id, RpcError(frame.message)))
            return
        self._running += 1
        if self._running >= MAX_RUNNING and not self._paused:
            self._paused = True
            self.socket.pause()
        self._services.tasks.spawn(self._run_request(frame), name=frame.method)

    # ---- requests ------------------------------------------------------------------------------------------------

    async def _run_request(self, request: RequestFrame) -> None:
        begun = time.perf_counter()
        outcome = "cancelled"
        granted: GrantedCall | None = None
        try:
            granted = self._evaluate(request)
            result = await self._invoke(self._select_method(request), request, granted)
            outcome = "ok"
            self._unauthorized_calls = 0
            self.send(gateway_frames.encode_response(request.id, result))
        except OpenClawError as exc:
            outcome = exc.kind if isinstance(exc, RpcError) else exc.code
            self.send(gateway_frames.encode_error(request.id, to_rpc_error(exc)))
        except Exception:  # the one place where a method's failure becomes wire
            outcome = "internal"
            logger.exception("rpc: method %s failed", request.method)
            self.send(gateway_frames.encode_error(request.id, RpcError("internal error", kind="UNAVAILABLE")))
        finally:
            self._record(request, granted, outcome, time.perf_counter() - begun)
            self._running -= 1
            if self._paused and self._running < MAX_RUNNING // 2:
                self._paused = False
                self.socket.alive = True
                self.socket.resume()

    def _evaluate(self, request: RequestFrame) -> GrantedCall | None:
        """The rules about the 29 tools are asked here alone, for the check of the call and for its audit; about other
        tools, by the dispatcher."""
        caller = self.auth.policy_caller
        if caller is None or request.method in FURTHER_TOOL_METHODS:
            return None
        params = request.params if isinstance(request.params, dict) else {}
        return self._services.grants.evaluate(caller, request.method, params)

    def _record(self, request: RequestFrame, granted: GrantedCall | None, outcome: str, seconds: float) -> None:
        name = request.method if request.method in self._services.methods else "unknown"
        self._services.metrics.record_request(name, outcome, seconds)
        if granted is not None:
            self._services.grants.record_call(granted, outcome=outcome, seconds=seconds)

    def _select_method(self, request: RequestFrame) -> RpcMethod:
        """The method, if this caller may call it now. Raises RpcError."""
        method = self._services.methods.get(request.method)
        if method is None:
            if request.method == "connect":
                raise RpcError("connect is only valid as the first request")
            raise RpcError(f"unknown method: {request.method}")
        role = self.auth.connect.role
        if method.role not in ("any", role):
            self._unauthorized_calls += 1
            if self._unauthorized_calls > MAX_UNAUTHORIZED:
                asyncio.get_running_loop().call_soon(self.socket.close, 1008, "repeated unauthorized calls")
            raise RpcError(f"unauthorized role: {role}")
        scope = None if method.role == "node" or self.auth.grant is not None else method.scope
        if scope is not None and not has_scope(self.caller.scopes, scope):
            raise scope_error(scope)
        if method.per_minute is not None:
            self._check_rate(method.name, method.per_minute)
        return method

    def _check_rate(self, method: str, limit: int) -> None:
        """Count a call against its limit. Raises RpcError."""
        key = (method, self.peer_info.address, self.caller.name)
        wait = self._services.rate_limiter.take(key, limit, time.monotonic())
        if wait > 0:
            raise RpcError(
                f"rate limit exceeded for {method}; retry after {wait:.0f}s",
                kind="UNAVAILABLE",
                retryable=True,
                retry_after_ms=int(wait * 1000) + 1,
                details={"method": method, "limit": f"{limit} per 60s"},
            )

    async def _invoke(self, method: RpcMethod, request: RequestFrame, granted: GrantedCall | None) -> Any:
        params: Any = {} if request.params is None else request.params
        if not isinstance(params, dict):
            raise RpcError(f"invalid {request.method} params: must be object")
        call = RpcCall(
            method=request.method, params=params, caller=self.caller, peer=RequestPeer(self, request.id, None)
        )
        grants, grant = self._services.grants, self.auth.grant
        if granted is not None:
            grants.check_call(granted)
        if request.method in METHODS_WITHOUT_PARAMS:  # not before the rules: these say more than a wrong parameter
            refuse_params(params, request.method)
        if grant is None:
            return await method.handle(call)
        call = grants.restrict_call(method, call)
        with grants.track_effects(grant, call) as recorder:
            result = await method.handle(replace(call, peer=RequestPeer(self, request.id, recorder)))
            recorder.on_answer(result)
            return result


class RequestPeer(Struct, frozen=True):
    """An `RpcPeer`: the way back for one request."""

    connection: RpcConnection
    request: str
    recorder: EffectRecorder | None

    @property
    def id(self) -> str:
        return self.connection.id

    def send_event(self, event: str, payload: Any) -> None:
        self.connection.send_event(event, payload)

    def subscriptions(self) -> set[str]:
        return self.connection.topics

    async def acknowledge(self, payload: Any) -> None:
        if self.recorder is not None:
            self.recorder.on_answer(payload)
        self.connection.send(gateway_frames.encode_response(self.request, payload))


def to_rpc_error(error: OpenClawError) -> RpcError:
    """Any error of ours as the gateway's wire carries it."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, BadRequest | ToolArguments):
        return RpcError(str(error))
    if isinstance(error, ToolDenied):
        return RpcError(str(error), kind="FORBIDDEN", details={"code": "TOOL_DENIED"})
    if isinstance(error, Unauthorized):
        return RpcError(str(error), kind="FORBIDDEN")
    return RpcError(str(error), kind="UNAVAILABLE")


def presence_entry(connection: RpcConnection) -> PresenceEntry:
    connect, client = connection.auth.connect, connection.auth.connect.client
    name = client.display_name or client.id
    return PresenceEntry(
        host=name, client_id=client.id, version=client.version, platform=client.platform, mode=client.mode,
        reason="connect", roles=(connect.role,), scopes=connect.scopes, text=f"Node: {name} · mode {client.mode}",
        online_since=connection.since_ms, ts=connection.since_ms,
        ip=None if connection.peer_info.is_local else connection.peer_info.address,
        device_family=client.device_family, model_identifier=client.model_identifier, time_zone=client.time_zone,
        device_id=connect.device.id if connect.device else None, instance_id=client.instance_id,
    )  # fmt: skip
