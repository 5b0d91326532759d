"""A server behind an HTTP address: MCP's Streamable HTTP in both eras."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from ...core.errors import ToolError, ToolUnavailable
from ...core.model import Json
from ...protocol import jsonrpc
from ...protocol.jsonrpc import Notification, Request, Response, RpcError
from ...protocol.sse import Event, Events, TooLong
from .entry import Address
from .transport import Ear, Outgoing, SessionLost, result_of

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

LARGEST_ANSWER: Final = 64 << 20  # bytes; as for a pipe's line
LARGEST_REFUSAL: Final = 64 << 10  # bytes read of an answer that is an error
MOST_CONNECTIONS: Final = 256  # connections to one server; calls beyond it wait for one, within their own time
KEPT_CONNECTIONS: Final = 16  # idle ones kept for the next call
SEND_WAIT: Final = 30.0  # seconds a server may take to accept bytes of ours
SAY_WAIT: Final = 10.0  # seconds for a notification or an answer of ours to be accepted
FIRST_RETRY: Final = 1.0  # seconds before a broken stream is taken up again, unless the server says otherwise
LONGEST_RETRY: Final = 60.0
MOST_RESUMES: Final = 20  # times in a row a stream may end without saying anything
MOST_SAYING: Final = 256  # answers and cancellations on their way at once
SESSION: Final = "mcp-session-id"
OLD_REFUSAL: Final = -32000  # what servers on older SDKs say to a session they do not know, with status 400

_ACCEPT = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


class Http:
    """A `Transport`. Nothing is lost by a server's restart but its session, which `SessionLost` tells."""

    def __init__(self, name: str, address: Address, *, connect_wait: float) -> None:
        self.gone: str | None = "it is not open"
        self._name = name
        self._address = address
        self._connect_wait = connect_wait
        self._session: dict[str, str] = {}
        """Headers the handshake gave us."""
        self._saying: set[asyncio.Task[None]] = set()

    async def open(self, ear: Ear) -> None:
        # In a thread: the import and the reading of certificates would hold up everybody else on the loop.
        self._http = await asyncio.to_thread(self._new)
        self.gone = None

    def _new(self) -> "httpx.AsyncClient":
        import httpx  # here for start-up: only a config with an HTTP server needs it, and it costs as much as asyncio

        self._httpx = httpx
        return httpx.AsyncClient(
            headers={**_ACCEPT, **self._address.headers},
            timeout=httpx.Timeout(connect=self._connect_wait, write=SEND_WAIT, read=None, pool=None),
            limits=httpx.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=KEPT_CONNECTIONS),
            verify=self._address.url.startswith("https:"),  # reading the certificates takes longer than the first call
            follow_redirects=False,  # our headers are for this server, not for one it names
        )

    async def request(self, out: Outgoing, ear: Ear) -> Json:
        body = jsonrpc.request(out.id, out.method, out.params)
        headers = {**self._session, **out.headers} if out.handshake else out.headers
        if out.method == "initialize":
            self._session = headers = {}
        try:
            async with self._post(body, headers) as response:
                if out.method == "initialize" and SESSION in response.headers:
                    self._session = {SESSION: response.headers[SESSION]}
                return await self._read(response, out, ear)
        except asyncio.CancelledError:
            # In the stateless era the closed stream has said it.
            if out.handshake and out.method != "initialize":
                self._soon(self.notify("notifications/cancelled", {"requestId": out.id}))
            raise

    async def notify(self, method: str, params: Json) -> None:
        await self._say(jsonrpc.notification(method, params))

    async def introduced(self, version: str) -> None:
        self._session["mcp-protocol-version"] = version

    async def listen(self, ear: Ear, opened: Callable[[], None]) -> bool:
        async with self._get(None) as response:
            if response.status_code != 200 or not _is_stream(response):
                await self._check_session(response)
                return False
            opened()
            async for event in self._events(response):
                self._take(event, ear)
        return True

    async def aclose(self) -> None:
        if self.gone is not None:
            return
        self.gone = "it was closed"
        for task in list(self._saying):
            task.cancel()
        if SESSION in self._session:
            with contextlib.suppress(ToolUnavailable, TimeoutError):
                async with asyncio.timeout(SAY_WAIT), self._stream("DELETE", headers=self._session):
                    pass
        await self._http.aclose()

    # ---- answers ----

    async def _read(self, response: "httpx.Response", out: Outgoing, ear: Ear) -> Json:
        if response.status_code == 200 and _is_stream(response):
            return await self._follow(response, out, ear)
        if response.status_code in (401, 403):
            raise self._refusal(response.status_code)
        body = await self._body(response, LARGEST_ANSWER if response.status_code == 200 else LARGEST_REFUSAL)
        message = jsonrpc.decode(body)
        if isinstance(message, Response):
            self._check_old_session(response.status_code, message)
            return result_of(message)
        raise self._refusal(response.status_code)

    async def _follow(self, response: "httpx.Response", out: Outgoing, ear: Ear) -> Json:
        """The answer on a stream; a handshake-era server may hang up and want us back for the rest."""
        last: str | None = None
        wait, silent = FIRST_RETRY, 0
        stream = self._events(response)
        while True:
            try:
                async with contextlib.aclosing(stream):
                    async for event in stream:
                        last = event.id or last
                        wait = min(event.retry / 1000, LONGEST_RETRY) if event.retry is not None else wait
                        silent = 0 if event.data else silent
                        answer = self._take(event, ear)
                        if answer is not None and answer.id == out.id:
                            return result_of(answer)
            except ToolUnavailable:
                if last is None or not out.handshake:
                    raise
            if last is None or not out.handshake or silent >= MOST_RESUMES:
                raise ToolUnavailable(f"{self._name} ended the connection before its answer")
            silent += 1
            await asyncio.sleep(wait)
            stream = self._resumed(last)

    async def _resumed(self, last: str) -> AsyncGenerator[Event, None]:
        async with self._get(last) as response:
            if response.status_code != 200 or not _is_stream(response):
                raise ToolError(f"{self._name} hung up in the middle of its answer and does not go on with it")
            async for event in self._events(response):
                yield event

    def _take(self, event: Event, ear: Ear) -> Response | None:
        if not event.data:
            return None
        match jsonrpc.decode(event.data):
            case Response() as response:
                return response
            case Notification(method=method, params=params):
                ear.hear(method, params)
            case Request() as request:
                self._soon(self._answer(request, ear))
        return None

    async def _answer(self, request: Request, ear: Ear) -> None:
        try:
            message = jsonrpc.result(request.id, await ear.answer(request.method, request.params))
        except RpcError as exc:
            message = jsonrpc.error(request.id, exc)
        await self._say(message)

    async def _events(self, response: "httpx.Response") -> AsyncGenerator[Event, None]:
        events = Events(limit=LARGEST_ANSWER)
        try:
            async for data in response.aiter_bytes():
                for event in events.feed(data):
                    yield event
        except TooLong:
            raise ToolError(f"{self._name} sent a message longer than {LARGEST_ANSWER >> 20} MiB") from None
        except self._httpx.HTTPError as exc:
            raise self._broken(exc) from exc

    async def _body(self, response: "httpx.Response", limit: int) -> bytes:
        body = bytearray()
        try:
            async for data in response.aiter_bytes():
                body += data
                if len(body) > limit:
                    raise ToolError(f"{self._name} sent an answer longer than {limit >> 10} KiB")
        except self._httpx.HTTPError as exc:
            raise self._broken(exc) from exc
        return bytes(body)

    # ---- refusals ----

    async def _check_session(self, response: "httpx.Response") -> None:
        if response.status_code == 404 and SESSION in self._session:
            raise SessionLost(f"{self._name} has forgotten our session")
        if response.status_code == 400 and SESSION in self._session:
            message = jsonrpc.decode(await self._body(response, LARGEST_REFUSAL))
            if isinstance(message, Response):
                self._check_old_session(400, message)

    def _check_old_session(self, status: int, message: Response) -> None:
        code = message.error.get("code") if type(message.error) is dict else None
        if SESSION in self._session and (status == 404 or (status == 400 and code == OLD_REFUSAL)):
            raise SessionLost(f"{self._name} has forgotten our session")

    def _refusal(self, status: int) -> ToolUnavailable:
        if status == 404 and SESSION in self._session:
            return SessionLost(f"{self._name} has forgotten our session")
        if status in (401, 403):
            return Refused(f"{self._name} does not accept our credential (HTTP {status}); check its `headers`", status)
        if 300 <= status < 400:
            return Refused(f"{self._name} has moved (HTTP {status}); put its new address into `url`", status)
        return Refused(f"{self._name} answered HTTP {status} and no MCP message; check its `url`", status)

    def _broken(self, exc: Exception) -> ToolUnavailable:
        if "CERTIFICATE_VERIFY_FAILED" in str(exc):
            return ToolUnavailable(f"{self._name} has a certificate we do not trust; name its issuer in SSL_CERT_FILE")
        if isinstance(exc, self._httpx.ConnectError | self._httpx.ConnectTimeout):
            return ToolUnavailable(f"{self._name} can't be reached at its address")
        return ToolUnavailable(f"{self._name} broke the connection ({type(exc).__name__})")

    # ---- bytes out ----

    def _post(self, body: bytes, headers: dict[str, str]) -> "contextlib.AbstractAsyncContextManager[httpx.Response]":
        return self._stream("POST", content=body, headers=headers)

    def _get(self, last: str | None) -> "contextlib.AbstractAsyncContextManager[httpx.Response]":
        headers = {**self._session, "accept": "text/event-stream"}
        return self._stream("GET", headers=headers if last is None else {**headers, "last-event-id": last})

    @contextlib.asynccontextmanager
    async def _stream(self, method: str, **options: Any) -> "AsyncIterator[httpx.Response]":
        try:
            stream = self._http.stream(method, self._address.url, **options)
            response = await stream.__aenter__()
        except (self._httpx.HTTPError, self._httpx.InvalidURL, RuntimeError) as exc:  # RuntimeError: closed under us
            raise self._broken(exc) from exc
        try:
            yield response
        finally:
            with contextlib.suppress(self._httpx.HTTPError):
                await stream.__aexit__(None, None, None)

    async def _say(self, message: bytes) -> None:
        """Send what has no answer. Raises ToolUnavailable."""
        try:
            async with asyncio.timeout(SAY_WAIT), self._post(message, self._session) as response:
                if response.status_code >= 400:
                    logger.debug("%s did not take a message: HTTP %d", self._name, response.status_code)
        except TimeoutError:
            raise ToolUnavailable(f"{self._name} did not take a message within {SAY_WAIT:g} s") from None

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._saying) >= MOST_SAYING or self.gone is not None:
            work.close()
            return
        task = asyncio.ensure_future(_quietly(work))
        self._saying.add(task)
        task.add_done_callback(self._saying.discard)


class Refused(ToolUnavailable):
    """An HTTP status that is no MCP answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(ToolUnavailable):
        await work


def _is_stream(response: "httpx.Response") -> bool:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower() == "text/event-stream"
