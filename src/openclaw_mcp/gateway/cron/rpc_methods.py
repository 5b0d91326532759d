"""`cron.*` and `wake`: jobs added, changed, run and looked at."""

import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import Meta, Struct

from ...core.agents import Roster
from ...core.channel import Mailroom
from ...core.jobs import (
    Command,
    CronBook,
    Every,
    Job,
    JobQuery,
    JobState,
    LogQuery,
    OnExit,
    Queued,
    Spec,
    Stream,
    replaced,
)
from ...core.model import Caller, Json
from ...core.ports import Guard, Runner
from ...core.repositories import SessionBook
from ...core.rpc import ADMIN, READ, SAFE_INTEGER, WRITE, Event, Fault, Method, Publish, RpcCall, read_params
from ...core.session_target import passed_on
from ...core.sessions import NewSession, RunRequest
from . import views
from .defaults import filled, same_hooks
from .delivery import Post
from .executor import Errands
from .job_state import armed
from .parsing import patched, spec_of
from .permissions import Reach, other_deeds, taken_over
from .redaction import Hide, hidden, hide_all, refuse_operators_program, sees_programs
from .scheduler import Clock, Time, WallTime
from .session_targets import Homes
from .settings import Settings, settings_of

MOST_JOBS: Final = 20_000  # twice what was measured; a program gone wrong must not fill the disk
MOST_PER_PAGE: Final = 200
WRITES_PER_MINUTE: Final = 600
Name = Annotated[str, Meta(min_length=1)]
Page = Annotated[int, Meta(ge=1, le=MOST_PER_PAGE)]
Count = Annotated[int, Meta(ge=0, le=SAFE_INTEGER)]
Direction = Literal["asc", "desc"]


class _Params(Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: Name | None = None


class ListParams(_Params, frozen=True, kw_only=True):
    include_disabled: bool = False
    limit: Page | None = None
    offset: Count = 0
    query: str | None = None
    enabled: Literal["all", "enabled", "disabled"] | None = None
    schedule_kind: Literal["all", "at", "every", "cron", "on-exit", "stream"] = "all"
    last_run_status: Literal["all", "ok", "error", "skipped", "unknown"] = "all"
    sort_by: Literal["nextRunAtMs", "updatedAtMs", "name"] = "nextRunAtMs"
    sort_dir: Direction = "asc"
    session_key: Name | None = None
    compact: bool = False
    include_delivery_previews: bool = True


class IdParams(_Params, frozen=True, kw_only=True):
    id: Name | None = None
    job_id: Name | None = None


class UpdateParams(IdParams, frozen=True, kw_only=True):
    patch: Json
    expected_config_revision: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class RunParams(IdParams, frozen=True, kw_only=True):
    mode: Literal["due", "force", "if-enabled"] = "force"


class RunsParams(_Params, frozen=True, kw_only=True):
    scope: Literal["job", "all"] | None = None
    id: Annotated[str, Meta(min_length=1, pattern=r"^[^/\\]+$")] | None = None
    job_id: Annotated[str, Meta(min_length=1, pattern=r"^[^/\\]+$")] | None = None
    run_id: Name | None = None
    limit: Page = 50
    offset: Count = 0
    statuses: list[Literal["ok", "error", "skipped"]] = []
    status: Literal["all", "ok", "error", "skipped"] = "all"
    delivery_statuses: list[Literal["delivered", "not-delivered", "unknown", "not-requested"]] = []
    delivery_status: Literal["delivered", "not-delivered", "unknown", "not-requested"] | None = None
    query: str | None = None
    sort_dir: Direction = "desc"


class WakeParams(_Params, frozen=True, kw_only=True):
    mode: Literal["now", "next-heartbeat"]
    text: Name
    session_key: Name | None = None


class CronRoom:
    """Entering starts the clock; leaving stops it. `mailroom` may be given later; `guard` ends the programs of jobs
    should this process be killed."""

    def __init__(
        self, book: CronBook, runner: Runner, sessions: SessionBook, publish: Publish, *, path: str,
        roster: Callable[[], Roster] = Roster, config: Callable[[], Json] = dict, mailroom: Mailroom | None = None,
        time: Time | None = None, guard: Guard | None = None,
    ) -> None:  # fmt: skip
        self.hide: Hide = hide_all
        self._book, self._runner, self._publish, self._roster = book, runner, publish, roster
        self._config, self._path = config, path
        self._time = time or WallTime()
        self._post = Post(self.settings, mailroom)
        self._errands = Errands(
            book, runner, sessions, self._post, publish, roster=roster, settings=self.settings, now=self._time.now,
            guard=guard,
        )  # fmt: skip
        self.clock = Clock(book, self._errands, sessions, settings=self.settings, time=self._time)
        self._forced = 0
        self.reach = Reach()
        """What agents may have done by jobs; set by the caretaker, who knows the other rooms."""

    async def __aenter__(self) -> Self:
        await self.clock.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.clock.__aexit__(*exc)

    def settings(self) -> Settings:
        return settings_of(self._config())

    def connect(self, mailroom: Mailroom) -> None:
        """From now on results reach conversations."""
        self._post.mailroom = mailroom

    async def added_since(self, session: str, since: int) -> int:
        """How many jobs the agent of this session has made since: none, and its promise of a reminder is empty."""
        return await self._book.added_since(session, since)

    def methods(self) -> Sequence[Method]:
        def method(name: str, scope: str, run: Any, per_minute: int | None = None) -> Method:
            async def called(call: RpcCall) -> Any:
                return await run(call.params, call.caller)

            return Method(name, scope, called, per_minute=per_minute)

        return (
            method("cron.status", READ, self.status),
            method("cron.list", READ, self.list),
            method("cron.get", READ, self.get),
            method("cron.runs", READ, self.runs),
            Method("cron.add", ADMIN, self._add, per_minute=WRITES_PER_MINUTE),
            Method("cron.update", ADMIN, self._update, per_minute=WRITES_PER_MINUTE),
            method("cron.remove", ADMIN, self.remove, WRITES_PER_MINUTE),
            method("cron.run", ADMIN, self.run),
            method("wake", WRITE, self.wake),
        )

    # ---- looking -------------------------------------------------------------------------------------------------

    async def status(self, params: Json, caller: Caller) -> Json:
        settings = self.settings()
        told: Json = {
            "enabled": settings.enabled,
            "triggersEnabled": settings.triggers.enabled,
            "storePath": self._path,
        }
        told |= {"storage": "postgresql" if "://" in self._path else "sqlite", "sqlitePath": self._path}
        return told | {"jobs": await self._book.count(), "nextWakeAtMs": await self._book.next_due()}

    async def list(self, params: Json, caller: Caller) -> Json:
        asked = read_params(params, ListParams, "cron.list")
        chosen = asked.enabled or ("all" if asked.include_disabled else "enabled")
        query = JobQuery(
            limit=asked.limit or MOST_PER_PAGE,
            offset=asked.offset,
            words=asked.query or params.get("filter"),
            enabled={"all": None, "enabled": True, "disabled": False}[chosen],
            kind=None if asked.schedule_kind == "all" else asked.schedule_kind,
            last_status=None if asked.last_run_status == "all" else asked.last_run_status,
            agent_id=asked.agent_id,
            session_key=asked.session_key,
            sort={"nextRunAtMs": "next_at", "updatedAtMs": "updated_at", "name": "name"}[asked.sort_by],  # type: ignore[arg-type]  # one of the three
            descending=asked.sort_dir == "desc",
        )
        jobs, total = await self._book.page(query)
        shape = views.compact if asked.compact else views.job
        whole = [shape(job, agent=self._errands.agent(job)) for job in jobs]
        shown = whole if sees_programs(caller) else [hidden(one, self.hide) for one in whole]
        page = _paged("jobs", shown, total, asked.offset, query.limit) | {"snapshotRevision": views.snapshot(jobs)}
        if asked.include_delivery_previews and not asked.compact:
            page["deliveryPreviews"] = {job.id: await self._preview(job) for job in jobs}
        return page

    async def get(self, params: Json, caller: Caller) -> Json:
        return self._shown(await self._found(_id(read_params(params, IdParams, "cron.get"), "cron.get")), caller)

    def _shown(self, job: Job, caller: Caller) -> Json:
        shown = views.job(job)
        return shown if sees_programs(caller) else hidden(shown, self.hide)

    async def runs(self, params: Json, caller: Caller) -> Json:
        asked = read_params(params, RunsParams, "cron.runs")
        wanted = None if asked.scope == "all" else asked.id or asked.job_id
        if asked.scope == "job" and wanted is None:
            raise Fault("invalid cron.runs params: scope job needs the job's id")
        query = LogQuery(
            limit=asked.limit,
            offset=asked.offset,
            job_id=wanted,
            run_id=asked.run_id,
            agent_id=asked.agent_id,
            statuses=tuple(asked.statuses) or (() if asked.status == "all" else (asked.status,)),
            deliveries=tuple(asked.delivery_statuses) or ((asked.delivery_status,) if asked.delivery_status else ()),
            words=asked.query,
            descending=asked.sort_dir == "desc",
        )
        entries, total = await self._book.log(query)
        if not entries and wanted is not None and not total and await self._book.get(wanted) is None:
            past, _ = await self._book.log(LogQuery(job_id=wanted, limit=1))
            if not past:
                raise _unknown(wanted)
        return _paged("entries", entries, total, asked.offset, asked.limit)

    # ---- changing ------------------------------------------------------------------------------------------------

    async def _add(self, call: RpcCall) -> Json:
        return await self.add(call.params, call.caller, judged=call.judged)

    async def _update(self, call: RpcCall) -> Json:
        return await self.update(call.params, call.caller, judged=call.judged)

    async def add(self, params: Json, caller: Caller, *, judged: Caller | None) -> Json:
        """`judged`: whom the rules about tools bind here; None: nobody."""
        now, job_id = self._time.now(), str(uuid.uuid4())
        spec = self._allowed(spec_of(filled(params, caller), now, job_id=job_id), caller)
        state = JobState()
        origin = caller.session if caller.bound else None
        job = Job(id=job_id, spec=spec, state=state, created_at=now, updated_at=now, origin=origin)
        await self.reach.check(job, caller, Homes(self._roster()), self._post, judged=judged)
        job = armed(job, now, activated=False)
        kept = await self._book.add(job, most=MOST_JOBS)
        if kept is None:
            raise Fault(f"there are {MOST_JOBS} jobs already; remove some first", kind="UNAVAILABLE")
        if spec.declaration_key is not None:
            return await self._declared(job, kept, caller, judged)
        self._changed(kept, "added")
        return {**self._shown(kept, caller), "deliveryPreview": await self._preview(kept)}

    async def _declared(self, wanted: Job, kept: Job, caller: Caller, judged: Caller | None) -> Json:
        """A job of a declared name is made once and brought up to date after that."""
        if kept.id == wanted.id:
            self._changed(kept, "added")
            return {"created": True, "job": self._shown(kept, caller), "deliveryPreview": await self._preview(kept)}
        new = msgspec.structs.replace(wanted.spec, enabled=kept.spec.enabled, name=kept.spec.name)
        same = views.revision(replaced(kept, _timeless(kept.spec))) == views.revision(
            replaced(kept, {n: getattr(new, n) for n in Spec.__struct_fields__} | _timeless(new))
        )
        if not same:
            self.reach.use("cron_update", judged)
            changed = await self._replace(kept.id, lambda job: same_hooks(job, new, caller), None, caller)
            kept = changed or kept
        told = {"created": False, "updated": not same, "job": self._shown(kept, caller)}
        return {**told, "deliveryPreview": await self._preview(kept)}

    async def update(self, params: Json, caller: Caller, *, judged: Caller | None) -> Json:
        asked = read_params(params, UpdateParams, "cron.update")
        job_id, now = _id(asked, "cron.update"), self._time.now()

        def change(job: Job) -> Spec:
            return same_hooks(job, self._allowed(patched(job, asked.patch, now), caller), caller)

        expected = asked.expected_config_revision
        if judged is not None:
            before = await self._found(job_id)
            after = taken_over(before, change(before), caller)
            answers = after.origin is not None if caller.bound else other_deeds(before.spec, after.spec)
            if answers and after.spec != before.spec:
                await self.reach.check(after, caller, Homes(self._roster()), self._post, judged=judged)
            expected = expected or views.revision(before)  # what is written is what was judged
        job = await self._replace(job_id, change, expected, caller)
        if job is None:
            raise _unknown(job_id)
        return self._shown(job, caller)

    async def _replace(
        self, job_id: str, change: Callable[[Job], Spec], expected: str | None, caller: Caller
    ) -> Job | None:
        now = self._time.now()

        def work(job: Job) -> Job:
            if expected is not None and views.revision(job) != expected:
                details = {"code": "CRON_JOB_CHANGED", "expectedConfigRevision": expected}
                details["actualConfigRevision"] = views.revision(job)
                raise Fault("the job was changed since it was read; read it again before changing it", details=details)
            new = taken_over(job, change(job), caller)
            spec = new.spec
            new = msgspec.structs.replace(new, updated_at=max(now, job.updated_at + 1))
            rearm = spec.schedule != job.spec.schedule or spec.enabled != job.spec.enabled
            return armed(new, now, activated=True) if rearm else new

        job = await self._book.change(job_id, work)
        if job is not None:
            self._changed(job, "updated")
        return job

    async def remove(self, params: Json, caller: Caller) -> Json:
        job_id = _id(read_params(params, IdParams, "cron.remove"), "cron.remove")
        refuse_operators_program(await self._found(job_id), caller)
        if not await self._book.remove(job_id):
            raise _unknown(job_id)
        self._publish(Event(name="cron", payload={"jobId": job_id, "action": "removed"}))
        self._errands.streams.forget(job_id)
        self.clock.wake()
        return {"ok": True, "removed": True}

    # ---- running -------------------------------------------------------------------------------------------------

    async def run(self, params: Json, caller: Caller) -> Json:
        """Take it up now; what comes of it is told by `cron.runs` and the `cron` event."""
        asked = read_params(params, RunParams, "cron.run")
        job, now = await self._found(_id(asked, "cron.run")), self._time.now()
        refuse_operators_program(job, caller)
        told = {"ok": True, "processInstanceId": self._book.instance}
        due = job.state.next_run_at_ms
        if asked.mode == "due" and (due is None or due > now):
            return told | {"ran": False, "reason": "not-due"}
        if asked.mode == "if-enabled" and not job.spec.enabled:
            return told | {"ran": False, "reason": "disabled"}
        self._forced += 1
        run_id = f"manual:{job.id}:{now}:{self._forced}:{uuid.uuid4().hex[:8]}"
        firing = await self._book.reserve(job.id, run_id, now, manual=True, note=None)
        if firing is None:
            return told | {"ran": False, "reason": "already-running"}
        self._errands.begin(firing)
        return told | {"enqueued": True, "runId": run_id}

    async def wake(self, params: Json, caller: Caller) -> Json:
        """Tell an agent something: with its next prompt, or at once."""
        asked = read_params(params, WakeParams, "wake")
        roster = self._roster()
        agent = asked.agent_id or roster.default_id
        roster.card(agent)
        key = (asked.session_key or "").strip().lower() or f"agent:{agent}:{roster.main_key}"
        if not key.startswith("agent:"):
            key = f"agent:{agent}:{roster.main_key if key == 'main' else key}"
        name = f"wake:{uuid.uuid4()}"
        if asked.mode == "next-heartbeat":
            said = Queued(session=key, text=asked.text, at=self._time.now(), key=name, owner=caller.owner)
            await self._book.queue(said)
            return {"ok": True}
        kind = "main" if key.endswith(f":{roster.main_key}") else "custom"
        session = NewSession(key=key, agent_id=key.split(":")[1], classification=kind)
        message = f"System: {asked.text}"
        options = {"sender": caller.name, "grant": msgspec.to_builtins(passed_on(caller))}
        await self._runner.submit(
            RunRequest(run_id=name, session=session, message=message, mode="followup", options=options)
        )
        return {"ok": True}

    # ---- between -------------------------------------------------------------------------------------------------

    async def _found(self, job_id: str) -> Job:
        job = await self._book.get(job_id)
        if job is None:
            raise _unknown(job_id)
        return job

    def _allowed(self, spec: Spec, caller: Caller) -> Spec:
        """An agent may have itself called; it may not have programs started behind everybody's back."""
        if spec.agent_id is not None:
            self._roster().card(spec.agent_id)
        if caller.bound and isinstance(spec.payload, Command):
            raise Fault("command jobs are made by operators; use an agentTurn and the tools you have", kind="FORBIDDEN")
        if isinstance(spec.schedule, Stream) and not self.settings().triggers.enabled:
            raise Fault("streams are switched off here (cron.triggers.enabled)", kind="FORBIDDEN")
        if caller.bound and isinstance(spec.schedule, OnExit | Stream):
            kind = spec.schedule.__struct_config__.tag
            raise Fault(f"{kind} jobs are made by operators; use an at, every or cron schedule", kind="FORBIDDEN")
        return spec

    def _changed(self, job: Job, action: str) -> None:
        payload: Json = {"jobId": job.id, "action": action, "job": hidden(views.job(job), self.hide)}
        if job.state.next_run_at_ms is not None:
            payload["nextRunAtMs"] = job.state.next_run_at_ms
        self._publish(Event(name="cron", payload=payload))
        self._errands.streams.forget(job.id)  # whatever changed: it is started as it is now
        self.clock.wake()

    async def _preview(self, job: Job) -> Json:
        sessions = tuple(key for key in (job.spec.session_key, self._errands.home(job)) if key)
        inside = job.spec.session_target not in ("isolated", "main")
        return await self._post.preview(job.spec.delivery, sessions, inside=inside)


def _id(asked: IdParams, method: str) -> str:
    found = asked.job_id or asked.id
    if found is None:
        raise Fault(f"invalid {method} params: must have required property 'id'")
    return found


def _unknown(job_id: str) -> Fault:
    details = {"code": "CRON_JOB_NOT_FOUND", "jobId": job_id}
    return Fault(f"cron job not found: {job_id}; cron.list names those there are", details=details)


def _paged(name: str, rows: Sequence[Json], total: int, offset: int, limit: int) -> Json:
    more = offset + len(rows) < total
    following = offset + len(rows) if more else None
    page = {"total": total, "offset": offset, "limit": limit, "hasMore": more, "nextOffset": following}
    return {name: [*rows], **page}


def _timeless(spec: Spec) -> dict[str, Any]:
    """What must not make two declarations of the same job differ: when each was made."""
    schedule = spec.schedule
    return {"schedule": Every(every_ms=schedule.every_ms)} if isinstance(schedule, Every) else {}
