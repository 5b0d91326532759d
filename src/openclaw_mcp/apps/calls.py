"""Calls that came down an app's bridge: each runs its function, bounded in number, until it is answered or given up."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from websockets.exceptions import ConnectionClosed

from ..core.errors import OpenClawError, ToolBusy, ToolNotFound
from . import results
from .connection import Dialled
from .function_schema import Json, Tool

MOST_WAITING: Final = 4096  # calls taken in before more are refused; twice what a proxy sends by default
PING: Final = '{"type":"ping"}'
PONG: Final = '{"type":"pong"}'

logger = logging.getLogger(__name__)


class _Frame(Struct):
    type: str
    request_id: str = ""
    tool_name: str = ""
    arguments: Raw = Raw(b"{}")
    reason: str = ""


_read = msgspec.json.Decoder(_Frame).decode


class Call:
    """A running call, for functions that have a parameter of this type. Usable from any thread."""

    is_call: Final = True
    __slots__ = ("_latest", "_loop", "_socket", "_spoke", "_telling", "cancelled", "id", "tool")

    def __init__(self, id: str, tool: str, socket: Dialled, loop: asyncio.AbstractEventLoop) -> None:
        self.id = id
        self.tool = tool
        self.cancelled = False
        """True once nobody waits for the result. A function in a thread may look and stop."""
        self._socket = socket
        self._loop = loop
        self._spoke = False
        self._latest: str | None = None
        self._telling: asyncio.Task[None] | None = None

    def progress(self, done: float, *, total: float | None = None, message: str | None = None) -> None:
        """Tell the caller how far this is; never waits. Values must grow; one too many for the wire is skipped."""
        if self.cancelled:
            return
        self._spoke = True
        text = results.progress(self.id, done, total, message)
        self._loop.call_soon_threadsafe(self._tell, text)

    async def told(self) -> None:
        """Return when all progress is on its way: it comes before the result."""
        if self._spoke:
            await asyncio.sleep(0)  # what a function said in its last step is still on its way to `_tell`
            if self._telling is not None:
                await self._telling

    def _tell(self, text: str) -> None:
        if self.cancelled:
            return
        self._latest = text
        if self._telling is None:
            self._telling = self._loop.create_task(self._send())

    async def _send(self) -> None:
        with contextlib.suppress(ConnectionClosed):  # the reader notices and ends the call
            while (text := self._latest) is not None:
                self._latest = None
                await self._socket.say(text)
        self._telling = None


def _called(function: Callable[..., Any], given: Json) -> Any:
    try:
        return function(**given)
    except StopIteration as exc:  # no future takes one, as no coroutine does
        raise RuntimeError("the function raised StopIteration") from exc


class Calls:
    """The calls of one app, whichever bridge they came by."""

    def __init__(self, tools: Mapping[str, Tool], *, at_once: int) -> None:
        self._tools = tools
        self._loop = asyncio.get_running_loop()  # kept: to ask for it is a system call
        self._slots = asyncio.Semaphore(at_once)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="lent")
        self._running: dict[str, tuple[asyncio.Task[None], Call]] = {}
        self._side: set[asyncio.Task[None]] = set()

    def take(self, text: bytes, socket: Dialled) -> None:
        """One frame from the proxy."""
        try:
            frame = _read(text)
        except (msgspec.DecodeError, RecursionError) as exc:
            logger.warning("a frame from the proxy can't be read: %s", exc)
            return
        match frame.type:
            case "invoke_tool":
                self._start(frame, socket)
            case "cancel_tool":
                self._cancel(frame.request_id)
            case "ping":
                self._aside(socket.send(PONG))
            case "error":
                logger.warning("the proxy could not use a frame: %s", frame.reason)

    def drop(self) -> None:
        """Give up what runs: no answer can be delivered, since a new bridge knows nothing of the old one's calls."""
        for id in list(self._running):
            self._cancel(id)

    def close(self) -> None:
        """Start nothing more. A function in a thread can't be ended; it runs to its end unheard."""
        self.drop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, frame: _Frame, socket: Dialled) -> None:
        call = Call(frame.request_id, frame.tool_name, socket, self._loop)
        self._running[call.id] = self._loop.create_task(self._answer(frame, call, socket)), call

    def _cancel(self, id: str) -> None:
        running = self._running.pop(id, None)
        if running is not None:
            task, call = running
            call.cancelled = True
            task.cancel()
            self._mind(task)  # until it has put its things away

    async def _answer(self, frame: _Frame, call: Call, socket: Dialled) -> None:
        try:
            text = await self._outcome(frame, call)
            await call.told()
            await socket.say(text)
        except ConnectionClosed:  # the proxy has told the caller already
            pass
        except (KeyboardInterrupt, SystemExit):  # the app's end, but its caller need not wait for that
            with contextlib.suppress(ConnectionClosed):
                await socket.say(results.failed(call.id, f"{call.tool} ended the app"))
            raise
        finally:
            self._running.pop(call.id, None)

    async def _outcome(self, frame: _Frame, call: Call) -> str:
        try:
            return results.answered(call.id, await self._run(frame, call))
        except OpenClawError as exc:
            return results.failed(call.id, str(exc))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:  # the boundary between the app's own code and the wire: each end has its answer
            if call.cancelled and isinstance(exc, asyncio.CancelledError):
                raise
            logger.exception("the tool %s failed", frame.tool_name)
            reason = f"{frame.tool_name} failed in the app ({type(exc).__name__}); its log says more"
            return results.failed(call.id, reason)

    async def _run(self, frame: _Frame, call: Call) -> Any:
        tool = self._tools.get(frame.tool_name)
        if tool is None:
            raise ToolNotFound(f"the app lends no tool {frame.tool_name!r} any more")
        if len(self._running) > MOST_WAITING:
            raise ToolBusy(f"{MOST_WAITING} calls wait in the app already; try again when some are done")
        given = tool.arguments(frame.arguments)
        if tool.call_parameter is not None:
            given[tool.call_parameter] = call
        async with self._slots:
            if tool.asynchronous:
                return await tool.function(**given)
            value = await self._loop.run_in_executor(self._threads, _called, tool.function, given)
            # A lambda around an `async def` does not look like one, and returns what has yet to be awaited.
            return await value if inspect.isawaitable(value) else value

    def _aside(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            with contextlib.suppress(ConnectionClosed):
                await work

        self._mind(self._loop.create_task(run()))

    def _mind(self, task: asyncio.Task[None]) -> None:
        self._side.add(task)
        task.add_done_callback(self._side.discard)
