"""One app's WebSocket: calls go down it, answers come up it, each matched on this connection alone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from msgspec import Raw, Struct

from ...core.errors import OpenClawError, ToolBusy, ToolError, ToolUnavailable
from ...net.websocket import WebSocket
from . import frames
from .frames import NOT_CONNECTED, BadFrame, Frame

STALLED: Final = 10.0  # seconds in which an app that is owed bytes takes none before it counts as not reading
PROBE_WAIT: Final = 2.0  # seconds an attached bridge has to answer when another one wants its place

BAD_TOKEN: Final = 4401
NO_SESSION: Final = 4404
NO_SIGN_OF_LIFE: Final = 4408
ALREADY_ATTACHED: Final = 4409
SESSION_DELETED: Final = 4410
TOO_SLOW: Final = 4413
TOO_LARGE: Final = 1009
SERVER_FAILED: Final = 1011

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
ProgressHandler = Callable[[Frame], Awaitable[None]]
"""Hears a call's progress frames."""
ReplaceTools = Callable[[bytes], Awaitable[int]]
"""Replaces the session's tools by this JSON list and says how many there are now. Raises OpenClawError."""


class BridgeLimits(Struct, frozen=True, kw_only=True):
    calls: int = 2048
    """Calls waiting on one bridge."""
    result: int = 16 << 20
    """Characters of one frame from the app."""
    ping: float = 20.0
    """Seconds of silence before a ping, and from there to giving up."""
    unsent: int = 32 << 20
    """Bytes waiting for an app that reads slowly: more calls are refused, and twice as many end the bridge."""


class PendingBridgeCall(Generic[Answer]):
    """A call on its way: its answer to come, and the progress that comes before it."""

    __slots__ = ("_forwarding", "_latest", "_loop", "_on_progress", "answer")

    def __init__(self, on_progress: ProgressHandler | None, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[Answer] = loop.create_future()
        self._on_progress = on_progress
        self._loop = loop
        self._latest: Frame | None = None
        self._forwarding: asyncio.Task[None] | None = None

    def forward_progress(self, frame: Frame) -> None:
        """Pass progress on without waiting for a slow caller: the newest replaces an unsent one."""
        if self._on_progress is None:
            return
        self._latest = frame
        if self._forwarding is None:
            self._forwarding = self._loop.create_task(self._send_progress(self._on_progress))

    async def wait(self) -> Answer:
        """The answer, once all progress has been passed on."""
        try:
            answer = await self.answer
            if self._forwarding is not None:
                await self._forwarding
            return answer
        finally:
            if self._forwarding is not None:
                self._forwarding.cancel()

    def fail(self, error: OpenClawError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    async def _send_progress(self, on_progress: ProgressHandler) -> None:
        try:
            while self._latest is not None:
                frame, self._latest = self._latest, None
                await on_progress(frame)
        finally:
            self._forwarding = None


class Bridge:
    """Serves one connection from `run`'s beginning to its end, as its socket's listener. Everybody else calls `invoke`.

    An answer goes to who waits for it in the moment it is read: no queue and no task lies between.
    """

    __slots__ = (
        "_backlog",
        "_closed",
        "_delivered_at",
        "_delivered_bytes",
        "_end_reason",
        "_last_received",
        "_limits",
        "_loop",
        "_pending",
        "_ping_sent",
        "_replace_tools",
        "_sign_of_life",
        "_socket",
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
        """The number of the last call; the next bridge of this session goes on from there."""
        self._loop = asyncio.get_running_loop()
        self._socket = socket
        self._limits = limits
        self._replace_tools = replace_tools
        self._last_received = self._loop.time()
        self._pending: dict[str, PendingBridgeCall[Frame]] = {}
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._end_reason: str | None = None
        self._ping_sent = False
        self._sign_of_life: asyncio.Event | None = None
        self._delivered_bytes = 0
        self._delivered_at = self._last_received
        self._update_task: asyncio.Task[None] | None = None
        self._backlog: list[tuple[bytes, bool]] = []

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    # ---- calls ----

    async def invoke(self, tool: str, arguments: Any, on_progress: ProgressHandler | None) -> tuple[Frame, int]:
        """Have the app run a tool: its answer, and the size of the question. Cancelling this tells the app."""
        if self._end_reason is not None:
            raise ToolUnavailable(f"{NOT_CONNECTED}: {self._end_reason}")
        if len(self._pending) >= self._limits.calls:
            raise ToolBusy(f"{self._limits.calls} calls wait for this app already; try again when some are done")
        if self._socket.backlog_bytes > self._limits.unsent:
            raise ToolBusy("The app reads its calls too slowly; try again when it has caught up")
        self.last_call_number += 1
        id = f"{self.session_id}:{self.last_call_number}"
        waiting: PendingBridgeCall[Frame] = PendingBridgeCall(on_progress, self._loop)
        self._pending[id] = waiting
        question = frames.encode_invoke(self.session_id, id, tool, arguments)
        self._socket.send(question)
        try:
            return await waiting.wait(), len(question)
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
            self._end("the proxy is stopping")

    def close(self, code: int, reason: str) -> None:
        """End the bridge: waiting calls fail with `reason`, the app is told why."""
        if self._end_reason is None:
            self._end(reason)
            self._socket.close(code, reason)

    def check_liveness(self, now: float) -> None:
        """Called every so often: pings a silent app, gives up on one that does not answer or does not read."""
        if self._end_reason is not None:
            return
        taken = self._socket.bytes_delivered
        if taken != self._delivered_bytes or not self._socket.backlog_bytes:
            self._delivered_bytes, self._delivered_at = taken, now
        silent = now - self._last_received
        if now - self._delivered_at > min(STALLED, 2 * self._limits.ping):
            self.close(TOO_SLOW, "the app does not read what it is sent")
        elif silent > 2 * self._limits.ping:
            self.close(NO_SIGN_OF_LIFE, "the app gave no sign of life")
        elif silent > self._limits.ping and not self._ping_sent:
            self._ping_sent = True
            self._send(frames.encode_ping(self.session_id))

    async def probe(self) -> bool:
        """Whether the app still answers, asked now. One that does not is closed."""
        if self._end_reason is not None:
            return False
        if self._sign_of_life is None:
            self._sign_of_life = asyncio.Event()
        self._sign_of_life.clear()
        self._send(frames.encode_ping(self.session_id))
        try:
            async with asyncio.timeout(PROBE_WAIT):
                await self._sign_of_life.wait()
            return self._end_reason is None
        except TimeoutError:
            self.close(NO_SIGN_OF_LIFE, "the app gave no sign of life when another bridge came")
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
        too_large = code == TOO_LARGE
        self._end(
            f"the app said more than {2 * self._limits.result} bytes at once" if too_large else "the app has gone"
        )

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
            case "invoke_result":
                waiting = self._find_pending(frame)
                if not waiting.answer.done():
                    waiting.answer.set_result(frame)
            case "progress":
                self._find_pending(frame).forward_progress(frame)
            case "pong":
                pass
            case "ping":
                self._send(frames.encode_pong(self.session_id))
            case "update_tools":
                # What comes behind it waits: it may be about the new tools.
                self._update_task = self._loop.create_task(self._update_tools(frame))
                self._socket.pause()
            case other:
                raise BadFrame(f"frames of type {other[:60]!r} are not known here")

    def _find_pending(self, frame: Frame) -> PendingBridgeCall[Frame]:
        waiting = self._pending.get(frame.call_id or "")
        if waiting is None:
            # Named so that the app can tell a late answer from a mistake; nobody is failed by it.
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
            logger.exception("a bridge failed")
            self.close(SERVER_FAILED, "the proxy failed; its log says more")
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
        if self._end_reason is not None:
            return
        self._socket.send(message)
        if (
            self._socket.backlog_bytes > 2 * self._limits.unsent
        ):  # calls stop before: the rest is what the app asked for itself
            self.close(TOO_SLOW, "the app does not read what it is sent")

    def _end(self, reason: str) -> None:
        if self._end_reason is not None:
            return
        self._end_reason = reason
        if self._update_task is not None:
            self._update_task.cancel()
        for waiting in self._pending.values():
            waiting.fail(ToolUnavailable(f"{NOT_CONNECTED}: {reason}"))
        if self._sign_of_life is not None:
            self._sign_of_life.set()
        if not self._closed.done():
            self._closed.set_result(None)
