"""Runs carried out: one at a time per session, stoppable, ended exactly once and told only when that is on disk."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, Self

from ...core.agent import AgentEvent, ToolOutcome, ToolUse, Turn, TurnFailed
from ...core.errors import StoreError
from ...core.model import Caller, Json
from ...core.ports import AgentRuntime, Toolbox
from ...core.providers import model_for_run
from ...core.repositories import RunRepository, SessionRepository
from ...core.rpc import RpcError
from ...core.sessions import (
    FinishedRun,
    MessagesAdded,
    Run,
    RunAdmission,
    RunClaim,
    RunEnded,
    RunEvent,
    RunOutcome,
    RunOutput,
    RunRequest,
    RunStarted,
)
from ...core.signal import Signal
from ...core.transcript import (
    is_private_operator_run,
    redact_for_others,
    run_starter,
    sees_operator_runs,
)
from .turn import Transcript

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0  # seconds between looks at what other processes left or ask; nothing local waits for it
RUN_LIMIT: Final = 600.0  # seconds, when the caller names none: a wedged runtime must not hold a session for ever
MAX_RUN: Final = 24 * 3600.0
STOP_GRACE: Final = 5.0  # seconds a runtime has to end what it started once told to stop
RETRY_FIRST, RETRY_MOST = 0.2, 5.0  # seconds between tries to store a result while the disk refuses

RuntimeSelector = Callable[[Run], AgentRuntime]
CallerResolver = Callable[[RunClaim], Awaitable[Caller]]
TurnPreparer = Callable[[Turn, tuple[str, ...]], Awaitable[Turn]]
"""A turn made fit for a runtime that sees these types of files."""
TimeoutLookup = Callable[[Run], float | None]


class LocalRunExecutor:
    """A `Runner`. `pick` chooses the runtime for a run, `act` says as whom its agent calls tools.

    `patience` gives the seconds a run may take when its caller named none; 0 stands for the longest.
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
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def __aenter__(self) -> Self:
        """What a crash left is ended or taken up before anything new."""
        await self._claim_waiting_runs()
        self._start_task(self._poll_forever())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Stop every run; each is remembered as ended by the stop."""
        self._closing = True
        for going in list(self._active.values()):
            going.stop("restart")
        carrying = [going.task for going in self._active.values() if going.task is not None]
        if carrying:
            await asyncio.wait(carrying, timeout=STOP_GRACE * 2)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_idle(self) -> bool:
        """Whether nothing goes in this process."""
        return not self._active

    async def submit(self, request: RunRequest) -> RunAdmission:
        if self._closing:  # it would be begun only to be cut short
            raise RpcError("the gateway is stopping; send it again once it is back", kind="UNAVAILABLE", retryable=True)
        admission = await self._repository.admit(request)
        self._publish_interruptions(admission.ended_runs)
        if admission.claim is not None:
            self._start_run(admission.claim)
        elif admission.is_new and admission.blocking_run is not None:
            going = self._active.get(admission.run.session_key)
            if going is None or going.run.run_id != admission.blocking_run.run_id:
                self._remote_run_ids.add(admission.run.run_id)
            elif request.mode == "steer":
                going.supersede()
            elif request.mode == "interrupt":
                going.stop("rpc")
        return admission

    async def abort(self, key: str, *, run_id: str | None = None, include_queued: bool = True) -> Sequence[str]:
        dropped = list(await self._repository.drop(key, run_id=run_id)) if include_queued or run_id else []
        for run in dropped:
            self._publish_end(RunEnded(run=run))
        stopped = [run.run_id for run in await self._runs_in_session(key) if run_id in (None, run.run_id)]
        going = self._active.get(key)
        if stopped and going is not None and going.run.run_id == stopped[0]:
            going.stop("rpc")
        elif stopped:
            await self._repository.request_stop(stopped)
        return [*stopped, *(run.run_id for run in dropped)]

    async def _runs_in_session(self, key: str) -> list[Run]:
        going = self._active.get(key)
        if going is not None:
            return [going.run]
        return [run for run in await self._repository.list_active() if run.session_key == key]

    async def wait(self, run_id: str, *, seconds: float) -> Run | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            ended: asyncio.Future[None] = loop.create_future()
            self._waiters.setdefault(run_id, set()).add(ended)  # before the look, so that no end is missed
            try:
                run = await self._repository.get(run_id)
                if run is not None and run.is_over:
                    return run
                left = deadline - loop.time()
                if left <= 0:
                    return None
                await asyncio.wait({ended}, timeout=min(left, POLL_SECONDS))
            finally:
                waiting = self._waiters[run_id]
                waiting.discard(ended)
                if not waiting:
                    del self._waiters[run_id]

    # ---- carrying out --------------------------------------------------------------------------------------------

    def _start_task(self, coroutine: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start_run(self, claim: RunClaim) -> None:
        going = _ActiveRun(claim)
        self._active[claim.session.key] = going
        going.task = self._start_task(self._execute(going))

    async def _execute(self, active: "_ActiveRun") -> None:
        """This run, and whatever waits behind it in the same session."""
        following: RunClaim | None = active.claim
        while following is not None:
            self._active[following.session.key] = active
            for run in following.merged:
                self._publish_end(RunEnded(run=run))
            self.events.emit(RunStarted(claim=following))
            outcome = await self._run_agent(active)
            finish = await self._store_outcome(following.run.run_id, outcome)
            following = None if finish is None else finish.next
            if following is None:
                self._active.pop(active.run.session_key, None)
            if finish is not None:
                self._publish_end(RunEnded(run=finish.run, session=finish.session, messages=finish.messages))
            if following is not None:
                task, active = active.task, _ActiveRun(following)
                active.task = task
                if self._closing:  # it was taken up in the moment before
                    active.stop("restart")

    async def _run_agent(self, active: "_ActiveRun") -> RunOutcome:
        transcript = active.transcript
        active.agent_task = asyncio.get_running_loop().create_task(self._consume_events(active))
        if active.stop_reason:
            active.agent_task.cancel()
        done, _ = await asyncio.wait({active.agent_task}, timeout=self._time_limit(active.run))
        if not done:
            active.stop("timeout")
            done, _ = await asyncio.wait({active.agent_task}, timeout=STOP_GRACE)
        if not done:
            logger.error("run %s: its runtime does not stop; it is left behind", active.run.run_id)
        elif not active.agent_task.cancelled() and (exc := active.agent_task.exception()) is not None:
            logger.error("run %s failed", active.run.run_id, exc_info=exc)
            transcript.add_event(
                TurnFailed(message="The agent stopped working: an internal error, see the gateway's log.")
            )
        return transcript.outcome(active.stop_reason)

    def _time_limit(self, run: Run) -> float:
        asked = self._timeout_for(run) if run.timeout_ms is None else run.timeout_ms / 1000
        return RUN_LIMIT if asked is None else min(asked or MAX_RUN, MAX_RUN)

    async def _consume_events(self, active: "_ActiveRun") -> None:
        run = active.run
        turn = self._build_turn(active.claim, await self._resolve_caller(active.claim))
        runtime = self._select_runtime(run)
        if turn.caller.is_owner:  # also one who was not when they wrote
            active.transcript.started_by = "owner"
        if self._prepare_turn is not None:
            turn = await self._prepare_turn(turn, runtime.media_types)
        async with aclosing(runtime.run(turn)) as events:  # type: ignore[type-var]  # see below
            # Protocols can't say "async generator": every runtime is one, and closing it is how a turn is aborted.
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
        before = len(claim.messages)

        async def recall(most: int) -> tuple[Json, ...]:
            if session.message_count == before:  # nothing was said before: not worth a look
                return ()
            bodies = await self._sessions.message_bodies(session.key, limit=most, offset=before)
            if caller.is_owner:
                return bodies
            unsaid, operators = is_private_operator_run(run.options, session), sees_operator_runs(run.options, session)
            return tuple(
                redact_for_others(body, include_elsewhere=unsaid, include_operators=operators) for body in bodies
            )

        options, entry = run.options, session.entry
        return Turn(
            run_id=run.run_id,
            agent_id=run.agent_id,
            session_key=session.key,
            session_id=session.session_id,
            prompt=claim.prompt,
            attachments=claim.attachments,
            load_history=recall,
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
        """A result is told only once it is on disk; while the disk refuses, the run is not over."""
        wait = RETRY_FIRST
        while True:
            try:
                return await self._repository.finish(run_id, outcome, claim_next=not self._closing)
            except StoreError as exc:
                logger.error("run %s ended but can't be stored, trying again: %s", run_id, exc)  # noqa: TRY400  (one line; it repeats)
                if self._closing:
                    return None
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_MOST)

    def _publish_end(self, event: RunEnded) -> None:
        self._remote_run_ids.discard(event.run.run_id)
        self.events.emit(event)
        for waiter in self._waiters.get(event.run.run_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    # ---- other processes -----------------------------------------------------------------------------------------

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._poll()
            except StoreError as exc:
                logger.warning("can't look after runs now: %s", exc)

    async def _poll(self) -> None:
        if not await self._repository.has_open_runs() and not self._remote_run_ids:
            return
        stop, steer = await self._repository.pending_signals()
        for going in list(self._active.values()):
            if going.run.run_id in stop:
                going.stop("rpc")
            elif going.run.run_id in steer:
                going.supersede()
        await self._claim_waiting_runs()
        for run_id in list(self._remote_run_ids):
            run = await self._repository.get(run_id)
            if run is None or run.is_over:
                self._remote_run_ids.discard(run_id)
            if run is not None and run.is_over:
                await self._publish_remote_end(run)

    async def _publish_remote_end(self, run: Run) -> None:
        """Tell a run that another process carried out as if it had gone here, only all at once."""
        said = await self._repository.answer_messages(run)
        for message in said:
            if message.role == "toolResult":
                id, name = str(message.body.get("toolCallId", "")), str(message.body.get("toolName", ""))
                content, failed = tuple(message.body.get("content") or ()), bool(message.body.get("isError"))
                self.events.emit(RunOutput(run=run, event=ToolUse(id, name, {})))
                self.events.emit(RunOutput(run=run, event=ToolOutcome(id, name, content, failed)))
        self._publish_end(RunEnded(run=run, messages=tuple(said)))

    async def _claim_waiting_runs(self) -> None:
        claims, cut = await self._repository.sweep()
        self._publish_interruptions(cut)
        for claim in claims:
            self._start_run(claim)

    def _publish_interruptions(self, runs: Sequence[Run]) -> None:
        for run in runs:
            logger.warning("run %s was cut short by the end of its process", run.run_id)
            self._publish_end(RunEnded(run=run))


class _ActiveRun:
    """A run at work in this process."""

    def __init__(self, claim: RunClaim) -> None:
        self.claim = claim
        self.run = claim.run
        options = claim.run.options
        self.transcript = Transcript(
            claim.run.run_id, run_starter(options), replies_in_conversation=options.answers_in_conversation
        )
        self.agent_task: asyncio.Task[None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.stop_reason: str | None = None
        self.is_superseded = False

    def stop(self, reason: str) -> None:
        """Now, whatever it is doing."""
        if self.stop_reason is None:
            self.stop_reason = reason
            if self.agent_task is not None:
                self.agent_task.cancel()

    def supersede(self) -> None:
        """At the next moment when no tool is at work; the message behind it will answer for both."""
        self.is_superseded = True
        if self.transcript.is_between_tools:
            self.stop("steered")
