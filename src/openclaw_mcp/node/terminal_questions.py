"""Questions answered in a terminal: each node has a socket in the state directory; `openclaw approvals` finds them."""

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from ..core.errors import OpenClawError, ToolBusy
from ..core.model import Json
from ..core.numbers import parse_whole_number
from ..net.tasks import Tasks
from .private_files import make_private_folder
from .questions import PromptAnswer, UserQuestion

SOCKET_PATTERN: Final = "approvals-*.sock"
MAX_WATCHERS: Final = 16
MAX_PENDING: Final = 64  # questions waiting at once
MAX_LINE_LENGTH: Final = 1 << 20  # bytes
FIRST_WAIT: Final = 3.0  # seconds: an open `openclaw approvals` finds a node that has started well within these
MAX_PATH_LENGTH: Final = 100  # characters the system lets a socket's path have, less a few


class SocketUnavailable(OpenClawError):
    code = "no_socket"


class TerminalPrompter:
    """A `UserPrompter`: every terminal that is connected is asked, and one that connects later."""

    keeps_questions = True

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / SOCKET_PATTERN.replace("*", str(os.getpid()))
        self._watcher_came = asyncio.Event()
        self._first_wait_ends = 0.0
        self._watchers: set[asyncio.StreamWriter] = set()
        self._pending: dict[str, tuple[UserQuestion, asyncio.Future[PromptAnswer | None]]] = {}

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[None]:
        """Accept terminals while the block runs. Raises SocketUnavailable where there can be no socket."""
        if len(str(self.path)) > MAX_PATH_LENGTH or sys.platform == "win32":
            raise SocketUnavailable(f"questions can't be answered in a terminal: no socket can be made at {self.path}")
        make_private_folder(self.path.parent)
        self.path.unlink(missing_ok=True)
        for left in self.path.parent.glob(SOCKET_PATTERN):
            _remove_stale_socket(left)
        async with Tasks("terminal questions") as tasks:

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                if len(self._watchers) >= MAX_WATCHERS:
                    writer.close()
                else:
                    self._add_watcher(writer)
                    task = tasks.spawn(self._read_answers(reader), name="watcher")
                    task.add_done_callback(lambda _: self._remove_watcher(writer))

            server = await asyncio.start_unix_server(accept, str(self.path), limit=MAX_LINE_LENGTH)
            try:
                self.path.chmod(0o600)
                self._first_wait_ends = asyncio.get_running_loop().time() + FIRST_WAIT
                yield
            finally:
                server.close()
                self.path.unlink(missing_ok=True)

    async def wait_for_watcher(self) -> None:
        """Until a terminal has connected; not for long, and only while an open one may not have found us yet."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._first_wait_ends):
                await self._watcher_came.wait()

    # ---- UserPrompter ----------------------------------------------------------------------------------------------

    def is_available(self) -> bool:
        return bool(self._watchers)

    async def ask(self, question: UserQuestion) -> PromptAnswer | None:
        """None when the last terminal has gone. Raises ToolBusy when too many questions wait."""
        if len(self._pending) >= MAX_PENDING:
            raise ToolBusy(f"{MAX_PENDING} questions wait in the terminal already")
        answer: asyncio.Future[PromptAnswer | None] = asyncio.get_running_loop().create_future()
        self._pending[question.id] = (question, answer)
        self._broadcast({"question": msgspec.to_builtins(question)})
        try:
            return await answer
        finally:
            del self._pending[question.id]
            self._broadcast({"settled": question.id})

    # ---- the socket --------------------------------------------------------------------------------------------------

    def _add_watcher(self, writer: asyncio.StreamWriter) -> None:
        self._watchers.add(writer)
        self._watcher_came.set()
        for question, _ in self._pending.values():
            writer.write(_encode_line({"question": msgspec.to_builtins(question)}))

    def _remove_watcher(self, writer: asyncio.StreamWriter) -> None:
        self._watchers.discard(writer)
        writer.close()
        if not self._watchers:
            self._abandon_questions()

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ValueError, ConnectionError):  # a line too long or a broken pipe: the watcher is gone
            while line := await reader.readline():
                self._on_line(line)

    def _on_line(self, line: bytes) -> None:
        try:
            message = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return
        if type(message) is not dict or message.get("answer") not in ("once", "always", "deny"):
            return
        question, answer = self._pending.get(str(message.get("id")), (None, None))
        if question is not None and answer is not None and not answer.done():
            chosen: PromptAnswer = message["answer"]
            answer.set_result("once" if chosen == "always" and not question.always else chosen)

    def _abandon_questions(self) -> None:
        """The last terminal has disconnected: they can't be answered this way any more."""
        for _, answer in self._pending.values():
            if not answer.done():
                answer.set_result(None)

    def _broadcast(self, message: Json) -> None:
        for writer in self._watchers:
            writer.write(_encode_line(message))


class QuestionWatcher:
    """The other end: receives the questions and answers them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def messages(self) -> AsyncIterator[Json]:
        """`{"question": …}` and `{"settled": id}`, until the node ends."""
        while line := await self._reader.readline():
            yield msgspec.json.decode(line)

    def answer(self, id: str, answer: PromptAnswer) -> None:
        self._writer.write(_encode_line({"id": id, "answer": answer}))


@contextlib.asynccontextmanager
async def watch_questions(path: Path) -> AsyncIterator[QuestionWatcher]:
    """Connect to the node behind a socket. Raises SocketUnavailable, and removes the socket, when it has ended."""
    if sys.platform == "win32":
        raise SocketUnavailable("questions can't be answered in a terminal on Windows")
    try:
        reader, writer = await asyncio.open_unix_connection(str(path), limit=MAX_LINE_LENGTH)
    except OSError as exc:
        path.unlink(missing_ok=True)  # noqa: ASYNC240  one unlink, in a command line
        raise SocketUnavailable(f"the node behind {path} has gone") from exc
    try:
        yield QuestionWatcher(reader, writer)
    finally:
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket of a node that was killed. No living node is disturbed: the socket is tried only when no
    process here has its number, since the node may run in a container that shares this folder."""
    if sys.platform == "win32":
        return
    number = parse_whole_number(path.stem.rpartition("-")[2])
    if number is None or _process_exists(number):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink(missing_ok=True)


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's
    return True


def _encode_line(message: Json) -> bytes:
    return msgspec.json.encode(message) + b"\n"
