"""Calls from an app's bridge: each runs its function, bounded in number, until it is answered or cancelled."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from websockets.exceptions import ConnectionClosed

from ..core.errors import OpenClawError, ToolBusy, ToolNotFound
from ..core.model import Json
from ..net.tasks import Tasks
from ..protocol import bridge as wire
from . import results
from .connection import BridgeConnection
from .function_schema import FunctionTool

MAX_WAITING: Final = 4096  # calls taken before more are refused; twice what a proxy sends by default
PING: Final = f'{{"type":"{wire.PING}"}}'
PONG: Final = f'{{"type":"{wire.PONG}"}}'

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
    __slots__ = ("_has_progress", "_latest", "_loop", "_socket", "cancelled", "id", "tool")

    def __init__(self, id: str, tool: str, socket: BridgeConnection, loop: asyncio.AbstractEventLoop) -> None:
        self.id = id
        self.tool = tool
        self.cancelled = False
        """True once the result is not wanted any more. A function in a thread may check it and stop."""
        self._socket = socket
        self._loop = loop
        self._has_progress = False
        self._latest: str | None = None
        """Progress that the proxy was too slow to take."""

    def progress(self, done: float, *, total: float | None = None, message: str | None = None) -> None:
        """Report to the caller how far this is; never waits. Values must grow; one too many for the wire is skipped."""
        if self.cancelled:
            return
        self._has_progress = True
        text = results.progress_frame(self.id, done, total, message)
        self._loop.call_soon_threadsafe(self._send_progress, text)

    async def flush_progress(self) -> None:
        """Return when all progress is sent: it comes before the result. Raises ConnectionClosed."""
        if self._has_progress:
            await asyncio.sleep(0)  # progress of a function's last step is still on its way to `_send_progress`
            if self._latest is not None:
                await self._socket.send_text(self._latest)

    def _send_progress(self, text: str) -> None:
        if not self.cancelled:
            self._latest = None if self._socket.try_send_text(text) else text


def _call_function(function: Callable[..., Any], arguments: Json) -> Any:
    try:
        return function(**arguments)
    except StopIteration as exc:  # no future takes one, as no coroutine does
        raise RuntimeError("the function raised StopIteration") from exc


class CallRunner:
    """The calls of one app, from all of its bridges."""

    def __init__(self, tools: Mapping[str, FunctionTool], *, at_once: int) -> None:
        self._tools = tools
        self._loop = asyncio.get_running_loop()  # kept: to ask for it is a system call
        self._slots = asyncio.Semaphore(at_once)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="lent")
        self._running: dict[str, tuple[asyncio.Task[None], Call]] = {}
        self._tasks = Tasks("app calls")

    def handle_frame(self, message: bytes, socket: BridgeConnection) -> None:
        """One frame from the proxy."""
        try:
            frame = _decode_frame(message)
        except (msgspec.DecodeError, RecursionError) as exc:
            logger.warning("app bridge: a frame from the proxy can't be read (%s), it is skipped", exc)
            return
        match frame.type:
            case wire.INVOKE_TOOL:
                self._start_call(frame, socket)
            case wire.CANCEL_TOOL:
                self._cancel_call(frame.request_id)
            case wire.PING:
                socket.try_send_text(PONG)  # a proxy that does not read what it is sent needs no sign of life
            case wire.ERROR:
                logger.warning("app bridge: the proxy could not use a frame (%s)", frame.reason)

    def cancel_all(self) -> None:
        """Cancel what runs: no answer can be delivered, since a new bridge does not know the old one's calls."""
        for id in list(self._running):
            self._cancel_call(id)

    async def aclose(self) -> None:
        """Start nothing more. A function in a thread can't be ended; it runs to its end, and its result is dropped."""
        self.cancel_all()
        await self._tasks.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start_call(self, frame: _Frame, socket: BridgeConnection) -> None:
        call = Call(frame.request_id, frame.tool_name, socket, self._loop)
        task = self._tasks.spawn(self._answer(frame, call, socket), name=f"call of {call.tool}")
        self._running[call.id] = task, call

    def _cancel_call(self, id: str) -> None:
        running = self._running.pop(id, None)
        if running is not None:
            task, call = running
            call.cancelled = True
            task.cancel()

    async def _answer(self, frame: _Frame, call: Call, socket: BridgeConnection) -> None:
        try:
            text = await self._result_frame(frame, call)
            await call.flush_progress()
            await socket.send_text(text)
        except ConnectionClosed:  # the proxy has answered the caller already
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
