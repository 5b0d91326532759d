"""Carrying out firings: the agent is asked or the program run, the result delivered, the end stored once."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from ...core.agents import AgentRoster
from ...core.config.cron import CronSettings
from ...core.errors import OpenClawError, StoreError
from ...core.jobs import (
    AgentTurnPayload,
    ClaimedFiring,
    CommandPayload,
    CronJob,
    CronJobRepository,
    FiringNotClaimed,
    FiringOutcome,
    InstantOutcome,
    JobFiring,
    OnExitSchedule,
    QueuedEvent,
    StreamSchedule,
    SystemEventPayload,
)
from ...core.ports import ProcessGuard, RunExecutor
from ...core.repositories import SessionRepository
from ...core.rpc import Publish, RpcError, RpcEvent
from ...core.sessions import NewSession, Run, RunAdmission, RunOptions, RunRequest
from ...core.signal import Signal
from ...net.tasks import Tasks
from . import programs, views
from .defaults import build_grant
from .delivery import ResultDelivery
from .job_state import apply_result
from .line_triggers import StreamSources, StreamStopped
from .results import FiringResult, describe_exit, failed_result, result_from_program, result_from_run
from .routing import ResultRouter
from .session_targets import SessionTargets

logger = logging.getLogger(__name__)

TURN_SECONDS: Final = 3600.0  # an agent's turn that names no limit, as OpenClaw has it
COMMAND_SECONDS: Final = 600.0
MAX_SECONDS: Final = 24 * 3600.0
WATCH_SECONDS: Final = 7 * 24 * 3600.0  # a command a job waits for
NOTE_LENGTH: Final = 4000  # characters of that command's output
QUEUE_SECONDS: Final = 3600.0  # how long a turn may wait behind others in its session before it is given up
SUBMIT_TRIES: Final = 6  # about ten seconds in all
RETRY_FIRST, RETRY_MOST = 0.2, 5.0  # seconds between attempts to write while the disk refuses
INTERRUPTED: Final = "interrupted: the gateway stopped while this program ran; it is not started a second time"

Ending = tuple[FiringResult, QueuedEvent | None]
"""A firing's result, and an event to queue for a session with it."""


class JobExecutor:
    """Each firing has a task; at most `settings().max_concurrent_runs` of them hold an agent or a program."""

    def __init__(
        self,
        jobs: CronJobRepository,
        runner: RunExecutor,
        sessions: SessionRepository,
        delivery: ResultDelivery,
        publish: Publish,
        *,
        roster: Callable[[], AgentRoster],
        settings: Callable[[], CronSettings],
        now: Callable[[], int],
        guard: ProcessGuard | None = None,
    ) -> None:
        self._jobs, self._runner, self._sessions = jobs, runner, sessions
        self._publish, self._roster, self._settings, self._now = publish, roster, settings, now
        self._router = ResultRouter(delivery, targets=self._targets, settings=settings, now=now)
        self._tasks = Tasks("cron")
        self._slots = JobSlots(lambda: max(1, settings().max_concurrent_runs))
        self._guard = guard
        self.streams = StreamSources(guard)
        self.finished: Signal[None] = Signal()
        """Emitted when a firing is over: another may begin."""

    def __len__(self) -> int:
        return len(self._tasks)

    def _targets(self) -> SessionTargets:
        return SessionTargets(self._roster())

    def instant_outcome(self) -> InstantOutcome:
        """Gives the outcome of a firing for which nothing has to run: an event queued for its session's next prompt.

        Roster and settings are read here, not in the function returned: the store calls that from another thread.
        """
        targets, settings = self._targets(), self._settings()

        def outcome(firing: JobFiring) -> FiringOutcome | None:
            spec = firing.job.spec
            if not isinstance(spec.payload, SystemEventPayload) or not _waits_for_prompt(firing.job):
                return None
            if isinstance(spec.schedule, OnExitSchedule | StreamSchedule) or not spec.payload.text.strip():
                return None
            result, event = _queue_event(firing, spec.payload.text, targets.main_session(firing.job), firing.at)
            return _build_outcome(firing, result, event, firing.at, settings)

        return outcome

    def publish_instant_end(self, claimed: ClaimedFiring, outcome: FiringOutcome) -> None:
        """Publish the start and end of a firing that ended as it was claimed."""
        self._publish(RpcEvent(name="cron", payload=views.start_event(claimed.firing)))
        self._publish_end(claimed.firing, outcome, claimed.job)

    def start(self, firing: JobFiring) -> None:
        task = self._tasks.spawn(self._execute(firing), name=f"firing {firing.run_id} of job {firing.job.id}")
        task.add_done_callback(lambda _: self.finished.emit(None))

    async def aclose(self) -> None:
        """Unfinished firings are left to the next process: each is claimed, and its run is known by its id."""
        await self._tasks.aclose()
        await self.streams.aclose()

    async def _execute(self, firing: JobFiring) -> None:
        self._publish(RpcEvent(name="cron", payload=views.start_event(firing)))
        event = None
        try:
            result, event = await self._perform(firing)
        except FiringNotClaimed:  # no failure, and no alert: the other process carries it out
            logger.warning("cron: firing %s was taken over by another process, it is left to that", firing.run_id)
            return
        except OpenClawError as exc:
            result = failed_result(str(exc))
        except Exception:
            logger.exception("cron: job %s failed", firing.job.id)
            result = failed_result("an internal error; see the gateway's log")
        try:
            result = await self._router.send_alert(firing, result)
        except Exception:  # an alert that fails must not keep the firing from ending: the job would never run again
            logger.exception("cron: failure alert of job %s could not be sent", firing.job.id)
        await self._finish(firing, result, event)

    # ---- the work ------------------------------------------------------------------------------------------------

    async def _perform(self, firing: JobFiring) -> Ending:
        payload, schedule = firing.job.spec.payload, firing.job.spec.schedule
        if isinstance(schedule, OnExitSchedule) and not firing.manual:
            firing = await self._await_command(firing, schedule)
        if isinstance(schedule, StreamSchedule) and not firing.manual:
            try:
                firing = await self._read_stream(firing, schedule)
            except StreamStopped as exc:
                return FiringResult(status="skipped", error=str(exc)), None
        if isinstance(payload, SystemEventPayload):
            return await self._deliver_event(firing, payload)
        async with self._slots:
            if isinstance(payload, CommandPayload):
                result = await self._run_command(firing, payload)
            else:
                result = await self._run_agent_turn(firing, payload)
        return await self._router.deliver(firing, result)

    async def _await_command(self, firing: JobFiring, schedule: OnExitSchedule) -> JobFiring:
        """Run the command the job waits for; the firing, with how the command ended."""
        await self._record_program_start(firing)
        limits = programs.ProgramLimits(seconds=WATCH_SECONDS, bytes=NOTE_LENGTH)
        ran = await programs.run_program(["sh", "-c", schedule.command], limits, cwd=schedule.cwd, guard=self._guard)
        note = f"The command `{schedule.command}` {describe_exit(ran)}."
        output = (ran.stdout or ran.stderr)[-NOTE_LENGTH:]
        return msgspec.structs.replace(firing, note=f"{note}\n{output}" if output else note)

    async def _read_stream(self, firing: JobFiring, schedule: StreamSchedule) -> JobFiring:
        """The firing, with the next lines of the job's program."""
        job = firing.job
        if not self._settings().triggers.enabled:
            raise StreamStopped("streams are switched off here (cron.triggers.enabled)")

        async def is_current() -> bool:
            now = await self._jobs.get(job.id)
            return now is not None and now.spec.enabled and now.spec.schedule == schedule

        lines = "" if firing.begun else await self.streams.next_batch(job, schedule, is_current)
        await self._record_program_start(firing)  # lines that were read once are not sent a second time
        return msgspec.structs.replace(firing, note=lines)

    async def _record_program_start(self, firing: JobFiring) -> None:
        """A program is about to be started: never a second time, however the first ended."""
        if firing.begun:
            raise OpenClawError(INTERRUPTED)
        if not await self._jobs.begin(firing.run_id):
            raise FiringNotClaimed(firing.run_id)

    async def _deliver_event(self, firing: JobFiring, payload: SystemEventPayload) -> Ending:
        """To the main session: with its next prompt, or in a run now."""
        job, key = firing.job, self._targets().main_session(firing.job)
        text = _with_note(payload.text, firing)
        if not text.strip():
            return FiringResult(status="skipped", error="empty event text", completion="failed"), None
        if _waits_for_prompt(job):
            return _queue_event(firing, text, key, self._now())
        message = f"System: [{_format_time(self._now())}]\n{text}"
        try:
            run = await self._run_in_session(firing, key, message, seconds=TURN_SECONDS, options=RunOptions())
        except RpcError as exc:
            if not (exc.retryable and _is_owner_job(job)):
                raise
            return _queue_event(firing, text, key, self._now())  # the session's queue is full: with its next prompt
        result = result_from_run(run)
        await self._router.announce_reply(firing, key, result)
        return result, None

    async def _run_agent_turn(self, firing: JobFiring, payload: AgentTurnPayload) -> FiringResult:
        job = firing.job
        head, now = f"[cron:{job.id} {job.spec.name}]", _format_time(self._now())
        message = f"{head}\n{_with_note(payload.message, firing)}\n\nCurrent time: {now}"
        options = RunOptions(
            model=payload.model, thinking=payload.thinking, fallbacks=payload.fallbacks,
            light_context=payload.light_context, tools_allow=payload.tools_allow,
        )  # fmt: skip
        seconds = TURN_SECONDS if payload.timeout_seconds is None else payload.timeout_seconds or MAX_SECONDS
        key = self._targets().run_session(firing)
        return result_from_run(await self._run_in_session(firing, key, message, seconds=seconds, options=options))

    async def _run_in_session(
        self, firing: JobFiring, key: str, message: str, *, seconds: float, options: RunOptions
    ) -> Run:
        """The run with this firing's id: the one submitted before a crash, or a new one."""
        job, targets = firing.job, self._targets()
        agent = targets.agent_id(job)
        targets.roster.get_agent(agent)
        is_own = ":cron:" in key
        kind = "main" if key == targets.main_session(job) else "cron" if is_own else "custom"
        title = f"Cron: {job.spec.name}"[:500] if is_own else None
        grant = await build_grant(job, await self._router.result_address(job), self._sessions)
        request = RunRequest(
            run_id=firing.run_id,
            session=NewSession(key=key, agent_id=agent, classification=kind, display_name=title),
            message=message,
            mode="followup",
            timeout_ms=int(seconds * 1000),
            options=msgspec.structs.replace(
                options,
                sender="cron",
                cron={"jobId": job.id, "runId": firing.run_id},
                grant=grant,
                answers_in_conversation=await self._router.answers_in_session(job, key),
            ),
        )
        key = (await self._submit(request)).run.session_key
        run = await self._runner.wait(firing.run_id, seconds=min(seconds + QUEUE_SECONDS, MAX_SECONDS))
        if run is None:
            await self._runner.abort(key, run_id=firing.run_id)
            run = await self._runner.wait(firing.run_id, seconds=RETRY_MOST * 2)
        if run is None:
            raise OpenClawError("the run did not end in time and could not be stopped")
        return run

    async def _submit(self, request: RunRequest) -> RunAdmission:
        """A disk that refuses for a moment must not cost a reminder. Submitting an id twice starts one run."""
        wait = RETRY_FIRST
        for _ in range(SUBMIT_TRIES):
            try:
                return await self._runner.submit(request)
            except StoreError as exc:
                logger.warning(
                    "cron: run %s can't be submitted yet (%s), next attempt in %g s", request.run_id, exc, wait
                )
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_MOST)
        return await self._runner.submit(request)

    async def _run_command(self, firing: JobFiring, payload: CommandPayload) -> FiringResult:
        await self._record_program_start(firing)
        limits = programs.ProgramLimits(
            seconds=COMMAND_SECONDS if payload.timeout_seconds is None else payload.timeout_seconds or MAX_SECONDS,
            quiet_seconds=payload.no_output_timeout_seconds,
            bytes=min(payload.output_max_bytes or programs.MAX_OUTPUT, programs.MAX_OUTPUT),
        )
        stdin = payload.input if payload.input is not None else firing.note
        ran = await programs.run_program(
            payload.argv, limits, cwd=payload.cwd, env=payload.env, stdin_text=stdin, guard=self._guard
        )
        return result_from_program(payload.argv[0], ran, self._now())

    # ---- the end -------------------------------------------------------------------------------------------------

    async def _finish(self, firing: JobFiring, result: FiringResult, event: QueuedEvent | None) -> None:
        outcome, wait = _build_outcome(firing, result, event, self._now(), self._settings()), RETRY_FIRST
        while True:
            try:
                job = await self._jobs.finish(firing, outcome)
                break
            except FiringNotClaimed:
                logger.warning(
                    "cron: firing %s was taken over by another process, its end is not stored", firing.run_id
                )
                return
            except StoreError as exc:
                logger.error(  # noqa: TRY400  (one line; it repeats)
                    "cron: the end of firing %s can't be stored (%s), next attempt in %g s", firing.run_id, exc, wait
                )
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_MOST)
        self._publish_end(firing, outcome, job)

    def _publish_end(self, firing: JobFiring, outcome: FiringOutcome, job: CronJob | None) -> None:
        due = None if job is None else job.state.next_run_at_ms
        payload = outcome.entry | ({} if due is None else {"nextRunAtMs": due})
        self._publish(RpcEvent(name="cron", payload=payload))
        if job is None:
            self._publish(RpcEvent(name="cron", payload={"jobId": firing.job.id, "action": "removed"}))


class JobSlots:
    """Lets in as many at once as the limit is when one more asks."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._used = 0
        self._freed = asyncio.Condition()

    async def __aenter__(self) -> None:
        async with self._freed:
            await self._freed.wait_for(lambda: self._used < self._limit())
            self._used += 1

    async def __aexit__(self, *_exc: object) -> None:
        self._used -= 1
        async with self._freed:
            self._freed.notify()


def _is_owner_job(job: CronJob) -> bool:
    """Whether its text is the owner's: an operator made it, and no session's agent has changed it since."""
    return job.origin is None


def _waits_for_prompt(job: CronJob) -> bool:
    """Whether its event is left for its session's next prompt. That prompt may be the owner's, so text that is not the
    owner's is given in a run of its own at once, with the job's rights."""
    return job.spec.wake_mode == "next-heartbeat" and _is_owner_job(job)


def _queue_event(firing: JobFiring, text: str, key: str, now: int) -> tuple[FiringResult, QueuedEvent]:
    event = QueuedEvent(session=key, text=text, at=now, key=firing.run_id, owner=_is_owner_job(firing.job))
    return FiringResult(status="ok", summary=text, session_key=key), event


def _build_outcome(
    firing: JobFiring, result: FiringResult, event: QueuedEvent | None, now: int, settings: CronSettings
) -> FiringOutcome:
    isolated = result.session_key is not None and ":cron:" in result.session_key
    retention = settings.retention_ms if isolated else None
    return FiringOutcome(
        entry=views.log_entry(firing, result, now),
        change_job=lambda job: apply_result(job, firing, result, now),
        event=event,
        reap_at=None if retention is None else now + retention,
        max_log_entries=settings.run_log.keep_lines,
    )


def _with_note(text: str, firing: JobFiring) -> str:
    return text if firing.note is None else f"{text}\n\n{firing.note}"


def _format_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
