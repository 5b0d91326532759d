"""Firings carried out: the agent asked or the program run, the result delivered, the end written down once."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from ...core.agents import Roster
from ...core.channel import Address
from ...core.errors import OpenClawError, StoreError
from ...core.jobs import (
    AgentTurn,
    AtOnce,
    Claimed,
    Command,
    CronBook,
    Ending,
    Firing,
    Job,
    OnExit,
    Queued,
    Stream,
    SystemEvent,
    Unclaimed,
)
from ...core.model import Json
from ...core.ports import Guard, Runner
from ...core.repositories import SessionBook
from ...core.rpc import Event, Fault, Publish
from ...core.sessions import Admission, NewSession, Run, RunRequest
from ...core.transcript import ANSWERS_THERE
from . import programs, views
from .alerts import Alerts
from .defaults import granted
from .delivery import NoRoute, Post, Report, Target, target_of
from .job_state import Result, settled
from .line_triggers import Stopped, Streams
from .outcome import end_of, judged, result_of, silence
from .session_targets import Homes
from .settings import Settings
from .slots import Slots

logger = logging.getLogger(__name__)

TURN_SECONDS: Final = 3600.0  # an agent's turn that names no limit, as the reference has it
COMMAND_SECONDS: Final = 600.0
LONGEST_SECONDS: Final = 24 * 3600.0
WATCH_SECONDS: Final = 7 * 24 * 3600.0  # a command a job waits for
NOTE: Final = 4000  # characters of what that command said
QUEUE_SECONDS: Final = 3600.0  # how long a turn may wait behind others in its session before it is given up
SUBMIT_TRIES: Final = 6  # about ten seconds in all
RETRY_FIRST, RETRY_MOST = 0.2, 5.0  # seconds between tries to write while the disk refuses
INTERRUPTED: Final = "interrupted: the gateway stopped while this program ran; it is not started a second time"


class Errands:
    """Each firing has a task; at most `settings().max_concurrent_runs` of them hold an agent or a program."""

    def __init__(
        self, book: CronBook, runner: Runner, sessions: SessionBook, post: Post, publish: Publish, *,
        roster: Callable[[], Roster], settings: Callable[[], Settings], now: Callable[[], int],
        guard: Guard | None = None,
    ) -> None:  # fmt: skip
        self._book, self._runner, self._sessions, self._post = book, runner, sessions, post
        self._publish, self._roster, self._settings, self._now = publish, roster, settings, now
        self._alerts = Alerts(post, settings=settings, now=now)
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = Slots(lambda: max(1, settings().max_concurrent_runs))
        self._guard = guard
        self.streams = Streams(guard)
        self.ended: Callable[[], None] = _nothing
        """Called when a firing is over: another may begin."""

    def __len__(self) -> int:
        return len(self._tasks)

    def at_once(self) -> AtOnce:
        """Knows how a firing ends that needs nobody: an event that waits for its session's next prompt.

        What it knows of the house it knows now: the store calls it from a thread of its own.
        """
        homes, settings = self._homes(), self._settings()

        def ending(firing: Firing) -> Ending | None:
            spec = firing.job.spec
            if not isinstance(spec.payload, SystemEvent) or not _waits(firing.job):
                return None
            if isinstance(spec.schedule, OnExit | Stream) or not spec.payload.text.strip():
                return None
            result, event = _noted(firing, spec.payload.text, homes.main(firing.job), firing.at)
            return _ending(firing, result, event, firing.at, settings)

        return ending

    def over(self, claimed: Claimed) -> None:
        """Tell of one that ended as it was claimed."""
        assert claimed.ending is not None
        self._publish(Event(name="cron", payload=views.started(claimed.firing)))
        self._publish_end(claimed.firing, claimed.ending, claimed.job)

    def begin(self, firing: Firing) -> None:
        task = asyncio.get_running_loop().create_task(self._carry_out(firing))
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a cron firing failed", exc_info=task.exception())
        self.ended()

    async def aclose(self) -> None:
        """What goes is left to whoever starts next: it is claimed, and its run is known by its name."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.streams.aclose()

    async def _carry_out(self, firing: Firing) -> None:
        self._publish(Event(name="cron", payload=views.started(firing)))
        try:
            result, event = await self._performed(firing)
        except asyncio.CancelledError:
            raise
        except OpenClawError as exc:
            result, event = Result(status="error", error=str(exc), completion="failed"), None
        except Exception:
            logger.exception("cron job %s failed", firing.job.id)
            words = "an internal error; see the gateway's log"
            result, event = Result(status="error", error=words, completion="failed"), None
        result = await self._alerts.told(firing, result, home=self.home(firing.job))
        await self._finish(firing, result, event)

    # ---- the work ------------------------------------------------------------------------------------------------

    async def _performed(self, firing: Firing) -> tuple[Result, Queued | None]:
        payload, schedule = firing.job.spec.payload, firing.job.spec.schedule
        if isinstance(schedule, OnExit) and not firing.manual:
            firing = await self._awaited(firing, schedule)
        if isinstance(schedule, Stream) and not firing.manual:
            try:
                firing = await self._streamed(firing, schedule)
            except Stopped as exc:
                return Result(status="skipped", error=str(exc)), None
        if isinstance(payload, SystemEvent):
            return await self._told(firing, payload)
        async with self._slots:
            if isinstance(payload, Command):
                result = await self._commanded(firing, payload)
            else:
                result = await self._asked(firing, payload)
        return await self._delivered(firing, result)

    async def _awaited(self, firing: Firing, watched: OnExit) -> Firing:
        """Start the command the job waits for; the firing, with how that ended."""
        await self._first_time(firing)
        limits = programs.Limits(seconds=WATCH_SECONDS, bytes=NOTE)
        ran = await programs.run(["sh", "-c", watched.command], limits, cwd=watched.cwd, guard=self._guard)
        told = f"The command `{watched.command}` {end_of(ran)}."
        said = (ran.out or ran.err)[-NOTE:]
        return msgspec.structs.replace(firing, note=f"{told}\n{said}" if said else told)

    async def _streamed(self, firing: Firing, schedule: Stream) -> Firing:
        """The firing, with what the job's program said."""
        job = firing.job
        if not self._settings().triggers.enabled:
            raise Stopped("streams are switched off here (cron.triggers.enabled)")

        async def still() -> bool:
            now = await self._book.get(job.id)
            return now is not None and now.spec.enabled and now.spec.schedule == schedule

        said = "" if firing.begun else await self.streams.batch(job, schedule, still)
        await self._first_time(firing)  # what was heard once is not told twice
        return msgspec.structs.replace(firing, note=said)

    async def _first_time(self, firing: Firing) -> None:
        """A program is about to be started: never a second time, whatever became of the first."""
        if firing.begun:
            raise OpenClawError(INTERRUPTED)
        if not await self._book.begin(firing.run_id):
            raise Unclaimed(firing.run_id)

    async def _told(self, firing: Firing, payload: SystemEvent) -> tuple[Result, Queued | None]:
        """To the main session: with its next prompt, or at once."""
        job, key = firing.job, self.home(firing.job)
        text = _with_note(payload.text, firing)
        if not text.strip():
            return Result(status="skipped", error="empty event text", completion="failed"), None
        if _waits(job):
            return _noted(firing, text, key, self._now())
        message = f"System: [{_stamp(self._now())}]\n{text}"
        try:
            run = await self._run(firing, key, message, seconds=TURN_SECONDS, options={})
        except Fault as fault:
            if not (fault.retryable and _is_owners(job)):
                raise
            return _noted(firing, text, key, self._now())  # too much waits there: it is told later
        result = result_of(run)
        if result.status == "ok" and silence(result.summary) is None and self._post.mailroom is not None:
            target, sessions = self._way(job, key)
            text = result.summary or ""
            await self._post.announce(target, text, key=firing.run_id, sessions=sessions, mirror=None, run=result.run)
        return result, None

    async def _asked(self, firing: Firing, payload: AgentTurn) -> Result:
        job = firing.job
        head, now = f"[cron:{job.id} {job.spec.name}]", _stamp(self._now())
        message = f"{head}\n{_with_note(payload.message, firing)}\n\nCurrent time: {now}"
        wanted = {
            "model": payload.model, "thinking": payload.thinking, "fallbacks": payload.fallbacks,
            "lightContext": payload.light_context, "toolsAllow": payload.tools_allow,
        }  # fmt: skip
        seconds = TURN_SECONDS if payload.timeout_seconds is None else payload.timeout_seconds or LONGEST_SECONDS
        options = {name: value for name, value in wanted.items() if value is not None}
        return result_of(
            await self._run(firing, self._homes().of_run(firing), message, seconds=seconds, options=options)
        )

    async def _run(self, firing: Firing, key: str, message: str, *, seconds: float, options: Json) -> Run:
        """The run of this firing's name: the one that was asked for before a crash, or a new one."""
        agent = self.agent(firing.job)
        self._roster().card(agent)
        kind = "main" if key == self.home(firing.job) else "cron" if ":cron:" in key else "custom"
        grant = await granted(firing.job, await self._conversation(firing.job), self._sessions)
        request = RunRequest(
            run_id=firing.run_id,
            session=NewSession(key=key, agent_id=agent, classification=kind, display_name=_title(firing, key)),
            message=message,
            mode="followup",
            timeout_ms=int(seconds * 1000),
            options={
                **options,
                "sender": "cron",
                "cron": {"jobId": firing.job.id, "runId": firing.run_id},
                "grant": msgspec.to_builtins(grant),
                **({ANSWERS_THERE: True} if await self._answers_there(firing.job, key) else {}),
            },
        )
        key = (await self._admitted(request)).run.session_key
        run = await self._runner.wait(firing.run_id, seconds=min(seconds + QUEUE_SECONDS, LONGEST_SECONDS))
        if run is None:
            await self._runner.abort(key, run_id=firing.run_id)
            run = await self._runner.wait(firing.run_id, seconds=RETRY_MOST * 2)
        if run is None:
            raise OpenClawError("the run did not end in time and could not be stopped")
        return run

    async def _admitted(self, request: RunRequest) -> Admission:
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

    async def _commanded(self, firing: Firing, payload: Command) -> Result:
        await self._first_time(firing)
        seconds = COMMAND_SECONDS if payload.timeout_seconds is None else payload.timeout_seconds or LONGEST_SECONDS
        limits = programs.Limits(
            seconds=seconds,
            quiet_seconds=payload.no_output_timeout_seconds,
            bytes=min(payload.output_max_bytes or programs.MOST_OUTPUT, programs.MOST_OUTPUT),
        )
        said = payload.input if payload.input is not None else firing.note
        ran = await programs.run(payload.argv, limits, cwd=payload.cwd, env=payload.env, said=said, guard=self._guard)
        severity = "info" if ran.code == 0 and ran.stopped is None else "error"
        message = f"{payload.argv[0]} {end_of(ran)}"
        note = {"ts": self._now(), "source": "exec", "severity": severity, "message": message, "exitCode": ran.code}
        text = f"stdout:\n{ran.out}\n\nstderr:\n{ran.err}" if ran.out and ran.err else ran.out or ran.err
        if ran.code == 0 and ran.stopped is None:
            return Result(status="ok", summary=text, diagnostics=(note,))
        return Result(status="error", error=message, summary=text, completion="failed", diagnostics=(note,))

    # ---- to whom -------------------------------------------------------------------------------------------------

    async def _delivered(self, firing: Firing, result: Result) -> tuple[Result, Queued | None]:
        delivery = firing.job.spec.delivery
        if delivery is None or delivery.mode == "none":
            wanted = None if delivery is None else {"intended": {"source": "explicit"}}
            return msgspec.structs.replace(result, delivery=wanted), None
        if result.status == "error" and delivery.mode == "announce":
            return views.with_report(result, Report(status="unknown", error=result.error)), None
        why = None if result.status == "error" else silence(result.summary)
        if why is not None:
            quiet = Report(status="not-delivered", delivered=False)
            return views.with_report(result, quiet, suppressed=why), None
        if delivery.mode == "webhook":
            body = views.finished(firing, result, self._now(), None)
            report = await self._post.webhook(
                delivery.to or "", body, key=firing.run_id, chosen=firing.job.origin is None
            )
            return judged(result, report, lenient=bool(delivery.best_effort)), None
        report = await self._announced(firing, result)
        if delivery.completion_destination is not None:
            body = views.finished(firing, result, self._now(), None)
            there = delivery.completion_destination.to
            await self._post.webhook(there, body, key=firing.run_id, chosen=firing.job.origin is None)
        event = None
        if report.status == "not-delivered":
            # It is not lost: the main session's agent hears of it and can look it up. What the run answered, and what
            # its maker called it, are not in it: this is heard as the owner's words.
            text = f"A job could not deliver its result. The tool cron shows it: action runs, jobId {firing.job.id}."
            event = Queued(session=self.home(firing.job), text=text, at=self._now(), key=firing.run_id, owner=True)
        return judged(result, report, lenient=bool(delivery.best_effort)), event

    async def _announced(self, firing: Firing, result: Result) -> Report:
        job, delivery = firing.job, firing.job.spec.delivery
        assert delivery is not None
        target, sessions = self._way(job, result.session_key)
        if (
            job.spec.session_target not in ("isolated", "main")
            and not target.said
            and (self._post.mailroom is None or not await self._post.mailroom.route(sessions[0]))
        ):
            return Report(status="delivered", delivered=True)  # it stands in the conversation it was meant for
        text = result.summary or ""
        return await self._post.announce(
            target, text, key=firing.run_id, sessions=sessions, mirror=self.home(job), run=result.run
        )

    # ---- the end -------------------------------------------------------------------------------------------------

    async def _finish(self, firing: Firing, result: Result, event: Queued | None) -> None:
        ending, wait = _ending(firing, result, event, self._now(), self._settings()), RETRY_FIRST
        while True:
            try:
                job = await self._book.finish(firing, ending)
                break
            except Unclaimed:
                logger.warning("cron firing %s is another process's now", firing.run_id)
                return
            except StoreError as exc:
                logger.error("cron firing %s ended but can't be stored, trying again: %s", firing.run_id, exc)  # noqa: TRY400  (one line; it repeats)
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_MOST)
        self._publish_end(firing, ending, job)

    def _publish_end(self, firing: Firing, ending: Ending, job: Job | None) -> None:
        due = None if job is None else job.state.next_run_at_ms
        told = ending.entry | ({} if due is None else {"nextRunAtMs": due})
        self._publish(Event(name="cron", payload=told))
        if job is None:
            self._publish(Event(name="cron", payload={"jobId": firing.job.id, "action": "removed"}))

    # ---- where ---------------------------------------------------------------------------------------------------

    async def _conversation(self, job: Job) -> Address | None:
        """Where the job's result goes, if it goes to a conversation; else where its maker is."""
        delivery, target = job.spec.delivery, None
        if delivery is not None and delivery.mode == "announce":
            target = target_of(delivery)
        elif job.origin is not None:
            target = Target()
        if target is None:
            return None
        sessions = tuple(key for key in (job.spec.session_key, job.origin, self.home(job)) if key)
        with contextlib.suppress(NoRoute):
            return await self._post.resolve(target, sessions)
        return None

    def _way(self, job: Job, key: str | None) -> tuple[Target, tuple[str, ...]]:
        """Where the answer of its run in this session is announced: as far as the job says, and the sessions that are
        asked for the rest."""
        target = target_of(job.spec.delivery) if job.spec.delivery else Target()
        if isinstance(job.spec.payload, SystemEvent):
            return target, (key or self.home(job),)
        inside = job.spec.session_target not in ("isolated", "main")
        named = (job.spec.session_key or (key if inside else None), self.home(job))
        return target, tuple(dict.fromkeys(one for one in named if one))

    async def _answers_there(self, job: Job, key: str) -> bool:
        """Whether the answer of its run in this session is announced to the session's own conversation."""
        delivery, mailroom = job.spec.delivery, self._post.mailroom
        is_announced = isinstance(job.spec.payload, SystemEvent) or (delivery and delivery.mode == "announce")
        if mailroom is None or not is_announced or (own := await mailroom.route(key)) is None:
            return False
        with contextlib.suppress(NoRoute):
            there = await self._post.resolve(*self._way(job, key))
            return (there.channel, there.account, there.to) == (own.channel, own.account, own.to)
        return False

    def _homes(self) -> Homes:
        return Homes(self._roster())

    def agent(self, job: Job) -> str:
        return self._homes().agent(job)

    def home(self, job: Job) -> str:
        """The session main jobs speak to, and where results go that find no way out."""
        return self._homes().main(job)


def _nothing() -> None:
    return


def _is_owners(job: Job) -> bool:
    """Whether its words are the owner's: an operator planned it, and no session's agent has changed it since."""
    return job.origin is None


def _waits(job: Job) -> bool:
    """Whether its event is left for the next prompt of its session. That prompt may be the owner's, so words that are
    not are told at once, in a run of the job's own standing."""
    return job.spec.wake_mode == "next-heartbeat" and _is_owners(job)


def _noted(firing: Firing, text: str, key: str, now: int) -> tuple[Result, Queued]:
    """Kept for the next prompt of a session."""
    event = Queued(session=key, text=text, at=now, key=firing.run_id, owner=_is_owners(firing.job))
    return Result(status="ok", summary=text, session_key=key), event


def _ending(firing: Firing, result: Result, event: Queued | None, now: int, settings: Settings) -> Ending:
    isolated = result.session_key is not None and ":cron:" in result.session_key
    retention = settings.retention_ms if isolated else None
    return Ending(
        entry=views.entry(firing, result, now),
        settle=lambda job: settled(job, firing, result, now),
        event=event,
        reap_at=None if retention is None else now + retention,
        keep=settings.run_log.keep_lines,
    )


def _with_note(text: str, firing: Firing) -> str:
    return text if firing.note is None else f"{text}\n\n{firing.note}"


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _title(firing: Firing, key: str) -> str | None:
    return f"Cron: {firing.job.spec.name}"[:500] if ":cron:" in key else None
