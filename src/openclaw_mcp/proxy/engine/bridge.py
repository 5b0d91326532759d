"""One app's WebSocket: calls go down it, answers come up it, each matched on this connection alone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from msgspec import Raw, Struct

from ...core.errors import OpenClawError, ToolBusy, ToolError, ToolUnavailable
from ...net.websocket import Socket
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
Tell = Callable[[Frame], Awaitable[None]]
"""Hears a call's progress frames."""
Retool = Callable[[bytes], Awaitable[int]]
"""Replaces the session's tools by this JSON list and says how many there are now. Raises OpenClawError."""


class Limits(Struct, frozen=True, kw_only=True):
    calls: int = 2048
    """Calls waiting on one bridge."""
    result: int = 16 << 20
    """Characters of one frame from the app."""
    ping: float = 20.0
    """Seconds of silence before a ping, and from there to giving up."""
    unsent: int = 32 << 20
    """Bytes waiting for an app that reads slowly: more calls are refused, and twice as many end the bridge."""


class Waiting(Generic[Answer]):
    """A call on its way: its answer to come, and the progress that comes before it."""

    __slots__ = ("_latest", "_loop", "_tell", "_telling", "answer")

    def __init__(self, tell: Tell | None, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[Answer] = loop.create_future()
        self._tell = tell
        self._loop = loop
        self._latest: Frame | None = None
        self._telling: asyncio.Task[None] | None = None

    def progress(self, frame: Frame) -> None:
        """Pass progress on without waiting for a slow caller: the newest replaces an unsent one."""
        if self._tell is None:
            return
        self._latest = frame
        if self._telling is None:
            self._telling = self._loop.create_task(self._pass_on(self._tell))

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
    """Serves one connection from `run`'s beginning to its end, as its socket's listener. Everybody else calls `invoke`.

    An answer goes to who waits for it in the moment it is read: no queue and no task lies between.
    """

    __slots__ = (
        "_backlog",
        "_ending",
        "_heard",
        "_limits",
        "_loop",
        "_over",
        "_pinged",
        "_retool",
        "_sign",
        "_socket",
        "_taken",
        "_taken_at",
        "_updating",
        "_waiting",
        "bad_frames",
        "count",
        "session",
    )

    def __init__(self, session: str, socket: Socket, *, limits: Limits, retool: Retool) -> None:
        self.session = session
        self.bad_frames = 0
        self.count = 0
        """The number of the last call; the next bridge of this session goes on from there."""
        self._loop = asyncio.get_running_loop()
        self._socket = socket
        self._limits = limits
        self._retool = retool
        self._heard = self._loop.time()
        self._waiting: dict[str, Waiting[Frame]] = {}
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._ending: str | None = None
        self._pinged = False
        self._sign: asyncio.Event | None = None
        self._taken = 0
        self._taken_at = self._heard
        self._updating: asyncio.Task[None] | None = None
        self._backlog: list[tuple[bytes, bool]] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # ---- calls ----

    async def invoke(self, tool: str, arguments: Any, tell: Tell | None) -> tuple[Frame, int]:
        """Have the app run a tool: its answer, and the size of the question. Cancelling this tells the app."""
        if self._ending is not None:
            raise ToolUnavailable(f"{NOT_CONNECTED}: {self._ending}")
        if len(self._waiting) >= self._limits.calls:
            raise ToolBusy(f"{self._limits.calls} calls wait for this app already; try again when some are done")
        if self._socket.unsent > self._limits.unsent:
            raise ToolBusy("The app reads its calls too slowly; try again when it has caught up")
        self.count += 1
        id = f"{self.session}:{self.count}"
        waiting: Waiting[Frame] = Waiting(tell, self._loop)
        self._waiting[id] = waiting
        question = frames.invoke(self.session, id, tool, arguments)
        self._socket.send(question)
        try:
            return await waiting.outcome(), len(question)
        except asyncio.CancelledError:
            self._put(frames.cancel(self.session, id))
            raise
        finally:
            # On every path, so that a late answer is dropped, not leaked.
            self._waiting.pop(id, None)

    # ---- life ----

    async def run(self) -> None:
        """Listen until the app goes or the bridge is closed; every waiting call has failed by then."""
        self._socket.listen(self)
        try:
            await self._over
        finally:
            self._end("the proxy is stopping")

    def close(self, code: int, reason: str) -> None:
        """End the bridge: waiting calls fail with `reason`, the app is told why."""
        if self._ending is None:
            self._end(reason)
            self._socket.close(code, reason)

    def beat(self, now: float) -> None:
        """Called every so often: pings a silent app, gives up on one that does not answer or does not read."""
        if self._ending is not None:
            return
        taken = self._socket.taken
        if taken != self._taken or not self._socket.unsent:
            self._taken, self._taken_at = taken, now
        silent = now - self._heard
        if now - self._taken_at > min(STALLED, 2 * self._limits.ping):
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

    # ---- the socket's listener ----

    def opened(self) -> None:
        return

    def heard(self, message: bytes) -> None:
        self._heard = self._loop.time()
        self._pinged = False
        if self._sign is not None:
            self._sign.set()
        if self._updating is not None:
            self._backlog.append((message, self._socket.is_text))
        else:
            self._take(message, text=self._socket.is_text)

    def gone(self, code: int, reason: str) -> None:
        too_large = code == TOO_LARGE
        self._end(
            f"the app said more than {2 * self._limits.result} bytes at once" if too_large else "the app has gone"
        )

    # ---- frames ----

    def _take(self, message: bytes, *, text: bool) -> None:
        try:
            frame = frames.read(message, text=text)
            if len(message) > self._limits.result:
                reason = f"the answer is larger than {self._limits.result} bytes; send less or raise the limit"
                raise BadFrame(reason, frame.request)
            if frame.mcp_session_id is not None and frame.mcp_session_id != self.session:
                raise BadFrame("this bridge serves another session than `mcpSessionId` names")
            self._serve(frame)
        except BadFrame as exc:
            self._bad(exc)

    def _serve(self, frame: Frame) -> None:
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
                # What comes behind it waits: it may be about the new tools.
                self._updating = self._loop.create_task(self._update(frame))
                self._socket.pause()
            case other:
                raise BadFrame(f"frames of type {other[:60]!r} are not known here")

    def _find(self, frame: Frame) -> Waiting[Frame]:
        waiting = self._waiting.get(frame.request or "")
        if waiting is None:
            # Named so that the app can tell a late answer from a mistake; nobody is failed by it.
            raise BadFrame(f"no call {(frame.request or '')[:80]!r} waits on this bridge")
        return waiting

    async def _update(self, frame: Frame) -> None:
        try:
            if not isinstance(frame.tools, Raw):
                raise BadFrame("update_tools needs `tools`, a list")
            try:
                count = await self._retool(bytes(frame.tools))
            except OpenClawError as exc:
                raise BadFrame(str(exc)) from None
            self._put(frames.tools_updated(self.session, count))
        except BadFrame as exc:
            self._bad(exc)
        except Exception:
            logger.exception("a bridge failed")
            self.close(SERVER_FAILED, "the proxy failed; its log says more")
        finally:
            self._updating = None
            while self._backlog and self._updating is None:
                message, text = self._backlog.pop(0)
                self._take(message, text=text)
            if self._updating is None:
                self._socket.resume()

    def _bad(self, exc: BadFrame) -> None:
        self.bad_frames += 1
        self._put(frames.error(self.session, str(exc), exc.request_id))
        waiting = self._waiting.get(exc.request_id or "")
        if waiting is not None:
            waiting.fail(ToolError(f"The app's answer can't be used: {exc}"))

    def _put(self, message: bytes) -> None:
        if self._ending is not None:
            return
        self._socket.send(message)
        if (
            self._socket.unsent > 2 * self._limits.unsent
        ):  # calls stop before: the rest is what the app asked for itself
            self.close(TOO_SLOW, "the app does not read what it is sent")

    def _end(self, reason: str) -> None:
        if self._ending is not None:
            return
        self._ending = reason
        if self._updating is not None:
            self._updating.cancel()
        for waiting in self._waiting.values():
            waiting.fail(ToolUnavailable(f"{NOT_CONNECTED}: {reason}"))
        if self._sign is not None:
            self._sign.set()
        if not self._over.done():
            self._over.set_result(None)
