"""An MCP client of our own: one connection to one server, in whichever era the two understand."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from ... import __version__
from ...core.errors import CannotAsk, OpenClawError, ToolError, ToolTimeout, ToolUnavailable
from ...core.model import Caller, Json, ToolResult, ToolSpec
from ...core.ports import NULL_CONTEXT, CallContext
from ...core.signal import Signal
from ...net.tasks import Tasks
from ...protocol import header_params, mcp
from ...protocol.jsonrpc import JsonRpcError, JsonRpcNotification, JsonRpcRequest
from ...protocol.mcp_results import read_result, read_tool
from .entry import CONNECT_WAIT, REQUEST_WAIT, Era
from .http import BadHttpStatus
from .outgoing_call import REFUSED_CODE, OutgoingCall, answer_without_caller
from .transport import TOOLS_CHANGED, McpTransport, OutgoingRequest, SessionLost, result_or_raise

logger = logging.getLogger(__name__)

MAX_PAGES: Final = 200  # pages of one list
MAX_TOOLS: Final = 5000  # tools of one server
MAX_ROUNDS: Final = 16  # times a stateless server may want a call again
MAX_REASON_LENGTH: Final = 500  # characters of a server's own text in an error
PROBE_SHARE: Final = 0.5  # of the time to connect: what an old server may spend on not answering `server/discover`
FIRST_PAUSE: Final = 1.0  # seconds before a lost event stream is opened again; doubles, with jitter
MAX_PAUSE: Final = 60.0
LISTEN_WAIT: Final = 2.0  # seconds an event stream may take to open before we continue without it
CHANGE_DEBOUNCE: Final = 0.05  # seconds in which several changes of a list count as one

CLIENT_INFO: Final = {"name": "openclaw-mcp", "version": __version__}
HANDSHAKE_CAPABILITIES: Final[dict[str, dict[str, dict[str, str]]]] = {"elicitation": {"form": {}, "url": {}}}
"""Declared in a handshake, which comes before any call: for a caller that can't be asked the answer is `cancel`."""


class ProbeKilledServer(ToolUnavailable):
    """The server ended when it was asked for the stateless era: it may know the handshake."""


class McpClient:
    """Open it, list, call, close it. `changed` is emitted after `tools` is another list."""

    def __init__(
        self,
        name: str,
        transport: McpTransport,
        *,
        era: Era = "auto",
        connect_wait: float = CONNECT_WAIT,
        request_wait: float = REQUEST_WAIT,
        redact: Callable[[str], str] = lambda text: text,
    ) -> None:
        """`redact` takes secrets out of the server's own texts."""
        self.name = name
        self.changed: Signal[None] = Signal()
        self.tools: Sequence[ToolSpec] = ()
        self.stateless = False
        self.version = ""
        self._has_tools = False
        self._announces_changes = False
        self._transport = transport
        self._era: Era = era
        self._connect_wait = connect_wait
        self._request_wait = request_wait
        self._redact = redact
        self._sequence = 0
        self._calls: dict[OutgoingCall, None] = {}
        self._tasks = Tasks(f"MCP server {name}")
        self._is_refreshing = self._is_stale = False
        self._call_ended = asyncio.Event()
        self._listen_ready = asyncio.Event()
        """Set when the event stream is open, or there is none."""
        self._header_arguments: dict[str, header_params.HeaderParams] = {}

    @property
    def close_reason(self) -> str | None:
        return self._transport.close_reason

    async def open(self) -> None:
        """Connect, introduce ourselves, list the tools, follow their changes. Raises ToolError; then it is closed."""
        try:
            async with asyncio.timeout(self._connect_wait):
                await self._transport.open(self)
                await self._negotiate_era()
                await self._start_listener()
                await self._load_tools()
        except TimeoutError:
            await self.aclose()
            raise ToolUnavailable(f"{self.name} did not introduce itself within {self._connect_wait:g} s") from None
        except JsonRpcError as exc:
            await self.aclose()
            raise self._to_tool_error(exc) from exc
        except BaseException:
            await self.aclose()
            raise

    async def call(
        self, tool: str, arguments: Json, *, context: CallContext = NULL_CONTEXT, caller: Caller | None = None
    ) -> ToolResult:
        """Raises ToolError; SessionLost when the server has not begun it and we must connect again."""
        base: Json = {"name": tool, "arguments": arguments}
        params = base
        async with self._track_call(OutgoingCall(context, caller or _NO_CALLER)) as outgoing:
            for _ in range(MAX_ROUNDS):
                result = await self._call(params, outgoing)
                kind = result.get("resultType", "complete") if self.stateless else "complete"
                if kind == "complete":
                    await outgoing.flush_updates()
                    return read_result(result)
                if kind != "input_required":
                    raise ToolError(f"{self.name} answered with a kind of result we do not know: {str(kind)[:40]!r}")
                params = await self._repeat_params(base, result, outgoing)
        raise ToolError(f"{self.name} wanted the call again more than {MAX_ROUNDS} times")

    async def close_when_idle(self) -> None:
        """Close once the calls under way have ended, as each of them does in its own time."""
        while self._calls:
            self._call_ended.clear()
            await self._call_ended.wait()
        await self.aclose()

    async def aclose(self) -> None:
        await self._tasks.cancel_all()
        await self._transport.aclose()
        await self._tasks.cancel_all()  # what the server sent last may have started some

    # ---- opening ----

    async def _negotiate_era(self) -> None:
        if self._era == "handshake" or not await self._discover():
            await self._handshake()

    async def _discover(self) -> bool:
        """Whether the server speaks the stateless era. Raises when it must and does not."""
        probing = self._era == "auto"
        self.stateless, self.version = True, mcp.STATELESS_VERSIONS[-1]
        try:
            async with asyncio.timeout(self._connect_wait * PROBE_SHARE if probing else None):
                found = await self._request_discovery()
        except (JsonRpcError, TimeoutError, ToolUnavailable) as exc:
            # Any failure but one of the network may be an older server's way to say that it lacks the method.
            if probing and self.close_reason:
                raise ProbeKilledServer(str(exc)) from exc
            if not probing or not _may_be_handshake_only(exc):
                raise
            found = None
        versions = found.get("supportedVersions") if found is not None else None
        # Some older servers answer any unknown method with success: only the version in the list counts.
        if found is not None and type(versions) is list and self.version in versions:
            self._apply_capabilities(found.get("capabilities"))
            return True
        if not probing:
            raise ToolUnavailable(f"{self.name} does not speak {self.version}; set its `protocol` to auto")
        self.stateless = False
        return False

    async def _request_discovery(self) -> Json:
        try:
            return await self._request("server/discover", {})
        except JsonRpcError as exc:
            supported = exc.data.get("supported") if type(exc.data) is dict else None
            if exc.code != mcp.UNSUPPORTED_VERSION or type(supported) is not list or self.version not in supported:
                raise
            return await self._request("server/discover", {})

    async def _handshake(self) -> None:
        self.stateless = False
        params = {
            "protocolVersion": mcp.NEWEST_HANDSHAKE,
            "capabilities": HANDSHAKE_CAPABILITIES,
            "clientInfo": CLIENT_INFO,
        }
        answer = await self._request("initialize", params)
        version = answer.get("protocolVersion")
        if version not in mcp.HANDSHAKE_VERSIONS:
            raise ToolUnavailable(f"{self.name} speaks MCP {str(version)[:40]!r}, which we do not know")
        self.version = version
        self._apply_capabilities(answer.get("capabilities"))
        await self._transport.set_protocol_version(version)
        await self._transport.notify(JsonRpcNotification("notifications/initialized", {}))

    def _apply_capabilities(self, declared: Any) -> None:
        tools = declared.get("tools") if type(declared) is dict else None
        # A server that declares nothing at all may still have tools.
        self._has_tools = type(declared) is not dict or not declared or "tools" in declared
        self._announces_changes = type(tools) is dict and tools.get("listChanged") is True

    # ---- the list, and its changes ----

    async def _load_tools(self) -> None:
        tools: list[ToolSpec] = []
        params: Json = {}
        if self._has_tools:
            for _ in range(MAX_PAGES):
                page = await self._request("tools/list", params)
                tools += self._read_tools(page.get("tools"))
                cursor = page.get("nextCursor")
                if type(cursor) is not str or len(tools) >= MAX_TOOLS:
                    break
                params = {"cursor": cursor}
        self.tools = tuple({spec.name: spec for spec in tools[:MAX_TOOLS]}.values())

    def _read_tools(self, entries: Any) -> list[ToolSpec]:
        found = [read_tool(value) for value in entries] if type(entries) is list else []
        tools = [spec for spec in found if spec is not None]
        if not self.stateless:
            return tools
        for spec in tools:
            if not header_params.has_valid_header_params(spec.input_schema):
                logger.warning("%s: tool %r is left out, its x-mcp-header marks are wrong", self.name, spec.name)
        tools = [spec for spec in tools if header_params.has_valid_header_params(spec.input_schema)]
        self._header_arguments.update(
            (spec.name, header_params.find_header_params(spec.input_schema)) for spec in tools
        )
        return tools

    async def _start_listener(self) -> None:
        """Before the first list, so that no change is missed, nor a request of the server's on that stream."""
        if self.stateless and not self._announces_changes:
            return
        listening = self._tasks.spawn(self._listen(), name="listening to list changes")
        listening.add_done_callback(lambda _: self._listen_ready.set())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_WAIT):
                await self._listen_ready.wait()

    async def _listen(self) -> None:
        """Keep an event stream open. A server without one is left alone; a lost one is opened again."""
        pause = FIRST_PAUSE
        while True:
            begun = asyncio.get_running_loop().time()
            try:
                if not await self._follow_changes():
                    return
            except SessionLost:
                return  # the next call connects again, and lists again
            except (JsonRpcError, OpenClawError) as exc:
                logger.debug("MCP server %s: its event stream broke (%s)", self.name, type(exc).__name__)
            if self.close_reason:
                return
            if asyncio.get_running_loop().time() - begun > MAX_PAUSE:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  jitter is no secret
            pause = min(pause * 2, MAX_PAUSE)
            self._schedule_refresh()  # we may have missed something

    async def _follow_changes(self) -> bool:
        if not self.stateless:
            return await self._transport.listen(self, self._listen_ready.set)
        params = {"notifications": {"toolsListChanged": True}}
        try:
            result_or_raise(
                await self._transport.request(self._build_request(mcp.LISTEN_METHOD, params, _NO_CALL), self)
            )
        except JsonRpcError as exc:
            logger.debug("MCP server %s: no event stream (error %d)", self.name, exc.code)
            return False
        return True

    def _schedule_refresh(self) -> None:
        self._is_stale = True
        if not self._is_refreshing:
            self._is_refreshing = True
            self._tasks.spawn(self._refresh_tools(), name="listing its tools again")

    async def _refresh_tools(self) -> None:
        try:
            while self._is_stale:
                await asyncio.sleep(CHANGE_DEBOUNCE)
                self._is_stale = False  # a change from here on needs another list
                try:
                    await self._load_tools()
                except (JsonRpcError, OpenClawError, TimeoutError) as exc:
                    logger.debug("MCP server %s: its tools can't be listed now (%s)", self.name, type(exc).__name__)
                else:
                    self.changed.emit(None)
        finally:
            self._is_refreshing = False

    # ---- ServerMessageHandler: what belongs to no call we know of ----

    def on_notification(self, notification: JsonRpcNotification) -> None:
        if notification.method == TOOLS_CHANGED:
            self._schedule_refresh()
        elif notification.method == "notifications/subscriptions/acknowledged":
            self._listen_ready.set()

    async def on_request(self, request: JsonRpcRequest) -> Json:
        """A pipe does not say which call a question belongs to: it is asked only if it can't reach another caller."""
        callers = {call.caller for call in self._calls}
        if request.method == "ping" or not callers:
            return answer_without_caller(request.method)
        if len(callers) == 1:
            return await next(reversed(self._calls)).on_request(request)
        raise JsonRpcError(REFUSED_CODE, "Several callers are waiting, and the question does not say whose it is")

    @contextlib.asynccontextmanager
    async def _track_call(self, call: OutgoingCall) -> AsyncIterator[OutgoingCall]:
        self._calls[call] = None
        try:
            yield call
        finally:
            del self._calls[call]
            self._call_ended.set()
            await call.aclose()

    # ---- requests ----

    async def _call(self, params: Json, call: OutgoingCall) -> Json:
        try:
            return await self._request("tools/call", params, call)
        except JsonRpcError as exc:
            raise self._to_tool_error(exc) from exc
        except TimeoutError:
            raise ToolTimeout(f"{self.name} did not answer within {self._request_wait:g} s") from None

    async def _repeat_params(self, base: Json, result: Json, call: OutgoingCall) -> Json:
        """The call with what the server wants to know."""
        params = dict(base)
        questions = result.get("inputRequests")
        if type(questions) is dict and questions:
            params["inputResponses"] = await call.answer_input_requests(questions)
        if "requestState" in result:
            params["requestState"] = result["requestState"]
        return params

    async def _request(self, method: str, params: Json, call: OutgoingCall | None = None) -> Json:
        """Raises JsonRpcError, ToolError, TimeoutError."""
        call = call or OutgoingCall(NULL_CONTEXT, _NO_CALLER)
        request = self._build_request(method, params, call)
        task = call.task = asyncio.current_task()
        try:
            async with asyncio.timeout(self._request_wait) as call.timeout:
                call.timeout_seconds = self._request_wait
                return result_or_raise(await self._transport.request(request, _CallMessageHandler(call, self)))
        except asyncio.CancelledError:
            if call.abort_error is not None and task is not None and not task.uncancel():
                raise call.abort_error from None
            raise
        finally:
            call.timeout = call.task = None

    def _build_request(self, method: str, params: Json, call: OutgoingCall) -> OutgoingRequest:
        self._sequence += 1
        id = self._sequence
        meta: Json = {"progressToken": id} if method == "tools/call" else {}
        if not self.stateless:
            return OutgoingRequest(id, method, {**params, "_meta": meta} if meta else params, handshake=True)
        meta[mcp.PROTOCOL_VERSION] = self.version
        meta[mcp.CLIENT_INFO] = CLIENT_INFO
        meta[mcp.CLIENT_CAPABILITIES] = call.capabilities()
        headers = {"mcp-protocol-version": self.version, **header_params.request_headers(method, params)}
        if method == "tools/call" and (mirrored := self._header_arguments.get(params["name"])):
            headers.update(header_params.param_headers(mirrored, params["arguments"]))
        return OutgoingRequest(id, method, {**params, "_meta": meta}, headers)

    def _to_tool_error(self, exc: JsonRpcError) -> ToolError:
        """The server's refusal in its own text, bounded."""
        if exc.code == mcp.MISSING_CAPABILITY and type(exc.data) is dict:
            needed = exc.data.get("requiredCapabilities")
            capability = next(iter(needed), "elicitation") if type(needed) is dict else "elicitation"
            return CannotAsk(f"{self.name} needs a client that declares {capability!r}", capability=capability)
        return ToolError(f"{self.name}: {self._redact(exc.message)[:MAX_REASON_LENGTH]} (MCP error {exc.code})")


class _CallMessageHandler:
    """Messages on a call's own stream: the call's, unless they are about the server's tools."""

    __slots__ = ("_call", "_client")

    def __init__(self, call: OutgoingCall, client: McpClient) -> None:
        self._call = call
        self._client = client

    def on_notification(self, notification: JsonRpcNotification) -> None:
        (self._client if notification.method == TOOLS_CHANGED else self._call).on_notification(notification)

    async def on_request(self, request: JsonRpcRequest) -> Json:
        return await self._call.on_request(request)


_NO_CALLER = Caller(kind="local", name="")
_NO_CALL = OutgoingCall(NULL_CONTEXT, _NO_CALLER)


def _may_be_handshake_only(exc: Exception) -> bool:
    if isinstance(exc, BadHttpStatus):
        return exc.status not in (401, 403) and not 300 <= exc.status < 400
    return not isinstance(exc, ToolUnavailable)
