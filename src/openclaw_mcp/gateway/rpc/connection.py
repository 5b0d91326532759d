"""One connection to the gateway, seen from the gateway: challenge, connect, then requests in and events out."""

import asyncio
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from ...core.errors import BadRequest, OpenClawError, ToolArguments, ToolDenied, Unauthorized
from ...core.model import Caller, Json
from ...core.rpc import Fault, Method, RpcCall, covers, missing_scope, read_params
from ...net.gateway_client.handshake import Connect
from ...net.websocket_server import Accepted
from ...protocol import gateway_frames
from ...protocol.gateway_frames import Announcement, Request
from .authenticator import Admitted, Challenge, Refused, Visitor
from .grant_effects import Witness
from .grants import HEARS
from .pairing import now_ms

if TYPE_CHECKING:
    from .server import Intercom

HANDSHAKE_WITHIN: Final = 15.0  # seconds from accept to a finished handshake
MOST_EARLY_FRAMES: Final = 15  # requests a client may send behind `connect` before it is let in
MOST_RUNNING: Final = 256  # requests of one connection at work; beyond, we stop reading until some are answered
MOST_UNAUTHORIZED: Final = 10  # wrong-role calls in a row; one more and the connection is closed

logger = logging.getLogger(__name__)


class Connection:
    """A socket's listener. Ends when its socket does; requests already begun are still carried out."""

    def __init__(self, intercom: "Intercom", socket: Accepted, visitor: Visitor) -> None:
        self.id = str(uuid.uuid4())
        self.socket = socket
        self.visitor = visitor
        self.admitted: Admitted | None = None
        self.topics: set[str] = set()
        self.since = now_ms()
        self._intercom = intercom
        self._challenge = Challenge(str(uuid.uuid4()), self.since)
        self._early: list[bytes] | None = None
        self._running = 0
        self._paused = False
        self._seq = 0
        self._unauthorized = 0
        self._deadline: asyncio.TimerHandle | None = None

    # ---- what others may know ------------------------------------------------------------------------------------

    @property
    def caller(self) -> Caller:
        assert self.admitted is not None
        return self.admitted.caller

    @property
    def is_node(self) -> bool:
        return self.admitted is not None and self.admitted.connect.role == "node"

    @property
    def is_idle_reader(self) -> bool:
        """Whether we expect its pongs: not while we ourselves have stopped reading."""
        return not self._paused

    def may_hear(self, scope: str | None, event: str = "") -> bool:
        if self.admitted is None:
            return False
        if self.admitted.grant is not None:  # a run's programs ask; what goes on elsewhere is not theirs to hear
            return event in HEARS
        return scope is None or (not self.is_node and covers(self.admitted.caller.scopes, scope))

    # ---- outgoing ------------------------------------------------------------------------------------------------

    def announce(self, announcement: Announcement) -> None:
        """An event of the house, numbered for this connection; nodes get theirs without a number."""
        if self.is_node:
            self._send(announcement.plain())
            return
        self._seq += 1
        self._send(announcement.numbered(self._seq))

    def tell(self, event: str, payload: Any) -> None:
        """An event for this connection alone."""
        self._send(Announcement(event, payload).plain())

    def _send(self, frame: bytes) -> None:
        self.socket.send(frame)
        if self.socket.unsent > gateway_frames.LARGEST_BACKLOG and self.socket.is_open:
            self._intercom.count("slow_consumers")
            logger.warning("connection %s does not read: closed as a slow consumer", self.id)
            self.socket.close(1008, "slow consumer")

    # ---- the socket's listener -----------------------------------------------------------------------------------

    def opened(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_WITHIN, self._too_late)
        payload = {"nonce": self._challenge.nonce, "ts": self._challenge.ts, "capabilities": []}
        self.tell("connect.challenge", payload)

    def heard(self, message: bytes) -> None:
        if self.admitted is not None:
            self._serve(message)
        elif len(message) > gateway_frames.LARGEST_OPENING:
            self._intercom.refused("preauth-payload-too-large")
            self.socket.close(1009, "preauth payload too large")
        elif self._early is None:
            self._greet(message)
        elif len(self._early) >= MOST_EARLY_FRAMES:
            self._intercom.refused("too-many-early-frames")
            self.socket.close(1008, "too many pending handshake frames")
        else:
            self._early.append(message)
            if sum(map(len, self._early)) > gateway_frames.LARGEST_OPENING:
                self.socket.pause()  # nobody unknown makes us hold more; the rest may come once it is known

    def gone(self, code: int, reason: str) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._intercom.left(self)

    def _too_late(self) -> None:
        self._intercom.refused("handshake-timeout")
        self.socket.close(1000)

    # ---- coming in -----------------------------------------------------------------------------------------------

    def _greet(self, message: bytes) -> None:
        frame = gateway_frames.read_request(message)
        if frame is None:
            self._intercom.refused("unreadable")
            self.socket.close(1000)
        elif not isinstance(frame, Request):
            self._intercom.refused("invalid-request-frame")
            self.socket.close(1008, "invalid request frame")
        elif frame.method != "connect":
            self._refuse(frame.id, Refused(Fault("invalid handshake: first request must be connect")))
        else:
            self._early = []
            self._intercom.own(self._admit(frame))

    async def _admit(self, frame: Request) -> None:
        try:
            connect = read_params(frame.params, Connect, "connect")
            admitted = await self._intercom.door.admit(connect, self.visitor, self._challenge)
        except Refused as refused:
            self._refuse(frame.id, refused)
        except Fault as fault:
            self._refuse(frame.id, Refused(fault))
        except Exception:  # the one place where a failing handshake becomes a close
            logger.exception("handshake of connection %s failed", self.id)
            broken = Fault("internal error", kind="UNAVAILABLE", retryable=True)
            self._refuse(frame.id, Refused(broken, close=1011))
        else:
            self._welcome(frame.id, admitted)

    def _welcome(self, id: str, admitted: Admitted) -> None:
        if not self.socket.is_open:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self.admitted = admitted
        self.socket.know()
        hello = self._intercom.joined(self)
        self._send(gateway_frames.answer(id, hello))
        early, self._early = self._early or [], None
        for message in early:
            self._serve(message)
        if not self._paused:
            self.socket.resume()

    def _refuse(self, id: str, refused: Refused) -> None:
        details = refused.fault.details
        code = details.get("code") if isinstance(details, dict) else None
        self._intercom.refused(str(code or "invalid-handshake"))
        self._send(gateway_frames.refusal(id, refused.fault))
        self.socket.close(refused.close, refused.reason)

    # ---- requests ------------------------------------------------------------------------------------------------

    def _serve(self, message: bytes) -> None:
        frame = gateway_frames.read_request(message)
        if frame is None:
            return
        if not isinstance(frame, Request):
            self._send(gateway_frames.refusal(frame.id, Fault(frame.message)))
            return
        self._running += 1
        if self._running >= MOST_RUNNING and not self._paused:
            self._paused = True
            self.socket.pause()
        self._intercom.own(self._answer(frame))

    async def _answer(self, request: Request) -> None:
        begun = time.perf_counter()
        outcome = "cancelled"
        try:
            method = self._choose(request)
            result = await self._carry_out(method, self._call(request, method))
            outcome = "ok"
            self._unauthorized = 0
            self._send(gateway_frames.answer(request.id, result))
        except Fault as fault:
            outcome = fault.kind
            self._send(gateway_frames.refusal(request.id, fault))
        except OpenClawError as exc:
            outcome = exc.code
            self._send(gateway_frames.refusal(request.id, as_fault(exc)))
        except Exception:  # the one place where a method's failure becomes wire
            outcome = "internal"
            logger.exception("method %s failed", request.method)
            self._send(gateway_frames.refusal(request.id, Fault("internal error", kind="UNAVAILABLE")))
        finally:
            seconds = time.perf_counter() - begun
            self._intercom.answered(request.method, outcome, seconds)
            bound = self.admitted.bound if self.admitted is not None else None
            if bound is not None:
                given = request.params if isinstance(request.params, dict) else {}
                self._intercom.door.grants.ended_call(bound, request.method, given, outcome=outcome, seconds=seconds)
            self._running -= 1
            if self._paused and self._running < MOST_RUNNING // 2:
                self._paused = False
                self.socket.alive = True
                self.socket.resume()

    async def _carry_out(self, method: Method, call: RpcCall) -> Any:
        assert self.admitted is not None
        grant = self.admitted.grant
        if grant is None:
            return await method.run(call)
        with self._intercom.door.grants.witness(grant, call) as witness:
            if isinstance(call.link, RequestLink):
                call.link.witness = witness
            result = await method.run(call)
            witness.answered(result)
            return result

    def _choose(self, request: Request) -> Method:
        """The method, if this caller may call it now. Raises Fault."""
        if request.method == "connect":
            raise Fault("connect is only valid as the first request")
        method = self._intercom.find(request.method)
        if method is None:
            raise Fault(f"unknown method: {request.method}")
        admitted = self.admitted
        assert admitted is not None
        role = admitted.connect.role
        if method.role not in ("any", role):
            self._unauthorized += 1
            if self._unauthorized > MOST_UNAUTHORIZED:
                asyncio.get_running_loop().call_soon(self.socket.close, 1008, "repeated unauthorized calls")
            raise Fault(f"unauthorized role: {role}")
        scoped = method.scope is not None and method.role != "node" and admitted.grant is None
        if scoped and method.scope is not None and not covers(admitted.caller.scopes, method.scope):
            raise missing_scope(method.scope)
        if method.per_minute is not None:
            self._intercom.spend(method, self.visitor.address, admitted.caller.name)
        return method

    def _call(self, request: Request, method: Method) -> RpcCall:
        params: Any = request.params
        if params is None:
            params = {}
        elif not isinstance(params, dict):
            raise Fault(f"invalid {request.method} params: must be object")
        link = RequestLink(self, request.id)
        call = RpcCall(method=request.method, params=params, caller=self.caller, link=link)
        assert self.admitted is not None
        grants = self._intercom.door.grants
        if self.admitted.grant is not None:
            return grants.narrowed(method, call)
        if call.judged is not None:
            grants.permit(call.judged, call)
        return call

    def accept(self, request: str, payload: Any) -> None:
        self._send(gateway_frames.answer(request, payload))


class RequestLink:
    """The way back for one request. A `Link`."""

    __slots__ = ("_connection", "_request", "witness")

    def __init__(self, connection: Connection, request: str) -> None:
        self._connection = connection
        self._request = request
        self.witness: Witness | None = None

    @property
    def id(self) -> str:
        return self._connection.id

    @property
    def connect(self) -> Connect:
        """How this connection presented itself."""
        assert self._connection.admitted is not None
        return self._connection.admitted.connect

    def tell(self, event: str, payload: Any) -> None:
        self._connection.tell(event, payload)

    def interests(self) -> set[str]:
        return self._connection.topics

    async def accepted(self, payload: Any) -> None:
        if self.witness is not None:
            self.witness.answered(payload)
        self._connection.accept(self._request, payload)


def as_fault(error: OpenClawError) -> Fault:
    """An error of the house in the gateway's words."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, BadRequest | ToolArguments):
        return Fault(str(error))
    if isinstance(error, ToolDenied):
        return Fault(str(error), kind="FORBIDDEN", details={"code": "TOOL_DENIED"})
    if isinstance(error, Unauthorized):
        return Fault(str(error), kind="FORBIDDEN")
    return Fault(str(error), kind="UNAVAILABLE")


def presence_of(connection: Connection) -> Json:
    """A connection as `system-presence` lists it."""
    admitted = connection.admitted
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
        "onlineSince": connection.since,
        "ts": connection.since,
    }
    optional = {
        "ip": None if connection.visitor.local else connection.visitor.address,
        "deviceFamily": client.device_family,
        "modelIdentifier": client.model_identifier,
        "timeZone": client.time_zone,
        "deviceId": admitted.connect.device.id if admitted.connect.device else None,
        "instanceId": client.instance_id,
    }
    return entry | {key: value for key, value in optional.items() if value is not None}
