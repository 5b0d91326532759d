"""Executes runs: one at a time per session, stoppable, ended exactly once, and published once that is on disk."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, Self

from ...core.agent import AgentEvent, ToolOutcome, ToolUse, Turn, TurnFailed
from ...core.chat_messages import ChatMessage
from ...core.errors import StoreError
from ...core.lenient import read_struct
from ...core.model import Caller, Json
from ...core.ports import AgentRuntime, Toolbox
from ...core.providers import model_for_run
from ...core.repositories import RunRepository, SessionRepository
from ...core.rpc import RpcError
from ...core.sessions import (
    FinishedRun,
    MessageDraft,
    MessagesAdded,
    Run,
    RunAdmission,
    RunClaim,
    RunEnded,
    RunEvent,
    RunOutcome,
    RunOutput,
    RunRecorded,
    RunRequest,
    RunResult,
    RunStarted,
)
from ...core.signal import Signal
from ...core.transcript import (
    COMMAND_MARK,
    GATEWAY_MODEL,
    is_private_operator_run,
    mark_visibility,
    redact_for_others,
    run_starter,
    sees_operator_runs,
)
from ...net.tasks import Tasks
from .turn import Transcript

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0  # seconds between looks at what other processes left or request; nothing local waits for it
RUN_LIMIT: Final = 600.0  # seconds, when the caller names none: a wedged runtime must not hold a session for ever
MAX_RUN: Final = 24 * 3600.0
STOP_GRACE: Final = 5.0  # seconds a stopped runtime has to end what it started
RETRY_FIRST, RETRY_MOST = 0.2, 5.0  # seconds between attempts to store a result while the disk refuses
MAX_KNOWN_ENDS: Final = 200  # ended runs that are known here after their session was deleted, for clients that ask late
INTERNAL_ERROR: Final = "The agent stopped working: an internal error, see the gateway's log."

RuntimeSelector = Callable[[Run], AgentRuntime]
CallerResolver = Callable[[RunClaim], Awaitable[Caller]]
TurnPreparer = Callable[[Turn, tuple[str, ...]], Awaitable[Turn]]
"""Converts a turn for a runtime that reads these types of files."""
TimeoutLookup = Callable[[Run], float | None]


class LocalRunExecutor:
    """A `RunExecutor` in this process.

    `resolve_caller` gives the caller that the run's agent calls tools as, `timeout_for` the seconds a run may take when
    its request names none; 0 means the longest.
    """

    def __init__(
        self,
        repository: RunRepository,
        sessions: SessionRepository,
        *,
        select_runtime: RuntimeSelector,
        resolve_caller: CallerResolver,
        tools: Toolbox | None = None,
        prepare_turn: TurnPreparer | None = None,
        timeout_for: TimeoutLookup = lambda run: None,
    ) -> None:
        self._repository = repository
        self._sessions = sessions
        self._select_runtime = select_runtime
        self._resolve_caller = resolve_caller
        self._tools = tools
        self._prepare_turn = prepare_turn
        self._timeout_for = timeout_for
        self.events: Signal[RunEvent] = Signal()
        self._active: dict[str, _ActiveRun] = {}  # by session key
        self._remote_run_ids: set[str] = set()
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._known_ends: dict[str, Run] = {}  # the latest; a session takes its runs with it when it is deleted
        self._tasks = Tasks("runs")
        self._polling: asyncio.Task[None] | None = None
        self._closing = False

    async def __aenter__(self) -> Self:
        """End or claim what a crash left, then accept new runs."""
        await self._claim_waiting_runs()
        self._polling = self._tasks.loop(self._poll, name="poll", every=POLL_SECONDS, on_failure="restart")
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Stop every run; each is stored as ended by the stop."""
        self._closing = True
        if self._polling is not None:
            self._polling.cancel()
        for active in self._active.values():
            active.stop("restart")
        await self._tasks.finish(STOP_GRACE * 2)
        await self._tasks.aclose()

    @property
    def is_idle(self) -> bool:
        """Whether no run is active in this process."""
        return not self._active

    def find_active_run(self, key: str) -> str | None:
        """The id of the run that this process executes in a session."""
        active = self._active.get(key)
        return None if active is None else active.run.run_id

    async def submit(self, request: RunRequest) -> RunAdmission:
        if self._closing:  # it would begin only to be cut short
            raise RpcError("the gateway is stopping; send it again once it is back", kind="UNAVAILABLE", retryable=True)
        admission = await self._repository.admit(request)
        self._publish_interruptions(admission.ended_runs)
        if admission.claim is not None:
            self._start_run(admission.claim)
        elif admission.is_new and admission.blocking_run is not None:
            active = self._active.get(admission.run.session_key)
            if active is None or active.run.run_id != admission.blocking_run.run_id:
                self._remote_run_ids.add(admission.run.run_id)
            elif request.mode == "steer":
                active.supersede()
            elif request.mode == "interrupt":
                active.stop("rpc")
        return admission

    async def record(self, request: RunRequest, reply: str) -> Run:
        recorded = await self._repository.record(request, _command_outcome(request, reply))
        if recorded.session is not None:
            event = RunRecorded(run=recorded.run, session=recorded.session, messages=recorded.messages)
            self.events.emit(event)
        return recorded.run

    async def abort(
        self, key: str, *, run_id: str | None = None, include_queued: bool = True, reason: str = "rpc"
    ) -> Sequence[str]:
        dropped = await self._repository.drop(key, run_id=run_id, reason=reason) if include_queued or run_id else ()
        for run in dropped:
            self._publish_end(RunEnded(run=run))
        active = self._active.get(key)
        running = await self._repository.list_active() if active is None else [active.run]
        stopped = [run.run_id for run in running if run.session_key == key and run_id in (None, run.run_id)]
        active = self._active.get(key)  # again: it may have started meanwhile
        if stopped and active is not None and active.run.run_id == stopped[0]:
            active.stop(reason)
        elif stopped:
            await self._repository.request_stop(stopped)
        return [*stopped, *(run.run_id for run in dropped)]

    async def find(self, run_id: str) -> Run | None:
        return await self._repository.get(run_id)

    async def wait(self, run_id: str, *, seconds: float) -> Run | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            ended: asyncio.Future[None] = loop.create_future()
            self._waiters.setdefault(run_id, set()).add(ended)  # before the read, so that no end is missed
            try:
                run = await self._repository.get(run_id) or self._known_ends.get(run_id)
                if run is not None and run.is_over:
                    return run
                left = deadline - loop.time()
                if left <= 0:
                    return None
                await asyncio.wait({ended}, timeout=min(left, POLL_SECONDS))
            finally:
                self._waiters[run_id].discard(ended)
                if not self._waiters[run_id]:
                    del self._waiters[run_id]

    # ---- execution -----------------------------------------------------------------------------------------------

    def _start_run(self, claim: RunClaim) -> None:
        active = self._active[claim.session.key] = _ActiveRun(claim)
        if self._closing:  # it was claimed in the moment before
            active.stop("restart")
        self._tasks.spawn(self._execute(active), name=f"run {claim.run.run_id}")

    async def _execute(self, active: "_ActiveRun") -> None:
        """This run, then those that wait behind it in the same session."""
        key = active.claim.session.key
        try:
            while True:
                claim = active.claim
                for run in claim.merged:
                    self._publish_end(RunEnded(run=run))
                self.events.emit(RunStarted(claim=claim))
                finished = await self._store_outcome(claim.run.run_id, await self._run_agent(active))
                following = None if finished is None else finished.next
                if following is None:
                    self._active.pop(key, None)  # before the end is published: its listeners may start another run
                else:
                    active = self._active[key] = _ActiveRun(following)
                if finished is not None:
                    self._publish_end(RunEnded(run=finished.run, session=finished.session, messages=finished.messages))
                if following is None:
                    return
                if self._closing:  # it was claimed in the moment before
                    active.stop("restart")
        finally:
            if self._active.get(key) is active:
                del self._active[key]

    async def _run_agent(self, active: "_ActiveRun") -> RunOutcome:
        run_id = active.run.run_id
        task = active.agent_task = self._tasks.spawn(
            self._consume_events(active), name=f"agent of run {run_id}", on_failure="raise"
        )
        if active.stop_reason:
            task.cancel()
        done, _ = await asyncio.wait({task}, timeout=self._time_limit(active.run))
        if not done:
            active.stop("timeout")
            done, _ = await asyncio.wait({task}, timeout=STOP_GRACE)
        if not done:
            logger.error("runs: the runtime of run %s ignores its stop, the run ends without it", run_id)
        elif task.cancelled() and active.stop_reason is None:  # not by us: what the runtime waited for was cancelled
            logger.error("runs: run %s was cancelled from elsewhere, it ends as failed", run_id)
            active.transcript.add_event(TurnFailed(message=INTERNAL_ERROR))
        elif not task.cancelled() and (exc := task.exception()) is not None:
            logger.error("runs: run %s failed", run_id, exc_info=exc)
            active.transcript.add_event(TurnFailed(message=INTERNAL_ERROR))
        return active.transcript.outcome(active.stop_reason)

    def _time_limit(self, run: Run) -> float:
        limit = self._timeout_for(run) if run.timeout_ms is None else run.timeout_ms / 1000
        return RUN_LIMIT if limit is None else min(limit or MAX_RUN, MAX_RUN)

    async def _consume_events(self, active: "_ActiveRun") -> None:
        run = active.run
        turn = self._build_turn(active.claim, await self._resolve_caller(active.claim))
        runtime = self._select_runtime(run)
        if turn.caller.is_owner:  # also one who became it after the message was written
            active.transcript.started_by = "owner"
        if self._prepare_turn is not None:
            turn = await self._prepare_turn(turn, runtime.media_types)
        async with aclosing(runtime.run(turn)) as events:  # type: ignore[type-var]  # see below
            # Protocols can't declare "async generator": every runtime is one, and closing it aborts the turn.
            async for event in events:
                await self._handle_event(active, event)
                if active.is_superseded and active.transcript.is_between_tools:
                    active.stop_reason = active.stop_reason or "steered"
                    return

    async def _handle_event(self, active: "_ActiveRun", event: AgentEvent) -> None:
        drafts = active.transcript.add_event(event)
        self.events.emit(RunOutput(run=active.run, event=event))
        if drafts:
            added = await self._repository.append_messages(active.run.run_id, drafts)
            self.events.emit(MessagesAdded(run=active.run, messages=tuple(added)))

    def _build_turn(self, claim: RunClaim, caller: Caller) -> Turn:
        run, session = claim.run, claim.session
        options, entry = run.options, session.entry
        before = len(claim.messages)

        async def load_history(limit: int) -> tuple[ChatMessage, ...]:
            if session.message_count == before:  # the transcript was empty: not worth a read
                return ()
            bodies = await self._sessions.message_bodies(session.key, limit=limit, offset=before)
            bodies = tuple(body for body in bodies if COMMAND_MARK not in body)
            if not caller.is_owner:
                private, operators = is_private_operator_run(options, session), sees_operator_runs(options, session)
                bodies = tuple(
                    redact_for_others(body, include_elsewhere=private, include_operators=operators) for body in bodies
                )
            return tuple(read_struct(body, ChatMessage) for body in bodies)

        return Turn(
            run_id=run.run_id,
            agent_id=run.agent_id,
            session_key=session.key,
            session_id=session.session_id,
            prompt=claim.prompt,
            attachments=claim.attachments,
            load_history=load_history,
            system_prompt=options.extra_system_prompt or entry.get("extraSystemPrompt"),
            model=model_for_run(options, entry),
            thinking=options.thinking or entry.get("thinking") or entry.get("thinkingLevel"),
            resume=entry.get("resume") or None,
            cwd=caller.grant.folder if caller.grant is not None else None,
            settings=entry,
            caller=caller,
            tools=self._tools,
        )

    async def _store_outcome(self, run_id: str, outcome: RunOutcome) -> FinishedRun | None:
        """A result is published only once it is on disk; while the disk refuses, the run is not over."""
        wait = RETRY_FIRST
        while True:
            try:
                return await self._repository.finish(run_id, outcome, claim_next=not self._closing)
            except StoreError as exc:
                logger.error("runs: the end of run %s can't be stored (%s), next attempt in %g s", run_id, exc, wait)  # noqa: TRY400  (one line; it repeats)
                if self._closing:
                    return None
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_MOST)
            except Exception:
                if not outcome.drafts and outcome.result == RunResult():
                    raise
                # The result itself can't be written, for any reason: the session must not wait for it for ever.
                logger.exception("runs: the result of run %s can't be stored, the run ends as failed", run_id)
                outcome = RunOutcome(status="error", stop_reason="error", error=INTERNAL_ERROR)

    def _publish_end(self, event: RunEnded) -> None:
        self._remote_run_ids.discard(event.run.run_id)
        self._known_ends[event.run.run_id] = event.run
        if len(self._known_ends) > MAX_KNOWN_ENDS:
            del self._known_ends[next(iter(self._known_ends))]
        self.events.emit(event)
        for waiter in self._waiters.get(event.run.run_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    # ---- other processes -----------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        try:
            await self._look_at_store()
        except StoreError as exc:  # expected while the disk is busy or full; another failure restarts the loop, slower
            logger.warning("runs: the runs of other processes can't be read (%s), next attempt soon", exc)

    async def _look_at_store(self) -> None:
        if not await self._repository.has_open_runs() and not self._remote_run_ids:
            return
        stop, steer = await self._repository.pending_signals()
        for active in list(self._active.values()):
            if active.run.run_id in stop:
                active.stop("rpc")
            elif active.run.run_id in steer:
                active.supersede()
        await self._claim_waiting_runs()
        for run_id in list(self._remote_run_ids):
            run = await self._repository.get(run_id)
            if run is None or run.is_over:
                self._remote_run_ids.discard(run_id)
            if run is not None and run.is_over:
                await self._publish_remote_end(run)

    async def _publish_remote_end(self, run: Run) -> None:
        """Publish a run of another process as one of this process, only all at once."""
        messages = await self._repository.answer_messages(run)
        for message in messages:
            if message.role == "toolResult":
                id, name = str(message.body.get("toolCallId", "")), str(message.body.get("toolName", ""))
                content, failed = tuple(message.body.get("content") or ()), bool(message.body.get("isError"))
                self.events.emit(RunOutput(run=run, event=ToolUse(id, name, {})))
                self.events.emit(RunOutput(run=run, event=ToolOutcome(id, name, content, failed)))
        self._publish_end(RunEnded(run=run, messages=tuple(messages)))

    async def _claim_waiting_runs(self) -> None:
        claims, cut = await self._repository.sweep()
        self._publish_interruptions(cut)
        for claim in claims:
            self._start_run(claim)

    def _publish_interruptions(self, runs: Sequence[Run]) -> None:
        for run in runs:
            logger.warning("runs: run %s was cut short by the end of its process", run.run_id)
            self._publish_end(RunEnded(run=run))


def _command_outcome(request: RunRequest, reply: str) -> RunOutcome:
    body: Json = {"role": "assistant", "content": [{"type": "text", "text": reply}], "stopReason": "stop"}
    body |= {"provider": "openclaw", "model": GATEWAY_MODEL, COMMAND_MARK: True}
    body, id = mark_visibility(body, run_starter(request.options)), request.run_id
    draft = MessageDraft(role="assistant", body=body, text=reply, run_id=id, idempotency_key=f"{id}:answer")
    return RunOutcome(status="ok", stop_reason="stop", result=RunResult(text=reply), drafts=(draft,))


class _ActiveRun:
    """A run that this process executes."""

    def __init__(self, claim: RunClaim) -> None:
        self.claim = claim
        self.run = claim.run
        options = claim.run.options
        self.transcript = Transcript(
            claim.run.run_id, run_starter(options), replies_in_conversation=options.answers_in_conversation
        )
        self.agent_task: asyncio.Task[None] | None = None
        self.stop_reason: str | None = None
        self.is_superseded = False

    def stop(self, reason: str) -> None:
        """At once."""
        if self.stop_reason is None:
            self.stop_reason = reason
            if self.agent_task is not None:
                self.agent_task.cancel()

    def supersede(self) -> None:
        """Stop at the next moment when no tool is at work; the run behind it answers both messages."""
        self.is_superseded = True
        if self.transcript.is_between_tools:
            self.stop("steered")
