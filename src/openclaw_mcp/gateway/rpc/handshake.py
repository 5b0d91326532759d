"""A connection before it is authenticated: challenge, `connect`, then a hello or a refusal."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from ...core.rpc import RpcError, read_params
from ...core.sessions import now_ms
from ...net.gateway_client.handshake import Challenge, ConnectParams
from ...net.tasks import Tasks
from ...net.websocket_server import AcceptedWebSocket
from ...protocol import gateway_frames
from ...protocol.gateway_frames import EncodedEvent, RequestFrame
from .authenticator import AuthResult, HandshakeRefused, PeerInfo
from .connection import RpcConnection
from .metrics import RpcMetrics

HANDSHAKE_TIMEOUT: Final = 15.0  # seconds from accept to a finished handshake
MAX_EARLY_FRAMES: Final = 15  # requests a client may send behind `connect` before it is answered

logger = logging.getLogger(__name__)

Authenticate = Callable[[ConnectParams, PeerInfo, Challenge], Awaitable[AuthResult]]
Admit = Callable[["Handshake", AuthResult, str], tuple[RpcConnection, bytes]]
"""Makes the connection of an authenticated client, and the frame that answers its request of this id."""


class Handshake:
    """The socket's listener until the client is authenticated; then the connection it made takes over."""

    def __init__(
        self,
        socket: AcceptedWebSocket,
        peer_info: PeerInfo,
        *,
        authenticate: Authenticate,
        admit: Admit,
        on_end: Callable[["Handshake"], None],
        metrics: RpcMetrics,
        tasks: Tasks,
    ) -> None:
        self.id = str(uuid.uuid4())
        self.socket = socket
        self.peer_info = peer_info
        self.since_ms = now_ms()
        self._authenticate = authenticate
        self._admit = admit
        self._on_end = on_end
        self._metrics = metrics
        self._tasks = tasks
        self._challenge = Challenge(str(uuid.uuid4()), self.since_ms)
        self._early_messages: list[bytes] | None = None
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT, self._on_timeout)

    def on_open(self) -> None:
        payload = {"nonce": self._challenge.nonce, "ts": self._challenge.ts, "capabilities": []}
        self.socket.send(EncodedEvent("connect.challenge", payload).without_seq())

    def on_message(self, message: bytes) -> None:
        if len(message) > gateway_frames.MAX_HANDSHAKE_FRAME:
            self._close("preauth-payload-too-large", 1009, "preauth payload too large")
        elif self._early_messages is None:
            self._handle_connect(message)
        elif len(self._early_messages) >= MAX_EARLY_FRAMES:
            self._close("too-many-early-frames", 1008, "too many pending handshake frames")
        else:
            self._early_messages.append(message)
            if sum(map(len, self._early_messages)) > gateway_frames.MAX_HANDSHAKE_FRAME:
                self.socket.pause()  # no unauthenticated peer makes us hold more; the rest is read once it is known

    def on_close(self, code: int, reason: str) -> None:
        self._deadline.cancel()
        self._on_end(self)

    def _on_timeout(self) -> None:
        self._close("handshake-timeout", 1000)

    def _close(self, outcome: str, code: int, reason: str = "") -> None:
        self._metrics.count_handshake(outcome)
        self.socket.close(code, reason)

    def _handle_connect(self, message: bytes) -> None:
        frame = gateway_frames.read_request(message)
        if frame is None:
            self._close("unreadable", 1000)
        elif not isinstance(frame, RequestFrame):
            self._close("invalid-request-frame", 1008, "invalid request frame")
        elif frame.method != "connect":
            self._refuse(frame.id, HandshakeRefused(RpcError("invalid handshake: first request must be connect")))
        else:
            self._early_messages = []
            self._tasks.spawn(self._connect(frame, self._early_messages), name="handshake")

    async def _connect(self, frame: RequestFrame, early_messages: list[bytes]) -> None:
        try:
            connect = read_params(frame.params, ConnectParams, "connect")
            auth = await self._authenticate(connect, self.peer_info, self._challenge)
            if not self.socket.is_open:
                return
            connection, hello = self._admit(self, auth, frame.id)
        except HandshakeRefused as refused:
            self._refuse(frame.id, refused)
        except RpcError as error:
            self._refuse(frame.id, HandshakeRefused(error))
        except Exception:  # the one place where a failing handshake becomes a close
            logger.exception("rpc: handshake of connection %s failed, closing it", self.id)
            broken = RpcError("internal error", kind="UNAVAILABLE", retryable=True)
            self._refuse(frame.id, HandshakeRefused(broken, close_code=1011))
        else:
            self._deadline.cancel()
            self.socket.trust()
            self.socket.listener = connection
            connection.start(hello, early_messages)

    def _refuse(self, id: str, refused: HandshakeRefused) -> None:
        details = refused.error.details
        code = details.get("code") if isinstance(details, dict) else None
        self.socket.send(gateway_frames.encode_error(id, refused.error))
        self._close(str(code or "invalid-handshake"), refused.close_code, refused.close_reason)
