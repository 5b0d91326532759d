"""One session's tools at a proxy elsewhere, as a toolbox: listed, called, heard of, over HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from ...core.errors import BadRequest, OpenClawError, ToolBusy, ToolError, ToolNotFound, ToolUnavailable
from ...core.model import Caller, ContentBlock, Json, Text, ToolCall, ToolResult, ToolSpec
from ...core.signal import Signal
from ...protocol import jsonrpc, mcp
from ..engine.frames import APP_DISCONNECTED, NOT_CONNECTED
from .http_client import ProxyHttpClient, ProxyResponse

FIRST_PAUSE: Final = 0.5  # seconds before listening again after the stream was lost; doubled each time
MAX_PAUSE: Final = 30.0
MCP: Final = "/v1/mcp"
MAX_EVENT_BYTES: Final = 64 << 20  # bytes of one event; the proxy's own limits are lower

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


Kind = TypeVar("Kind")


class SessionSelector(Struct, frozen=True, kw_only=True):
    """How the session is chosen: by its id, or the newest of a device."""

    id: str = ""
    device: str = ""
    app_token: str = ""


class RemoteSessionTools:
    """A `Toolbox`. Its life is an `async with`."""

    def __init__(self, base_url: str, token: str, selector: SessionSelector) -> None:
        self.changed: Signal[None] = Signal()
        self._http = ProxyHttpClient(base_url)
        self._token = token
        self._selector = selector
        self._current_id = selector.id
        self._listener: asyncio.Task[None] | None = None
        self._sequence = 0
        self._specs: Sequence[ToolSpec] | None = None
        self._is_listening = False
        """Whether the proxy's announcements reach us now."""

    async def __aenter__(self) -> "RemoteSessionTools":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait((self._listener,))
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
        heard = self._is_listening
        while True:
            raw = await self._request("tools/list", {} if cursor is None else {"cursor": cursor}, None)
            page = self._decode(raw, _Page)
            specs.extend(
                ToolSpec(**{name: getattr(tool, name) for name in tool.__struct_fields__}) for tool in page.tools
            )
            cursor = page.next_cursor
            if cursor is None:
                break
        if self._listener is None:
            self._listener = asyncio.get_running_loop().create_task(self._listen_forever())
        if heard and self._is_listening:  # changes are being announced, so it holds until one is
            self._specs = specs
        return specs

    async def call(self, call: ToolCall) -> ToolResult:
        result = await self._call_tool(call)
        if self._selector.device and (words := _error_text(result)).startswith(NOT_CONNECTED):
            moved = await self._follow_device(self._selector.device)
            if moved and words == APP_DISCONNECTED:
                result = await self._call_tool(call)
        return ToolResult(tuple(result.content), result.structured_content, result.is_error, result.meta)

    async def _call_tool(self, call: ToolCall) -> _Result:
        return self._decode(
            await self._request("tools/call", {"name": call.name, "arguments": call.arguments}, call), _Result
        )

    # ---- requests ----

    async def _request(self, method: str, params: Json, call: ToolCall | None) -> Raw:
        self._sequence += 1
        # Each request says it wants progress; the answer is a stream only if there is some.
        asked = {**params, "_meta": {"progressToken": self._sequence}}
        body = jsonrpc.encode_request(self._sequence, method, asked)
        headers = {**await self._headers(), "Content-Type": "application/json"}
        async with self._http.send("POST", MCP, headers, body) as answer:
            if answer.status != 200:
                await self._raise_for_status(answer)
            async for message in self._read_messages(answer):
                if message.error is not None:
                    raise _to_exception(message.error)
                if isinstance(message.result, Raw):
                    return message.result
                if call is not None and message.method == "notifications/progress" and message.params:
                    await _forward_progress(call, message.params)
        raise ToolUnavailable("the proxy ended its answer without a result")

    async def _headers(self) -> dict[str, str]:
        headers = {
            "MCP-Session-Id": await self._session_id(),
            "MCP-Protocol-Version": mcp.NEWEST_HANDSHAKE,
            "Accept": "application/json, text/event-stream",
        }
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    async def _raise_for_status(self, response: ProxyResponse) -> None:
        reason = (await response.body())[:300].decode("utf-8", "replace")
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
        path = f"/v1/chat/sessions?device_id={quote(device, safe='')}"
        async with self._http.send("GET", path, headers) as answer:
            if answer.status == 401:
                raise ToolUnavailable("--device needs the proxy's app token; set OPENCLAW_PROXY_APP_TOKEN")
            body = await answer.body()
            if answer.status != 200:
                raise ToolUnavailable(f"the proxy answered {answer.status} when asked for the device's sessions")
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

    # ---- answers ----

    def _decode(self, data: bytes | Raw, kind: type[Kind]) -> Kind:
        try:
            return msgspec.json.decode(data, type=kind)
        except (ValueError, RecursionError):
            raise ToolUnavailable(
                f"what answers at {self._http.base_url} is no app-tool proxy; give its address"
            ) from None

    async def _read_messages(self, response: ProxyResponse) -> AsyncIterator[_Message]:
        """The messages of an answer: its one JSON body, or the events of its stream."""
        if response.content_type != "text/event-stream":
            yield self._decode(await response.body(), _Message)
            return
        pending = bytearray()
        async for chunk in response.chunks():
            pending += chunk
            whole = bytes(pending).replace(b"\r\n", b"\n")
            *events, rest = whole.split(b"\n\n") if b"\n" in chunk else [bytes(pending)]
            pending = bytearray(rest)
            if len(pending) > MAX_EVENT_BYTES:
                raise ToolUnavailable("the proxy sent an event larger than this client takes")
            for event in events:
                data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
                if data:
                    yield self._decode(data, _Message)

    # ---- list changes ----

    async def _listen_forever(self) -> None:
        """Ring whenever the proxy says the list has changed, and after each time it may have done so unheard."""
        pause = FIRST_PAUSE
        while True:
            try:
                headers = {**await self._headers(), "Accept": "text/event-stream"}
                async with self._http.send("GET", MCP, headers) as answer:
                    if answer.status != 200:
                        await self._raise_for_status(answer)
                    if pause != FIRST_PAUSE:
                        self.changed.emit(None)
                    pause = FIRST_PAUSE
                    self._is_listening = True
                    async for message in self._read_messages(answer):
                        if message.method == "notifications/tools/list_changed":
                            self._specs = None
                            self.changed.emit(None)
            except (OpenClawError, OSError) as exc:
                logger.debug("not listening to the proxy: %s", exc)
            finally:
                self._is_listening = False
                self._specs = None
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)


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
