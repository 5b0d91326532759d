"""The Tasks extension of the stateless era: a long call becomes a task, and the client polls it.

A task belongs to the caller who started it; for all others it does not exist.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Literal

from ...core.errors import ToolBusy
from ...core.model import InputRequest, Json, ToolSpec
from ...core.ports import LogLevel
from ...net.tasks import Tasks
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import JsonRpcError
from .exchange import Exchange, fresh_key, invalid_params

logger = logging.getLogger(__name__)

LIFETIME: Final = 3600.0  # seconds a task can be read after it was made; what still runs then is stopped
POLL_EVERY: Final = 500  # milliseconds we suggest between two polls
MAX_TASKS: Final = 1000  # tasks kept at once, running or done

McpTaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
AnnounceTask = Callable[[str, mcp.McpResult], bool]
"""Notify those who watch a task of its state; whether there are any."""
TaskClock = Callable[[], float]
RunCall = Callable[["_Task"], Coroutine[Any, Any, mcp.ToolCallResult]]


class _TaskState(mcp.McpResult):
    """A task as its client reads it; with its `ttl_ms`."""

    task_id: str
    status: McpTaskStatus
    created_at: str
    last_updated_at: str
    poll_interval_ms: int
    status_message: str | None = None
    input_requests: dict[str, mcp.EncodedQuestion] | None = None
    result: mcp.McpResult | None = None
    error: jsonrpc.JsonRpcErrorBody | None = None


class _Task:
    """One call that continues after its request was answered. A `CallContext` for the tool."""

    def __init__(
        self,
        exchange: Exchange,
        spec: ToolSpec,
        run_call: RunCall,
        *,
        announce: AnnounceTask,
        clock: TaskClock,
        tasks: Tasks,
    ) -> None:
        self.id = os.urandom(16).hex()
        self.caller = exchange.caller
        self.status: McpTaskStatus = "working"
        self.message: str | None = None
        self.result: mcp.ToolCallResult | None = None
        self.error: JsonRpcError | None = None
        self.questions: dict[str, InputRequest] = {}
        self.expires = clock() + LIFETIME
        self.detached = spec.task != "inline"
        """Whether the request was answered with the task, or is about to be."""
        self.decided = asyncio.Event()
        """Set once the call has ended or was detached: then the request can be answered."""
        self._exchange = exchange
        self._announce = announce
        self._used_keys: set[str] = set()
        self._sent_questions: set[str] = set()
        """Questions the client has been sent: one it never saw it can't have answered."""
        self._answers: dict[str, asyncio.Future[Json]] = {}
        self._clock = clock
        self._created_at = self._updated_at = clock()
        self.work = tasks.spawn(run_call(self), name=f"{spec.name}, task {self.id}", on_failure="raise")
        self.work.add_done_callback(self._on_end)

    def summary(self) -> _TaskState:
        return _TaskState(
            self.id,
            self.status,
            _format_time(self._created_at),
            _format_time(self._updated_at),
            POLL_EVERY,
            self.message,
            ttl_ms=int(LIFETIME * 1000),
        )

    def detail(self) -> _TaskState:
        state = self.summary()
        if self.status == "input_required":
            state.input_requests = mcp.encode_questions(self.questions)
        elif self.status == "completed":
            state.result = self.result
        elif self.error is not None:
            state.error = self.error.body()
        return state

    def accept_answers(self, responses: Json) -> None:
        """Take answers; keys that were never asked, never shown, or answered already, are ignored."""
        for key, response in responses.items():
            answer = self._answers.get(key)
            if answer is None or answer.done() or key not in self._sent_questions:
                continue
            if type(response) is not dict:
                raise invalid_params(f"`inputResponses.{key[:100]}` must be an object")
            answer.set_result(response)
            self.questions.pop(key, None)
        if self.status == "input_required" and not self.questions:
            self._set_status("working")

    def _on_end(self, work: asyncio.Task[mcp.ToolCallResult]) -> None:
        self.decided.set()
        if not self.detached:  # the request itself gets the result
            return
        if work.cancelled():
            self._set_status("cancelled")
            return
        error = work.exception()
        if error is None:
            self.result = work.result()
            self._set_status("completed")
            return
        if not isinstance(error, JsonRpcError):
            logger.error("task failed", exc_info=error)
            error = JsonRpcError(jsonrpc.INTERNAL_ERROR, "Internal error; the server's log says more")
        self.error = error
        self._set_status("failed")

    def _set_status(self, status: McpTaskStatus) -> None:
        self.status = status
        self._updated_at = self._clock()
        if self.detached and self._announce(self.id, self.detail()):
            self._sent_questions.update(self.questions)

    def detail_for_client(self) -> _TaskState:
        """As `detail`, for the client itself: from now on it may answer the questions it sees."""
        self._sent_questions.update(self.questions)
        return self.detail()

    # ---- CallContext: until it is detached, the call reports like any other ----

    async def progress(self, value: float, *, total: float | None = None, message: str | None = None) -> None:
        if not self.detached:
            await self._exchange.progress(value, total=total, message=message)
        elif message is not None:
            self.message = message
            self._set_status(self.status)

    async def log(self, level: LogLevel, data: Any, *, logger: str | None = None) -> None:
        if not self.detached:
            await self._exchange.log(level, data, logger=logger)

    def can_ask(self, capability: str, mode: str = "") -> bool:
        return self._exchange.can_ask(capability, mode)

    @property
    def asks_within_call(self) -> bool:
        return self.detached or self._exchange.asks_within_call

    async def ask(self, questions: Mapping[str, InputRequest]) -> Mapping[str, Json]:
        if not self.detached:
            return await self._exchange.ask(questions)
        self._exchange.require_capabilities(questions)
        given = self._exchange.find_answers(questions)
        if given is not None:
            return given
        loop = asyncio.get_running_loop()
        keys = {key: fresh_key(key, self._used_keys) for key in questions}
        for key, question in questions.items():
            self.questions[keys[key]] = question
            self._answers[keys[key]] = loop.create_future()
        self._set_status("input_required")
        try:
            return {key: await self._answers[keys[key]] for key in questions}
        finally:
            for fresh in keys.values():
                self._answers.pop(fresh, None)
                self.questions.pop(fresh, None)

    async def detach(self) -> None:
        self.detached = True
        self.decided.set()
        # Lets the request be answered with the task before the long part begins.
        await asyncio.sleep(0)


class McpTasks:
    """The tasks of one server."""

    def __init__(self, announce: AnnounceTask, *, clock: TaskClock = time.time) -> None:
        self._announce = announce
        self._clock = clock
        self._tasks: dict[str, _Task] = {}
        self._running = Tasks("mcp tasks")

    async def run(self, exchange: Exchange, spec: ToolSpec, run_call: RunCall) -> mcp.McpResult:
        """Make the call; its result, or the task it turned into. Only for clients that declared the extension."""
        task = _Task(exchange, spec, run_call, announce=self._announce, clock=self._clock, tasks=self._running)
        if not task.detached:
            try:
                await task.decided.wait()
            except asyncio.CancelledError:
                task.work.cancel()
                raise
            if not task.detached:
                return await task.work
        await self._add_task(task)
        state = task.summary()
        state.result_type = "task"
        return state

    async def get(self, exchange: Exchange) -> mcp.McpResult:
        return self._find(exchange).detail_for_client()

    async def update(self, exchange: Exchange) -> mcp.McpResult:
        task = self._find(exchange)
        responses = exchange.params.get("inputResponses")
        if type(responses) is not dict:
            raise invalid_params("`inputResponses` must be an object")
        task.accept_answers(responses)
        return mcp.McpResult()

    async def cancel(self, exchange: Exchange) -> mcp.McpResult:
        task = self._find(exchange)
        if not task.work.done():
            task.work.cancel()
            # The answer promises that the cancellation was delivered; the work may still be cleaning up.
            await asyncio.sleep(0)
        return mcp.McpResult()

    def filter_watchable(self, exchange: Exchange, ids: list[str]) -> list[str]:
        """Those of `ids` that are this caller's own."""
        require_support(exchange)
        own = [id for id in ids if (task := self._tasks.get(id)) and task.caller == exchange.caller]
        return ids if len(own) == len(ids) else sorted(set(own))

    async def aclose(self) -> None:
        """Stop every running task and wait until each has ended."""
        await self._running.aclose()

    def _find(self, exchange: Exchange) -> _Task:
        require_support(exchange)
        id = exchange.params.get("taskId")
        task = self._tasks.get(id) if type(id) is str else None
        if task is None or task.expires < self._clock() or task.caller != exchange.caller:
            raise invalid_params("`taskId` names no task of yours; it may have expired")
        return task

    async def _add_task(self, task: _Task) -> None:
        now = self._clock()
        for id, kept in list(self._tasks.items()):
            if kept.expires > now:  # in the order they were made, and all live as long
                break
            kept.work.cancel()  # its result could no longer be read
            del self._tasks[id]
        if len(self._tasks) >= MAX_TASKS:
            task.work.cancel()
            await asyncio.wait((task.work,))
            raise ToolBusy(f"{MAX_TASKS} tasks are kept already; try again later")
        self._tasks[task.id] = task


def require_support(exchange: Exchange) -> None:
    """Raise JsonRpcError unless this very request says that its client can poll tasks."""
    if not exchange.envelope.capabilities.can_poll_tasks:
        reason = f"This needs a client that declares the extension {mcp.TASKS}"
        raise JsonRpcError(mcp.MISSING_CAPABILITY, reason, {"requiredCapabilities": {"extensions": {mcp.TASKS: {}}}})


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"
