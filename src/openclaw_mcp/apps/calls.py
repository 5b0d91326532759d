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
from .connection import BridgeConnection
from .function_schema import FunctionTool, Json

MAX_WAITING: Final = 4096  # calls taken in before more are refused; twice what a proxy sends by default
PING: Final = '{"type":"ping"}'
PONG: Final = '{"type":"pong"}'

logger = logging.getLogger(__name__)


class _Frame(Struct):
    type: str
    request_id: str = ""
    tool_name: str = ""
    arguments: Raw = Raw(b"{}")
    reason: str = ""


_decode_frame = msgspec.json.Decoder(_Frame).decode


class Call:
    """A running call, for functions that have a parameter of this type. Usable from any thread."""

    is_call: Final = True
    __slots__ = ("_has_progress", "_latest", "_loop", "_sending", "_socket", "cancelled", "id", "tool")

    def __init__(self, id: str, tool: str, socket: BridgeConnection, loop: asyncio.AbstractEventLoop) -> None:
        self.id = id
        self.tool = tool
        self.cancelled = False
        """True once nobody waits for the result. A function in a thread may look and stop."""
        self._socket = socket
        self._loop = loop
        self._has_progress = False
        self._latest: str | None = None
        self._sending: asyncio.Task[None] | None = None

    def progress(self, done: float, *, total: float | None = None, message: str | None = None) -> None:
        """Tell the caller how far this is; never waits. Values must grow; one too many for the wire is skipped."""
        if self.cancelled:
            return
        self._has_progress = True
        text = results.progress_frame(self.id, done, total, message)
        self._loop.call_soon_threadsafe(self._queue_progress, text)

    async def flush_progress(self) -> None:
        """Return when all progress is on its way: it comes before the result."""
        if self._has_progress:
            await asyncio.sleep(0)  # what a function said in its last step is still on its way to `_tell`
            if self._sending is not None:
                await self._sending

    def _queue_progress(self, text: str) -> None:
        if self.cancelled:
            return
        self._latest = text
        if self._sending is None:
            self._sending = self._loop.create_task(self._send_progress())

    async def _send_progress(self) -> None:
        with contextlib.suppress(ConnectionClosed):  # the reader notices and ends the call
            while (text := self._latest) is not None:
                self._latest = None
                await self._socket.send_text(text)
        self._sending = None


def _call_function(function: Callable[..., Any], arguments: Json) -> Any:
    try:
        return function(**arguments)
    except StopIteration as exc:  # no future takes one, as no coroutine does
        raise RuntimeError("the function raised StopIteration") from exc


class CallRunner:
    """The calls of one app, whichever bridge they came by."""

    def __init__(self, tools: Mapping[str, FunctionTool], *, at_once: int) -> None:
        self._tools = tools
        self._loop = asyncio.get_running_loop()  # kept: to ask for it is a system call
        self._slots = asyncio.Semaphore(at_once)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="lent")
        self._running: dict[str, tuple[asyncio.Task[None], Call]] = {}
        self._background: set[asyncio.Task[None]] = set()

    def handle_frame(self, message: bytes, socket: BridgeConnection) -> None:
        """One frame from the proxy."""
        try:
            frame = _decode_frame(message)
        except (msgspec.DecodeError, RecursionError) as exc:
            logger.warning("a frame from the proxy can't be read: %s", exc)
            return
        match frame.type:
            case "invoke_tool":
                self._start_call(frame, socket)
            case "cancel_tool":
                self._cancel_call(frame.request_id)
            case "ping":
                self._run_in_background(socket.send(PONG))
            case "error":
                logger.warning("the proxy could not use a frame: %s", frame.reason)

    def cancel_all(self) -> None:
        """Give up what runs: no answer can be delivered, since a new bridge knows nothing of the old one's calls."""
        for id in list(self._running):
            self._cancel_call(id)

    def close(self) -> None:
        """Start nothing more. A function in a thread can't be ended; it runs to its end unheard."""
        self.cancel_all()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start_call(self, frame: _Frame, socket: BridgeConnection) -> None:
        call = Call(frame.request_id, frame.tool_name, socket, self._loop)
        self._running[call.id] = self._loop.create_task(self._answer(frame, call, socket)), call

    def _cancel_call(self, id: str) -> None:
        running = self._running.pop(id, None)
        if running is not None:
            task, call = running
            call.cancelled = True
            task.cancel()
            self._keep_task(task)  # until it has put its things away

    async def _answer(self, frame: _Frame, call: Call, socket: BridgeConnection) -> None:
        try:
            text = await self._result_frame(frame, call)
            await call.flush_progress()
            await socket.send_text(text)
        except ConnectionClosed:  # the proxy has told the caller already
            pass
        except (KeyboardInterrupt, SystemExit):  # the app's end, but its caller need not wait for that
            with contextlib.suppress(ConnectionClosed):
                await socket.send_text(results.error_frame(call.id, f"{call.tool} ended the app"))
            raise
        finally:
            self._running.pop(call.id, None)

    async def _result_frame(self, frame: _Frame, call: Call) -> str:
        try:
            return results.result_frame(call.id, await self._run_tool(frame, call))
        except OpenClawError as exc:
            return results.error_frame(call.id, str(exc))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:  # the boundary between the app's own code and the wire: each end has its answer
            if call.cancelled and isinstance(exc, asyncio.CancelledError):
                raise
            logger.exception("the tool %s failed", frame.tool_name)
            reason = f"{frame.tool_name} failed in the app ({type(exc).__name__}); its log says more"
            return results.error_frame(call.id, reason)

    async def _run_tool(self, frame: _Frame, call: Call) -> Any:
        tool = self._tools.get(frame.tool_name)
        if tool is None:
            raise ToolNotFound(f"the app lends no tool {frame.tool_name!r} any more")
        if len(self._running) > MAX_WAITING:
            raise ToolBusy(f"{MAX_WAITING} calls wait in the app already; try again when some are done")
        given = tool.decode_arguments(frame.arguments)
        if tool.call_parameter is not None:
            given[tool.call_parameter] = call
        async with self._slots:
            if tool.is_async:
                return await tool.function(**given)
            value = await self._loop.run_in_executor(self._threads, _call_function, tool.function, given)
            # A lambda around an `async def` does not look like one, and returns what has yet to be awaited.
            return await value if inspect.isawaitable(value) else value

    def _run_in_background(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            with contextlib.suppress(ConnectionClosed):
                await work

        self._keep_task(self._loop.create_task(run()))

    def _keep_task(self, task: asyncio.Task[None]) -> None:
        self._background.add(task)
        task.add_done_callback(self._background.discard)
