"""A server behind an HTTP address: MCP's Streamable HTTP in both eras."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from ...core.errors import ToolError, ToolUnavailable
from ...net.http_client.connection import ResponseTooLarge
from ...net.tasks import Tasks
from ...protocol import jsonrpc
from ...protocol.jsonrpc import JsonRpcNotification, JsonRpcRequest, JsonRpcResponse
from ...protocol.sse import SseEvent, SseEventTooLong, SseParser
from .entry import ServerAddress
from .transport import OutgoingRequest, ServerMessageHandler, SessionLost, encode_answer

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES: Final = 64 << 20  # bytes; as for a pipe's line
MAX_REFUSAL_BYTES: Final = 64 << 10  # bytes read of an answer that is an error
MAX_CONNECTIONS: Final = 256  # connections to one server; calls beyond it wait for one, within their own time
KEPT_CONNECTIONS: Final = 16  # idle ones kept for the next call
SEND_WAIT: Final = 30.0  # seconds a server may take to accept bytes of ours
NOTIFY_WAIT: Final = 10.0  # seconds for a notification or an answer of ours to be accepted
FIRST_RETRY: Final = 1.0  # seconds before a broken stream is taken up again, unless the server says otherwise
MAX_RETRY: Final = 60.0
MAX_RESUMES: Final = 20  # times in a row a stream may end without an event
MAX_BACKGROUND_SENDS: Final = 256  # answers and cancellations on their way at once
SESSION_HEADER: Final = "mcp-session-id"
OLD_SESSION_ERROR: Final = -32000  # what servers on older SDKs say to a session they do not know, with status 400

_ACCEPT = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


class McpHttpTransport:
    """A `McpTransport`. A server's restart loses nothing but its session, which `SessionLost` reports."""

    def __init__(self, name: str, address: ServerAddress, *, connect_wait: float) -> None:
        self.close_reason: str | None = "it is not open"
        self._name = name
        self._address = address
        self._connect_wait = connect_wait
        self._session: dict[str, str] = {}
        """Headers of the session that the handshake opened."""
        self._sends = Tasks(f"MCP server {name}")

    async def open(self, handler: ServerMessageHandler) -> None:
        # In a thread: the import and the reading of certificates would hold up everything else on the loop.
        self._http = await asyncio.to_thread(self._new_http_client)
        self.close_reason = None

    def _new_http_client(self) -> "httpx.AsyncClient":
        # Here for start-up: only a config with an HTTP server needs it, and it costs as much as asyncio.
        from ...net import httpx_client

        self._httpx, self._read_response = httpx_client.httpx, httpx_client.read_body
        return httpx_client.create_client(
            headers={**_ACCEPT, **self._address.headers},  # for this server, not for one it redirects to
            timeout=None,
            connect_timeout=self._connect_wait,
            send_timeout=SEND_WAIT,
            max_connections=MAX_CONNECTIONS,
            max_idle=KEPT_CONNECTIONS,
            verify=self._address.url.startswith("https:"),  # reading the certificates takes longer than the first call
        )

    async def request(self, request: OutgoingRequest, handler: ServerMessageHandler) -> JsonRpcResponse:
        body = jsonrpc.encode_request(request.id, request.method, request.params)
        headers = {**self._session, **request.headers} if request.handshake else request.headers
        if request.method == "initialize":
            self._session = headers = {}
        try:
            async with self._post(body, headers) as response:
                if request.method == "initialize" and SESSION_HEADER in response.headers:
                    self._session = {SESSION_HEADER: response.headers[SESSION_HEADER]}
                return await self._read_answer(response, request, handler)
        except asyncio.CancelledError:
            # In the stateless era the closed stream cancels it.
            if request.handshake and request.method != "initialize":
                self._start_send(self.notify(JsonRpcNotification("notifications/cancelled", {"requestId": request.id})))
            raise

    async def notify(self, notification: JsonRpcNotification) -> None:
        await self._send(jsonrpc.encode_notification(notification.method, notification.params))

    async def set_protocol_version(self, version: str) -> None:
        self._session["mcp-protocol-version"] = version

    async def listen(self, handler: ServerMessageHandler, on_open: Callable[[], None]) -> bool:
        async with self._get(None) as response:
            if response.status_code != 200 or not _is_stream(response):
                await self._check_session(response)
                return False
            on_open()
            async for event in self._read_events(response):
                self._handle_event(event, handler)
        return True

    async def aclose(self) -> None:
        if self.close_reason is not None:
            return
        self.close_reason = "it was closed"
        await self._sends.cancel_all()
        if SESSION_HEADER in self._session:
            with contextlib.suppress(ToolUnavailable, TimeoutError):
                async with asyncio.timeout(NOTIFY_WAIT), self._stream("DELETE", headers=self._session):
                    pass
        await self._http.aclose()

    # ---- answers ----

    async def _read_answer(
        self, response: "httpx.Response", request: OutgoingRequest, handler: ServerMessageHandler
    ) -> JsonRpcResponse:
        if response.status_code == 200 and _is_stream(response):
            return await self._follow(response, request, handler)
        if response.status_code in (401, 403):
            raise self._status_error(response.status_code)
        body = await self._read_body(response, MAX_ANSWER_BYTES if response.status_code == 200 else MAX_REFUSAL_BYTES)
        message = jsonrpc.decode_message(body)
        if isinstance(message, JsonRpcResponse):
            self._check_old_session(response.status_code, message)
            return message
        raise self._status_error(response.status_code)

    async def _follow(
        self, response: "httpx.Response", request: OutgoingRequest, handler: ServerMessageHandler
    ) -> JsonRpcResponse:
        """The answer on a stream; a handshake-era server may end the stream and send the rest when we come back."""
        last: str | None = None
        wait, silent = FIRST_RETRY, 0
        stream = self._read_events(response)
        while True:
            try:
                async with contextlib.aclosing(stream):
                    async for event in stream:
                        last = event.id or last
                        wait = min(event.retry / 1000, MAX_RETRY) if event.retry is not None else wait
                        silent = 0 if event.data else silent
                        answer = self._handle_event(event, handler)
                        if answer is not None and answer.id == request.id:
                            return answer
            except ToolUnavailable:
                if last is None or not request.handshake:
                    raise
            if last is None or not request.handshake or silent >= MAX_RESUMES:
                raise ToolUnavailable(f"{self._name} ended the connection before its answer")
            silent += 1
            await asyncio.sleep(wait)
            stream = self._resume_stream(last)

    async def _resume_stream(self, last_event_id: str) -> AsyncGenerator[SseEvent, None]:
        async with self._get(last_event_id) as response:
            if response.status_code != 200 or not _is_stream(response):
                raise ToolError(f"{self._name} hung up in the middle of its answer and does not go on with it")
            async for event in self._read_events(response):
                yield event

    def _handle_event(self, event: SseEvent, handler: ServerMessageHandler) -> JsonRpcResponse | None:
        if not event.data:
            return None
        match jsonrpc.decode_message(event.data):
            case JsonRpcResponse() as response:
                return response
            case JsonRpcNotification() as notification:
                handler.on_notification(notification)
            case JsonRpcRequest() as request:
                self._start_send(self._answer(request, handler))
        return None

    async def _answer(self, request: JsonRpcRequest, handler: ServerMessageHandler) -> None:
        await self._send(await encode_answer(handler, request))

    async def _read_events(self, response: "httpx.Response") -> AsyncGenerator[SseEvent, None]:
        events = SseParser(limit=MAX_ANSWER_BYTES)
        try:
            async for data in response.aiter_bytes():
                for event in events.feed(data):
                    yield event
        except SseEventTooLong:
            raise ToolError(f"{self._name} sent a message longer than {MAX_ANSWER_BYTES >> 20} MiB") from None
        except self._httpx.HTTPError as exc:
            raise self._connection_error(exc) from exc

    async def _read_body(self, response: "httpx.Response", limit: int) -> bytes:
        try:
            return await self._read_response(response, limit)
        except ResponseTooLarge:
            raise ToolError(f"{self._name} sent an answer longer than {limit >> 10} KiB") from None
        except self._httpx.HTTPError as exc:
            raise self._connection_error(exc) from exc

    # ---- refusals ----

    async def _check_session(self, response: "httpx.Response") -> None:
        if response.status_code == 404 and SESSION_HEADER in self._session:
            raise SessionLost(f"{self._name} has forgotten our session")
        if response.status_code == 400 and SESSION_HEADER in self._session:
            message = jsonrpc.decode_message(await self._read_body(response, MAX_REFUSAL_BYTES))
            if isinstance(message, JsonRpcResponse):
                self._check_old_session(400, message)

    def _check_old_session(self, status: int, message: JsonRpcResponse) -> None:
        code = message.error.get("code") if type(message.error) is dict else None
        if SESSION_HEADER in self._session and (status == 404 or (status == 400 and code == OLD_SESSION_ERROR)):
            raise SessionLost(f"{self._name} has forgotten our session")

    def _status_error(self, status: int) -> ToolUnavailable:
        if status == 404 and SESSION_HEADER in self._session:
            return SessionLost(f"{self._name} has forgotten our session")
        if status in (401, 403):
            return BadHttpStatus(
                f"{self._name} does not accept our credential (HTTP {status}); check its `headers`", status
            )
        if 300 <= status < 400:
            return BadHttpStatus(f"{self._name} has moved (HTTP {status}); put its new address into `url`", status)
        return BadHttpStatus(f"{self._name} answered HTTP {status} and no MCP message; check its `url`", status)

    def _connection_error(self, exc: Exception) -> ToolUnavailable:
        if "CERTIFICATE_VERIFY_FAILED" in str(exc):
            return ToolUnavailable(f"{self._name} has a certificate we do not trust; name its issuer in SSL_CERT_FILE")
        if isinstance(exc, self._httpx.ConnectError | self._httpx.ConnectTimeout):
            return ToolUnavailable(f"{self._name} can't be reached at its address")
        return ToolUnavailable(f"{self._name} broke the connection ({type(exc).__name__})")

    # ---- bytes out ----

    def _post(self, body: bytes, headers: dict[str, str]) -> "contextlib.AbstractAsyncContextManager[httpx.Response]":
        return self._stream("POST", content=body, headers=headers)

    def _get(self, last_event_id: str | None) -> "contextlib.AbstractAsyncContextManager[httpx.Response]":
        headers = {**self._session, "accept": "text/event-stream"}
        return self._stream(
            "GET", headers=headers if last_event_id is None else {**headers, "last-event-id": last_event_id}
        )

    @contextlib.asynccontextmanager
    async def _stream(self, method: str, **options: Any) -> "AsyncIterator[httpx.Response]":
        try:
            stream = self._http.stream(method, self._address.url, **options)
            response = await stream.__aenter__()
        except (self._httpx.HTTPError, self._httpx.InvalidURL, RuntimeError) as exc:  # RuntimeError: closed under us
            raise self._connection_error(exc) from exc
        try:
            yield response
        finally:
            with contextlib.suppress(self._httpx.HTTPError):
                await stream.__aexit__(None, None, None)

    async def _send(self, message: bytes) -> None:
        """Send what has no answer. Raises ToolUnavailable."""
        try:
            async with asyncio.timeout(NOTIFY_WAIT), self._post(message, self._session) as response:
                if response.status_code >= 400:
                    logger.debug("%s did not take a message: HTTP %d", self._name, response.status_code)
        except TimeoutError:
            raise ToolUnavailable(f"{self._name} did not take a message within {NOTIFY_WAIT:g} s") from None

    def _start_send(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._sends) >= MAX_BACKGROUND_SENDS or self.close_reason is not None:
            work.close()
        else:
            self._sends.spawn(_ignore_unavailable(work), name="message without an answer")


class BadHttpStatus(ToolUnavailable):
    """An HTTP status that is no MCP answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def _ignore_unavailable(work: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(ToolUnavailable):
        await work


def _is_stream(response: "httpx.Response") -> bool:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower() == "text/event-stream"
