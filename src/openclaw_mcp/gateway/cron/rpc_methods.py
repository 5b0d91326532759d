"""`cron.*` and `wake`: jobs added, changed, run and looked at."""

import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import Meta, Struct

from ...core.agents import AgentRoster
from ...core.channel import MessageDelivery
from ...core.jobs import (
    CommandPayload,
    CronJob,
    CronJobRepository,
    IntervalSchedule,
    JobLogQuery,
    JobQuery,
    JobSpec,
    JobState,
    OnExitSchedule,
    QueuedEvent,
    StreamSchedule,
    replace_job,
)
from ...core.model import Caller, Json
from ...core.ports import ProcessGuard, RunExecutor
from ...core.repositories import SessionRepository
from ...core.rpc import ADMIN, READ, SAFE_INTEGER, WRITE, Publish, RpcCall, RpcError, RpcEvent, RpcMethod, read_params
from ...core.session_target import child_grant
from ...core.sessions import NewSession, RunRequest
from . import views
from .defaults import check_webhooks, fill_defaults
from .delivery import ResultDelivery
from .executor import JobExecutor
from .job_state import schedule_next
from .parsing import apply_patch, parse_spec
from .permissions import JobPermissions, changes_effects, replace_spec
from .redaction import Redactor, can_see_programs, check_operator_program, redact_all, redact_job
from .scheduler import JobScheduler, SystemTime, TimeSource
from .session_targets import SessionTargets
from .settings import CronSettings, parse_cron_settings

MAX_JOBS: Final = 20_000  # twice what was measured; a program gone wrong must not fill the disk
MAX_PER_PAGE: Final = 200
WRITES_PER_MINUTE: Final = 600
NonEmptyStr = Annotated[str, Meta(min_length=1)]
Page = Annotated[int, Meta(ge=1, le=MAX_PER_PAGE)]
Count = Annotated[int, Meta(ge=0, le=SAFE_INTEGER)]
Direction = Literal["asc", "desc"]


class _Params(Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: NonEmptyStr | None = None


class CronListParams(_Params, frozen=True, kw_only=True):
    include_disabled: bool = False
    limit: Page | None = None
    offset: Count = 0
    query: str | None = None
    enabled: Literal["all", "enabled", "disabled"] | None = None
    schedule_kind: Literal["all", "at", "every", "cron", "on-exit", "stream"] = "all"
    last_run_status: Literal["all", "ok", "error", "skipped", "unknown"] = "all"
    sort_by: Literal["nextRunAtMs", "updatedAtMs", "name"] = "nextRunAtMs"
    sort_dir: Direction = "asc"
    session_key: NonEmptyStr | None = None
    compact: bool = False
    include_delivery_previews: bool = True


class IdParams(_Params, frozen=True, kw_only=True):
    id: NonEmptyStr | None = None
    job_id: NonEmptyStr | None = None


class UpdateParams(IdParams, frozen=True, kw_only=True):
    patch: Json
    expected_config_revision: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class RunParams(IdParams, frozen=True, kw_only=True):
    mode: Literal["due", "force", "if-enabled"] = "force"


class RunsParams(_Params, frozen=True, kw_only=True):
    scope: Literal["job", "all"] | None = None
    id: Annotated[str, Meta(min_length=1, pattern=r"^[^/\\]+$")] | None = None
    job_id: Annotated[str, Meta(min_length=1, pattern=r"^[^/\\]+$")] | None = None
    run_id: NonEmptyStr | None = None
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
    text: NonEmptyStr
    session_key: NonEmptyStr | None = None


class CronMethods:
    """Entering starts the clock; leaving stops it. `mailroom` may be given later; `guard` ends the programs of jobs
    should this process be killed."""

    def __init__(  # noqa: PLR0913  (composition: each is another service)
        self,
        jobs: CronJobRepository,
        runner: RunExecutor,
        sessions: SessionRepository,
        publish: Publish,
        *,
        store_path: str,
        roster: Callable[[], AgentRoster] = AgentRoster,
        config: Callable[[], Json] = dict,
        channels: MessageDelivery | None = None,
        permissions: JobPermissions = JobPermissions(),
        redact: Redactor = redact_all,
        time: TimeSource | None = None,
        guard: ProcessGuard | None = None,
    ) -> None:
        self._permissions, self._redact = permissions, redact
        self._jobs, self._runner, self._publish, self._roster = jobs, runner, publish, roster
        self._config, self._store_path = config, store_path
        self._time = time or SystemTime()
        self._delivery = ResultDelivery(self.settings, channels)
        self._executor = JobExecutor(
            jobs, runner, sessions, self._delivery, publish, roster=roster, settings=self.settings, now=self._time.now,
            guard=guard,
        )  # fmt: skip
        self.scheduler = JobScheduler(jobs, self._executor, sessions, settings=self.settings, time=self._time)
        self._manual_runs = 0

    async def __aenter__(self) -> Self:
        await self.scheduler.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.scheduler.__aexit__(*exc)

    def settings(self) -> CronSettings:
        return parse_cron_settings(self._config())

    def set_channels(self, channels: MessageDelivery) -> None:
        """From now on results reach conversations."""
        self._delivery.channels = channels

    async def count_added_since(self, session: str, since: int) -> int:
        """How many jobs the agent of this session has made since: none, and its promise of a reminder is empty."""
        return await self._jobs.count_added_since(session, since)

    def methods(self) -> Sequence[RpcMethod]:
        def method(name: str, scope: str, run: Any, per_minute: int | None = None) -> RpcMethod:
            async def called(call: RpcCall) -> Any:
                return await run(call.params, call.caller)

            return RpcMethod(name, scope, called, per_minute=per_minute)

        return (
            method("cron.status", READ, self.status),
            method("cron.list", READ, self.list),
            method("cron.get", READ, self.get),
            method("cron.runs", READ, self.runs),
            RpcMethod("cron.add", ADMIN, self._add, per_minute=WRITES_PER_MINUTE),
            RpcMethod("cron.update", ADMIN, self._update, per_minute=WRITES_PER_MINUTE),
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
            "storePath": self._store_path,
        }
        told |= {"storage": "postgresql" if "://" in self._store_path else "sqlite", "sqlitePath": self._store_path}
        return told | {"jobs": await self._jobs.count(), "nextWakeAtMs": await self._jobs.next_due()}

    async def list(self, params: Json, caller: Caller) -> Json:
        asked = read_params(params, CronListParams, "cron.list")
        chosen = asked.enabled or ("all" if asked.include_disabled else "enabled")
        query = JobQuery(
            limit=asked.limit or MAX_PER_PAGE,
            offset=asked.offset,
            search=asked.query or params.get("filter"),
            enabled={"all": None, "enabled": True, "disabled": False}[chosen],
            kind=None if asked.schedule_kind == "all" else asked.schedule_kind,
            last_status=None if asked.last_run_status == "all" else asked.last_run_status,
            agent_id=asked.agent_id,
            session_key=asked.session_key,
            sort={"nextRunAtMs": "next_at", "updatedAtMs": "updated_at", "name": "name"}[asked.sort_by],  # type: ignore[arg-type]  # one of the three
            descending=asked.sort_dir == "desc",
        )
        jobs, total = await self._jobs.page(query)
        shape = views.compact_view if asked.compact else views.job_view
        whole = [shape(job, agent=self._executor.agent_id(job)) for job in jobs]
        shown = whole if can_see_programs(caller) else [redact_job(one, self._redact) for one in whole]
        page = _page("jobs", shown, total, asked.offset, query.limit) | {
            "snapshotRevision": views.snapshot_revision(jobs)
        }
        if asked.include_delivery_previews and not asked.compact:
            page["deliveryPreviews"] = {job.id: await self._preview(job) for job in jobs}
        return page

    async def get(self, params: Json, caller: Caller) -> Json:
        return self._job_view(
            await self._get_job(_job_id(read_params(params, IdParams, "cron.get"), "cron.get")), caller
        )

    def _job_view(self, job: CronJob, caller: Caller) -> Json:
        shown = views.job_view(job)
        return shown if can_see_programs(caller) else redact_job(shown, self._redact)

    async def runs(self, params: Json, caller: Caller) -> Json:
        asked = read_params(params, RunsParams, "cron.runs")
        wanted = None if asked.scope == "all" else asked.id or asked.job_id
        if asked.scope == "job" and wanted is None:
            raise RpcError("invalid cron.runs params: scope job needs the job's id")
        query = JobLogQuery(
            limit=asked.limit,
            offset=asked.offset,
            job_id=wanted,
            run_id=asked.run_id,
            agent_id=asked.agent_id,
            statuses=tuple(asked.statuses) or (() if asked.status == "all" else (asked.status,)),
            deliveries=tuple(asked.delivery_statuses) or ((asked.delivery_status,) if asked.delivery_status else ()),
            search=asked.query,
            descending=asked.sort_dir == "desc",
        )
        entries, total = await self._jobs.read_log(query)
        if not entries and wanted is not None and not total and await self._jobs.get(wanted) is None:
            past, _ = await self._jobs.read_log(JobLogQuery(job_id=wanted, limit=1))
            if not past:
                raise _unknown_job(wanted)
        return _page("entries", entries, total, asked.offset, asked.limit)

    # ---- changing ------------------------------------------------------------------------------------------------

    async def _add(self, call: RpcCall) -> Json:
        return await self.add(call.params, call.caller, policy_caller=call.policy_caller)

    async def _update(self, call: RpcCall) -> Json:
        return await self.update(call.params, call.caller, policy_caller=call.policy_caller)

    async def add(self, params: Json, caller: Caller, *, policy_caller: Caller | None) -> Json:
        """`judged`: whom the rules about tools bind here; None: nobody."""
        now, job_id = self._time.now(), str(uuid.uuid4())
        spec = self._check_spec(parse_spec(fill_defaults(params, caller), now, job_id=job_id), caller)
        state = JobState()
        origin = caller.session if caller.acts_in_session else None
        job = CronJob(id=job_id, spec=spec, state=state, created_at=now, updated_at=now, origin=origin)
        await self._permissions.check_job(
            job, caller, SessionTargets(self._roster()), self._delivery, policy_caller=policy_caller
        )
        job = schedule_next(job, now, activated=False)
        kept = await self._jobs.add(job, max_jobs=MAX_JOBS)
        if kept is None:
            raise RpcError(f"there are {MAX_JOBS} jobs already; remove some first", kind="UNAVAILABLE")
        if spec.declaration_key is not None:
            return await self._apply_declaration(job, kept, caller, policy_caller)
        self._publish_change(kept, "added")
        return {**self._job_view(kept, caller), "deliveryPreview": await self._preview(kept)}

    async def _apply_declaration(
        self, wanted: CronJob, stored: CronJob, caller: Caller, policy_caller: Caller | None
    ) -> Json:
        """A job of a declared name is made once and brought up to date after that."""
        if stored.id == wanted.id:
            self._publish_change(stored, "added")
            return {
                "created": True,
                "job": self._job_view(stored, caller),
                "deliveryPreview": await self._preview(stored),
            }
        new = msgspec.structs.replace(wanted.spec, enabled=stored.spec.enabled, name=stored.spec.name)
        same = views.revision(replace_job(stored, _without_anchor(stored.spec))) == views.revision(
            replace_job(stored, {n: getattr(new, n) for n in JobSpec.__struct_fields__} | _without_anchor(new))
        )
        if not same:
            self._permissions.check_tool_use("cron_update", policy_caller)
            changed = await self._replace(stored.id, lambda job: check_webhooks(job, new, caller), None, caller)
            stored = changed or stored
        told = {"created": False, "updated": not same, "job": self._job_view(stored, caller)}
        return {**told, "deliveryPreview": await self._preview(stored)}

    async def update(self, params: Json, caller: Caller, *, policy_caller: Caller | None) -> Json:
        asked = read_params(params, UpdateParams, "cron.update")
        job_id, now = _job_id(asked, "cron.update"), self._time.now()

        def change(job: CronJob) -> JobSpec:
            return check_webhooks(job, self._check_spec(apply_patch(job, asked.patch, now), caller), caller)

        expected = asked.expected_config_revision
        if policy_caller is not None:
            before = await self._get_job(job_id)
            after = replace_spec(before, change(before), caller)
            answers = after.origin is not None if caller.acts_in_session else changes_effects(before.spec, after.spec)
            if answers and after.spec != before.spec:
                await self._permissions.check_job(
                    after, caller, SessionTargets(self._roster()), self._delivery, policy_caller=policy_caller
                )
            expected = expected or views.revision(before)  # what is written is what was judged
        job = await self._replace(job_id, change, expected, caller)
        if job is None:
            raise _unknown_job(job_id)
        return self._job_view(job, caller)

    async def _replace(
        self, job_id: str, change: Callable[[CronJob], JobSpec], expected: str | None, caller: Caller
    ) -> CronJob | None:
        now = self._time.now()

        def work(job: CronJob) -> CronJob:
            if expected is not None and views.revision(job) != expected:
                details = {"code": "CRON_JOB_CHANGED", "expectedConfigRevision": expected}
                details["actualConfigRevision"] = views.revision(job)
                raise RpcError(
                    "the job was changed since it was read; read it again before changing it", details=details
                )
            new = replace_spec(job, change(job), caller)
            spec = new.spec
            new = msgspec.structs.replace(new, updated_at=max(now, job.updated_at + 1))
            rearm = spec.schedule != job.spec.schedule or spec.enabled != job.spec.enabled
            return schedule_next(new, now, activated=True) if rearm else new

        job = await self._jobs.change(job_id, work)
        if job is not None:
            self._publish_change(job, "updated")
        return job

    async def remove(self, params: Json, caller: Caller) -> Json:
        job_id = _job_id(read_params(params, IdParams, "cron.remove"), "cron.remove")
        check_operator_program(await self._get_job(job_id), caller)
        if not await self._jobs.remove(job_id):
            raise _unknown_job(job_id)
        self._publish(RpcEvent(name="cron", payload={"jobId": job_id, "action": "removed"}))
        self._executor.streams.stop_soon(job_id)
        self.scheduler.wake()
        return {"ok": True, "removed": True}

    # ---- running -------------------------------------------------------------------------------------------------

    async def run(self, params: Json, caller: Caller) -> Json:
        """Take it up now; what comes of it is told by `cron.runs` and the `cron` event."""
        asked = read_params(params, RunParams, "cron.run")
        job, now = await self._get_job(_job_id(asked, "cron.run")), self._time.now()
        check_operator_program(job, caller)
        told = {"ok": True, "processInstanceId": self._jobs.instance}
        due = job.state.next_run_at_ms
        if asked.mode == "due" and (due is None or due > now):
            return told | {"ran": False, "reason": "not-due"}
        if asked.mode == "if-enabled" and not job.spec.enabled:
            return told | {"ran": False, "reason": "disabled"}
        self._manual_runs += 1
        run_id = f"manual:{job.id}:{now}:{self._manual_runs}:{uuid.uuid4().hex[:8]}"
        firing = await self._jobs.reserve(job.id, run_id, now, manual=True, note=None)
        if firing is None:
            return told | {"ran": False, "reason": "already-running"}
        self._executor.start(firing)
        return told | {"enqueued": True, "runId": run_id}

    async def wake(self, params: Json, caller: Caller) -> Json:
        """Tell an agent something: with its next prompt, or at once."""
        asked = read_params(params, WakeParams, "wake")
        roster = self._roster()
        agent = asked.agent_id or roster.default_id
        roster.get_agent(agent)
        key = (asked.session_key or "").strip().lower() or f"agent:{agent}:{roster.main_key}"
        if not key.startswith("agent:"):
            key = f"agent:{agent}:{roster.main_key if key == 'main' else key}"
        name = f"wake:{uuid.uuid4()}"
        if asked.mode == "next-heartbeat":
            said = QueuedEvent(session=key, text=asked.text, at=self._time.now(), key=name, owner=caller.is_owner)
            await self._jobs.queue_event(said)
            return {"ok": True}
        kind = "main" if key.endswith(f":{roster.main_key}") else "custom"
        session = NewSession(key=key, agent_id=key.split(":")[1], classification=kind)
        message = f"System: {asked.text}"
        options = {"sender": caller.name, "grant": msgspec.to_builtins(child_grant(caller))}
        await self._runner.submit(
            RunRequest(run_id=name, session=session, message=message, mode="followup", options=options)
        )
        return {"ok": True}

    # ---- between -------------------------------------------------------------------------------------------------

    async def _get_job(self, job_id: str) -> CronJob:
        job = await self._jobs.get(job_id)
        if job is None:
            raise _unknown_job(job_id)
        return job

    def _check_spec(self, spec: JobSpec, caller: Caller) -> JobSpec:
        """An agent may have itself called; it may not have programs started behind everybody's back."""
        if spec.agent_id is not None:
            self._roster().get_agent(spec.agent_id)
        if caller.acts_in_session and isinstance(spec.payload, CommandPayload):
            raise RpcError(
                "command jobs are made by operators; use an agentTurn and the tools you have", kind="FORBIDDEN"
            )
        if isinstance(spec.schedule, StreamSchedule) and not self.settings().triggers.enabled:
            raise RpcError("streams are switched off here (cron.triggers.enabled)", kind="FORBIDDEN")
        if caller.acts_in_session and isinstance(spec.schedule, OnExitSchedule | StreamSchedule):
            kind = spec.schedule.__struct_config__.tag
            raise RpcError(f"{kind} jobs are made by operators; use an at, every or cron schedule", kind="FORBIDDEN")
        return spec

    def _publish_change(self, job: CronJob, action: str) -> None:
        payload: Json = {"jobId": job.id, "action": action, "job": redact_job(views.job_view(job), self._redact)}
        if job.state.next_run_at_ms is not None:
            payload["nextRunAtMs"] = job.state.next_run_at_ms
        self._publish(RpcEvent(name="cron", payload=payload))
        self._executor.streams.stop_soon(job.id)  # whatever changed: it is started as it is now
        self.scheduler.wake()

    async def _preview(self, job: CronJob) -> Json:
        sessions = tuple(key for key in (job.spec.session_key, self._executor.main_session(job)) if key)
        inside = job.spec.session_target not in ("isolated", "main")
        return await self._delivery.preview(job.spec.delivery, sessions, in_session=inside)


def _job_id(params: IdParams, method: str) -> str:
    found = params.job_id or params.id
    if found is None:
        raise RpcError(f"invalid {method} params: must have required property 'id'")
    return found


def _unknown_job(job_id: str) -> RpcError:
    details = {"code": "CRON_JOB_NOT_FOUND", "jobId": job_id}
    return RpcError(f"cron job not found: {job_id}; cron.list names those there are", details=details)


def _page(name: str, rows: Sequence[Json], total: int, offset: int, limit: int) -> Json:
    more = offset + len(rows) < total
    following = offset + len(rows) if more else None
    page = {"total": total, "offset": offset, "limit": limit, "hasMore": more, "nextOffset": following}
    return {name: [*rows], **page}


def _without_anchor(spec: JobSpec) -> dict[str, Any]:
    """What must not make two declarations of the same job differ: when each was made."""
    schedule = spec.schedule
    return {"schedule": IntervalSchedule(every_ms=schedule.every_ms)} if isinstance(schedule, IntervalSchedule) else {}
