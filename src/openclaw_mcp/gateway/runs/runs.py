"""Runs carried out: one at a time per session, stoppable, ended exactly once and told only when that is on disk."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, Self

from ...core.agent import AgentEvent, Failed, ToolOutcome, ToolUse, Turn
from ...core.errors import StoreError
from ...core.model import Caller, Json
from ...core.ports import AgentRuntime, Toolbox
from ...core.providers import asked_model
from ...core.repositories import RunBook, SessionBook
from ...core.rpc import Fault
from ...core.sessions import (
    Admission,
    Claim,
    Finish,
    MessagesAdded,
    Outcome,
    Run,
    RunBegun,
    RunNews,
    RunOver,
    RunRequest,
    RunSaid,
)
from ...core.signal import Bell
from ...core.transcript import ANSWERS_THERE, among_operators, for_others, knows_operators, standing
from .turn import Transcript

logger = logging.getLogger(__name__)

ROUND: Final = 1.0  # seconds between looks at what other processes left or ask; nothing local waits for it
RUN_LIMIT: Final = 600.0  # seconds, when the caller names none: a wedged runtime must not hold a session for ever
LONGEST_RUN: Final = 24 * 3600.0
STOP_GRACE: Final = 5.0  # seconds a runtime has to end what it started once told to stop
RETRY_FIRST, RETRY_MOST = 0.2, 5.0  # seconds between tries to store a result while the disk refuses

Pick = Callable[[Run], AgentRuntime]
Act = Callable[[Claim], Awaitable[Caller]]
Prepare = Callable[[Turn, tuple[str, ...]], Awaitable[Turn]]
"""A turn made fit for a runtime that sees these types of files."""
Patience = Callable[[Run], float | None]


class Runs:
    """A `Runner`. `pick` chooses the runtime for a run, `act` says as whom its agent calls tools.

    `patience` gives the seconds a run may take when its caller named none; 0 stands for the longest.
    """

    def __init__(
        self,
        book: RunBook,
        sessions: SessionBook,
        *,
        pick: Pick,
        act: Act,
        tools: Toolbox | None = None,
        prepare: Prepare | None = None,
        patience: Patience = lambda run: None,
    ) -> None:
        self._book = book
        self._sessions = sessions
        self._pick = pick
        self._act = act
        self._tools = tools
        self._prepare = prepare
        self._patience = patience
        self.news: Bell[RunNews] = Bell()
        self._going: dict[str, _Going] = {}  # by session key
        self._elsewhere: set[str] = set()
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def __aenter__(self) -> Self:
        """What a crash left is ended or taken up before anything new."""
        await self._sweep()
        self._own(self._rounds())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Stop every run; each is remembered as ended by the stop."""
        self._closing = True
        for going in list(self._going.values()):
            going.stop("restart")
        carrying = [going.task for going in self._going.values() if going.task is not None]
        if carrying:
            await asyncio.wait(carrying, timeout=STOP_GRACE * 2)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def idle(self) -> bool:
        """Whether nothing goes in this process."""
        return not self._going

    async def submit(self, request: RunRequest) -> Admission:
        if self._closing:  # it would be begun only to be cut short
            raise Fault("the gateway is stopping; send it again once it is back", kind="UNAVAILABLE", retryable=True)
        admission = await self._book.admit(request)
        self._cut(admission.cut)
        if admission.claim is not None:
            self._begin(admission.claim)
        elif admission.fresh and admission.busy is not None:
            going = self._going.get(admission.run.session_key)
            if going is None or going.run.run_id != admission.busy.run_id:
                self._elsewhere.add(admission.run.run_id)
            elif request.mode == "steer":
                going.overtake()
            elif request.mode == "interrupt":
                going.stop("rpc")
        return admission

    async def abort(self, key: str, *, run_id: str | None = None, queued: bool = True) -> Sequence[str]:
        dropped = list(await self._book.drop(key, run_id=run_id)) if queued or run_id else []
        for run in dropped:
            self._over(RunOver(run=run))
        stopped = [run.run_id for run in await self._running_in(key) if run_id in (None, run.run_id)]
        going = self._going.get(key)
        if stopped and going is not None and going.run.run_id == stopped[0]:
            going.stop("rpc")
        elif stopped:
            await self._book.ask_stop(stopped)
        return [*stopped, *(run.run_id for run in dropped)]

    async def _running_in(self, key: str) -> list[Run]:
        going = self._going.get(key)
        if going is not None:
            return [going.run]
        return [run for run in await self._book.working() if run.session_key == key]

    async def wait(self, run_id: str, *, seconds: float) -> Run | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            ended: asyncio.Future[None] = loop.create_future()
            self._waiters.setdefault(run_id, set()).add(ended)  # before the look, so that no end is missed
            try:
                run = await self._book.get(run_id)
                if run is not None and run.ended:
                    return run
                left = deadline - loop.time()
                if left <= 0:
                    return None
                await asyncio.wait({ended}, timeout=min(left, ROUND))
            finally:
                waiting = self._waiters[run_id]
                waiting.discard(ended)
                if not waiting:
                    del self._waiters[run_id]

    # ---- carrying out --------------------------------------------------------------------------------------------

    def _own(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _begin(self, claim: Claim) -> None:
        going = _Going(claim)
        self._going[claim.session.key] = going
        going.task = self._own(self._carry_out(going))

    async def _carry_out(self, going: "_Going") -> None:
        """This run, and whatever waits behind it in the same session."""
        following: Claim | None = going.claim
        while following is not None:
            self._going[following.session.key] = going
            for run in following.merged:
                self._over(RunOver(run=run))
            self.news.ring(RunBegun(claim=following))
            outcome = await self._perform(going)
            finish = await self._store(following.run.run_id, outcome)
            following = None if finish is None else finish.next
            if following is None:
                self._going.pop(going.run.session_key, None)
            if finish is not None:
                self._over(RunOver(run=finish.run, session=finish.session, messages=finish.messages))
            if following is not None:
                task, going = going.task, _Going(following)
                going.task = task
                if self._closing:  # it was taken up in the moment before
                    going.stop("restart")

    async def _perform(self, going: "_Going") -> Outcome:
        transcript = going.transcript
        going.work = asyncio.get_running_loop().create_task(self._listen(going))
        if going.stopped:
            going.work.cancel()
        done, _ = await asyncio.wait({going.work}, timeout=self._limit(going.run))
        if not done:
            going.stop("timeout")
            done, _ = await asyncio.wait({going.work}, timeout=STOP_GRACE)
        if not done:
            logger.error("run %s: its runtime does not stop; it is left behind", going.run.run_id)
        elif not going.work.cancelled() and (exc := going.work.exception()) is not None:
            logger.error("run %s failed", going.run.run_id, exc_info=exc)
            transcript.hear(Failed(message="The agent stopped working: an internal error, see the gateway's log."))
        return transcript.outcome(going.stopped)

    def _limit(self, run: Run) -> float:
        asked = self._patience(run) if run.timeout_ms is None else run.timeout_ms / 1000
        return RUN_LIMIT if asked is None else min(asked or LONGEST_RUN, LONGEST_RUN)

    async def _listen(self, going: "_Going") -> None:
        run = going.run
        turn = self._turn(going.claim, await self._act(going.claim))
        runtime = self._pick(run)
        if turn.caller.owner:  # also one who was not when they wrote
            going.transcript.by = "owner"
        if self._prepare is not None:
            turn = await self._prepare(turn, runtime.takes)
        async with aclosing(runtime.run(turn)) as events:  # type: ignore[type-var]  # see below
            # Protocols can't say "async generator": every runtime is one, and closing it is how a turn is aborted.
            async for event in events:
                await self._heard(going, event)
                if going.overtaken and going.transcript.between:
                    going.stopped = going.stopped or "steered"
                    return

    async def _heard(self, going: "_Going", event: AgentEvent) -> None:
        drafts = going.transcript.hear(event)
        self.news.ring(RunSaid(run=going.run, event=event))
        if drafts:
            added = await self._book.note(going.run.run_id, drafts)
            self.news.ring(MessagesAdded(run=going.run, messages=tuple(added)))

    def _turn(self, claim: Claim, caller: Caller) -> Turn:
        run, session = claim.run, claim.session
        before = len(claim.messages)

        async def recall(most: int) -> tuple[Json, ...]:
            if session.message_count == before:  # nothing was said before: not worth a look
                return ()
            bodies = await self._sessions.bodies(session.key, limit=most, offset=before)
            if caller.owner:
                return bodies
            unsaid, operators = among_operators(run.options, session), knows_operators(run.options, session)
            return tuple(for_others(body, unsaid=unsaid, operators=operators) for body in bodies)

        settings = {**session.entry, **run.options}
        return Turn(
            run_id=run.run_id,
            agent_id=run.agent_id,
            session_key=session.key,
            session_id=session.session_id,
            prompt=claim.prompt,
            attachments=claim.attachments,
            recall=recall,
            system_prompt=settings.get("extraSystemPrompt"),
            model=asked_model(settings),
            thinking=settings.get("thinking") or settings.get("thinkingLevel"),
            resume=session.entry.get("resume") or None,
            cwd=caller.grant.folder if caller.grant is not None else None,
            settings=settings,
            caller=caller,
            tools=self._tools,
        )

    async def _store(self, run_id: str, outcome: Outcome) -> Finish | None:
        """A result is told only once it is on disk; while the disk refuses, the run is not over."""
        wait = RETRY_FIRST
        while True:
            try:
                return await self._book.finish(run_id, outcome, go_on=not self._closing)
            except StoreError as exc:
                logger.error("run %s ended but can't be stored, trying again: %s", run_id, exc)  # noqa: TRY400  (one line; it repeats)
                if self._closing:
                    return None
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_MOST)

    def _over(self, news: RunOver) -> None:
        self._elsewhere.discard(news.run.run_id)
        self.news.ring(news)
        for waiter in self._waiters.get(news.run.run_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    # ---- other processes -----------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(ROUND)
            try:
                await self._look_around()
            except StoreError as exc:
                logger.warning("can't look after runs now: %s", exc)

    async def _look_around(self) -> None:
        if not await self._book.unsettled() and not self._elsewhere:
            return
        stop, steer = await self._book.signals()
        for going in list(self._going.values()):
            if going.run.run_id in stop:
                going.stop("rpc")
            elif going.run.run_id in steer:
                going.overtake()
        await self._sweep()
        for run_id in list(self._elsewhere):
            run = await self._book.get(run_id)
            if run is None or run.ended:
                self._elsewhere.discard(run_id)
            if run is not None and run.ended:
                await self._over_elsewhere(run)

    async def _over_elsewhere(self, run: Run) -> None:
        """Tell a run that another process carried out as if it had gone here, only all at once."""
        said = await self._book.said(run)
        for message in said:
            if message.role == "toolResult":
                id, name = str(message.body.get("toolCallId", "")), str(message.body.get("toolName", ""))
                content, failed = tuple(message.body.get("content") or ()), bool(message.body.get("isError"))
                self.news.ring(RunSaid(run=run, event=ToolUse(id, name, {})))
                self.news.ring(RunSaid(run=run, event=ToolOutcome(id, name, content, failed)))
        self._over(RunOver(run=run, messages=tuple(said)))

    async def _sweep(self) -> None:
        claims, cut = await self._book.sweep()
        self._cut(cut)
        for claim in claims:
            self._begin(claim)

    def _cut(self, runs: Sequence[Run]) -> None:
        for run in runs:
            logger.warning("run %s was cut short by the end of its process", run.run_id)
            self._over(RunOver(run=run))


class _Going:
    """A run at work in this process."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.run = claim.run
        options = claim.run.options
        self.transcript = Transcript(claim.run.run_id, standing(options), said=options.get(ANSWERS_THERE) is True)
        self.work: asyncio.Task[None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.stopped: str | None = None
        self.overtaken = False

    def stop(self, reason: str) -> None:
        """Now, whatever it is doing."""
        if self.stopped is None:
            self.stopped = reason
            if self.work is not None:
                self.work.cancel()

    def overtake(self) -> None:
        """At the next moment when no tool is at work; the message behind it will answer for both."""
        self.overtaken = True
        if self.transcript.between:
            self.stop("steered")
