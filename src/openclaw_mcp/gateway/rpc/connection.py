"""One connection to the gateway, seen from the gateway: challenge, connect, then requests in and events out."""

import asyncio
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from ...core.clock import now_ms
from ...core.errors import BadRequest, OpenClawError, ToolArguments, ToolDenied, Unauthorized
from ...core.model import Caller, Json
from ...core.rpc import RpcCall, RpcError, RpcMethod, has_scope, read_params, scope_error
from ...net.gateway_client.handshake import ConnectParams
from ...net.websocket_server import AcceptedWebSocket
from ...protocol import gateway_frames
from ...protocol.gateway_frames import EncodedEvent, RequestFrame
from .authenticator import AuthChallenge, AuthResult, HandshakeRefused, PeerInfo
from .grant_effects import EffectRecorder
from .grants import GRANT_EVENTS

if TYPE_CHECKING:
    from .server import RpcServer

HANDSHAKE_TIMEOUT: Final = 15.0  # seconds from accept to a finished handshake
MAX_EARLY_FRAMES: Final = 15  # requests a client may send behind `connect` before it is let in
MAX_RUNNING: Final = 256  # requests of one connection at work; beyond, we stop reading until some are answered
MAX_UNAUTHORIZED: Final = 10  # wrong-role calls in a row; one more and the connection is closed

logger = logging.getLogger(__name__)


class RpcConnection:
    """A socket's listener. Ends when its socket does; requests already begun are still carried out."""

    def __init__(self, server: "RpcServer", socket: AcceptedWebSocket, peer_info: PeerInfo) -> None:
        self.id = str(uuid.uuid4())
        self.socket = socket
        self.peer_info = peer_info
        self.auth: AuthResult | None = None
        self.topics: set[str] = set()
        self.since_ms = now_ms()
        self._server = server
        self._challenge = AuthChallenge(str(uuid.uuid4()), self.since_ms)
        self._early_messages: list[bytes] | None = None
        self._running = 0
        self._paused = False
        self._seq = 0
        self._unauthorized_calls = 0
        self._deadline: asyncio.TimerHandle | None = None

    # ---- what others may know ------------------------------------------------------------------------------------

    @property
    def caller(self) -> Caller:
        assert self.auth is not None
        return self.auth.caller

    @property
    def is_node(self) -> bool:
        return self.auth is not None and self.auth.connect.role == "node"

    @property
    def expects_pong(self) -> bool:
        """Whether we expect its pongs: not while we ourselves have stopped reading."""
        return not self._paused

    def may_receive(self, scope: str | None, event: str = "") -> bool:
        if self.auth is None:
            return False
        if self.auth.grant is not None:  # a run's programs ask; what goes on elsewhere is not theirs to hear
            return event in GRANT_EVENTS
        return scope is None or (not self.is_node and has_scope(self.auth.caller.scopes, scope))

    # ---- outgoing ------------------------------------------------------------------------------------------------

    def publish_event(self, event: EncodedEvent) -> None:
        """An event of the house, numbered for this connection; nodes get theirs without a number."""
        if self.is_node:
            self._send(event.without_seq())
            return
        self._seq += 1
        self._send(event.with_seq(self._seq))

    def send_event(self, event: str, payload: Any) -> None:
        """An event for this connection alone."""
        self._send(EncodedEvent(event, payload).without_seq())

    def _send(self, frame: bytes) -> None:
        self.socket.send(frame)
        if self.socket.backlog_bytes > gateway_frames.MAX_BACKLOG and self.socket.is_open:
            self._server.increment("slow_consumers")
            logger.warning("connection %s does not read: closed as a slow consumer", self.id)
            self.socket.close(1008, "slow consumer")

    # ---- the socket's listener -----------------------------------------------------------------------------------

    def on_open(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT, self._on_handshake_timeout)
        payload = {"nonce": self._challenge.nonce, "ts": self._challenge.ts, "capabilities": []}
        self.send_event("connect.challenge", payload)

    def on_message(self, message: bytes) -> None:
        if self.auth is not None:
            self._handle_request(message)
        elif len(message) > gateway_frames.MAX_HANDSHAKE_FRAME:
            self._server.count_refusal("preauth-payload-too-large")
            self.socket.close(1009, "preauth payload too large")
        elif self._early_messages is None:
            self._handle_connect(message)
        elif len(self._early_messages) >= MAX_EARLY_FRAMES:
            self._server.count_refusal("too-many-early-frames")
            self.socket.close(1008, "too many pending handshake frames")
        else:
            self._early_messages.append(message)
            if sum(map(len, self._early_messages)) > gateway_frames.MAX_HANDSHAKE_FRAME:
                self.socket.pause()  # nobody unknown makes us hold more; the rest may come once it is known

    def on_close(self, code: int, reason: str) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._server.remove_connection(self)

    def _on_handshake_timeout(self) -> None:
        self._server.count_refusal("handshake-timeout")
        self.socket.close(1000)

    # ---- coming in -----------------------------------------------------------------------------------------------

    def _handle_connect(self, message: bytes) -> None:
        frame = gateway_frames.read_request(message)
        if frame is None:
            self._server.count_refusal("unreadable")
            self.socket.close(1000)
        elif not isinstance(frame, RequestFrame):
            self._server.count_refusal("invalid-request-frame")
            self.socket.close(1008, "invalid request frame")
        elif frame.method != "connect":
            self._refuse(frame.id, HandshakeRefused(RpcError("invalid handshake: first request must be connect")))
        else:
            self._early_messages = []
            self._server.spawn(self._authenticate(frame))

    async def _authenticate(self, frame: RequestFrame) -> None:
        try:
            connect = read_params(frame.params, ConnectParams, "connect")
            admitted = await self._server.authenticator.authenticate(connect, self.peer_info, self._challenge)
        except HandshakeRefused as refused:
            self._refuse(frame.id, refused)
        except RpcError as fault:
            self._refuse(frame.id, HandshakeRefused(fault))
        except Exception:  # the one place where a failing handshake becomes a close
            logger.exception("handshake of connection %s failed", self.id)
            broken = RpcError("internal error", kind="UNAVAILABLE", retryable=True)
            self._refuse(frame.id, HandshakeRefused(broken, close_code=1011))
        else:
            self._complete_handshake(frame.id, admitted)

    def _complete_handshake(self, id: str, auth: AuthResult) -> None:
        if not self.socket.is_open:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self.auth = auth
        self.socket.trust()
        hello = self._server.add_connection(self)
        self._send(gateway_frames.encode_response(id, hello))
        early, self._early_messages = self._early_messages or [], None
        for message in early:
            self._handle_request(message)
        if not self._paused:
            self.socket.resume()

    def _refuse(self, id: str, refused: HandshakeRefused) -> None:
        details = refused.error.details
        code = details.get("code") if isinstance(details, dict) else None
        self._server.count_refusal(str(code or "invalid-handshake"))
        self._send(gateway_frames.encode_error(id, refused.error))
        self.socket.close(refused.close_code, refused.close_reason)

    # ---- requests ------------------------------------------------------------------------------------------------

    def _handle_request(self, message: bytes) -> None:
        frame = gateway_frames.read_request(message)
        if frame is None:
            return
        if not isinstance(frame, RequestFrame):
            self._send(gateway_frames.encode_error(frame.id, RpcError(frame.message)))
            return
        self._running += 1
        if self._running >= MAX_RUNNING and not self._paused:
            self._paused = True
            self.socket.pause()
        self._server.spawn(self._run_request(frame))

    async def _run_request(self, request: RequestFrame) -> None:
        begun = time.perf_counter()
        outcome = "cancelled"
        try:
            method = self._select_method(request)
            result = await self._invoke(method, self._build_call(request, method))
            outcome = "ok"
            self._unauthorized_calls = 0
            self._send(gateway_frames.encode_response(request.id, result))
        except RpcError as fault:
            outcome = fault.kind
            self._send(gateway_frames.encode_error(request.id, fault))
        except OpenClawError as exc:
            outcome = exc.code
            self._send(gateway_frames.encode_error(request.id, to_rpc_error(exc)))
        except Exception:  # the one place where a method's failure becomes wire
            outcome = "internal"
            logger.exception("method %s failed", request.method)
            self._send(gateway_frames.encode_error(request.id, RpcError("internal error", kind="UNAVAILABLE")))
        finally:
            seconds = time.perf_counter() - begun
            self._server.record_request(request.method, outcome, seconds)
            bound = self.auth.policy_caller if self.auth is not None else None
            if bound is not None:
                given = request.params if isinstance(request.params, dict) else {}
                self._server.authenticator.grants.record_call(
                    bound, request.method, given, outcome=outcome, seconds=seconds
                )
            self._running -= 1
            if self._paused and self._running < MAX_RUNNING // 2:
                self._paused = False
                self.socket.alive = True
                self.socket.resume()

    async def _invoke(self, method: RpcMethod, call: RpcCall) -> Any:
        assert self.auth is not None
        grant = self.auth.grant
        if grant is None:
            return await method.handle(call)
        with self._server.authenticator.grants.track_effects(grant, call) as witness:
            if isinstance(call.peer, RequestPeer):
                call.peer.effect_recorder = witness
            result = await method.handle(call)
            witness.on_answer(result)
            return result

    def _select_method(self, request: RequestFrame) -> RpcMethod:
        """The method, if this caller may call it now. Raises Fault."""
        if request.method == "connect":
            raise RpcError("connect is only valid as the first request")
        method = self._server.find_method(request.method)
        if method is None:
            raise RpcError(f"unknown method: {request.method}")
        admitted = self.auth
        assert admitted is not None
        role = admitted.connect.role
        if method.role not in ("any", role):
            self._unauthorized_calls += 1
            if self._unauthorized_calls > MAX_UNAUTHORIZED:
                asyncio.get_running_loop().call_soon(self.socket.close, 1008, "repeated unauthorized calls")
            raise RpcError(f"unauthorized role: {role}")
        scoped = method.scope is not None and method.role != "node" and admitted.grant is None
        if scoped and method.scope is not None and not has_scope(admitted.caller.scopes, method.scope):
            raise scope_error(method.scope)
        if method.per_minute is not None:
            self._server.check_rate(method, self.peer_info.address, admitted.caller.name)
        return method

    def _build_call(self, request: RequestFrame, method: RpcMethod) -> RpcCall:
        params: Any = request.params
        if params is None:
            params = {}
        elif not isinstance(params, dict):
            raise RpcError(f"invalid {request.method} params: must be object")
        link = RequestPeer(self, request.id)
        call = RpcCall(method=request.method, params=params, caller=self.caller, peer=link)
        assert self.auth is not None
        grants = self._server.authenticator.grants
        if self.auth.grant is not None:
            return grants.restrict_call(method, call)
        if call.policy_caller is not None:
            grants.check_call(call.policy_caller, call)
        return call

    def acknowledge(self, request: str, payload: Any) -> None:
        self._send(gateway_frames.encode_response(request, payload))


class RequestPeer:
    """The way back for one request. A `Link`."""

    __slots__ = ("_connection", "_request", "effect_recorder")

    def __init__(self, connection: RpcConnection, request: str) -> None:
        self._connection = connection
        self._request = request
        self.effect_recorder: EffectRecorder | None = None

    @property
    def id(self) -> str:
        return self._connection.id

    @property
    def connect_params(self) -> ConnectParams:
        """How this connection presented itself."""
        assert self._connection.auth is not None
        return self._connection.auth.connect

    def send_event(self, event: str, payload: Any) -> None:
        self._connection.send_event(event, payload)

    def subscriptions(self) -> set[str]:
        return self._connection.topics

    async def acknowledge(self, payload: Any) -> None:
        if self.effect_recorder is not None:
            self.effect_recorder.on_answer(payload)
        self._connection.acknowledge(self._request, payload)


def to_rpc_error(error: OpenClawError) -> RpcError:
    """An error of the house in the gateway's words."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, BadRequest | ToolArguments):
        return RpcError(str(error))
    if isinstance(error, ToolDenied):
        return RpcError(str(error), kind="FORBIDDEN", details={"code": "TOOL_DENIED"})
    if isinstance(error, Unauthorized):
        return RpcError(str(error), kind="FORBIDDEN")
    return RpcError(str(error), kind="UNAVAILABLE")


def presence_entry(connection: RpcConnection) -> Json:
    """A connection as `system-presence` lists it."""
    admitted = connection.auth
    assert admitted is not None
    client = admitted.connect.client
    entry: Json = {
        "host": client.display_name or client.id,
        "clientId": client.id,
        "version": client.version,
        "platform": client.platform,
        "mode": client.mode,
        "reason": "connect",
        "roles": [admitted.connect.role],
        "scopes": list(admitted.connect.scopes),
        "text": f"Node: {client.display_name or client.id} · mode {client.mode}",
        "onlineSince": connection.since_ms,
        "ts": connection.since_ms,
    }
    optional = {
        "ip": None if connection.peer_info.is_local else connection.peer_info.address,
        "deviceFamily": client.device_family,
        "modelIdentifier": client.model_identifier,
        "timeZone": client.time_zone,
        "deviceId": admitted.connect.device.id if admitted.connect.device else None,
        "instanceId": client.instance_id,
    }
    return entry | {key: value for key, value in optional.items() if value is not None}
