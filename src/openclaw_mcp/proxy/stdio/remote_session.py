"""One session's tools at a proxy elsewhere, as a toolbox over HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from ...core.errors import BadRequest, OpenClawError, ToolBusy, ToolError, ToolNotFound, ToolUnavailable
from ...core.model import Caller, ContentBlock, Json, Text, ToolCall, ToolResult, ToolSpec
from ...core.signal import Signal
from ...net.http_client.address import InvalidAddress, is_header_value, parse_address
from ...net.http_client.client import CannotReach, HttpClient, system_tls_context
from ...net.http_client.connection import HttpConnection, HttpError, NotHttp, ResponseTooLarge
from ...net.tasks import Tasks
from ...protocol import jsonrpc, mcp
from ...protocol.bridge import APP_DISCONNECTED, DEFAULT_URL, MCP_PATH, NOT_CONNECTED, SESSIONS_PATH
from ...protocol.sse import SseEventTooLong, SseParser

FIRST_PAUSE: Final = 0.5  # seconds before listening again after the stream was lost; doubled each time
MAX_PAUSE: Final = 30.0
MAX_RESPONSE_BYTES: Final = 64 << 20  # bytes of one response, or of one event; the proxy's own limits are lower
MAX_REASON_BYTES: Final = 300  # bytes of a refusal that are passed on
MAX_CONNECTIONS: Final = 4096  # at once; the client's calls are bounded before they come here
MAX_IDLE: Final = 16  # connections kept for the next request

logger = logging.getLogger(__name__)


class _ListedTool(Struct, rename="camel"):
    name: str
    input_schema: Json
    title: str | None = None
    description: str = ""
    output_schema: Json | None = None
    annotations: Json | None = None
    icons: list[Json] | None = None
    meta: Json | None = field(default=None, name="_meta")


class _Page(Struct, rename="camel"):
    tools: list[_ListedTool]
    next_cursor: str | None = None


class _Result(Struct, rename="camel"):
    content: list[ContentBlock]
    structured_content: Raw | UnsetType = UNSET
    is_error: bool = False
    meta: Json | None = field(default=None, name="_meta")


class _Error(Struct):
    code: int
    message: str


class _Message(Struct):
    method: str | None = None
    params: Json | None = None
    result: Raw | UnsetType = UNSET
    error: _Error | None = None


class _Entry(Struct):
    id: str = field(name="mcpSessionId")
    connected: bool = False


class _Sessions(Struct):
    sessions: list[_Entry]


StructT = TypeVar("StructT")


class SessionSelector(Struct, frozen=True, kw_only=True):
    """How the session is chosen: by its id, or the newest of a device."""

    id: str = ""
    device: str = ""
    app_token: str = ""


class RemoteSessionTools:
    """A `Toolbox`. Its life is an `async with`."""

    def __init__(self, base_url: str, token: str, selector: SessionSelector) -> None:
        try:
            parse_address(base_url)
        except InvalidAddress:
            raise BadRequest(f"{base_url!r} is no address of a proxy; give one like {DEFAULT_URL}") from None
        self.changed: Signal[None] = Signal()
        self._base_url = base_url.rstrip("/")
        self._http = HttpClient(
            max_connections=MAX_CONNECTIONS,
            max_idle=MAX_IDLE,
            use_proxies=False,
            create_tls_context=system_tls_context,
        )
        self._token = token
        self._selector = selector
        self._current_id = selector.id
        self._tasks = Tasks("proxy --stdio")
        self._listener: asyncio.Task[None] | None = None
        self._pause = FIRST_PAUSE
        self._sequence = 0
        self._specs: Sequence[ToolSpec] | None = None
        self._is_listening = False
        """Whether the proxy's announcements reach us now."""

    async def __aenter__(self) -> "RemoteSessionTools":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()
        await self._http.aclose()

    def bind_session(self, id: Any) -> None:
        """The client itself named the session."""
        if type(id) is str and id and id != self._current_id:
            self._selector = SessionSelector(id=id)
            self._switch_session(id)

    def _switch_session(self, id: str) -> None:
        self._current_id = id
        self._specs = None
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None

    # ---- Toolbox ----

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        if self._specs is not None:
            return self._specs
        specs: list[ToolSpec] = []
        cursor: str | None = None
        was_listening = self._is_listening
        while True:
            raw = await self._request("tools/list", {} if cursor is None else {"cursor": cursor}, None)
            page = self._decode(raw, _Page)
            specs.extend(ToolSpec(**msgspec.structs.asdict(tool)) for tool in page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
        if self._listener is None:
            self._listener = self._tasks.loop(self._listen, name="listening to list changes", on_failure="restart")
        if was_listening and self._is_listening:  # changes are being announced, so it holds until one is
            self._specs = specs
        return specs

    async def call(self, call: ToolCall) -> ToolResult:
        result = await self._call_tool(call)
        if self._selector.device and (error := _error_text(result)).startswith(NOT_CONNECTED):
            moved = await self._follow_device(self._selector.device)
            if moved and error == APP_DISCONNECTED:
                result = await self._call_tool(call)
        return ToolResult(tuple(result.content), result.structured_content, result.is_error, result.meta)

    async def _call_tool(self, call: ToolCall) -> _Result:
        params = {"name": call.name, "arguments": call.arguments}
        return self._decode(await self._request("tools/call", params, call), _Result)

    # ---- requests ----

    async def _request(self, method: str, params: Json, call: ToolCall | None) -> Raw:
        self._sequence += 1
        # Each request says it wants progress; the answer is a stream only if there is some.
        params = {**params, "_meta": {"progressToken": self._sequence}}
        body = jsonrpc.encode_request(self._sequence, method, params)
        headers = {**await self._headers(), "Content-Type": "application/json"}
        async with self._send("POST", MCP_PATH, headers, body) as response:
            if response.status != 200:
                await self._raise_for_status(response)
            async for message in self._read_messages(response):
                if message.error is not None:
                    raise _to_exception(message.error)
                if isinstance(message.result, Raw):
                    return message.result
                if call is not None and message.method == "notifications/progress" and message.params:
                    await _forward_progress(call, message.params)
        raise ToolUnavailable("the proxy ended its answer without a result")

    @asynccontextmanager
    async def _send(
        self, method: str, path: str, headers: dict[str, str], body: bytes = b""
    ) -> AsyncIterator[HttpConnection]:
        """One request; leaving before its response is complete closes the connection, which cancels it at the proxy."""
        for name, value in headers.items():
            if not is_header_value(value):
                raise BadRequest(f"{name} holds characters that HTTP can't carry; correct what it is taken from")
        sent = self._http.send(
            method, self._base_url + path, headers, (body,) if body else (), size=len(body), timeout=None
        )
        try:
            async with sent as response:
                yield response
        except CannotReach:
            why = f"no proxy answers at {self._base_url}; is `openclaw proxy` running there?"
            raise ToolUnavailable(why) from None
        except NotHttp:
            raise ToolUnavailable("what answers at the proxy's address does not speak HTTP") from None
        except ResponseTooLarge:
            raise ToolUnavailable(f"the proxy's answer is larger than {MAX_RESPONSE_BYTES} bytes") from None
        except HttpError:
            raise ToolUnavailable(f"the connection to the proxy at {self._base_url} was lost") from None

    async def _headers(self) -> dict[str, str]:
        headers = {
            "MCP-Session-Id": await self._session_id(),
            "MCP-Protocol-Version": mcp.NEWEST_HANDSHAKE,
            "Accept": "application/json, text/event-stream",
        }
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    async def _raise_for_status(self, response: HttpConnection) -> None:
        reason = (await response.body_start(limit=MAX_REASON_BYTES)).decode("utf-8", "replace")
        if response.status == 401:
            raise ToolUnavailable("the proxy refused the token; set OPENCLAW_PROXY_OPENCLAW_TOKEN to its own")
        if response.status == 404:
            self._current_id = self._selector.id  # a device may have a newer session by now
            raise ToolUnavailable("the proxy knows no such session; let the app register again and name the new one")
        if response.status == 429:
            raise ToolBusy(f"the proxy says: {reason}")
        raise ToolUnavailable(f"the proxy answered {response.status}: {reason}")

    async def _session_id(self) -> str:
        if not self._current_id:
            if not self._selector.device:
                raise BadRequest(
                    "no session: give --session, OPENCLAW_PROXY_SESSION_ID, --device, or mcpSessionId in initialize"
                )
            self._current_id = await self._newest_session(self._selector.device)
        return self._current_id

    async def _newest_session(self, device: str) -> str:
        headers = {"Authorization": f"Bearer {self._selector.app_token}"} if self._selector.app_token else {}
        async with self._send("GET", f"{SESSIONS_PATH}?device_id={quote(device, safe='')}", headers) as response:
            if response.status == 401:
                raise ToolUnavailable("--device needs the proxy's app token; set OPENCLAW_PROXY_APP_TOKEN")
            body = await response.body(limit=MAX_RESPONSE_BYTES)
            if response.status != 200:
                raise ToolUnavailable(f"the proxy answered {response.status} when asked for the device's sessions")
        sessions = self._decode(body, _Sessions).sessions
        for entry in (*(entry for entry in sessions if entry.connected), *sessions):
            return entry.id
        raise ToolUnavailable(f"device {device!r} has no session at the proxy; start the app first")

    async def _follow_device(self, device: str) -> bool:
        """Whether the device's app has come back as another session, which is ours from now on."""
        newest = await self._newest_session(device)
        if newest == self._current_id:
            return False
        self._switch_session(newest)
        self.changed.emit(None)
        return True

    # ---- responses ----

    def _decode(self, data: bytes | Raw, kind: type[StructT]) -> StructT:
        try:
            return msgspec.json.decode(data, type=kind)
        except (ValueError, RecursionError):
            raise ToolUnavailable(f"what answers at {self._base_url} is no app-tool proxy; give its address") from None

    async def _read_messages(self, response: HttpConnection) -> AsyncIterator[_Message]:
        """The messages of a response: its one JSON body, or the events of its stream."""
        if response.content_type != "text/event-stream":
            yield self._decode(await response.body(limit=MAX_RESPONSE_BYTES), _Message)
            return
        events = SseParser(limit=MAX_RESPONSE_BYTES)
        try:
            while chunk := await response.read():
                for event in events.feed(chunk):
                    if event.data:
                        yield self._decode(event.data, _Message)
        except SseEventTooLong:
            raise ToolUnavailable("the proxy sent an event larger than this client takes") from None

    # ---- list changes ----

    async def _listen(self) -> None:
        """Emit `changed` when the proxy says the list has changed, and when it may have changed while the stream was
        lost. Returns after the stream's end and a pause; each loss doubles the pause."""
        try:
            headers = {**await self._headers(), "Accept": "text/event-stream"}
            async with self._send("GET", MCP_PATH, headers) as response:
                if response.status != 200:
                    await self._raise_for_status(response)
                lost_before, self._pause = self._pause != FIRST_PAUSE, FIRST_PAUSE
                if lost_before:
                    self.changed.emit(None)
                self._is_listening = True
                async for message in self._read_messages(response):
                    if message.method == "notifications/tools/list_changed":
                        self._specs = None
                        self.changed.emit(None)
        except OpenClawError as exc:
            logger.debug("proxy --stdio: not listening to list changes (%s), next attempt in %g s", exc, self._pause)
        finally:
            self._is_listening = False
            self._specs = None
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE)


async def _forward_progress(call: ToolCall, params: Json) -> None:
    value, total, message = params.get("progress"), params.get("total"), params.get("message")
    if isinstance(value, int | float):
        await call.context.progress(value, total=total, message=message)


def _error_text(result: _Result) -> str:
    first = result.content[0] if result.is_error and result.content else None
    return first.text if isinstance(first, Text) else ""


def _to_exception(error: _Error) -> OpenClawError:
    if error.code == jsonrpc.INVALID_PARAMS:
        return ToolNotFound(error.message)
    return ToolError(error.message)
