"""One connection of a client, from dialling to its end: the client's half of the handshake, calls, events."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct, to_builtins
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response as HttpResponse
from websockets.uri import WebSocketURI, parse_uri

from ...core.errors import OpenClawError
from ...core.model import Json
from ...core.rpc import RpcError
from ...core.signal import Signal
from ...protocol import gateway_frames
from ...protocol.gateway_frames import EventFrame, ResponseFrame
from ..websocket import WebSocket
from .address import is_local_gateway
from .handshake import Challenge, ClientProfile, Credentials, Signer

NO_HEADERS: Final[Mapping[str, str]] = {}
EXPLAINED_STATUSES: Final = (403, 503)  # refusals made by a gateway, whose text names the remedy
MAX_EXPLANATION: Final = 300  # characters of that text
MAX_SILENT_TICKS: Final = 2  # tick intervals without a message before the connection counts as dead


class CannotConnect(OpenClawError):
    """One sentence: why, and what to do. `permanent`: dialling again changes nothing until the cause is removed."""

    code = "cannot_connect"

    def __init__(
        self, reason: str, *, permanent: bool = False, error: RpcError | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.permanent = permanent
        self.error = error
        self.retry_after = retry_after


class ConnectionGone(OpenClawError):
    """The gateway went away while a call waited. Whether the call was carried out is not known."""

    code = "connection_gone"


Shape = TypeVar("Shape")


class _HelloPolicy(Struct, frozen=True, rename="camel"):
    max_payload: Annotated[int, Meta(gt=0)] = gateway_frames.MAX_FRAME
    tick_interval_ms: Annotated[float, Meta(gt=0)] = gateway_frames.TICK_INTERVAL * 1000


class _Hello(Struct, frozen=True):
    """The part of a hello that the connection itself needs."""

    policy: _HelloPolicy | None = None


class ClientConnection:
    """One connection, from dialling to its end."""

    def __init__(self, events: Signal[EventFrame], url: str, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self.hello: Json = {}
        self.ended = asyncio.Event()
        self.reason = ""
        self._events = events
        self._url = url
        self._last_id = 0
        self._pending_calls: dict[str, _PendingCall] = {}
        self._challenge: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._max_frame = gateway_frames.MAX_HANDSHAKE_FRAME
        self._max_silence = MAX_SILENT_TICKS * gateway_frames.TICK_INTERVAL
        self._watchdog: asyncio.TimerHandle | None = None
        try:
            uri = parse_uri(url)
        except (InvalidURI, ValueError) as exc:  # the latter for a port that is no number
            raise CannotConnect(f"{url!r} is no gateway address; it looks like ws://127.0.0.1:18789") from exc
        self.uri = uri
        self.socket = ClientWebSocket(uri, headers)
        self.socket.listener = self

    @property
    def is_open(self) -> bool:
        return self.socket.is_open and not self.ended.is_set()

    async def open(self, profile: ClientProfile, credentials: Credentials, signer: Signer | None) -> None:
        await self._open_socket()
        challenge = self._read(await self._challenge, Challenge, "challenge")
        connect = profile.build_connect(challenge, credentials, signer)
        try:
            self.hello = await self.call("connect", _drop_none(to_builtins(connect)), final=False, on_accepted=None)
        except RpcError as fault:
            raise _refusal_error(self._url, fault) from None
        except ConnectionGone as exc:
            raise CannotConnect(str(exc)) from None
        policy = self._read(self.hello, _Hello, "hello").policy or _HelloPolicy()
        self._max_frame = policy.max_payload
        self._max_silence = MAX_SILENT_TICKS * policy.tick_interval_ms / 1000
        self._check_silence()

    def _read(self, payload: Any, shape: type[Shape], name: str) -> Shape:
        try:
            return msgspec.convert(payload, shape, strict=False)
        except msgspec.ValidationError as exc:
            reason = f"the gateway at {self._url} sent a {name} that can't be read ({exc}); is it an OpenClaw gateway?"
            raise CannotConnect(reason) from None

    async def _open_socket(self) -> None:
        loop = asyncio.get_running_loop()
        uri = self.uri
        host = uri.host
        try:
            await loop.create_connection(
                lambda: self.socket, host, uri.port, ssl=True if uri.secure else None,
                server_hostname=host if uri.secure else None,
            )  # fmt: skip
        except OSError as exc:
            hint = "; start one with `openclaw up --detach`" if isinstance(exc, ConnectionRefusedError) else ""
            raise CannotConnect(f"no gateway answers at {self._url}: {_os_error_text(exc)}{hint}") from None

    async def call(self, method: str, params: Json, *, final: bool, on_accepted: Callable[[Any], None] | None) -> Any:
        self._last_id += 1
        id = str(self._last_id)
        frame = gateway_frames.encode_request(id, method, params)
        if len(frame) > self._max_frame:
            raise RpcError(
                f"{method} is {len(frame)} bytes; this gateway takes at most {self._max_frame} in one message"
            )
        await self.socket.drain()
        if not self.is_open:
            raise ConnectionGone(self.reason or f"the connection to {self._url} has ended")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending_calls[id] = _PendingCall(answer, final, on_accepted)
        self.socket.send(frame)
        try:
            return await answer
        finally:
            self._pending_calls.pop(id, None)  # on every path, so that a late answer is dropped, not kept

    # ---- the socket's listener -----------------------------------------------------------------------------------

    def on_open(self) -> None:
        return

    def on_message(self, message: bytes) -> None:
        frame = gateway_frames.read_server_frame(message)
        if isinstance(frame, ResponseFrame):
            waiting = self._pending_calls.get(frame.id)
            if waiting is not None:
                waiting.on_response(frame)
        elif isinstance(frame, EventFrame):
            if frame.event == "connect.challenge" and not self._challenge.done():
                self._challenge.set_result(frame.payload)
            else:
                self._events.emit(frame)

    def on_close(self, code: int, reason: str) -> None:
        failure = self.socket.failure
        detail = f": {reason}" if reason else ""
        self.end(ConnectionGone(failure or f"the gateway at {self._url} closed the connection ({code}{detail})"))

    def end(self, error: ConnectionGone) -> None:
        """Each waiting call ends at once with the reason."""
        if self.ended.is_set():
            return
        self.reason = str(error)
        self.ended.set()
        if self._watchdog is not None:
            self._watchdog.cancel()
        for waiting in list(self._pending_calls.values()):
            if not waiting.answer.done():
                waiting.answer.set_exception(ConnectionGone(self.reason))
        if not self._challenge.done():
            self._challenge.set_exception(CannotConnect(self.reason))
            self._challenge.exception()  # retrieved: perhaps nothing waits for it

    def _check_silence(self) -> None:
        """The tick watchdog: a gateway sends something at least every tick."""
        if self._watchdog is not None and not self.socket.alive:
            self.end(ConnectionGone(f"the gateway at {self._url} has sent nothing for {self._max_silence:g} s"))
            self.socket.close(4000, "tick timeout")
            return
        self.socket.alive = False
        self._watchdog = asyncio.get_running_loop().call_later(self._max_silence, self._check_silence)


class _PendingCall:
    __slots__ = ("_final", "_on_accepted", "answer")

    def __init__(self, answer: "asyncio.Future[Any]", final: bool, on_accepted: Callable[[Any], None] | None) -> None:
        self.answer = answer
        self._final = final
        self._on_accepted = on_accepted

    def on_response(self, response: ResponseFrame) -> None:
        if self.answer.done():
            return
        if not response.ok:
            error = response.error
            self.answer.set_exception(error.to_error() if error else RpcError("refused without a reason"))
            return
        payload = response.payload
        if self._final and isinstance(payload, dict) and payload.get("status") == "accepted":
            if self._on_accepted is not None:
                self._on_accepted(payload)
            self._final = False
            return
        self.answer.set_result(payload)


class ClientWebSocket(WebSocket):
    """Our end of a connection we dialled. `failure` says why it never opened."""

    def __init__(self, uri: WebSocketURI, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self._headers = headers
        self._client_codec = ClientProtocol(uri, max_size=gateway_frames.MAX_FRAME)
        super().__init__(self._client_codec)
        self.failure: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        request = self._client_codec.connect()
        request.headers.update(self._headers)
        self._client_codec.send_request(request)
        self._flush()

    def _handle_handshake(self, event: HttpRequest | HttpResponse) -> None:
        exc = self._client_codec.handshake_exc
        if exc is None:
            if self.listener is not None:
                self.listener.on_open()
            return
        if isinstance(exc, InvalidStatus):
            body = exc.response.body or b""
            status = exc.response.status_code
            text = _read_explanation(body)[:MAX_EXPLANATION] if status in EXPLAINED_STATUSES else ""
            detail = f": {text}" if text else "; no gateway's WebSocket is there"
            self.failure = f"{_format_uri(self._client_codec.uri)} answered HTTP {status}{detail}"
        elif isinstance(exc, InvalidHandshake):
            self.failure = f"{_format_uri(self._client_codec.uri)} speaks no WebSocket"
        self.abort()


class _Error(Struct, frozen=True):
    message: str


class _ErrorBody(Struct, frozen=True):
    error: _Error


def _read_explanation(body: bytes | bytearray) -> str:
    """The sentence of a refusal: the message of an error in JSON, or a body of plain text."""
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error.message
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body.decode(errors="replace").strip()


def _format_uri(uri: WebSocketURI) -> str:
    return f"{'wss' if uri.secure else 'ws'}://{uri.host}:{uri.port}{uri.path}"


def _os_error_text(exc: OSError) -> str:
    if isinstance(exc, ConnectionRefusedError):
        return "connection refused"
    return (exc.strerror or str(exc) or type(exc).__name__).lower()


def _drop_none(value: Any) -> Any:
    """Without null values: a real gateway refuses a null where it expects a string."""
    if isinstance(value, dict):
        return {key: _drop_none(item) for key, item in value.items() if item is not None}
    return value


def _refusal_error(url: str, error: RpcError) -> CannotConnect:
    """A refused handshake with its remedy."""
    details = error.details if isinstance(error.details, dict) else {}
    code = str(details.get("code", ""))
    hint, permanent = "", True
    if code == "PAIRING_REQUIRED":
        request = details.get("requestId")
        hint = f'; approve it there with `openclaw gateway call device.pair.approve \'{{"requestId":"{request}"}}\'`'
    elif code in ("AUTH_TOKEN_MISMATCH", "AUTH_TOKEN_MISSING", "DEVICE_IDENTITY_REQUIRED"):
        hint = "; set OPENCLAW_GATEWAY_TOKEN to that gateway's token"
        if is_local_gateway(url):
            hint += "; if it belongs to another user or state directory, start yours with openclaw up --gateway-port 0"
    elif error.retryable or error.kind == "UNAVAILABLE":
        permanent = False
    after = error.retry_after_ms / 1000 if error.retry_after_ms is not None else None
    return CannotConnect(
        f"the gateway at {url} refused us: {error}{hint}", permanent=permanent, error=error, retry_after=after
    )
