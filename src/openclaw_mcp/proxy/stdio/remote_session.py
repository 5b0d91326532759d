"""One session's tools at a proxy elsewhere, as a toolbox: listed, called, heard of, over HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from ...core.errors import BadRequest, OpenClawError, ToolBusy, ToolError, ToolNotFound, ToolUnavailable
from ...core.model import Block, Caller, Json, Text, ToolCall, ToolResult, ToolSpec
from ...core.signal import Bell
from ...protocol import jsonrpc, mcp
from ..engine.frames import AWAY, NOT_CONNECTED
from .http_client import Answer, Post

FIRST_PAUSE: Final = 0.5  # seconds before listening again after the stream was lost; doubled each time
LONGEST_PAUSE: Final = 30.0
MCP: Final = "/v1/mcp"
LARGEST_EVENT: Final = 64 << 20  # bytes of one event; the proxy's own limits are lower

logger = logging.getLogger(__name__)


class _Tool(Struct, rename="camel"):
    name: str
    input_schema: Json
    title: str | None = None
    description: str = ""
    output_schema: Json | None = None
    annotations: Json | None = None
    icons: list[Json] | None = None
    meta: Json | None = field(default=None, name="_meta")


class _Page(Struct, rename="camel"):
    tools: list[_Tool]
    next_cursor: str | None = None


class _Result(Struct, rename="camel"):
    content: list[Block]
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


class Which(Struct, frozen=True, kw_only=True):
    """How the session is chosen: by its id, or the newest of a device."""

    id: str = ""
    device: str = ""
    app_token: str = ""


class FarTools:
    """A `Toolbox`. Its life is an `async with`."""

    def __init__(self, base: str, token: str, which: Which) -> None:
        self.changed: Bell[None] = Bell()
        self._post = Post(base)
        self._token = token
        self._which = which
        self._id = which.id
        self._listener: asyncio.Task[None] | None = None
        self._sequence = 0
        self._specs: Sequence[ToolSpec] | None = None
        self._heard = False
        """Whether the proxy's announcements reach us now."""

    async def __aenter__(self) -> "FarTools":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait((self._listener,))
        await self._post.aclose()

    def bind(self, id: Any) -> None:
        """The client itself named the session."""
        if type(id) is str and id and id != self._id:
            self._which = Which(id=id)
            self._turn_to(id)

    def _turn_to(self, id: str) -> None:
        self._id = id
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
        heard = self._heard
        while True:
            raw = await self._ask("tools/list", {} if cursor is None else {"cursor": cursor}, None)
            page = self._read(raw, _Page)
            specs.extend(
                ToolSpec(**{name: getattr(tool, name) for name in tool.__struct_fields__}) for tool in page.tools
            )
            cursor = page.next_cursor
            if cursor is None:
                break
        if self._listener is None:
            self._listener = asyncio.get_running_loop().create_task(self._listen())
        if heard and self._heard:  # changes are being announced, so it holds until one is
            self._specs = specs
        return specs

    async def call(self, call: ToolCall) -> ToolResult:
        result = await self._result(call)
        if self._which.device and (words := _complaint(result)).startswith(NOT_CONNECTED):
            moved = await self._moved(self._which.device)
            if moved and words == AWAY:
                result = await self._result(call)
        return ToolResult(tuple(result.content), result.structured_content, result.is_error, result.meta)

    async def _result(self, call: ToolCall) -> _Result:
        return self._read(
            await self._ask("tools/call", {"name": call.name, "arguments": call.arguments}, call), _Result
        )

    # ---- requests ----

    async def _ask(self, method: str, params: Json, call: ToolCall | None) -> Raw:
        self._sequence += 1
        # Each request says it wants progress; the answer is a stream only if there is some.
        asked = {**params, "_meta": {"progressToken": self._sequence}}
        body = jsonrpc.request(self._sequence, method, asked)
        headers = {**await self._headers(), "Content-Type": "application/json"}
        async with self._post.send("POST", MCP, headers, body) as answer:
            if answer.status != 200:
                await self._refused(answer)
            async for message in self._messages(answer):
                if message.error is not None:
                    raise _raised(message.error)
                if isinstance(message.result, Raw):
                    return message.result
                if call is not None and message.method == "notifications/progress" and message.params:
                    await _pass_on(call, message.params)
        raise ToolUnavailable("the proxy ended its answer without a result")

    async def _headers(self) -> dict[str, str]:
        headers = {
            "MCP-Session-Id": await self._session(),
            "MCP-Protocol-Version": mcp.NEWEST_HANDSHAKE,
            "Accept": "application/json, text/event-stream",
        }
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    async def _refused(self, answer: Answer) -> None:
        reason = (await answer.body())[:300].decode("utf-8", "replace")
        if answer.status == 401:
            raise ToolUnavailable("the proxy refused the token; set OPENCLAW_PROXY_OPENCLAW_TOKEN to its own")
        if answer.status == 404:
            self._id = self._which.id  # a device may have a newer session by now
            raise ToolUnavailable("the proxy knows no such session; let the app register again and name the new one")
        if answer.status == 429:
            raise ToolBusy(f"the proxy says: {reason}")
        raise ToolUnavailable(f"the proxy answered {answer.status}: {reason}")

    async def _session(self) -> str:
        if not self._id:
            if not self._which.device:
                raise BadRequest(
                    "no session: give --session, OPENCLAW_PROXY_SESSION_ID, --device, or mcpSessionId in initialize"
                )
            self._id = await self._newest(self._which.device)
        return self._id

    async def _newest(self, device: str) -> str:
        headers = {"Authorization": f"Bearer {self._which.app_token}"} if self._which.app_token else {}
        path = f"/v1/chat/sessions?device_id={quote(device, safe='')}"
        async with self._post.send("GET", path, headers) as answer:
            if answer.status == 401:
                raise ToolUnavailable("--device needs the proxy's app token; set OPENCLAW_PROXY_APP_TOKEN")
            body = await answer.body()
            if answer.status != 200:
                raise ToolUnavailable(f"the proxy answered {answer.status} when asked for the device's sessions")
        sessions = self._read(body, _Sessions).sessions
        for entry in (*(entry for entry in sessions if entry.connected), *sessions):
            return entry.id
        raise ToolUnavailable(f"device {device!r} has no session at the proxy; start the app first")

    async def _moved(self, device: str) -> bool:
        """Whether the device's app has come back as another session, which is ours from now on."""
        newest = await self._newest(device)
        if newest == self._id:
            return False
        self._turn_to(newest)
        self.changed.ring(None)
        return True

    # ---- answers ----

    def _read(self, data: bytes | Raw, kind: type[Kind]) -> Kind:
        try:
            return msgspec.json.decode(data, type=kind)
        except (ValueError, RecursionError):
            raise ToolUnavailable(f"what answers at {self._post.base} is no app-tool proxy; give its address") from None

    async def _messages(self, answer: Answer) -> AsyncIterator[_Message]:
        """The messages of an answer: its one JSON body, or the events of its stream."""
        if answer.content_type != "text/event-stream":
            yield self._read(await answer.body(), _Message)
            return
        pending = bytearray()
        async for chunk in answer.chunks():
            pending += chunk
            whole = bytes(pending).replace(b"\r\n", b"\n")
            *events, rest = whole.split(b"\n\n") if b"\n" in chunk else [bytes(pending)]
            pending = bytearray(rest)
            if len(pending) > LARGEST_EVENT:
                raise ToolUnavailable("the proxy sent an event larger than this client takes")
            for event in events:
                data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
                if data:
                    yield self._read(data, _Message)

    # ---- list changes ----

    async def _listen(self) -> None:
        """Ring whenever the proxy says the list has changed, and after each time it may have done so unheard."""
        pause = FIRST_PAUSE
        while True:
            try:
                headers = {**await self._headers(), "Accept": "text/event-stream"}
                async with self._post.send("GET", MCP, headers) as answer:
                    if answer.status != 200:
                        await self._refused(answer)
                    if pause != FIRST_PAUSE:
                        self.changed.ring(None)
                    pause = FIRST_PAUSE
                    self._heard = True
                    async for message in self._messages(answer):
                        if message.method == "notifications/tools/list_changed":
                            self._specs = None
                            self.changed.ring(None)
            except (OpenClawError, OSError) as exc:
                logger.debug("not listening to the proxy: %s", exc)
            finally:
                self._heard = False
                self._specs = None
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


async def _pass_on(call: ToolCall, params: Json) -> None:
    value, total, message = params.get("progress"), params.get("total"), params.get("message")
    if isinstance(value, int | float):
        await call.line.progress(value, total=total, message=message)


def _complaint(result: _Result) -> str:
    first = result.content[0] if result.is_error and result.content else None
    return first.text if isinstance(first, Text) else ""


def _raised(error: _Error) -> OpenClawError:
    if error.code == jsonrpc.INVALID_PARAMS:
        return ToolNotFound(error.message)
    return ToolError(error.message)
