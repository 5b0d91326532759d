"""One app's WebSocket: calls are sent over it, answers come back, each matched on this connection alone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar, cast

from msgspec import Raw

from ...core.errors import OpenClawError, ToolBusy, ToolError, ToolUnavailable
from ...net.tasks import Tasks
from ...net.websocket import WebSocket
from ...protocol import bridge as wire
from . import frames
from .frames import BadFrame, Frame
from .limits import BridgeLimits

STALLED: Final = 10.0  # seconds in which an app that is owed bytes takes none before it counts as not reading
PROBE_WAIT: Final = 2.0  # seconds an attached bridge has to answer when another one wants its place

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
ProgressHandler = Callable[[Frame], Awaitable[None]]
"""Gets a call's progress frames."""
ReplaceTools = Callable[[bytes], Awaitable[int]]
"""Replaces the session's tools by this JSON list and says how many there are now. Raises OpenClawError."""


class PendingBridgeCall(Generic[ResultT]):
    """A call on its way: its result to come, and the progress that comes before it."""

    __slots__ = ("_error", "_latest", "_loop", "_news", "_on_progress", "_result", "is_done")

    def __init__(self, on_progress: ProgressHandler | None, loop: asyncio.AbstractEventLoop) -> None:
        self.is_done = False
        self._on_progress = on_progress
        self._loop = loop
        self._news: asyncio.Future[None] = loop.create_future()
        """Done when there is a result, or progress that has not been passed on."""
        self._latest: Frame | None = None
        self._result: ResultT | None = None
        self._error: OpenClawError | None = None

    def report_progress(self, frame: Frame) -> None:
        """Pass progress on without waiting for a slow caller: the newest replaces an unsent one."""
        if self._on_progress is not None:
            self._latest = frame
            self._wake()

    def resolve(self, result: ResultT) -> None:
        if not self.is_done:
            self.is_done, self._result = True, result
            self._wake()

    def fail(self, error: OpenClawError) -> None:
        if not self.is_done:
            self.is_done, self._error = True, error
            self._wake()

    async def wait(self) -> ResultT:
        """The result, once all progress has been passed on, in the caller's own task."""
        while True:
            await self._news
            while self._latest is not None:
                frame, self._latest = self._latest, None
                await self._pass_on(frame)
            if self._error is not None:
                raise self._error
            if self.is_done:
                return cast("ResultT", self._result)
            self._news = self._loop.create_future()

    def _wake(self) -> None:
        if not self._news.done():
            self._news.set_result(None)

    async def _pass_on(self, frame: Frame) -> None:
        """Progress that can't be passed on must not cost the result."""
        if self._on_progress is None:
            return
        try:
            await self._on_progress(frame)
        except OpenClawError as exc:
            logger.debug("bridge: progress was not passed on (%s)", exc)
        except Exception:
            logger.exception("bridge: progress could not be passed on, no more is sent for this call")
            self._on_progress = None


class Bridge:
    """Serves one connection from `run`'s beginning to its end, as its socket's listener. All others call `invoke`.

    An answer reaches its caller in the moment it is read: no queue and no task is between.
    """

    __slots__ = (
        "_backlog",
        "_closed",
        "_delivered_at",
        "_delivered_bytes",
        "_failure",
        "_last_received",
        "_limits",
        "_loop",
        "_pending",
        "_ping_sent",
        "_replace_tools",
        "_sign_of_life",
        "_socket",
        "_tasks",
        "_update_task",
        "bad_frames",
        "last_call_number",
        "session_id",
    )

    def __init__(
        self, session_id: str, socket: WebSocket, *, limits: BridgeLimits, replace_tools: ReplaceTools
    ) -> None:
        self.session_id = session_id
        self.bad_frames = 0
        self.last_call_number = 0
        """The number of the last call; the next bridge of this session counts on from there."""
        self._loop = asyncio.get_running_loop()
        self._socket = socket
        self._limits = limits
        self._replace_tools = replace_tools
        self._last_received = self._loop.time()
        self._pending: dict[str, PendingBridgeCall[Frame]] = {}
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._failure: str | None = None
        """What calls fail with, once the bridge is over."""
        self._ping_sent = False
        self._sign_of_life: asyncio.Event | None = None
        self._delivered_bytes = 0
        self._delivered_at = self._last_received
        self._tasks = Tasks("bridge")
        self._update_task: asyncio.Task[None] | None = None
        self._backlog: list[tuple[bytes, bool]] = []

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    # ---- calls ----

    async def invoke(self, tool: str, arguments: Any, on_progress: ProgressHandler | None) -> tuple[Frame, int]:
        """Have the app run a tool: its answer, and the size of the request. Cancelling this cancels it at the app."""
        if self._failure is not None:
            raise ToolUnavailable(self._failure)
        if len(self._pending) >= self._limits.calls:
            raise ToolBusy(f"{self._limits.calls} calls wait for this app already; try again when some are done")
        if self._socket.backlog_bytes > self._limits.unsent:
            raise ToolBusy("The app reads its calls too slowly; try again when it has caught up")
        self.last_call_number += 1
        id = f"{self.session_id}:{self.last_call_number}"
        waiting: PendingBridgeCall[Frame] = PendingBridgeCall(on_progress, self._loop)
        self._pending[id] = waiting
        request = frames.encode_invoke(self.session_id, id, tool, arguments)
        self._socket.send(request)
        try:
            return await waiting.wait(), len(request)
        except asyncio.CancelledError:
            self._send(frames.encode_cancel(self.session_id, id))
            raise
        finally:
            # On every path, so that a late answer is dropped, not leaked.
            self._pending.pop(id, None)

    # ---- life ----

    async def run(self) -> None:
        """Listen until the app goes or the bridge is closed; every waiting call has failed by then."""
        self._socket.set_listener(self)
        try:
            await self._closed
        finally:
            self._end(f"{wire.NOT_CONNECTED}: the proxy is stopping")
            await self._tasks.aclose()

    def close(self, code: int, reason: str) -> None:
        """End the bridge: waiting calls fail with `reason`, which the close frame carries too."""
        if self._failure is None:
            self._end(wire.UNREGISTERED if code == wire.SESSION_DELETED else f"{wire.NOT_CONNECTED}: {reason}")
            self._socket.close(code, reason)

    def check_liveness(self, now: float) -> None:
        """To be called again and again: pings a silent app, closes one that does not answer or does not read."""
        if self._failure is not None:
            return
        delivered = self._socket.bytes_delivered
        if delivered != self._delivered_bytes or not self._socket.backlog_bytes:
            self._delivered_bytes, self._delivered_at = delivered, now
        if self._ping_sent and self._socket.alive:  # not every app answers our frame, but every WebSocket its own ping
            self._ping_sent, self._last_received = False, now
        silent = now - self._last_received
        if now - self._delivered_at > min(STALLED, 2 * self._limits.ping):
            self.close(wire.TOO_SLOW, "the app does not read what it is sent")
        elif silent > 2 * self._limits.ping:
            self.close(wire.NO_SIGN_OF_LIFE, "the app gave no sign of life")
        elif silent > self._limits.ping and not self._ping_sent:
            self._ping_sent = True
            self._send_ping()

    def _send_ping(self) -> None:
        """Both kinds: any sign of life that comes after it counts."""
        self._socket.alive = False
        self._send(frames.encode_ping(self.session_id))
        self._socket.ping()

    async def probe(self) -> bool:
        """Whether the app still answers, asked now. One that does not is closed."""
        if self._failure is not None:
            return False
        if self._sign_of_life is None:
            self._sign_of_life = asyncio.Event()
        self._sign_of_life.clear()
        self._send_ping()
        try:
            async with asyncio.timeout(PROBE_WAIT):
                await self._sign_of_life.wait()
            return self._failure is None
        except TimeoutError:
            if self._socket.alive:
                return True
            self.close(wire.NO_SIGN_OF_LIFE, "the app gave no sign of life when another bridge came")
            return False

    # ---- the socket's listener ----

    def on_open(self) -> None:
        return

    def on_message(self, message: bytes) -> None:
        self._last_received = self._loop.time()
        self._ping_sent = False
        if self._sign_of_life is not None:
            self._sign_of_life.set()
        if self._update_task is not None:
            self._backlog.append((message, self._socket.is_text))
        else:
            self._handle_message(message, is_text=self._socket.is_text)

    def on_close(self, code: int, reason: str) -> None:
        reason = f"the app said more than {2 * self._limits.result} bytes at once"
        self._end(f"{wire.NOT_CONNECTED}: {reason if code == wire.TOO_LARGE else 'the app has gone'}")

    # ---- frames ----

    def _handle_message(self, message: bytes, *, is_text: bool) -> None:
        try:
            frame = frames.decode_frame(message, is_text=is_text)
            if len(message) > self._limits.result:
                reason = f"the answer is larger than {self._limits.result} bytes; send less or raise the limit"
                raise BadFrame(reason, frame.call_id)
            if frame.mcp_session_id is not None and frame.mcp_session_id != self.session_id:
                raise BadFrame("this bridge serves another session than `mcpSessionId` names")
            self._handle_frame(frame)
        except BadFrame as exc:
            self._reject_frame(exc)

    def _handle_frame(self, frame: Frame) -> None:
        match frame.type:
            case wire.INVOKE_RESULT:
                self._find_pending(frame).resolve(frame)
            case wire.PROGRESS:
                self._find_pending(frame).report_progress(frame)
            case wire.PONG:
                pass
            case wire.PING:
                self._send(frames.encode_pong(self.session_id))
            case wire.UPDATE_TOOLS:
                # What comes behind it waits: it may be about the new tools.
                self._update_task = self._tasks.spawn(self._update_tools(frame), name="new tools")
                self._socket.pause()
            case other:
                raise BadFrame(f"frames of type {other[:60]!r} are not known here")

    def _find_pending(self, frame: Frame) -> PendingBridgeCall[Frame]:
        waiting = self._pending.get(frame.call_id or "")
        if waiting is None:
            # Named so that the app can tell a late answer from a mistake; no call fails for it.
            raise BadFrame(f"no call {(frame.call_id or '')[:80]!r} waits on this bridge")
        return waiting

    async def _update_tools(self, frame: Frame) -> None:
        try:
            if not isinstance(frame.tools, Raw):
                raise BadFrame("update_tools needs `tools`, a list")
            try:
                count = await self._replace_tools(bytes(frame.tools))
            except OpenClawError as exc:
                raise BadFrame(str(exc)) from None
            self._send(frames.encode_tools_ack(self.session_id, count))
        except BadFrame as exc:
            self._reject_frame(exc)
        except Exception:
            logger.exception("bridge: new tools could not be taken, the bridge is closed")
            self.close(wire.SERVER_FAILED, "the proxy failed; its log says more")
        finally:
            self._update_task = None
            while self._backlog and self._update_task is None:
                message, text = self._backlog.pop(0)
                self._handle_message(message, is_text=text)
            if self._update_task is None:
                self._socket.resume()

    def _reject_frame(self, exc: BadFrame) -> None:
        self.bad_frames += 1
        self._send(frames.encode_error(self.session_id, str(exc), exc.request_id))
        waiting = self._pending.get(exc.request_id or "")
        if waiting is not None:
            waiting.fail(ToolError(f"The app's answer can't be used: {exc}"))

    def _send(self, message: bytes) -> None:
        if self._failure is not None:
            return
        self._socket.send(message)
        # Calls stop before that: the rest are answers the app asked for itself.
        if self._socket.backlog_bytes > 2 * self._limits.unsent:
            self.close(wire.TOO_SLOW, "the app does not read what it is sent")

    def _end(self, failure: str) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        if self._update_task is not None:
            self._update_task.cancel()
        for waiting in self._pending.values():
            waiting.fail(ToolUnavailable(failure))
        if self._sign_of_life is not None:
            self._sign_of_life.set()
        if not self._closed.done():
            self._closed.set_result(None)
