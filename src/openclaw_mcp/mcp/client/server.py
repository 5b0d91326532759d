"""One server named in the config, as a tool source: started when first needed, shared, restarted."""

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final

import msgspec

from ...core.errors import OpenClawError, ToolNotFound, ToolUnavailable
from ...core.model import ToolCall, ToolResult, ToolSpec
from ...core.signal import Signal
from ...net.orphan_reaper import OrphanReaper
from ...net.tasks import Tasks, is_cancelling, run_all
from .client import McpClient, ProbeKilledServer
from .entry import Era, ServerEntry, ServerProgram
from .http import McpHttpTransport
from .names import tool_names
from .outgoing_call import PERSON_WAIT
from .stdio import McpStdioTransport
from .transport import McpTransport, SessionLost

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.5  # seconds before a server that died is started again; doubles each time, with jitter
MAX_PAUSE: Final = 60.0
RESTART_WAIT: Final = 5.0  # seconds a call waits for the next start; when that is further off it is refused at once
STABLE_AFTER: Final = 30.0  # seconds a server must have run for its earlier failures not to count any more


class _CallInProgress:
    """`with _CallInProgress(calls) as call:` ends as soon as `call.end(reason)` is called, without an exception.

    Nests as `asyncio.timeout` does: a cancellation from elsewhere passes through.
    """

    __slots__ = ("_calls", "_cancelling", "_task", "end_reason")

    def __init__(self, calls: "set[_CallInProgress]") -> None:
        self._calls = calls
        self.end_reason = ""

    def __enter__(self) -> "_CallInProgress":
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._calls.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> bool:
        self._calls.discard(self)
        if not self.end_reason:
            return False
        return self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError

    def end(self, reason: str) -> None:
        self.end_reason = reason
        self._calls.discard(self)
        self._task.cancel()


class PooledMcpServer:
    """A `ToolSource`. `start` starts it; so does a call. Its tools stay known while it is down."""

    def __init__(
        self, entry: ServerEntry, *, prefix: str, reaper: OrphanReaper, predecessor: "PooledMcpServer | None" = None
    ) -> None:
        """`predecessor`: the server of this name before a change of its entry; it ends before this one starts."""
        self.entry = entry
        self.ended = asyncio.Event()
        """Set once `aclose` is done."""
        self._predecessor = predecessor
        self.changed: Signal[None] = Signal()
        self.prefix = prefix
        self._reaper = reaper
        self._client: McpClient | None = None
        self._open_task: asyncio.Task[McpClient] | None = None
        self._opened_at = 0.0
        self._failures = 0
        self._retry_at = 0.0
        self._reason = ""
        self._era: Era = entry.era
        self._specs: Sequence[ToolSpec] = ()
        self._own_names: dict[str, str] = {}
        self._end_reason: str | None = None
        self._calls: set[_CallInProgress] = set()
        self._tasks = Tasks(f"MCP server {entry.name}")
        self._retired: set[McpClient] = set()
        """Connections given up, kept for the calls still under way on them."""

    # ---- ToolSource ----

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def call(self, call: ToolCall) -> ToolResult:
        """Raises ToolError, at once when the server is ended meanwhile; what the server itself calls a failure is a
        result."""
        with _CallInProgress(self._calls) as in_progress:
            client = await self._ensure_client()
            try:
                return await self._call(client, call)
            except SessionLost:
                # Nothing was begun there, so nothing is done twice. Others may be about to learn the same.
                self._retire_client(client)
                return await self._call(await self._ensure_client(), call)
        raise ToolUnavailable(in_progress.end_reason)

    async def _call(self, client: McpClient, call: ToolCall) -> ToolResult:
        name = self._own_names.get(call.name)
        if name is None:
            raise ToolNotFound(f"{self.entry.name} has no tool {call.name!r} any more")
        return await client.call(name, call.arguments, context=call.context, caller=call.caller)

    def full_tool_name(self, tool: str) -> str:
        """A tool's name here, given the server's own name for it or ours."""
        return next((ours for ours, own in self._own_names.items() if tool == own), tool)

    # ---- its life ----

    async def start(self) -> McpClient:
        """Start or connect it, unless it is. Raises ToolUnavailable with the reason."""
        return await self._ensure_client()

    @property
    def is_connected(self) -> bool:
        return self._client is not None and self._client.close_reason is None

    @property
    def is_backing_off(self) -> bool:
        """It failed, or would not start, and is not tried again before a while has passed."""
        return self._retry_at > asyncio.get_running_loop().time()

    async def aclose(self, reason: str = "was stopped") -> None:
        """End the server. Calls under way end first, at once, with the `reason`."""
        self._end_reason = f"{self.entry.name} {reason}"
        if self._calls:
            logger.info(
                "MCP server %s %s, calls under way end with that: %d", self.entry.name, reason, len(self._calls)
            )
        for call in list(self._calls):
            call.end(self._end_reason)
        try:
            retired = list(self._retired)
            await self._tasks.aclose()
            await run_all(client.aclose() for client in (*retired, self._client) if client is not None)
            self._client = None
        finally:
            self.ended.set()

    async def _ensure_client(self) -> McpClient:
        if self._end_reason is not None:
            raise ToolUnavailable(self._end_reason)
        client = self._client
        if client is not None:
            if client.close_reason is None:
                return client
            await self._close_client(client)
        if self._open_task is None:
            self._open_task = self._tasks.spawn(self._open_after_backoff(), name="opening", on_failure="raise")
            self._open_task.add_done_callback(self._clear_open_task)
        # Shielded: a caller that gives up does not take the server from the others.
        opening = self._open_task
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled() and not is_cancelling():
                reason = self._end_reason or f"{self.entry.name} was stopped while it started"
                raise ToolUnavailable(reason) from None
            raise

    def _clear_open_task(self, task: "asyncio.Task[McpClient]") -> None:
        self._open_task = None
        if not task.cancelled():
            task.exception()  # retrieved by each caller that waited; perhaps none waits any more

    async def _open_after_backoff(self) -> McpClient:
        loop = asyncio.get_running_loop()
        if self._predecessor is not None:
            await self._predecessor.ended.wait()
            self._predecessor = None
        wait = self._retry_at - loop.time()
        if wait > RESTART_WAIT:
            raise ToolUnavailable(f"{self._reason}; it is tried again in {wait:.0f} s")
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            client = await self._open_client()
        except OpenClawError as exc:
            self._back_off(str(exc))
            raise
        except Exception as exc:  # an error of ours is no reason to start it again for every turn
            self._back_off(f"{self.entry.name} can't be used: {type(exc).__name__}")
            raise
        self._client = client
        self._opened_at = loop.time()
        client.changed.connect(lambda _: self._update_tools(client))
        self._update_tools(client)
        return client

    async def _open_client(self) -> McpClient:
        try:
            client = self._new_client(self._era)
            await client.open()
        except ProbeKilledServer:
            client = self._new_client("handshake")
            await client.open()
        if self._era == "auto" and not client.stateless and isinstance(self.entry.target, ServerProgram):
            self._era = "handshake"  # a program does not change its era while we run; an address may
        return client

    def _new_client(self, era: Era) -> McpClient:
        entry = self.entry
        transport: McpTransport
        if isinstance(entry.target, ServerProgram):
            transport = McpStdioTransport(
                entry.name, entry.target, self._reaper, redact=entry.redact_secrets, on_lost=self._handle_loss
            )
        else:
            transport = McpHttpTransport(entry.name, entry.target, connect_wait=entry.connect_wait)
        return McpClient(
            entry.name,
            transport,
            era=era,
            connect_wait=entry.connect_wait,
            request_wait=entry.request_wait,
            redact=entry.redact_secrets,
        )

    def _retire_client(self, client: McpClient) -> None:
        if self._client is client:
            self._client = None
            self._retired.add(client)
            closing = self._tasks.spawn(client.close_when_idle(), name="closing a lost connection")
            closing.add_done_callback(lambda _: self._retired.discard(client))

    async def _close_client(self, client: McpClient) -> None:
        if self._client is client:
            self._client = None
        await client.aclose()

    def _handle_loss(self, reason: str) -> None:
        if (
            self._client is not None and self._end_reason is None
        ):  # a failure while opening is reported by what opens it
            self._back_off(f"{self.entry.name} is gone: {reason}")

    def _back_off(self, reason: str) -> None:
        """Count a failure, and put the next start off: longer each time, unless it had run steadily."""
        now = asyncio.get_running_loop().time()
        if self._opened_at and now - self._opened_at > STABLE_AFTER:
            self._failures = 0
        self._opened_at = 0.0
        pause = min(FIRST_PAUSE * 2**self._failures, MAX_PAUSE) * random.uniform(0.5, 1)  # noqa: S311  mere jitter
        self._failures = min(self._failures + 1, 16)
        self._retry_at = now + pause
        self._reason = reason
        logger.info("MCP server %s: failure %d in a row, next start in %.1f s", self.entry.name, self._failures, pause)

    def _update_tools(self, client: McpClient) -> None:
        """The server's tools under our names for them."""
        tools = {spec.name: spec for spec in client.tools if self.entry.allows_tool(spec.name)}
        names = tool_names(self.prefix, tools)
        deadline = self.entry.connect_wait + self.entry.request_wait + PERSON_WAIT
        specs = tuple(msgspec.structs.replace(tools[own], name=full, deadline=deadline) for full, own in names.items())
        if specs != self._specs:
            self._specs, self._own_names = specs, names
            self.changed.emit(None)
