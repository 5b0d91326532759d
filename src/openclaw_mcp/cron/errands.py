"""Firings carried out: the agent asked or the program run, the result delivered, the end written down once."""

import asyncio
import logging
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ..core.books import SessionBook
from ..core.errors import OpenClawError, StoreError
from ..core.jobs import AgentTurn, Command, CronBook, Firing, Job, OnExit, Queued, SystemEvent, Unclaimed
from ..core.model import Json
from ..core.ports import Runner
from ..core.records import Admission, NewSession, Run, RunRequest
from ..core.roster import Roster
from ..core.rpc import Event, Fault, Publish
from . import programs, shapes
from .delivery import Post, Report, Target, target_of
from .outcome import end_of, judged, result_of, silence
from .rules import Result, settled
from .settings import Settings

logger = logging.getLogger(__name__)

TURN_SECONDS: Final = 3600.0  # an agent's turn that names no limit, as the reference has it
COMMAND_SECONDS: Final = 600.0
LONGEST_SECONDS: Final = 24 * 3600.0
WATCH_SECONDS: Final = 7 * 24 * 3600.0  # a command a job waits for
NOTE: Final = 4000  # characters of what that command said
QUEUE_SECONDS: Final = 3600.0  # how long a turn may wait behind others in its session before it is given up
SUBMIT_TRIES: Final = 6  # about ten seconds in all
RETRY_FIRST, RETRY_MOST = 0.2, 5.0  # seconds between tries to write while the disk refuses
ALERT_AFTER: Final = 2  # failures in a row
ALERT_COOLDOWN_MS: Final = 3_600_000
INTERRUPTED: Final = "interrupted: the gateway stopped while this program ran; it is not started a second time"


class Errands:
    """Each firing has a task; at most `settings().max_concurrent_runs` of them hold an agent or a program."""

    def __init__(
        self, book: CronBook, runner: Runner, sessions: SessionBook, post: Post, publish: Publish, *,
        roster: Callable[[], Roster], settings: Callable[[], Settings], now: Callable[[], int],
    ) -> None:  # fmt: skip
        self._book, self._runner, self._sessions, self._post = book, runner, sessions, post
        self._publish, self._roster, self._settings, self._now = publish, roster, settings, now
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = _Slots(lambda: max(1, settings().max_concurrent_runs))
        self.ended: Callable[[], None] = _nothing
        """Called when a firing is over: another may begin."""

    def __len__(self) -> int:
        return len(self._tasks)

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

    async def _carry_out(self, firing: Firing) -> None:
        self._publish(Event(name="cron", payload=shapes.started(firing)))
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
        result = await self._alerted(firing, result)
        await self._finish(firing, result, event)

    # ---- the work ------------------------------------------------------------------------------------------------

    async def _performed(self, firing: Firing) -> tuple[Result, Queued | None]:
        payload, schedule = firing.job.spec.payload, firing.job.spec.schedule
        if isinstance(schedule, OnExit) and not firing.manual:
            firing = await self._awaited(firing, schedule)
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
        ran = await programs.run(["sh", "-c", watched.command], limits, cwd=watched.cwd)
        told = f"The command `{watched.command}` {end_of(ran)}."
        said = (ran.out or ran.err)[-NOTE:]
        return msgspec.structs.replace(firing, note=f"{told}\n{said}" if said else told)

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
        event = Queued(session=key, text=text, at=self._now(), key=firing.run_id)
        if job.spec.wake_mode == "next-heartbeat":
            return Result(status="ok", summary=text, session_key=key), event
        message = f"System: [{_stamp(self._now())}]\n{text}"
        try:
            run = await self._run(firing, key, message, seconds=TURN_SECONDS, options={})
        except Fault as fault:
            if not fault.retryable:
                raise
            return Result(status="ok", summary=text, session_key=key), event  # too much waits there: it is told later
        result = result_of(run)
        if result.status == "ok" and silence(result.summary) is None and self._post.mailroom is not None:
            target = target_of(job.spec.delivery) if job.spec.delivery else Target()
            text = result.summary or ""
            await self._post.announce(target, text, key=firing.run_id, sessions=(key,), mirror=None, run=result.run)
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
        return result_of(await self._run(firing, self._session(firing), message, seconds=seconds, options=options))

    async def _run(self, firing: Firing, key: str, message: str, *, seconds: float, options: Json) -> Run:
        """The run of this firing's name: the one that was asked for before a crash, or a new one."""
        agent = self.agent(firing.job)
        self._roster().card(agent)
        kind = "main" if key == self.home(firing.job) else "cron" if ":cron:" in key else "custom"
        request = RunRequest(
            run_id=firing.run_id,
            session=NewSession(key=key, agent_id=agent, classification=kind, display_name=_title(firing, key)),
            message=message,
            mode="followup",
            timeout_ms=int(seconds * 1000),
            options={**options, "sender": "cron", "cron": {"jobId": firing.job.id, "runId": firing.run_id}},
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
        ran = await programs.run(payload.argv, limits, cwd=payload.cwd, env=payload.env, said=said)
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
            return shapes.with_report(result, Report(status="unknown", error=result.error)), None
        why = None if result.status == "error" else silence(result.summary)
        if why is not None:
            quiet = Report(status="not-delivered", delivered=False)
            return shapes.with_report(result, quiet, suppressed=why), None
        if delivery.mode == "webhook":
            body = shapes.finished(firing, result, self._now(), None)
            report = await self._post.webhook(delivery.to or "", body, key=firing.run_id)
            return judged(result, report, lenient=bool(delivery.best_effort)), None
        report = await self._announced(firing, result)
        if delivery.completion_destination is not None:
            body = shapes.finished(firing, result, self._now(), None)
            await self._post.webhook(delivery.completion_destination.to, body, key=firing.run_id)
        event = None
        if report.status == "not-delivered":
            # It is not lost: the main session's agent hears of it and can pass it on.
            text = f"The job {firing.job.spec.name!r} could not deliver its result: {result.summary}"
            event = Queued(session=self.home(firing.job), text=text, at=self._now(), key=firing.run_id)
        return judged(result, report, lenient=bool(delivery.best_effort)), event

    async def _announced(self, firing: Firing, result: Result) -> Report:
        job, delivery = firing.job, firing.job.spec.delivery
        assert delivery is not None
        target, home = target_of(delivery), self.home(job)
        inside = job.spec.session_target not in ("isolated", "main")
        key = job.spec.session_key or (result.session_key if inside else None)
        sessions = tuple(dict.fromkeys(k for k in (key, home) if k))
        if (
            inside
            and not target.said
            and (self._post.mailroom is None or not await self._post.mailroom.route(key or home))
        ):
            return Report(status="delivered", delivered=True)  # it stands in the conversation it was meant for
        text = result.summary or ""
        return await self._post.announce(
            target, text, key=firing.run_id, sessions=sessions, mirror=home, run=result.run
        )

    async def _alerted(self, firing: Firing, result: Result) -> Result:
        """Tell somebody of a job that keeps failing, now and then."""
        spec, state, own = firing.job.spec, firing.job.state, firing.job.spec.failure_alert
        alert = None if isinstance(own, bool) else own
        wide = self._settings().failure_alert
        if own is False or (alert is None and wide is not None and not wide.enabled):
            return result
        rules: Any = alert or wide
        counted = result.status == "error" or (result.status == "skipped" and rules and rules.include_skipped)
        streak = (state.consecutive_errors or 0) + (state.consecutive_skipped or 0) + 1
        cooldown = rules.cooldown_ms if rules and rules.cooldown_ms is not None else ALERT_COOLDOWN_MS
        rested = self._now() - (state.last_failure_alert_at_ms or 0) >= cooldown
        if not counted or not rested or streak < ((rules and rules.after) or ALERT_AFTER):
            return result
        where: Any = alert if alert and alert.to else (spec.delivery and spec.delivery.failure_destination) or rules
        if where is None and (spec.delivery is None or spec.delivery.mode != "announce" or spec.delivery.best_effort):
            return result
        where = where or spec.delivery
        text = f"The job {spec.name!r} failed {streak} times in a row: {result.error}"
        if getattr(where, "mode", None) == "webhook" and where.to:
            body = shapes.finished(firing, result, self._now(), None) | {"alert": text}
            report = await self._post.webhook(where.to, body, key=f"{firing.run_id}:alert")
        else:
            sessions = tuple(k for k in (spec.session_key, self.home(firing.job)) if k)
            key = f"{firing.run_id}:alert"
            report = await self._post.announce(target_of(where), text, key=key, sessions=sessions, mirror=None)
        told = {"delivered": bool(report.delivered), "status": report.status}
        return shapes.with_alert(result, told | ({"error": report.error} if report.error else {}))

    # ---- the end -------------------------------------------------------------------------------------------------

    async def _finish(self, firing: Firing, result: Result, event: Queued | None) -> None:
        now, wait = self._now(), RETRY_FIRST
        entry = shapes.entry(firing, result, now)
        retention = self._settings().retention_ms
        isolated = result.session_key is not None and ":cron:" in result.session_key
        reap_at = now + retention if isolated and retention is not None else None
        while True:
            try:
                job = await self._book.finish(
                    firing, entry, lambda job: settled(job, firing, result, now), event=event, reap_at=reap_at
                )
                break
            except Unclaimed:
                logger.warning("cron firing %s is another process's now", firing.run_id)
                return
            except StoreError as exc:
                logger.error("cron firing %s ended but can't be stored, trying again: %s", firing.run_id, exc)  # noqa: TRY400  (one line; it repeats)
                await asyncio.sleep(wait)
                wait = min(wait * 2, RETRY_MOST)
        due = None if job is None else job.state.next_run_at_ms
        self._publish(Event(name="cron", payload=shapes.finished(firing, result, now, due)))
        if job is None:
            self._publish(Event(name="cron", payload={"jobId": firing.job.id, "action": "removed"}))

    # ---- where ---------------------------------------------------------------------------------------------------

    def agent(self, job: Job) -> str:
        return job.spec.agent_id or self._roster().default_id

    def home(self, job: Job) -> str:
        """The session main jobs speak to, and where results go that find no way out."""
        if job.spec.session_target == "main" and job.spec.session_key:
            return self._full(job, job.spec.session_key)
        return f"agent:{self.agent(job)}:{self._roster().main_key}"

    def _session(self, firing: Firing) -> str:
        job, target = firing.job, firing.job.spec.session_target
        if target == "current" and job.spec.session_key:
            return self._full(job, job.spec.session_key)
        if target.startswith("session:"):
            return self._full(job, target.removeprefix("session:"))
        own = uuid.uuid5(uuid.NAMESPACE_URL, firing.run_id)  # the same when the firing is taken up after a crash
        return f"agent:{self.agent(job)}:cron:{job.id}:run:{own}"

    def _full(self, job: Job, key: str) -> str:
        key = key.strip().lower()
        if key.startswith("agent:"):
            return key
        main = self._roster().main_key
        return f"agent:{self.agent(job)}:{main if key in ('main', main) else key}"


def _nothing() -> None:
    return


class _Slots:
    """As many at once as the setting says when one is wanted."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._used = 0
        self._freed = asyncio.Condition()

    async def __aenter__(self) -> None:
        async with self._freed:
            await self._freed.wait_for(lambda: self._used < self._most())
            self._used += 1

    async def __aexit__(self, *_exc: object) -> None:
        self._used -= 1
        async with self._freed:
            self._freed.notify()


def _with_note(text: str, firing: Firing) -> str:
    return text if firing.note is None else f"{text}\n\n{firing.note}"


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _title(firing: Firing, key: str) -> str | None:
    return f"Cron: {firing.job.spec.name}"[:500] if ":cron:" in key else None
