"""Background work with an owner: it ends when its owner ends, and its failures are never silent.

The only module that starts tasks. `asyncio.TaskGroup` is for work within one call; `Tasks` is for work that runs on
beside calls, for as long as an object lives.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, Literal, Self, TypeVar

from ..core.errors import OpenClawError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

STOP_TIMEOUT: Final = (
    30.0  # seconds cancelled work may take to end; work that ignores its cancellation must not hold us
)
FIRST_BACK_OFF: Final = 1.0  # seconds before failed work is started again
MAX_BACK_OFF: Final = 60.0  # seconds at most, after failures one after another

OnFailure = Literal["restart", "crash"]
"""`restart`: the failure is logged and the work begun again after a pause. `crash`: the owner's block ends with it."""


class Tasks:
    """Owns background tasks. `async with Tasks("inbox") as tasks: …`, or `await tasks.aclose()` by its owner.

    Leaving cancels what still runs and waits until it has ended.
    """

    def __init__(self, owner: str) -> None:
        """`owner` names the subsystem in log lines."""
        self._owner = owner
        self._running: set[asyncio.Task[Any]] = set()
        self._block: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    async def __aenter__(self) -> Self:
        self._block = asyncio.current_task()
        return self

    async def __aexit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        block, self._block = self._block, None
        await self.aclose()
        if self._failure is not None and block is not None:
            if isinstance(exc, asyncio.CancelledError):
                block.uncancel()  # it was we who cancelled the block, to leave it with the failure
            raise self._failure

    async def aclose(self) -> None:
        """Cancel what runs and wait for its end. Nothing can be started any more."""
        self._closed = True
        await self.cancel_all()

    async def cancel_all(self) -> None:
        """Cancel what runs and wait for its end; other work may be started afterwards."""
        ending = self._running - {asyncio.current_task()}
        for task in ending:
            task.cancel()
        await self._wait(ending)

    async def finish(self, timeout: float) -> None:
        """Wait until everything has ended by itself; what has not within `timeout` seconds is cancelled."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout)
        await self.cancel_all()

    def spawn(
        self, work: Coroutine[Any, Any, Result], *, name: str, on_failure: Literal["log", "crash", "raise"] = "log"
    ) -> asyncio.Task[Result]:
        """Run `work` beside everything else. A failure is logged, or ends the owner's block, or (`raise`) is left to
        the caller, who awaits the task."""
        if self._closed:
            work.close()
            raise RuntimeError(f"{self._owner} is closed: nothing can be started any more")
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}: {name}")
        self._running.add(task)
        endings = {"log": self._log_if_failed, "crash": self._crash_if_failed, "raise": self._running.discard}
        task.add_done_callback(endings[on_failure])
        return task

    def loop(
        self, step: Callable[[], Awaitable[object]], *, name: str, every: float = 0.0, on_failure: OnFailure
    ) -> asyncio.Task[None]:
        """Call `step` again and again, with a pause of `every` seconds before each call; without `every`, `step`
        itself waits for what it works on."""
        return self.spawn(self._repeat(step, every, name, on_failure), name=name, on_failure="crash")

    async def _repeat(
        self, step: Callable[[], Awaitable[object]], every: float, name: str, on_failure: OnFailure
    ) -> None:
        back_off = FIRST_BACK_OFF
        while True:
            if every:
                await asyncio.sleep(every)
            try:
                await _cancelled_only_by_us(step)
            except Exception as exc:
                if on_failure == "crash":
                    raise
                text = f"{self._owner}: {name} failed, next attempt in {back_off:g} s"
                _log_failure(logging.ERROR, text, exc)
                await asyncio.sleep(back_off)
                back_off = min(2 * back_off, MAX_BACK_OFF)
            else:
                back_off = FIRST_BACK_OFF

    async def _wait(self, ending: Iterable[asyncio.Task[Any]]) -> None:
        ending = set(ending)
        if not ending:
            return
        _, pending = await asyncio.wait(ending, timeout=STOP_TIMEOUT)
        for task in pending:
            logger.error("%s did not end within %g s of its cancellation", task.get_name(), STOP_TIMEOUT)

    def _log_if_failed(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log_failure(logging.ERROR, f"{task.get_name()} failed", failure)

    def _crash_if_failed(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled() or (failure := task.exception()) is None:
            return
        _log_failure(logging.CRITICAL, f"{task.get_name()} failed", failure)
        self._failure = self._failure or failure
        if self._block is not None:
            self._block.cancel()


def _log_failure(level: int, text: str, failure: BaseException) -> None:
    """A full disk or a taken port says what it is; any other failure is shown with where it happened."""
    if isinstance(failure, OpenClawError):
        logger.log(level, "%s: %s", text, failure)
    else:
        logger.log(level, "%s", text, exc_info=failure)


async def _cancelled_only_by_us(step: Callable[[], Awaitable[object]]) -> None:
    """A future that something else has cancelled must not end a loop, which would look like the end it was given."""
    try:
        await step()
    except asyncio.CancelledError as exc:
        if is_cancelling():
            raise
        raise RuntimeError("what it waited for was cancelled") from exc


def is_cancelling() -> bool:
    """Whether the running task is to end. If not, a CancelledError is that of something it waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def finish(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which runs to its end even when the caller is cancelled meanwhile: for cleaning up."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        raise cancelled
    return task.result()


async def run_all(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run all to their ends, at the same time, whichever of them fails; then raise the first failure. For closing."""
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    if not tasks:
        return
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            task.result()
