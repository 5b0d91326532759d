"""`cron.*` and `wake`: adding, changing, running and reading jobs."""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Self

from msgspec import Struct, structs

from ...core import session_keys
from ...core.agents import AgentRoster
from ...core.channel import MessageDelivery
from ...core.config.cron import CronSettings
from ...core.jobs import (
    CommandPayload,
    CronJob,
    CronJobRepository,
    IntervalSchedule,
    JobLogQuery,
    JobSpec,
    JobState,
    OnExitSchedule,
    QueuedEvent,
    StreamSchedule,
)
from ...core.json_values import drop_none
from ...core.model import Caller, Json
from ...core.ports import ProcessGuard, RunExecutor
from ...core.repositories import SessionRepository
from ...core.rpc import ADMIN, READ, WRITE, Publish, RpcCall, RpcError, RpcEvent, RpcMethod, read_params
from ...core.session_target import child_grant
from ...core.sessions import NewSession, RunOptions, RunRequest
from . import views
from .defaults import check_webhooks, fill_defaults
from .delivery import ResultDelivery
from .executor import JobExecutor
from .job_state import schedule_next
from .params import CronListParams, IdParams, RunParams, RunsParams, UpdateParams, WakeParams
from .parsing import apply_patch, parse_spec
from .permissions import JobPermissions, changes_effects, replace_spec
from .redaction import Redactor, can_see_programs, check_operator_program, redact_all, redact_job
from .scheduler import JobScheduler, SystemTime, TimeSource
from .session_targets import SessionTargets

MAX_JOBS: Final = 20_000  # twice what was measured; a faulty program must not fill the disk
WRITES_PER_MINUTE: Final = 600


class CronCall(Struct, frozen=True, kw_only=True):
    params: Json
    caller: Caller
    policy_caller: Caller | None
    """Whom the rules about tools bind; None: no one."""


CronHandler = Callable[[CronCall], Awaitable[Any]]


class CronMethods:
    """Entering starts the scheduler; leaving stops it. `permissions`: what agents may do through jobs. `redact` hides
    the secrets in a job's definition. `guard` ends the programs of jobs should this process be killed."""

    def __init__(  # noqa: PLR0913  (composition: each is another service)
        self,
        jobs: CronJobRepository,
        runner: RunExecutor,
        sessions: SessionRepository,
        publish: Publish,
        *,
        store_path: str,
        roster: Callable[[], AgentRoster] = AgentRoster,
        settings: Callable[[], CronSettings] = CronSettings,
        channels: MessageDelivery | None = None,
        permissions: JobPermissions = JobPermissions(),
        redact: Redactor = redact_all,
        time: TimeSource | None = None,
        guard: ProcessGuard | None = None,
    ) -> None:
        self._jobs, self._runner, self._publish, self._roster = jobs, runner, publish, roster
        self.settings, self._store_path = settings, store_path
        self._permissions, self._redact = permissions, redact
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

    def methods(self) -> Sequence[RpcMethod]:
        def method(name: str, scope: str, run: CronHandler, per_minute: int | None = None) -> RpcMethod:
            async def handle(call: RpcCall) -> Any:
                return await run(CronCall(params=call.params, caller=call.caller, policy_caller=call.policy_caller))

            return RpcMethod(name, scope, handle, per_minute=per_minute)

        return (
            method("cron.status", READ, self.status),
            method("cron.list", READ, self.list),
            method("cron.get", READ, self.get),
            method("cron.runs", READ, self.runs),
            method("cron.add", ADMIN, self.add, WRITES_PER_MINUTE),
            method("cron.update", ADMIN, self.update, WRITES_PER_MINUTE),
            method("cron.remove", ADMIN, self.remove, WRITES_PER_MINUTE),
            method("cron.run", ADMIN, self.run),
            method("wake", WRITE, self.wake),
        )

    def _targets(self) -> SessionTargets:
        return SessionTargets(self._roster())

    # ---- reading -------------------------------------------------------------------------------------------------

    async def status(self, call: CronCall) -> Json:
        settings = self.settings()
        return {
            "enabled": settings.enabled,
            "triggersEnabled": settings.triggers.enabled,
            "storePath": self._store_path,
            "storage": "postgresql" if "://" in self._store_path else "sqlite",
            "sqlitePath": self._store_path,
            "jobs": await self._jobs.count(),
            "nextWakeAtMs": await self._jobs.next_due(),
        }

    async def list(self, call: CronCall) -> Json:
        asked = read_params(call.params, CronListParams, "cron.list")
        targets = self._targets()
        query, agent_id = asked.job_query(targets.roster.default_id), targets.agent_id
        jobs, total = await self._jobs.page(query)
        view = views.compact_view if asked.compact else views.job_view
        rows = [view(job, agent=agent_id(job)) for job in jobs]
        if not can_see_programs(call.caller):
            rows = [redact_job(row, self._redact) for row in rows]
        page = _page("jobs", rows, total, asked.offset, query.limit)
        page["snapshotRevision"] = views.snapshot_revision(jobs)
        if asked.include_delivery_previews and not asked.compact:
            page["deliveryPreviews"] = {job.id: await self._preview(job) for job in jobs}
        return page

    async def get(self, call: CronCall) -> Json:
        job_id = read_params(call.params, IdParams, "cron.get").require_id("cron.get")
        return self._job_view(await self._get_job(job_id), call.caller)

    def _job_view(self, job: CronJob, caller: Caller) -> Json:
        view = views.job_view(job)
        return view if can_see_programs(caller) else redact_job(view, self._redact)

    async def runs(self, call: CronCall) -> Json:
        query = read_params(call.params, RunsParams, "cron.runs").log_query(self._roster().default_id)
        entries, total = await self._jobs.read_log(query)
        if not total and query.job_id is not None and await self._jobs.get(query.job_id) is None:
            past, _ = await self._jobs.read_log(JobLogQuery(job_id=query.job_id, limit=1))
            if not past:
                raise _unknown_job(query.job_id)
        return _page("entries", entries, total, query.offset, query.limit)

    # ---- changing ------------------------------------------------------------------------------------------------

    async def add(self, call: CronCall) -> Json:
        now, job_id, caller = self._time.now(), str(uuid.uuid4()), call.caller
        spec = self._check_spec(parse_spec(fill_defaults(call.params, caller), now, job_id=job_id), caller)
        origin = caller.session if caller.acts_in_session else None
        job = CronJob(id=job_id, spec=spec, state=JobState(), created_at=now, updated_at=now, origin=origin)
        await self._check_permissions(job, call)
        job = schedule_next(job, now, activated=False)
        stored = await self._jobs.add(job, max_jobs=MAX_JOBS)
        if stored is None:
            raise RpcError(f"there are {MAX_JOBS} jobs already; remove some first", kind="UNAVAILABLE")
        if spec.declaration_key is not None:
            return await self._apply_declaration(job, stored, call)
        self._publish_change(stored, "added")
        return {**self._job_view(stored, caller), "deliveryPreview": await self._preview(stored)}

    async def _apply_declaration(self, wanted: CronJob, stored: CronJob, call: CronCall) -> Json:
        """A job with a declaration key is made once and updated after that."""
        answer = {"created": stored.id == wanted.id}
        if answer["created"]:
            self._publish_change(stored, "added")
        else:
            new = structs.replace(wanted.spec, enabled=stored.spec.enabled, name=stored.spec.name)
            answer["updated"] = _without_anchor(stored.spec) != _without_anchor(new)
            if answer["updated"]:
                self._permissions.check_tool_use("cron_update", call.policy_caller)
                caller = call.caller
                changed = await self._replace(stored.id, lambda job: check_webhooks(job, new, caller), None, caller)
                stored = changed or stored
        return {**answer, "job": self._job_view(stored, call.caller), "deliveryPreview": await self._preview(stored)}

    async def update(self, call: CronCall) -> Json:
        asked, caller = read_params(call.params, UpdateParams, "cron.update"), call.caller
        job_id, now = asked.require_id("cron.update"), self._time.now()

        def change(job: CronJob) -> JobSpec:
            return check_webhooks(job, self._check_spec(apply_patch(job, asked.patch, now), caller), caller)

        expected = asked.expected_config_revision
        if call.policy_caller is not None:
            before = await self._get_job(job_id)
            after = replace_spec(before, change(before), caller)
            is_bound = after.origin is not None if caller.acts_in_session else changes_effects(before.spec, after.spec)
            if is_bound and after.spec != before.spec:
                await self._check_permissions(after, call)
            expected = expected or views.revision(before)  # only the definition that was checked is written
        job = await self._replace(job_id, change, expected, caller)
        if job is None:
            raise _unknown_job(job_id)
        return self._job_view(job, caller)

    async def _check_permissions(self, job: CronJob, call: CronCall) -> None:
        targets, bound = self._targets(), call.policy_caller
        await self._permissions.check_job(job, call.caller, targets, self._delivery, policy_caller=bound)

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
            new = structs.replace(new, updated_at=max(now, job.updated_at + 1))
            activated = (new.spec.schedule, new.spec.enabled) != (job.spec.schedule, job.spec.enabled)
            return schedule_next(new, now, activated=True) if activated else new

        job = await self._jobs.change(job_id, work)
        if job is not None:
            self._publish_change(job, "updated")
        return job

    async def remove(self, call: CronCall) -> dict[str, bool]:
        job_id = read_params(call.params, IdParams, "cron.remove").require_id("cron.remove")
        check_operator_program(await self._get_job(job_id), call.caller)
        if not await self._jobs.remove(job_id):
            raise _unknown_job(job_id)
        self._publish(RpcEvent(name="cron", payload={"jobId": job_id, "action": "removed"}))
        self._executor.streams.stop_soon(job_id)
        self.scheduler.wake()
        return {"ok": True, "removed": True}

    # ---- running -------------------------------------------------------------------------------------------------

    async def run(self, call: CronCall) -> dict[str, bool | str]:
        """Start it now. `cron.runs` and the `cron` event report how it ends."""
        asked = read_params(call.params, RunParams, "cron.run")
        job, now = await self._get_job(asked.require_id("cron.run")), self._time.now()
        check_operator_program(job, call.caller)
        answer: dict[str, bool | str] = {"ok": True, "processInstanceId": self._jobs.instance}
        due = job.state.next_run_at_ms
        if asked.mode == "due" and (due is None or due > now):
            return answer | {"ran": False, "reason": "not-due"}
        if asked.mode == "if-enabled" and not job.spec.enabled:
            return answer | {"ran": False, "reason": "disabled"}
        self._manual_runs += 1
        run_id = f"manual:{job.id}:{now}:{self._manual_runs}:{uuid.uuid4().hex[:8]}"
        firing = await self._jobs.reserve(job.id, run_id, now, manual=True, note=None)
        if firing is None:
            return answer | {"ran": False, "reason": "already-running"}
        self._executor.start(firing)
        return answer | {"enqueued": True, "runId": run_id}

    async def wake(self, call: CronCall) -> dict[str, bool]:
        """Give an agent a text: with its session's next prompt, or in a run now."""
        asked, caller, roster = read_params(call.params, WakeParams, "wake"), call.caller, self._roster()
        agent = asked.agent_id or roster.default_id
        roster.get_agent(agent)
        key = (asked.session_key or "").strip().lower() or f"agent:{agent}:{roster.main_key}"
        if not key.startswith("agent:"):
            key = f"agent:{agent}:{roster.main_key if key == 'main' else key}"
        run_id = f"wake:{uuid.uuid4()}"
        if asked.mode == "next-heartbeat":
            event = QueuedEvent(session=key, text=asked.text, at=self._time.now(), key=run_id, owner=caller.is_owner)
            await self._jobs.queue_event(event)
            return {"ok": True}
        kind = "main" if key.endswith(f":{roster.main_key}") else "custom"
        session = NewSession(key=key, agent_id=session_keys.split_key(key)[0], classification=kind)
        options = RunOptions(sender=caller.name, grant=child_grant(caller))
        message = f"System: {asked.text}"
        await self._runner.submit(
            RunRequest(run_id=run_id, session=session, message=message, mode="followup", options=options)
        )
        return {"ok": True}

    # ---- shared --------------------------------------------------------------------------------------------------

    async def _get_job(self, job_id: str) -> CronJob:
        job = await self._jobs.get(job_id)
        if job is None:
            raise _unknown_job(job_id)
        return job

    def _check_spec(self, spec: JobSpec, caller: Caller) -> JobSpec:
        """An agent may schedule turns of agents, but no programs."""
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
        due, view = job.state.next_run_at_ms, redact_job(views.job_view(job), self._redact)
        payload = drop_none({"jobId": job.id, "action": action, "job": view, "nextRunAtMs": due})
        self._publish(RpcEvent(name="cron", payload=payload))
        self._executor.streams.stop_soon(job.id)  # it starts again with the new definition
        self.scheduler.wake()

    async def _preview(self, job: CronJob) -> dict[str, str]:
        sessions = tuple(key for key in (job.spec.session_key, self._targets().main_session(job)) if key)
        in_session = job.spec.session_target not in ("isolated", "main")
        return await self._delivery.preview(job.spec.delivery, sessions, in_session=in_session)


def _unknown_job(job_id: str) -> RpcError:
    details = {"code": "CRON_JOB_NOT_FOUND", "jobId": job_id}
    return RpcError(
        f"cron job not found: {job_id}; cron.list lists the jobs (openclaw cron list --all)", details=details
    )


def _page(name: str, rows: Sequence[Json], total: int, offset: int, limit: int) -> Json:
    more = offset + len(rows) < total
    following = offset + len(rows) if more else None
    page = {"total": total, "offset": offset, "limit": limit, "hasMore": more, "nextOffset": following}
    return {name: [*rows], **page}


def _without_anchor(spec: JobSpec) -> JobSpec:
    """The spec without the time it was made at, which must not make two declarations of the same job differ."""
    if not isinstance(spec.schedule, IntervalSchedule):
        return spec
    return structs.replace(spec, schedule=IntervalSchedule(every_ms=spec.schedule.every_ms))
