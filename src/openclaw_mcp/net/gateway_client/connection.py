"""One connection we dialled, from the first packet to its end: the client's half of the handshake, calls, events."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import to_builtins
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response as HttpResponse
from websockets.uri import WebSocketURI, parse_uri

from ...core.errors import OpenClawError
from ...core.model import Json
from ...core.rpc import Fault
from ...core.signal import Bell
from ...protocol import gateway_frames
from ...protocol.gateway_frames import News, Response
from ..websocket import Socket
from .handshake import Credentials, Introduction, Signer

NO_HEADERS: Final[Mapping[str, str]] = {}
TELLING: Final = (403, 503)  # refusals of a gateway's own, which say what to change
SILENT_TICKS: Final = 2  # tick intervals without a word before the connection counts as dead


class CannotConnect(OpenClawError):
    """One sentence: why, and what to do. `lasting`: dialling again changes nothing until somebody acts."""

    code = "cannot_connect"

    def __init__(
        self, reason: str, *, lasting: bool = False, fault: Fault | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.lasting = lasting
        self.fault = fault
        self.retry_after = retry_after


class ConnectionGone(OpenClawError):
    """The gateway went away while a call waited. Whether the call was carried out is not known."""

    code = "connection_gone"


class Outgoing:
    """One connection, from dialling to its end."""

    def __init__(self, events: Bell[News], url: str, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self.hello: Json = {}
        self.ended = asyncio.Event()
        self.reason = ""
        self._events = events
        self._url = url
        self._next = 0
        self._waiting: dict[str, _Waiting] = {}
        self._challenge: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._largest = gateway_frames.LARGEST_OPENING
        self._watch: asyncio.TimerHandle | None = None
        try:
            uri = parse_uri(url)
        except (InvalidURI, ValueError) as exc:  # the latter for a port that is no number
            raise CannotConnect(f"{url!r} is no gateway address; it looks like ws://127.0.0.1:18789") from exc
        self.uri = uri
        self.socket = ClientSocket(uri, headers)
        self.socket.listener = self

    @property
    def is_open(self) -> bool:
        return self.socket.is_open and not self.ended.is_set()

    async def open(self, introduction: Introduction, credentials: Credentials, signer: Signer | None) -> None:
        await self._reach()
        challenge = await self._challenge
        connect = introduction.connect(challenge, credentials, signer)
        try:
            self.hello = await self.call("connect", _trimmed(to_builtins(connect)), final=False, accepted=None)
        except Fault as fault:
            raise _refused(self._url, fault) from None
        except ConnectionGone as exc:
            raise CannotConnect(str(exc)) from None
        policy = self.hello.get("policy", {})
        self._largest = int(policy.get("maxPayload", gateway_frames.LARGEST_FRAME))
        self._silence = SILENT_TICKS * float(policy.get("tickIntervalMs", gateway_frames.TICK_EVERY * 1000)) / 1000
        self._look()

    async def _reach(self) -> None:
        loop = asyncio.get_running_loop()
        uri = self.uri
        host = uri.host
        try:
            await loop.create_connection(
                lambda: self.socket, host, uri.port, ssl=True if uri.secure else None,
                server_hostname=host if uri.secure else None,
            )  # fmt: skip
        except OSError as exc:
            hint = "; start one with `openclaw gateway`" if isinstance(exc, ConnectionRefusedError) else ""
            raise CannotConnect(f"no gateway answers at {self._url}: {_plain(exc)}{hint}") from None

    async def call(self, method: str, params: Json, *, final: bool, accepted: Callable[[Any], None] | None) -> Any:
        self._next += 1
        id = str(self._next)
        frame = gateway_frames.request(id, method, params)
        if len(frame) > self._largest:
            raise Fault(f"{method} is {len(frame)} bytes; this gateway takes at most {self._largest} in one message")
        await self.socket.drained()
        if not self.is_open:
            raise ConnectionGone(self.reason or f"the connection to {self._url} has ended")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[id] = _Waiting(answer, final, accepted)
        self.socket.send(frame)
        try:
            return await answer
        finally:
            self._waiting.pop(id, None)  # on every path, so that a late answer is dropped, not kept

    # ---- the socket's listener -----------------------------------------------------------------------------------

    def opened(self) -> None:
        return

    def heard(self, message: bytes) -> None:
        frame = gateway_frames.read_answer(message)
        if isinstance(frame, Response):
            waiting = self._waiting.get(frame.id)
            if waiting is not None:
                waiting.hear(frame)
        elif isinstance(frame, News):
            if frame.event == "connect.challenge" and not self._challenge.done():
                self._challenge.set_result(frame.payload if isinstance(frame.payload, dict) else {})
            else:
                self._events.ring(frame)

    def gone(self, code: int, reason: str) -> None:
        failure = self.socket.failure
        words = f": {reason}" if reason else ""
        told = failure or f"the gateway at {self._url} closed the connection ({code}{words})"
        self.end(ConnectionGone(told))

    def end(self, error: ConnectionGone) -> None:
        """Each waiting call ends at once with the reason."""
        if self.ended.is_set():
            return
        self.reason = str(error)
        self.ended.set()
        if self._watch is not None:
            self._watch.cancel()
        for waiting in list(self._waiting.values()):
            if not waiting.answer.done():
                waiting.answer.set_exception(ConnectionGone(self.reason))
        if not self._challenge.done():
            self._challenge.set_exception(CannotConnect(self.reason))
            self._challenge.exception()  # nobody may be waiting for it

    def _look(self) -> None:
        """The tick watchdog: a gateway speaks at least every tick."""
        if self._watch is not None and not self.socket.alive:
            self.end(ConnectionGone(f"the gateway at {self._url} has said nothing for {self._silence:g} s"))
            self.socket.close(4000, "tick timeout")
            return
        self.socket.alive = False
        self._watch = asyncio.get_running_loop().call_later(self._silence, self._look)


class _Waiting:
    __slots__ = ("_accepted", "_final", "answer")

    def __init__(self, answer: "asyncio.Future[Any]", final: bool, accepted: Callable[[Any], None] | None) -> None:
        self.answer = answer
        self._final = final
        self._accepted = accepted

    def hear(self, response: Response) -> None:
        if self.answer.done():
            return
        if not response.ok:
            error = response.error
            self.answer.set_exception(error.fault() if error else Fault("refused without a reason"))
            return
        payload = response.payload
        if self._final and isinstance(payload, dict) and payload.get("status") == "accepted":
            if self._accepted is not None:
                self._accepted(payload)
            self._final = False
            return
        self.answer.set_result(payload)


class ClientSocket(Socket):
    """Our end of a connection we dialled. `failure` says why it never opened."""

    def __init__(self, uri: WebSocketURI, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self._headers = headers
        self._client_codec = ClientProtocol(uri, max_size=gateway_frames.LARGEST_FRAME)
        super().__init__(self._client_codec)
        self.failure: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        request = self._client_codec.connect()
        request.headers.update(self._headers)
        self._client_codec.send_request(request)
        self._flush()

    def _opening(self, event: HttpRequest | HttpResponse) -> None:
        exc = self._client_codec.handshake_exc
        if exc is None:
            if self.listener is not None:
                self.listener.opened()
            return
        if isinstance(exc, InvalidStatus):
            body = exc.response.body or b""
            told = body[:200].decode(errors="replace").strip() if exc.response.status_code in TELLING else ""
            self.failure = f"{_place(self._client_codec.uri)} answered HTTP {exc.response.status_code}" + (
                f": {told}" if told else "; no gateway's WebSocket is there"
            )
        elif isinstance(exc, InvalidHandshake):
            self.failure = f"{_place(self._client_codec.uri)} speaks no WebSocket"
        self.cut()


def _place(uri: WebSocketURI) -> str:
    return f"{'wss' if uri.secure else 'ws'}://{uri.host}:{uri.port}{uri.path}"


def _plain(exc: OSError) -> str:
    if isinstance(exc, ConnectionRefusedError):
        return "connection refused"
    return (exc.strerror or str(exc) or type(exc).__name__).lower()


def _trimmed(value: Any) -> Any:
    """Without the keys that say nothing: a real gateway refuses a null where it expects a word."""
    if isinstance(value, dict):
        return {key: _trimmed(item) for key, item in value.items() if item is not None}
    return value


def _refused(url: str, fault: Fault) -> CannotConnect:
    """What to do about a refused handshake."""
    details = fault.details if isinstance(fault.details, dict) else {}
    code = str(details.get("code", ""))
    hint, lasting = "", True
    if code == "PAIRING_REQUIRED":
        request = details.get("requestId")
        hint = f'; approve it there with `openclaw gateway call device.pair.approve \'{{"requestId":"{request}"}}\'`'
    elif code in ("AUTH_TOKEN_MISMATCH", "AUTH_TOKEN_MISSING"):
        hint = "; set OPENCLAW_GATEWAY_TOKEN to that gateway's token"
    elif code == "DEVICE_IDENTITY_REQUIRED":
        hint = "; give a token (OPENCLAW_GATEWAY_TOKEN) or a paired device"
    elif fault.retryable or fault.kind == "UNAVAILABLE":
        lasting = False
    after = fault.retry_after_ms / 1000 if fault.retry_after_ms is not None else None
    return CannotConnect(
        f"the gateway at {url} refused us: {fault}{hint}", lasting=lasting, fault=fault, retry_after=after
    )
