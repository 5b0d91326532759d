"""Starting programs: the only module that does, but for `cli/demo.py`, which runs `openclaw` itself. Each leads a
process group of its own, which ends with its owner.

The standard library's event loop and uvloop start programs differently (`argv[0]`, sockets instead of pipes, when an
exit is noticed), so a program is started by `Popen` here, and only its pipes and its exit are watched by the loop.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from subprocess import DEVNULL, PIPE
from typing import IO, TYPE_CHECKING, Any, Final, Self

from msgspec import Struct

from ..core.errors import OpenClawError
from ..core.ports import ProcessGuard
from .process_streams import Input, Output
from .tasks import finish

if TYPE_CHECKING:
    import psutil

RUN_MARK_VARIABLE: Final = "OPENCLAW_RUN"
"""The variable by which processes of a run are found that left its group and lost their parent."""
LAUNCH_MARK_VARIABLE: Final = "OPENCLAW_LAUNCH"
"""The variable by which a guard finds a program that was started in the moment we were killed."""
DRAIN_SECONDS: Final = 0.5  # seconds for what is in the pipes after the exit; an orphan may hold them for ever
GROUP_POLL: Final = 0.02  # seconds between two checks whether a group is empty: there is no event to wait for


class ProcessStartError(OpenClawError):
    """The program does not exist, or the system refuses to run it. The text is the system's reason."""

    code = "cannot_start"


class Ending(Struct, frozen=True, kw_only=True):
    """How a process group is ended. By default it is killed at once."""

    eof_grace: float = 0.0
    """Seconds the program gets to exit after its input has been closed; 0: the input is not closed first."""
    term_grace: float = 0.0
    """Seconds the group gets between SIGTERM and SIGKILL; 0: no SIGTERM."""
    leader_only: bool = False
    """The grace is for the program itself; what it leaves in its group is killed at once."""
    kill_grace: float = 0.0
    """Seconds to wait until a killed group is empty: exited members count until their parent collects them."""
    kill_wait: float = 5.0
    """Seconds for the kernel to end a killed program; one that waits for a dead disk must not block us."""
    strays: bool = False
    """Descendants that have left the group are killed too. Found only while the program itself still runs."""
    mark: str | None = None
    """Processes with this value in RUN_MARK_VARIABLE are killed too, wherever they are."""
    drain: float | None = DRAIN_SECONDS
    """Seconds after the exit at which output that is still open counts as ended; None: when its holder closes it."""


KILL_AT_ONCE: Final = Ending()


async def start_process(
    argv: Sequence[str],
    *,
    executable: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | Input | None = None,
    stdout: Output | None = None,
    stderr: Output | None = None,
    pass_fds: Sequence[int] = (),
    guard: ProcessGuard | None = None,
    ending: Ending = KILL_AT_ONCE,
) -> "Process":
    """`async with await start_process(…) as process: …`, or `aclose` by the owner: afterwards its group is gone.

    Streams that are not given lead nowhere. `guard` ends the group should we be killed. Raises ProcessStartError.
    """
    try:
        if guard is not None:
            env = {**(os.environ if env is None else env), LAUNCH_MARK_VARIABLE: guard.prepare()}
        child = popen_group(
            argv,
            executable=executable,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=DEVNULL if stdin is None else PIPE,
            stdout=DEVNULL if stdout is None else PIPE,
            stderr=DEVNULL if stderr is None else PIPE,
            pass_fds=pass_fds,
        )
    except OSError as exc:
        raise ProcessStartError(exc.strerror or "unknown reason") from exc
    except ValueError as exc:
        raise ProcessStartError("an argument holds a NUL character") from exc
    if guard is not None:
        guard.watch(child.pid)
    given = stdin if isinstance(stdin, bytes) else None
    channel = Input() if isinstance(stdin, bytes) else stdin
    process = Process(child, stdin=channel, outputs=(stdout, stderr), guard=guard, ending=ending)
    try:
        await finish(process.connect_streams(given))  # uvloop loses a pipe whose connecting is cancelled
    except BaseException:
        await process.aclose()
        raise
    return process


def popen_group(
    argv: Sequence[str], *, stdin: int = DEVNULL, stdout: int = DEVNULL, stderr: int | IO[Any] = DEVNULL, **options: Any
) -> "subprocess.Popen[bytes]":
    """A program in a session and process group of its own, for an owner without an event loop. `options` are those of
    `Popen`. Raises OSError."""
    if sys.platform == "win32" and PIPE in (stdin, stdout, stderr):
        from asyncio.windows_utils import Popen  # here for start-up: only Windows has it, whose loop can read its pipes

        return Popen(list(argv), stdin=stdin, stdout=stdout, stderr=stderr, **options)
    return subprocess.Popen(
        list(argv), stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True, bufsize=0, **options
    )


class Process:
    """A running program and its group. Made by `start_process`."""

    def __init__(
        self,
        child: "subprocess.Popen[bytes]",
        *,
        stdin: Input | None,
        outputs: Sequence[Output | None],
        guard: ProcessGuard | None,
        ending: Ending,
    ) -> None:
        self.pid = child.pid
        self._child = child
        self._input = stdin
        self._outputs = [output for output in outputs if output is not None]
        self._guard = guard
        self._ending = ending
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._end_lock = asyncio.Lock()
        self._has_ended = False
        self._watch_exit()

    async def connect_streams(self, data: bytes | None) -> None:
        """Called by `start_process`. `data`: all that the program gets to read."""
        child, input = self._child, self._input
        pipes = [pipe for pipe in (child.stdout, child.stderr) if pipe is not None]
        for output, pipe in zip(self._outputs, pipes, strict=True):
            output.last_time = self._loop.time()
            await self._loop.connect_read_pipe(lambda output=output: output, pipe)  # type: ignore[misc]
        if input is not None and child.stdin is not None:
            await self._loop.connect_write_pipe(lambda: input, child.stdin)
        if data is not None and input is not None:
            # A program that has read enough may close its input early; its exit status tells the rest.
            with contextlib.suppress(BrokenPipeError):
                input.write(data)
            input.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    @property
    def status(self) -> int | None:
        """The exit status; minus the signal's number when a signal ended it; None while it runs."""
        return self._exit.result() if self._exit.done() else None

    async def wait(self) -> int:
        """The exit status, as soon as the program has exited, even if its pipes are still held."""
        await asyncio.wait((self._exit,))
        return self._exit.result()

    async def exits_within(self, seconds: float) -> bool:
        if not self._exit.done():
            await asyncio.wait((self._exit,), timeout=seconds)
        return self._exit.done()

    async def wait_finished(self) -> int:
        """The exit status, once the program has exited and its output has been read."""
        status = await self.wait()
        for output in self._outputs:
            await output.closed.wait()
        return status

    def kill(self) -> None:
        """SIGKILL to the whole group, what has outlived the program included."""
        if sys.platform == "win32":
            self._signal_group(signal.SIGTERM)  # which nothing can ignore there
        else:
            self._signal_group(signal.SIGKILL)

    async def end(self) -> None:
        """End the group. Runs to its end, which the graces bound, even when the caller is cancelled. Output that is
        in the pipes can still be read."""
        await finish(self._end_once())

    async def aclose(self) -> None:
        """End the group and close the pipes; as `end` when the caller is cancelled."""
        try:
            await self.end()
        finally:
            if self._input is not None:
                self._input.abort()
            for output in self._outputs:
                output.close()

    async def _end_once(self) -> None:
        async with self._end_lock:
            if not self._has_ended:
                await self._end_group()
                self._has_ended = True

    async def _end_group(self) -> None:
        ending = self._ending
        if ending.eof_grace and self._input is not None:
            self._input.close()
            await self.exits_within(ending.eof_grace)
        strays: list[psutil.Process] = []
        if ending.strays and self.status is None:
            strays = await self._loop.run_in_executor(_lookup_threads(), _descendants, self.pid)
        if not ending.term_grace or not await self._terminate_group():
            self.kill()
            if ending.kill_grace:
                await self._empties_within(ending.kill_grace)
        if ending.mark is not None:
            strays += await self._loop.run_in_executor(_lookup_threads(), _processes_with_mark, ending.mark)
        _kill_strays(strays)
        await self.exits_within(ending.kill_wait)
        if self._guard is not None:
            self._guard.unwatch(self.pid)

    async def _terminate_group(self) -> bool:
        """Whether nothing is left to kill."""
        if self._ending.leader_only:
            if self.status is None and self._signal_group(signal.SIGTERM):
                await self.exits_within(self._ending.term_grace)
            return False
        return not self._signal_group(signal.SIGTERM) or await self._empties_within(self._ending.term_grace)

    async def _empties_within(self, seconds: float) -> bool:
        end = self._loop.time() + seconds
        while self._signal_group(0):
            if self._loop.time() > end:
                return False
            await asyncio.sleep(GROUP_POLL)
        return True

    def _signal_group(self, number: int) -> bool:
        """Whether there was a group to signal."""
        if sys.platform == "win32":
            if number and self.status is None:
                subprocess.run(["taskkill", "/F", "/T", "/PID", str(self.pid)], check=False, capture_output=True)
            return self.status is None
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _watch_exit(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # an old kernel, or a sandbox without this call
                descriptor = os.pidfd_open(self.pid)
                self._loop.add_reader(descriptor, self._on_descriptor, descriptor)
                return
        threading.Thread(target=self._wait_in_thread, name=f"wait-{self.pid}", daemon=True).start()

    def _on_descriptor(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        self._on_exit(self._child.wait())

    def _wait_in_thread(self) -> None:
        status = self._child.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it everything that waited
            self._loop.call_soon_threadsafe(self._on_exit, status)

    def _on_exit(self, status: int) -> None:
        self._exit.set_result(status)
        if self._ending.drain is not None:
            self._loop.call_later(self._ending.drain, self._end_outputs, self._ending.drain)

    def _end_outputs(self, drain: float) -> None:
        for output in self._outputs:
            if not output.is_paused:  # what is in the pipe of a paused one waits for us, not we for it
                output.end()
        if any(output.is_paused for output in self._outputs):
            self._loop.call_later(drain, self._end_outputs, drain)


@cache
def _lookup_threads() -> ThreadPoolExecutor:
    """Not the loop's own threads: these may all be waiting for names or disks, and a program must end in time."""
    return ThreadPoolExecutor(2, thread_name_prefix="process-lookup")


def _descendants(leader: int) -> "list[psutil.Process]":
    """Found while their parents live: some leave the group, as `setsid` does and shells that start jobs do."""
    import psutil  # here for start-up: most programs are ended without it

    try:
        return psutil.Process(leader).children(recursive=True)
    except psutil.Error:
        return []


def _processes_with_mark(mark: str) -> "list[psutil.Process]":
    """Found when their parents are gone: a program that was killed leaves children it had put into other groups."""
    import psutil  # here for start-up, as above

    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_MARK_VARIABLE) == mark:
                found.append(process)
    return found


def _kill_strays(strays: "Sequence[psutil.Process]") -> None:
    if strays:
        import psutil  # here for start-up, as above

        for stray in strays:  # psutil knows a process by its start time too: a number used again is not hit
            with contextlib.suppress(psutil.Error):
                stray.kill()
