"""Chromium and the debugging pipe to it: a socket pair no other process can reach, never a port."""

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ...core.model import Json
from ...core.signal import Signal
from ...net.processes import Process, start_process
from ...net.tasks import Tasks

if sys.platform != "win32":
    import fcntl

ANSWER_WAIT: Final = 15.0  # seconds for one answer; longer and the page hangs
LAUNCH_WAIT: Final = 30.0  # seconds for the first answer of a cold browser
CLOSE_WAIT: Final = 2.0  # seconds to write its profile before it is killed
MAX_MESSAGE: Final = 64 << 20  # bytes of one message; a large picture as base64
FREE_DESCRIPTORS: Final = 10  # above what a launcher or shell uses itself

BROWSER_NAMES: Final = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge",
    "microsoft-edge-stable", "brave-browser",
)  # fmt: skip
MAC_APPS: Final = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)

# Chromium reads commands from descriptor 3 and writes to 4, and subprocess can't renumber.
LAUNCHER: Final = (
    "import os,sys;s=int(sys.argv[1]);os.dup2(s,3);os.dup2(s,4);os.close(s);os.execv(sys.argv[2],sys.argv[2:])"
)

logger = logging.getLogger(__name__)


class _ErrorBody(Struct, frozen=True):
    message: str = "refused"


class CdpMessage(Struct, frozen=True, rename="camel"):
    """An event or, with an `id`, the answer to a command."""

    id: int | None = None
    method: str = ""
    params: Json = {}
    session_id: str = ""
    """Empty: of the browser itself."""
    error: _ErrorBody | None = None
    result: Json = {}


class BrowserGone(Exception):
    """The browser ended or closed its pipe."""


class CdpError(Exception):
    """The browser answered with an error."""


def find_browser(configured: str | None = None) -> str | None:
    """The browser to use: the one given, or the first one installed."""
    if configured:
        return shutil.which(configured)
    found = next(filter(None, map(shutil.which, BROWSER_NAMES)), None)
    return found or next((path for path in MAC_APPS if sys.platform == "darwin" and Path(path).exists()), None)


class Chromium:
    """A running browser. `aclose` ends it and every process it started."""

    def __init__(
        self,
        process: Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        on_close: Callable[[], None],
    ) -> None:
        self.events: Signal[CdpMessage] = Signal()
        """In order; a listener must not block."""
        self._process, self._writer, self._on_close = process, writer, on_close
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Json]] = {}
        self._is_alive = True
        self._tasks = Tasks("canvas browser")
        self._tasks.spawn(self._read(reader), name="reader")

    @classmethod
    async def launch(
        cls, browser: str, options: Sequence[str], *, on_close: Callable[[], None], environ: Mapping[str, str]
    ) -> "Chromium":
        """`on_close` is called when either side has closed the connection, perhaps more than once."""
        ours, theirs = socket.socketpair()
        number = _duplicate_high(theirs)
        argv = [sys.executable, "-ISc", LAUNCHER, str(number), browser, "--remote-debugging-pipe", *options]
        async with AsyncExitStack() as stack:
            stack.callback(ours.close)
            try:
                process = await stack.enter_async_context(await start_process(argv, pass_fds=(number,), env=environ))
            finally:
                theirs.close()
                os.close(number)
            reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_MESSAGE)
            chromium = cls(process, reader, writer, on_close=on_close)
            stack.push_async_callback(chromium.kill)
            await chromium.call("Browser.getVersion", wait=LAUNCH_WAIT)
            stack.pop_all()
            return chromium

    @property
    def is_alive(self) -> bool:
        return self._is_alive

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(self, method: str, *, session: str = "", wait: float = ANSWER_WAIT, **params: object) -> Json:
        """The browser's answer. Raises BrowserGone, CdpError or TimeoutError."""
        number = self.send(method, session=session, **params)
        self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(wait):
                return await self._pending[number]
        finally:
            self._pending.pop(number, None)

    def send(self, method: str, *, session: str = "", **params: object) -> int:
        """Send a command whose answer does not matter. Raises BrowserGone."""
        if not self._is_alive:
            raise BrowserGone
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        self._writer.write(msgspec.json.encode(message) + b"\0")
        return number

    async def aclose(self) -> None:
        """Ask it to exit, then make sure that it has."""
        with contextlib.suppress(BrowserGone, CdpError, TimeoutError):
            await self.call("Browser.close", wait=CLOSE_WAIT)
        await self._process.exits_within(CLOSE_WAIT)
        await self.kill()

    async def kill(self) -> None:
        self.disconnect()
        await self._tasks.aclose()
        await self._process.aclose()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                data = await reader.readuntil(b"\0")
                self._handle_message(msgspec.json.decode(data[:-1], type=CdpMessage))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, msgspec.DecodeError):
            pass
        finally:
            self.disconnect()

    def _handle_message(self, message: CdpMessage) -> None:
        if message.id is None:
            self.events.emit(message)
            return
        waiting = self._pending.get(message.id)
        if waiting is None or waiting.done():
            return
        if message.error is not None:
            waiting.set_exception(CdpError(message.error.message))
        else:
            waiting.set_result(message.result)

    def disconnect(self) -> None:
        """Treat it as gone: every waiting call ends with BrowserGone."""
        self._is_alive = False
        self._writer.close()
        self._on_close()
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(BrowserGone())


def _duplicate_high(pipe: socket.socket) -> int:
    """A second descriptor of it, with a number that a launcher does not use itself."""
    if sys.platform == "win32":
        raise RuntimeError("the pipe needs descriptors 3 and 4, which Windows does not have")
    else:  # noqa: RET506  so that a type checker for Windows leaves it out
        return fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, FREE_DESCRIPTORS)
