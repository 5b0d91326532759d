"""One app's WebSocket: calls go down it, answers come up it, each matched on this connection alone."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from msgspec import Raw, Struct

from ..core.errors import OpenClawError, ToolBusy, ToolError, ToolUnavailable
from . import frames
from .frames import BadFrame, Frame

MOST_UNSENT: Final = 32 << 20  # bytes waiting for an app that reads slowly; more calls are refused
STALLED: Final = 10.0  # seconds one frame may take to leave before the app counts as not reading
LAST_FRAMES: Final = 2.0  # seconds a bridge that is being closed gets to send its close frame
PROBE_WAIT: Final = 2.0  # seconds an attached bridge has to answer when another one wants its place

BAD_TOKEN: Final = 4401
NO_SESSION: Final = 4404
NO_SIGN_OF_LIFE: Final = 4408
ALREADY_ATTACHED: Final = 4409
SESSION_DELETED: Final = 4410
TOO_SLOW: Final = 4413
SERVER_FAILED: Final = 1011

Answer = TypeVar("Answer")
Tell = Callable[[Frame], Awaitable[None]]
"""Hears a call's progress frames."""
Retool = Callable[[bytes], Awaitable[int]]
"""Replaces the session's tools by this JSON list and says how many there are now. Raises OpenClawError."""


class Socket(Struct, frozen=True):
    """The two ends of a WebSocket, as the server hands them out."""

    receive: Callable[[], Awaitable[str | bytes | None]]
    """The next message; None once the app has gone."""
    send: Callable[[str], Awaitable[None]]
    close: Callable[[int, str], Awaitable[None]]


class Limits(Struct, frozen=True, kw_only=True):
    calls: int = 2048
    """Calls waiting on one bridge."""
    result: int = 16 << 20
    """Characters of one frame from the app."""
    ping: float = 20.0
    """Seconds of silence before a ping, and from there to giving up."""


class Waiting(Generic[Answer]):
    """A call on its way: its answer to come, and the progress that comes before it."""

    __slots__ = ("_latest", "_tell", "_telling", "answer")

    def __init__(self, tell: Tell | None) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._tell = tell
        self._latest: Frame | None = None
        self._telling: asyncio.Task[None] | None = None

    def progress(self, frame: Frame) -> None:
        """Pass progress on without waiting for a slow caller: the newest replaces an unsent one."""
        if self._tell is None:
            return
        self._latest = frame
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._pass_on(self._tell))

    async def outcome(self) -> Answer:
        """The answer, once all progress has been passed on."""
        try:
            answer = await self.answer
            if self._telling is not None:
                await self._telling
            return answer
        finally:
            if self._telling is not None:
                self._telling.cancel()

    def fail(self, error: OpenClawError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    async def _pass_on(self, tell: Tell) -> None:
        try:
            while self._latest is not None:
                frame, self._latest = self._latest, None
                await tell(frame)
        finally:
            self._telling = None


class Bridge:
    """Serves one connection from `run`'s beginning to its end. Everybody else calls `invoke`."""

    __slots__ = (
        "_ending",
        "_limits",
        "_outbox",
        "_pinged",
        "_reader",
        "_retool",
        "_sending_since",
        "_sign",
        "_socket",
        "_unsent",
        "_waiting",
        "_writer",
        "bad_frames",
        "count",
        "heard",
        "session",
    )

    def __init__(self, session: str, socket: Socket, *, limits: Limits, retool: Retool) -> None:
        self.session = session
        self.heard = asyncio.get_running_loop().time()
        self.bad_frames = 0
        self._socket = socket
        self._limits = limits
        self._retool = retool
        self.count = 0
        """The number of the last call; the next bridge of this session goes on from there."""
        self._waiting: dict[str, Waiting[Frame]] = {}
        self._outbox: deque[str] = deque()
        self._unsent = 0
        self._sending_since: float | None = None
        self._writer: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[Any] | None = None
        self._ending: tuple[int, str] | None = None
        self._pinged = False
        self._sign: asyncio.Event | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # ---- calls ----

    async def invoke(self, tool: str, arguments: Any, tell: Tell | None) -> tuple[Frame, int]:
        """Have the app run a tool: its answer, and the size of the question. Cancelling this tells the app."""
        if self._ending is not None:
            raise ToolUnavailable(f"Bridge is not connected: {self._ending[1]}")
        if len(self._waiting) >= self._limits.calls:
            raise ToolBusy(f"{self._limits.calls} calls wait for this app already; try again when some are done")
        if self._unsent > MOST_UNSENT:
            raise ToolBusy("The app reads its calls too slowly; try again when it has caught up")
        self.count += 1
        id = f"{self.session}:{self.count}"
        waiting: Waiting[Frame] = Waiting(tell)
        self._waiting[id] = waiting
        text = frames.invoke(self.session, id, tool, arguments)
        self._put(text)
        try:
            return await waiting.outcome(), len(text)
        except asyncio.CancelledError:
            self._put(frames.cancel(self.session, id))
            raise
        finally:
            # On every path, so that a late answer is dropped, not leaked.
            self._waiting.pop(id, None)

    # ---- life ----

    async def run(self) -> None:
        """Take frames until the app goes or the bridge is closed; then fail every waiting call at once."""
        self._reader = asyncio.current_task()
        reason = "the app has gone"
        try:
            while True:
                message = await self._socket.receive()
                if message is None:
                    break
                await self._take(message)
        except asyncio.CancelledError:
            if self._ending is None:
                reason = "the proxy is stopping"
                raise
            assert self._reader is not None
            self._reader.uncancel()
        finally:
            self._reader = None
            code = self._ending
            self._end(reason)
        if code is not None:
            await self._say_goodbye(*code)

    def close(self, code: int, reason: str) -> None:
        """End the bridge: waiting calls fail with `reason`, the app is told why."""
        if self._ending is not None:
            return
        self._ending = (code, reason)
        self._end(reason)
        if self._reader is not None:
            self._reader.cancel()

    def beat(self, now: float) -> None:
        """Called every so often: pings a silent app, gives up on one that does not answer or does not read."""
        if self._ending is not None:
            return
        silent = now - self.heard
        if self._sending_since is not None and now - self._sending_since > min(STALLED, 2 * self._limits.ping):
            self.close(TOO_SLOW, "the app does not read what it is sent")
        elif silent > 2 * self._limits.ping:
            self.close(NO_SIGN_OF_LIFE, "the app gave no sign of life")
        elif silent > self._limits.ping and not self._pinged:
            self._pinged = True
            self._put(frames.ping(self.session))

    async def probe(self) -> bool:
        """Whether the app still answers, asked now. One that does not is closed."""
        if self._ending is not None:
            return False
        if self._sign is None:
            self._sign = asyncio.Event()
        self._sign.clear()
        self._put(frames.ping(self.session))
        try:
            async with asyncio.timeout(PROBE_WAIT):
                await self._sign.wait()
            return self._ending is None
        except TimeoutError:
            self.close(NO_SIGN_OF_LIFE, "the app gave no sign of life when another bridge came")
            return False

    # ---- frames ----

    async def _take(self, message: str | bytes) -> None:
        self.heard = asyncio.get_running_loop().time()
        self._pinged = False
        if self._sign is not None:
            self._sign.set()
        try:
            frame = frames.read(message) if isinstance(message, str) else frames.read_bytes(message)
            if len(message) > self._limits.result:
                reason = f"the answer is larger than {self._limits.result} bytes; send less or raise the limit"
                raise BadFrame(reason, frame.request)
            if frame.mcp_session_id is not None and frame.mcp_session_id != self.session:
                raise BadFrame("this bridge serves another session than `mcpSessionId` names")
            await self._serve(frame)
        except BadFrame as exc:
            self.bad_frames += 1
            self._put(frames.error(self.session, str(exc), exc.request_id))
            self._fail(exc.request_id, f"The app's answer can't be used: {exc}")

    async def _serve(self, frame: Frame) -> None:
        match frame.type:
            case "invoke_result":
                waiting = self._find(frame)
                if not waiting.answer.done():
                    waiting.answer.set_result(frame)
            case "progress":
                self._find(frame).progress(frame)
            case "pong":
                pass
            case "ping":
                self._put(frames.pong(self.session))
            case "update_tools":
                await self._update(frame)
            case other:
                raise BadFrame(f"frames of type {other[:60]!r} are not known here")

    def _find(self, frame: Frame) -> Waiting[Frame]:
        waiting = self._waiting.get(frame.request or "")
        if waiting is None:
            # Named so that the app can tell a late answer from a mistake; nobody is failed by it.
            raise BadFrame(f"no call {(frame.request or '')[:80]!r} waits on this bridge")
        return waiting

    async def _update(self, frame: Frame) -> None:
        if not isinstance(frame.tools, Raw):
            raise BadFrame("update_tools needs `tools`, a list")
        try:
            count = await self._retool(bytes(frame.tools))
        except OpenClawError as exc:
            raise BadFrame(str(exc)) from None
        self._put(frames.tools_updated(self.session, count))

    def _fail(self, request_id: str | None, reason: str) -> None:
        waiting = self._waiting.get(request_id or "")
        if waiting is not None:
            waiting.fail(ToolError(reason))

    # ---- sending ----

    def _put(self, text: str) -> None:
        """Queue a frame; a task that lives only while there is something to send takes it from here."""
        if self._ending is not None:
            return
        self._unsent += len(text)
        self._outbox.append(text)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        clock = asyncio.get_running_loop().time
        try:
            while self._outbox:
                text = self._outbox.popleft()
                self._sending_since = clock()
                await self._socket.send(text)
                self._unsent -= len(text)
        except OSError:  # gone; the reader notices and says so to everybody
            self._outbox.clear()
        finally:
            self._sending_since = None
            self._writer = None

    def _end(self, reason: str) -> None:
        self._ending = self._ending or (0, reason)
        if self._writer is not None:
            self._writer.cancel()
        for waiting in self._waiting.values():
            waiting.fail(ToolUnavailable(f"Bridge is not connected: {reason}"))
        if self._sign is not None:
            self._sign.set()

    async def _say_goodbye(self, code: int, reason: str) -> None:
        try:
            async with asyncio.timeout(LAST_FRAMES):
                await self._socket.close(code, reason)
        except (TimeoutError, OSError):  # the app does not read, or is gone: nobody is there to be told
            pass
