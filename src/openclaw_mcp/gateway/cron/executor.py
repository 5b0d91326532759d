"""Firings carried out: the agent asked or the program run, the result delivered, the end written down once."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from ...core.agents import AgentRoster
from ...core.channel import ChatAddress
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
from . import programs, views
from .alerts import FailureAlerts
from .defaults import build_grant
from .delivery import DeliveryReport, DeliveryTarget, NoRoute, ResultDelivery, delivery_target
from .job_state import FiringResult, apply_result
from .line_triggers import StreamSources, StreamStopped
from .outcome import apply_delivery_report, describe_exit, result_from_run, suppression_reason
from .session_targets import SessionTargets
from .settings import CronSettings
from .slots import JobSlots

logger = logging.getLogger(__name__)

TURN_SECONDS: Final = 3600.0  # an agent's turn that names no limit, as the reference has it
COMMAND_SECONDS: Final = 600.0
MAX_SECONDS: Final = 24 * 3600.0
WATCH_SECONDS: Final = 7 * 24 * 3600.0  # a command a job waits for
NOTE_LENGTH: Final = 4000  # characters of what that command said
QUEUE_SECONDS: Final = 3600.0  # how long a turn may wait behind others in its session before it is given up
SUBMIT_TRIES: Final = 6  # about ten seconds in all
RETRY_FIRST, RETRY_MOST = 0.2, 5.0  # seconds between tries to write while the disk refuses
INTERRUPTED: Final = "interrupted: the gateway stopped while this program ran; it is not started a second time"


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
        self._jobs, self._runner, self._sessions, self._delivery = jobs, runner, sessions, delivery
        self._publish, self._roster, self._settings, self._now = publish, roster, settings, now
        self._alerts = FailureAlerts(delivery, settings=settings, now=now)
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = JobSlots(lambda: max(1, settings().max_concurrent_runs))
        self._guard = guard
        self.streams = StreamSources(guard)
        self.on_end: Callable[[], None] = _do_nothing
        """Called when a firing is over: another may begin."""

    def __len__(self) -> int:
        return len(self._tasks)

    def instant_outcome(self) -> InstantOutcome:
        """Knows how a firing ends that needs nobody: an event that waits for its session's next prompt.

        What it knows of the house it knows now: the store calls it from a thread of its own.
        """
        homes, settings = self._session_targets(), self._settings()

        def ending(firing: JobFiring) -> FiringOutcome | None:
            spec = firing.job.spec
            if not isinstance(spec.payload, SystemEventPayload) or not _waits_for_prompt(firing.job):
                return None
            if isinstance(spec.schedule, OnExitSchedule | StreamSchedule) or not spec.payload.text.strip():
                return None
            result, event = _queue_event(firing, spec.payload.text, homes.main_session(firing.job), firing.at)
            return _build_outcome(firing, result, event, firing.at, settings)

        return ending

    def publish_instant_end(self, claimed: ClaimedFiring) -> None:
        """Tell of one that ended as it was claimed."""
        assert claimed.outcome is not None
        self._publish(RpcEvent(name="cron", payload=views.start_event(claimed.firing)))
        self._publish_end(claimed.firing, claimed.outcome, claimed.job)

    def start(self, firing: JobFiring) -> None:
        task = asyncio.get_running_loop().create_task(self._execute(firing))
        self._tasks.add(task)
        task.add_done_callback(self._handle_task_end)

    def _handle_task_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a cron firing failed", exc_info=task.exception())
        self.on_end()

    async def aclose(self) -> None:
        """What goes is left to whoever starts next: it is claimed, and its run is known by its name."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.streams.aclose()

    async def _execute(self, firing: JobFiring) -> None:
        self._publish(RpcEvent(name="cron", payload=views.start_event(firing)))
        try:
            result, event = await self._perform(firing)
        except asyncio.CancelledError:
            raise
        except OpenClawError as exc:
            result, event = FiringResult(status="error", error=str(exc), completion="failed"), None
        except Exception:
            logger.exception("cron job %s failed", firing.job.id)
            words = "an internal error; see the gateway's log"
            result, event = FiringResult(status="error", error=words, completion="failed"), None
        result = await self._alerts.send_alert(firing, result, main_session=self.main_session(firing.job))
        await self._finish(firing, result, event)

    # ---- the work ------------------------------------------------------------------------------------------------

    async def _perform(self, firing: JobFiring) -> tuple[FiringResult, QueuedEvent | None]:
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
        return await self._deliver(firing, result)

    async def _await_command(self, firing: JobFiring, schedule: OnExitSchedule) -> JobFiring:
        """Start the command the job waits for; the firing, with how that ended."""
        await self._record_program_start(firing)
        limits = programs.ProgramLimits(seconds=WATCH_SECONDS, bytes=NOTE_LENGTH)
        ran = await programs.run_program(["sh", "-c", schedule.command], limits, cwd=schedule.cwd, guard=self._guard)
        told = f"The command `{schedule.command}` {describe_exit(ran)}."
        said = (ran.stdout or ran.stderr)[-NOTE_LENGTH:]
        return msgspec.structs.replace(firing, note=f"{told}\n{said}" if said else told)

    async def _read_stream(self, firing: JobFiring, schedule: StreamSchedule) -> JobFiring:
        """The firing, with what the job's program said."""
        job = firing.job
        if not self._settings().triggers.enabled:
            raise StreamStopped("streams are switched off here (cron.triggers.enabled)")

        async def still() -> bool:
            now = await self._jobs.get(job.id)
            return now is not None and now.spec.enabled and now.spec.schedule == schedule

        said = "" if firing.begun else await self.streams.next_batch(job, schedule, still)
        await self._record_program_start(firing)  # what was heard once is not told twice
        return msgspec.structs.replace(firing, note=said)

    async def _record_program_start(self, firing: JobFiring) -> None:
        """A program is about to be started: never a second time, whatever became of the first."""
        if firing.begun:
            raise OpenClawError(INTERRUPTED)
        if not await self._jobs.begin(firing.run_id):
            raise FiringNotClaimed(firing.run_id)

    async def _deliver_event(
        self, firing: JobFiring, payload: SystemEventPayload
    ) -> tuple[FiringResult, QueuedEvent | None]:
        """To the main session: with its next prompt, or at once."""
        job, key = firing.job, self.main_session(firing.job)
        text = _with_note(payload.text, firing)
        if not text.strip():
            return FiringResult(status="skipped", error="empty event text", completion="failed"), None
        if _waits_for_prompt(job):
            return _queue_event(firing, text, key, self._now())
        message = f"System: [{_format_time(self._now())}]\n{text}"
        try:
            run = await self._run_in_session(firing, key, message, seconds=TURN_SECONDS, options=RunOptions())
        except RpcError as fault:
            if not (fault.retryable and _is_owner_job(job)):
                raise
            return _queue_event(firing, text, key, self._now())  # too much waits there: it is told later
        result = result_from_run(run)
        if result.status == "ok" and suppression_reason(result.summary) is None and self._delivery.channels is not None:
            target, sessions = self._announce_target(job, key)
            text = result.summary or ""
            await self._delivery.announce(
                target, text, key=firing.run_id, sessions=sessions, mirror_session=None, run=result.run
            )
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
        return result_from_run(
            await self._run_in_session(
                firing, self._session_targets().run_session(firing), message, seconds=seconds, options=options
            )
        )

    async def _run_in_session(
        self, firing: JobFiring, key: str, message: str, *, seconds: float, options: RunOptions
    ) -> Run:
        """The run of this firing's name: the one that was asked for before a crash, or a new one."""
        agent = self.agent_id(firing.job)
        self._roster().get_agent(agent)
        kind = "main" if key == self.main_session(firing.job) else "cron" if ":cron:" in key else "custom"
        grant = await build_grant(firing.job, await self._result_address(firing.job), self._sessions)
        request = RunRequest(
            run_id=firing.run_id,
            session=NewSession(key=key, agent_id=agent, classification=kind, display_name=_session_title(firing, key)),
            message=message,
            mode="followup",
            timeout_ms=int(seconds * 1000),
            options=msgspec.structs.replace(
                options,
                sender="cron",
                cron={"jobId": firing.job.id, "runId": firing.run_id},
                grant=grant,
                answers_in_conversation=await self._answers_in_session(firing.job, key),
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
        """A disk that refuses for a moment must not cost a reminder. Asking twice under one name asks once."""
        wait = RETRY_FIRST
        for _ in range(SUBMIT_TRIES):
            try:
                return await self._runner.submit(request)
            except StoreError as exc:
                logger.warning("cron run %s can't be admitted yet: %s", request.run_id, exc)
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_MOST)
        return await self._runner.submit(request)

    async def _run_command(self, firing: JobFiring, payload: CommandPayload) -> FiringResult:
        await self._record_program_start(firing)
        seconds = COMMAND_SECONDS if payload.timeout_seconds is None else payload.timeout_seconds or MAX_SECONDS
        limits = programs.ProgramLimits(
            seconds=seconds,
            quiet_seconds=payload.no_output_timeout_seconds,
            bytes=min(payload.output_max_bytes or programs.MAX_OUTPUT, programs.MAX_OUTPUT),
        )
        said = payload.input if payload.input is not None else firing.note
        ran = await programs.run_program(
            payload.argv, limits, cwd=payload.cwd, env=payload.env, stdin_text=said, guard=self._guard
        )
        severity = "info" if ran.exit_code == 0 and ran.stop_reason is None else "error"
        message = f"{payload.argv[0]} {describe_exit(ran)}"
        note = {
            "ts": self._now(),
            "source": "exec",
            "severity": severity,
            "message": message,
            "exitCode": ran.exit_code,
        }
        text = (
            f"stdout:\n{ran.stdout}\n\nstderr:\n{ran.stderr}" if ran.stdout and ran.stderr else ran.stdout or ran.stderr
        )
        if ran.exit_code == 0 and ran.stop_reason is None:
            return FiringResult(status="ok", summary=text, diagnostics=(note,))
        return FiringResult(status="error", error=message, summary=text, completion="failed", diagnostics=(note,))

    # ---- to whom -------------------------------------------------------------------------------------------------

    async def _deliver(self, firing: JobFiring, result: FiringResult) -> tuple[FiringResult, QueuedEvent | None]:
        delivery = firing.job.spec.delivery
        if delivery is None or delivery.mode == "none":
            wanted = None if delivery is None else {"intended": {"source": "explicit"}}
            return msgspec.structs.replace(result, delivery=wanted), None
        if result.status == "error" and delivery.mode == "announce":
            return views.with_report(result, DeliveryReport(status="unknown", error=result.error)), None
        why = None if result.status == "error" else suppression_reason(result.summary)
        if why is not None:
            quiet = DeliveryReport(status="not-delivered", delivered=False)
            return views.with_report(result, quiet, suppressed=why), None
        if delivery.mode == "webhook":
            body = views.finish_event(firing, result, self._now(), None)
            report = await self._delivery.post_webhook(
                delivery.to or "", body, key=firing.run_id, by_operator=firing.job.origin is None
            )
            return apply_delivery_report(result, report, best_effort=bool(delivery.best_effort)), None
        report = await self._announce(firing, result)
        if delivery.completion_destination is not None:
            body = views.finish_event(firing, result, self._now(), None)
            there = delivery.completion_destination.to
            await self._delivery.post_webhook(there, body, key=firing.run_id, by_operator=firing.job.origin is None)
        event = None
        if report.status == "not-delivered":
            # It is not lost: the main session's agent hears of it and can look it up. What the run answered, and what
            # its maker called it, are not in it: this is heard as the owner's words.
            text = f"A job could not deliver its result. The tool cron shows it: action runs, jobId {firing.job.id}."
            event = QueuedEvent(
                session=self.main_session(firing.job), text=text, at=self._now(), key=firing.run_id, owner=True
            )
        return apply_delivery_report(result, report, best_effort=bool(delivery.best_effort)), event

    async def _announce(self, firing: JobFiring, result: FiringResult) -> DeliveryReport:
        job, delivery = firing.job, firing.job.spec.delivery
        assert delivery is not None
        target, sessions = self._announce_target(job, result.session_key)
        if (
            job.spec.session_target not in ("isolated", "main")
            and not target.is_explicit
            and (self._delivery.channels is None or not await self._delivery.channels.find_address(sessions[0]))
        ):
            return DeliveryReport(status="delivered", delivered=True)  # it stands in the conversation it was meant for
        text = result.summary or ""
        return await self._delivery.announce(
            target, text, key=firing.run_id, sessions=sessions, mirror_session=self.main_session(job), run=result.run
        )

    # ---- the end -------------------------------------------------------------------------------------------------

    async def _finish(self, firing: JobFiring, result: FiringResult, event: QueuedEvent | None) -> None:
        ending, wait = _build_outcome(firing, result, event, self._now(), self._settings()), RETRY_FIRST
        while True:
            try:
                job = await self._jobs.finish(firing, ending)
                break
            except FiringNotClaimed:
                logger.warning("cron firing %s is another process's now", firing.run_id)
                return
            except StoreError as exc:
                logger.error("cron firing %s ended but can't be stored, trying again: %s", firing.run_id, exc)  # noqa: TRY400  (one line; it repeats)
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_MOST)
        self._publish_end(firing, ending, job)

    def _publish_end(self, firing: JobFiring, outcome: FiringOutcome, job: CronJob | None) -> None:
        due = None if job is None else job.state.next_run_at_ms
        told = outcome.entry | ({} if due is None else {"nextRunAtMs": due})
        self._publish(RpcEvent(name="cron", payload=told))
        if job is None:
            self._publish(RpcEvent(name="cron", payload={"jobId": firing.job.id, "action": "removed"}))

    # ---- where ---------------------------------------------------------------------------------------------------

    async def _result_address(self, job: CronJob) -> ChatAddress | None:
        """Where the job's result goes, if it goes to a conversation; else where its maker is."""
        delivery, target = job.spec.delivery, None
        if delivery is not None and delivery.mode == "announce":
            target = delivery_target(delivery)
        elif job.origin is not None:
            target = DeliveryTarget()
        if target is None:
            return None
        sessions = tuple(key for key in (job.spec.session_key, job.origin, self.main_session(job)) if key)
        with contextlib.suppress(NoRoute):
            return await self._delivery.resolve(target, sessions)
        return None

    def _announce_target(self, job: CronJob, key: str | None) -> tuple[DeliveryTarget, tuple[str, ...]]:
        """Where the answer of its run in this session is announced: as far as the job says, and the sessions that are
        asked for the rest."""
        target = delivery_target(job.spec.delivery) if job.spec.delivery else DeliveryTarget()
        if isinstance(job.spec.payload, SystemEventPayload):
            return target, (key or self.main_session(job),)
        inside = job.spec.session_target not in ("isolated", "main")
        named = (job.spec.session_key or (key if inside else None), self.main_session(job))
        return target, tuple(dict.fromkeys(one for one in named if one))

    async def _answers_in_session(self, job: CronJob, key: str) -> bool:
        """Whether the answer of its run in this session is announced to the session's own conversation."""
        delivery, mailroom = job.spec.delivery, self._delivery.channels
        is_announced = isinstance(job.spec.payload, SystemEventPayload) or (delivery and delivery.mode == "announce")
        if mailroom is None or not is_announced or (own := await mailroom.find_address(key)) is None:
            return False
        with contextlib.suppress(NoRoute):
            there = await self._delivery.resolve(*self._announce_target(job, key))
            return (there.channel, there.account, there.to) == (own.channel, own.account, own.to)
        return False

    def _session_targets(self) -> SessionTargets:
        return SessionTargets(self._roster())

    def agent_id(self, job: CronJob) -> str:
        return self._session_targets().agent_id(job)

    def main_session(self, job: CronJob) -> str:
        """The session main jobs speak to, and where results go that find no way out."""
        return self._session_targets().main_session(job)


def _do_nothing() -> None:
    return


def _is_owner_job(job: CronJob) -> bool:
    """Whether its words are the owner's: an operator planned it, and no session's agent has changed it since."""
    return job.origin is None


def _waits_for_prompt(job: CronJob) -> bool:
    """Whether its event is left for the next prompt of its session. That prompt may be the owner's, so words that are
    not are told at once, in a run of the job's own standing."""
    return job.spec.wake_mode == "next-heartbeat" and _is_owner_job(job)


def _queue_event(firing: JobFiring, text: str, key: str, now: int) -> tuple[FiringResult, QueuedEvent]:
    """Kept for the next prompt of a session."""
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


def _session_title(firing: JobFiring, key: str) -> str | None:
    return f"Cron: {firing.job.spec.name}"[:500] if ":cron:" in key else None
