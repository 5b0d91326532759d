"""Stores jobs: a due job is claimed by one process, executed once, and finished with its log entry in one commit."""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import Column, ColumnElement, Connection, bindparam, delete, func, insert, or_, select, update

from ..core.ids import new_id
from ..core.jobs import (
    ChangeJob,
    ClaimedFiring,
    CronJob,
    FiringNotClaimed,
    FiringOutcome,
    InstantOutcome,
    JobFiring,
    JobLogQuery,
    JobQuery,
    PlanNextRun,
    QueuedEvent,
    replace_job,
)
from ..core.model import Json
from .cron_rows import active_run_row, ending_columns, firing_columns, firing_from_row, job_columns, job_from_row
from .events import queue_events
from .prepared_statements import PreparedStatement
from .rows import from_json
from .store import SqlRepository
from .tables import cron_jobs as jobs
from .tables import cron_runs as runs

logger = logging.getLogger(__name__)

RUN_RETENTION_MS: Final = 90 * 86_400_000  # three months of history
PRUNE_EVERY: Final = 64  # log entries between checks whether a job has too many

# Built once: making a statement costs more than running it.
_SELECT_JOB = select(jobs).where(jobs.c.id == bindparam("wanted"))
_SELECT_JOB_LOCKED = _SELECT_JOB.with_for_update()
_CLAIMABLE = (jobs.c.running.is_(None), jobs.c.next_at.is_not(None))
_SELECT_NEXT_DUE = select(jobs.c.next_at).where(*_CLAIMABLE).order_by(jobs.c.next_at).limit(1)
_SELECT_DUE = PreparedStatement(
    select(jobs)
    .where(*_CLAIMABLE, jobs.c.next_at <= bindparam("now"))
    .order_by(jobs.c.next_at)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)
)
_MARK_RUNNING = PreparedStatement(
    update(jobs)
    .where(jobs.c.id == bindparam("wanted"))
    .values(running=bindparam("run"), running_at=bindparam("now"), next_at=bindparam("next"))
)

_SELECT_OWN_RUN = (
    select(runs.c.id)
    .where(runs.c.run_id == bindparam("wanted"), runs.c.status == "running", runs.c.owner == bindparam("us"))
    .with_for_update()
)
_ENDING_COLUMNS = ("status", "ended_at", "delivery_status", "words", "entry", "session_key", "reap_at", "job")
_MARK_ENDED = (
    update(runs).where(runs.c.run_id == bindparam("wanted")).values({name: bindparam(name) for name in _ENDING_COLUMNS})
)
_MUTABLE_COLUMNS = [column.name for column in jobs.c if column.name not in ("id", "created_at")]
_UPDATE_JOB = PreparedStatement(
    update(jobs).where(jobs.c.id == bindparam("wanted")).values({name: bindparam(name) for name in _MUTABLE_COLUMNS})
)
_DELETE_JOB = PreparedStatement(delete(jobs).where(jobs.c.id == bindparam("wanted")))
_INSERT_RUN = PreparedStatement(insert(runs))
_SELECT_LAST_RUN_ID = select(func.max(runs.c.id))


_PlannedFiring = tuple[JobFiring, int | None, FiringOutcome | None]
"""A firing, when its job is due next, and how the firing ends if nothing has to run for it."""


class SqlCronJobRepository(SqlRepository):
    """A `CronJobRepository` over the store."""

    # ---- jobs ----------------------------------------------------------------------------------------------------

    async def add(self, job: CronJob, *, max_jobs: int) -> CronJob | None:
        def work(connection: Connection) -> CronJob | None:
            if job.spec.declaration_key is not None:
                declared = select(jobs).where(jobs.c.declaration_key == job.spec.declaration_key)
                known = connection.execute(declared).first()
                if known is not None:
                    return job_from_row(known)
            if connection.execute(select(func.count()).select_from(jobs)).scalar_one() >= max_jobs:
                return None
            connection.execute(insert(jobs).values(id=job.id, created_at=job.created_at, **job_columns(job)))
            return job

        return await self._store.write(work)

    async def get(self, job_id: str) -> CronJob | None:
        return await self._store.read(lambda connection: _find(connection, job_id))

    async def page(self, query: JobQuery) -> tuple[Sequence[CronJob], int]:
        where = _job_filters(query)
        column = {"next_at": jobs.c.next_at, "updated_at": jobs.c.updated_at, "name": jobs.c.name}[query.sort]
        order = (column.desc() if query.descending else column.asc()).nulls_last()
        statement = select(jobs).where(*where).order_by(order, jobs.c.id).limit(query.limit).offset(query.offset)
        total = select(func.count()).select_from(jobs).where(*where)

        def work(connection: Connection) -> tuple[Sequence[CronJob], int]:
            return [job_from_row(row) for row in connection.execute(statement)], connection.execute(total).scalar_one()

        return await self._store.read(work)

    async def change(self, job_id: str, change: ChangeJob) -> CronJob | None:
        def work(connection: Connection) -> CronJob | None:
            job = _find(connection, job_id, lock=True)
            return None if job is None else _update_job(connection, job, change(job), running=job.running)

        return await self._store.write(work)

    async def remove(self, job_id: str) -> bool:
        statement = delete(jobs).where(jobs.c.id == job_id)
        return await self._store.execute(statement) > 0

    async def count(self) -> int:
        statement = select(func.count()).select_from(jobs)
        return await self._store.read(lambda connection: int(connection.execute(statement).scalar_one()))

    async def count_added_since(self, origin: str, since: int) -> int:
        statement = select(func.count()).where(jobs.c.origin == origin, jobs.c.created_at >= since)
        return await self._store.read(lambda connection: int(connection.execute(statement).scalar_one()))

    # ---- claiming ------------------------------------------------------------------------------------------------

    async def next_due(self) -> int | None:
        return await self._store.read(lambda connection: connection.execute(_SELECT_NEXT_DUE).scalar())

    async def claim(
        self, now: int, *, limit: int, plan: PlanNextRun, instant_outcome: InstantOutcome | None = None
    ) -> Sequence[ClaimedFiring]:
        def work(connection: Connection) -> Sequence[ClaimedFiring]:
            planned, name = list[_PlannedFiring](), new_id()
            for row in _SELECT_DUE.all(connection, {"now": now, "most": limit}):
                try:
                    job = job_from_row(row)
                except msgspec.MsgspecError:
                    # One that can't be read, from another version perhaps, must not delay the others.
                    logger.exception("cron: job %s can't be read, it is disabled", row.id)
                    connection.execute(update(jobs).where(jobs.c.id == row.id).values(enabled=False, next_at=None))
                    continue
                run_id = f"cron:{job.id}:{row.next_at}:{name}"
                firing = JobFiring(run_id=run_id, job=job, due_at=row.next_at, at=now)
                planned.append((firing, plan(job, now), None if instant_outcome is None else instant_outcome(firing)))
            return _write_claims(connection, planned, self.instance)

        return await self._store.write(work)

    async def reserve(self, job_id: str, run_id: str, now: int, *, manual: bool, note: str | None) -> JobFiring | None:
        def work(connection: Connection) -> JobFiring | None:
            job = _find(connection, job_id, lock=True)
            if job is None or job.running is not None:
                return None
            firing = JobFiring(run_id=run_id, job=job, due_at=now, at=now, manual=manual, note=note)
            taken = update(jobs).where(jobs.c.id == job_id).values(running=run_id, running_at=now)
            connection.execute(taken)
            connection.execute(insert(runs).values(active_run_row(firing, self.instance)))
            return firing

        return await self._store.write(work)

    async def adopt(self) -> Sequence[JobFiring]:
        going = select(runs).where(runs.c.status == "running", runs.c.owner != self.instance)

        def work(connection: Connection) -> Sequence[JobFiring]:
            alive: dict[str, bool] = {}
            found = []
            for row in connection.execute(going.order_by(runs.c.id).with_for_update(skip_locked=True)).all():
                if row.owner not in alive:
                    alive[row.owner] = self._store.process_lock.is_alive(connection, row.owner)
                if not alive[row.owner]:
                    found.append(firing_from_row(row))
            ours = update(runs).where(runs.c.run_id.in_([firing.run_id for firing in found]))
            if found:
                connection.execute(ours.values(owner=self.instance))
            return found

        if await self._store.read(lambda connection: connection.execute(going.limit(1)).first()) is None:
            return ()  # no write while there is no other process
        return await self._store.write(work)

    async def begin(self, run_id: str) -> bool:
        mine = (runs.c.run_id == run_id, runs.c.status == "running", runs.c.owner == self.instance)
        statement = update(runs).where(*mine).values(begun=True)
        return await self._store.execute(statement) > 0

    async def finish(self, firing: JobFiring, outcome: FiringOutcome) -> CronJob | None:
        def work(connection: Connection) -> CronJob | None:
            known = {"wanted": firing.run_id}
            place = connection.execute(_SELECT_OWN_RUN, {**known, "us": self.instance}).scalar()
            if place is None:
                raise FiringNotClaimed(firing.run_id)
            job = _find(connection, firing.job.id, lock=True)
            if job is not None and job.running == firing.run_id:
                job = _update_job(connection, job, outcome.change_job(job), running=None)
            due = None if job is None else job.state.next_run_at_ms
            connection.execute(_MARK_ENDED, {**known, **ending_columns(outcome, due)})
            if _should_prune(place):
                _prune(connection, firing.job.id, outcome.max_log_entries)
            if outcome.event is not None:
                queue_events(connection, [outcome.event])
            return job

        return await self._store.write(work)

    async def list_overdue(self, before: int) -> Sequence[tuple[str, int]]:
        statement = (
            select(jobs.c.id, jobs.c.next_at).where(*_CLAIMABLE, jobs.c.next_at < before).order_by(jobs.c.next_at)
        )
        return await self._store.read(lambda c: [(row.id, row.next_at) for row in c.execute(statement)])

    async def reschedule(self, times: Sequence[tuple[str, int, int | None]]) -> None:
        if not times:
            return
        same = (jobs.c.id == bindparam("wanted"), jobs.c.next_at == bindparam("had"))
        statement = update(jobs).where(*same).values(next_at=bindparam("next"))
        rows = [{"wanted": job_id, "had": had, "next": due} for job_id, had, due in times]
        await self._store.execute(statement, rows)

    # ---- results -------------------------------------------------------------------------------------------------

    async def read_log(self, query: JobLogQuery) -> tuple[Sequence[Json], int]:
        where = _log_filters(query)
        order = runs.c.id.desc() if query.descending else runs.c.id.asc()
        statement = select(runs.c.entry).where(*where).order_by(order).limit(query.limit).offset(query.offset)
        total = select(func.count()).select_from(runs).where(*where)

        def work(connection: Connection) -> tuple[Sequence[Json], int]:
            entries = [from_json(entry) for entry in connection.execute(statement).scalars()]
            return entries, connection.execute(total).scalar_one()

        return await self._store.read(work)

    async def reap_sessions(self, now: int, *, limit: int) -> Sequence[str]:
        ripe = select(runs.c.id, runs.c.session_key).where(runs.c.reap_at <= now).limit(limit)

        def work(connection: Connection) -> Sequence[str]:
            found = connection.execute(ripe).all()
            done = update(runs).where(runs.c.id.in_([row.id for row in found])).values(reap_at=None)
            connection.execute(done)
            connection.execute(delete(runs).where(runs.c.ended_at < now - RUN_RETENTION_MS))
            return [row.session_key for row in found if row.session_key]

        return await self._store.write(work)

    async def queue_event(self, event: QueuedEvent) -> None:
        await self._store.write(lambda connection: queue_events(connection, [event]))


def _write_claims(connection: Connection, planned: Sequence[_PlannedFiring], owner: str) -> list[ClaimedFiring]:
    """The claims of these firings. Each table is written once however many jobs are due."""
    claims = [
        ClaimedFiring(firing=firing)
        if ending is None
        else ClaimedFiring(
            firing=firing, outcome=ending, job=ending.change_job(replace_job(firing.job, next_run_at_ms=due))
        )
        for firing, due, ending in planned
    ]
    begun = [(firing, due) for firing, due, ending in planned if ending is None]
    ended = [(one.firing, one.outcome, one.job) for one in claims if one.outcome is not None]
    idle = {"running": None, "running_at": None}
    _MARK_RUNNING.run_each(
        connection,
        [{"wanted": firing.job.id, "run": firing.run_id, "now": firing.at, "next": due} for firing, due in begun],
    )
    _UPDATE_JOB.run_each(
        connection, [{"wanted": job.id, **job_columns(job), **idle} for _, _, job in ended if job is not None]
    )
    _DELETE_JOB.run_each(connection, [{"wanted": firing.job.id} for firing, _, job in ended if job is None])
    _INSERT_RUN.run_each(connection, [active_run_row(firing, owner) for firing, _ in begun])
    _INSERT_RUN.run_each(
        connection,
        [
            {**firing_columns(firing, owner), **ending_columns(outcome, job.state.next_run_at_ms if job else None)}
            for firing, outcome, job in ended
        ],
    )
    if ended:
        last = connection.execute(_SELECT_LAST_RUN_ID).scalar() or 0
        # The ids just given out: one in PRUNE_EVERY of them has its job's log pruned.
        for place, (firing, outcome, _) in enumerate(ended, last - len(ended) + 1):
            if _should_prune(place):
                _prune(connection, firing.job.id, outcome.max_log_entries)
    queue_events(connection, [outcome.event for _, outcome, _ in ended if outcome.event is not None])
    return claims


def _should_prune(run_row_id: int) -> bool:
    return run_row_id % PRUNE_EVERY == 0


def _find(connection: Connection, job_id: str, *, lock: bool = False) -> CronJob | None:
    row = connection.execute(_SELECT_JOB_LOCKED if lock else _SELECT_JOB, {"wanted": job_id}).first()
    return None if row is None else job_from_row(row)


def _update_job(connection: Connection, old: CronJob, job: CronJob | None, *, running: str | None) -> CronJob | None:
    if job is None:
        _DELETE_JOB.run(connection, {"wanted": old.id})
        return None
    since = None if running is None else old.state.running_at_ms
    now = {"running": running, "running_at": since}
    _UPDATE_JOB.run(connection, {"wanted": old.id, **job_columns(job), **now})
    return msgspec.structs.replace(replace_job(job, running_at_ms=since), running=running)


def _prune(connection: Connection, job_id: str, keep: int) -> None:
    """Keep the newest entries of a job: the oldest to be deleted is found by its position."""
    place = select(runs.c.id).where(runs.c.job_id == job_id).order_by(runs.c.id.desc()).offset(keep).limit(1)
    oldest = connection.execute(place).scalar()
    if oldest is not None:
        ended = (runs.c.job_id == job_id, runs.c.id <= oldest, runs.c.status != "running")
        connection.execute(delete(runs).where(*ended))


def _agent_filters(agent: Column[str | None], query: JobQuery | JobLogQuery) -> list[ColumnElement[bool]]:
    if query.agent_id is None:
        return []
    named = agent == query.agent_id
    return [or_(named, agent.is_(None)) if query.or_no_agent else named]


def _job_filters(query: JobQuery) -> list[ColumnElement[bool]]:
    where = [
        jobs.c[name] == value
        for name in ("enabled", "kind", "session_key")
        if (value := getattr(query, name)) is not None
    ]
    where += _agent_filters(jobs.c.agent_id, query)
    if query.last_status is not None:
        unknown = query.last_status == "unknown"
        where.append(jobs.c.last_status.is_(None) if unknown else jobs.c.last_status == query.last_status)
    if query.search:
        where.append(jobs.c.words.contains(query.search.lower(), autoescape=True))
    return where


def _log_filters(query: JobLogQuery) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = [runs.c.status != "running"]
    where += [runs.c[name] == value for name in ("job_id", "run_id") if (value := getattr(query, name)) is not None]
    where += _agent_filters(runs.c.agent_id, query)
    if query.statuses:
        where.append(runs.c.status.in_(query.statuses))
    if query.deliveries:
        where.append(runs.c.delivery_status.in_(query.deliveries))
    if query.search:
        where.append(runs.c.words.contains(query.search.lower(), autoescape=True))
    return where
