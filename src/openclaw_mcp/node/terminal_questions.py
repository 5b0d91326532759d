"""Questions answered in a terminal: each node has a socket in the state directory; `openclaw approvals` finds them."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ..core.errors import OpenClawError
from ..core.model import Json
from ..core.numbers import parse_whole_number
from .private_files import make_private_folder
from .questions import PromptAnswer, UserQuestion

SOCKET_PATTERN: Final = "approvals-*.sock"
MAX_WATCHERS: Final = 16
MAX_PENDING: Final = 64  # questions waiting at once
MAX_LINE_LENGTH: Final = 1 << 20  # bytes
MAX_PATH_LENGTH: Final = 100  # characters the system lets a socket's path have, less a few


class SocketUnavailable(OpenClawError):
    code = "no_socket"


class TerminalPrompter:
    """An `Asker`: whoever has connected is there to be asked."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / SOCKET_PATTERN.replace("*", str(os.getpid()))
        self._server: asyncio.Server | None = None
        self._watchers: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        self._pending: dict[str, tuple[UserQuestion, asyncio.Future[PromptAnswer | None]]] = {}

    async def open(self) -> None:
        """Raises NoSocket when this place can't have one; the node goes on without."""
        if len(str(self.path)) > MAX_PATH_LENGTH or not hasattr(asyncio, "start_unix_server"):
            raise SocketUnavailable(f"questions can't be answered in a terminal: no socket can be made at {self.path}")
        make_private_folder(self.path.parent)
        self.path.unlink(missing_ok=True)
        for left in self.path.parent.glob(SOCKET_PATTERN):
            _remove_stale_socket(left)
        self._server = await asyncio.start_unix_server(self._serve, str(self.path), limit=MAX_LINE_LENGTH)
        self.path.chmod(0o600)

    async def aclose(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for writer, task in list(self._watchers.items()):
            writer.close()
            if task is not None:
                task.cancel()
        await asyncio.sleep(0)  # lets the cancelled ones end
        self.path.unlink(missing_ok=True)

    # ---- Asker -----------------------------------------------------------------------------------------------------

    def is_available(self) -> bool:
        return bool(self._watchers) and len(self._pending) < MAX_PENDING

    async def ask(self, question: UserQuestion) -> PromptAnswer | None:
        answer: asyncio.Future[PromptAnswer | None] = asyncio.get_running_loop().create_future()
        self._pending[question.id] = (question, answer)
        self._broadcast({"question": msgspec.to_builtins(question)})
        try:
            return await answer
        finally:
            del self._pending[question.id]
            self._broadcast({"settled": question.id})

    # ---- the socket --------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._watchers) >= MAX_WATCHERS:
            writer.close()
            return
        self._watchers[writer] = asyncio.current_task()
        for question, _ in self._pending.values():
            writer.write(_encode_line({"question": msgspec.to_builtins(question)}))
        try:
            while line := await reader.readline():
                self._on_line(line)
        except (ValueError, ConnectionError, asyncio.CancelledError):
            pass  # a line too long, a broken pipe, or we are closing: the watcher is gone either way
        finally:
            del self._watchers[writer]
            writer.close()
            if not self._watchers:
                self._abandon_questions()

    def _on_line(self, line: bytes) -> None:
        try:
            said = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return
        if type(said) is not dict or said.get("answer") not in ("once", "always", "deny"):
            return
        question, answer = self._pending.get(str(said.get("id")), (None, None))
        if question is not None and answer is not None and not answer.done():
            chosen: PromptAnswer = said["answer"]
            answer.set_result("once" if chosen == "always" and not question.always else chosen)

    def _abandon_questions(self) -> None:
        """The last one who could answer has gone."""
        for _, answer in self._pending.values():
            if not answer.done():
                answer.set_result(None)

    def _broadcast(self, message: Json) -> None:
        for writer in self._watchers:
            writer.write(_encode_line(message))


class QuestionWatcher:
    """The other end: sees the questions and answers them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def messages(self) -> AsyncIterator[Json]:
        """`{"question": …}` and `{"settled": id}`, until the node goes away."""
        while line := await self._reader.readline():
            yield msgspec.json.decode(line)

    def answer(self, id: str, answer: PromptAnswer) -> None:
        self._writer.write(_encode_line({"id": id, "answer": answer}))


@contextlib.asynccontextmanager
async def watch_questions(path: Path) -> AsyncIterator[QuestionWatcher]:
    """Be there for the node behind a socket. Raises NoSocket, and tidies up, when it has gone."""
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
    """Remove the socket of a node that was killed. Nobody is disturbed: only when no process here has its number is
    the socket tried, since the node may live in a container that shares this folder."""
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
        pass  # somebody else's
    return True


def _encode_line(message: Json) -> bytes:
    return msgspec.json.encode(message) + b"\n"
