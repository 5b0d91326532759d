"""The book of jobs: a due job is claimed by one process, carried out once, and settled with its log in one commit."""

import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, func, insert, select, update

from ..core.ids import new_id
from ..core.jobs import (
    AtOnce,
    Change,
    Claimed,
    Ending,
    Firing,
    Job,
    JobQuery,
    LogQuery,
    Plan,
    Queued,
    Unclaimed,
    replaced,
)
from ..core.model import Json
from .cron_rows import columns, ended, ended_row, firing_of, going_row, job_of
from .events import queue_all
from .prepared_statements import Prepared
from .rows import from_json
from .store import Store
from .tables import cron_jobs as jobs
from .tables import cron_runs as runs

logger = logging.getLogger(__name__)

KEPT_MS: Final = 90 * 86_400_000  # three months of history is what anybody asks for
PRUNE_EVERY: Final = 64  # log entries between looks whether a job has too many

# Built once: making a statement costs more than running it.
_BY_ID = select(jobs).where(jobs.c.id == bindparam("wanted"))
_BY_ID_LOCKED = _BY_ID.with_for_update()
_FREE = (jobs.c.running.is_(None), jobs.c.next_at.is_not(None))
_NEXT = select(jobs.c.next_at).where(*_FREE).order_by(jobs.c.next_at).limit(1)
_DUE = Prepared(
    select(jobs)
    .where(*_FREE, jobs.c.next_at <= bindparam("now"))
    .order_by(jobs.c.next_at)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)
)
_TAKE = Prepared(
    update(jobs)
    .where(jobs.c.id == bindparam("wanted"))
    .values(running=bindparam("run"), running_at=bindparam("now"), next_at=bindparam("next"))
)

_MINE = (
    select(runs.c.id)
    .where(runs.c.run_id == bindparam("wanted"), runs.c.status == "running", runs.c.owner == bindparam("us"))
    .with_for_update()
)
_ENDED = ("status", "ended_at", "delivery_status", "words", "entry", "session_key", "reap_at", "job")
_END = update(runs).where(runs.c.run_id == bindparam("wanted")).values({name: bindparam(name) for name in _ENDED})
_SETTABLE = [column.name for column in jobs.c if column.name not in ("id", "created_at")]
_SET = Prepared(
    update(jobs).where(jobs.c.id == bindparam("wanted")).values({name: bindparam(name) for name in _SETTABLE})
)
_DELETE = Prepared(delete(jobs).where(jobs.c.id == bindparam("wanted")))
_PUT = Prepared(insert(runs))
_LAST = select(func.max(runs.c.id))


class CronJobs:
    """A `CronBook` over the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def instance(self) -> str:
        return self._store.instance

    # ---- jobs ----------------------------------------------------------------------------------------------------

    async def add(self, job: Job, *, most: int) -> Job | None:
        def work(connection: Connection) -> Job | None:
            if job.spec.declaration_key is not None:
                known = connection.execute(_declared(job.spec.declaration_key)).first()
                if known is not None:
                    return job_of(known)
            if connection.execute(select(func.count()).select_from(jobs)).scalar_one() >= most:
                return None
            connection.execute(insert(jobs).values(id=job.id, created_at=job.created_at, **columns(job)))
            return job

        return await self._store.write(work)

    async def get(self, job_id: str) -> Job | None:
        return await self._store.read(lambda connection: _find(connection, job_id))

    async def declared(self, key: str) -> Job | None:
        row = await self._store.read(lambda connection: connection.execute(_declared(key)).first())
        return None if row is None else job_of(row)

    async def page(self, query: JobQuery) -> tuple[Sequence[Job], int]:
        where = list(_job_filters(query))
        column = {"next_at": jobs.c.next_at, "updated_at": jobs.c.updated_at, "name": jobs.c.name}[query.sort]
        order = (column.desc() if query.descending else column.asc()).nulls_last()
        statement = select(jobs).where(*where).order_by(order, jobs.c.id).limit(query.limit).offset(query.offset)
        total = select(func.count()).select_from(jobs).where(*where)

        def work(connection: Connection) -> tuple[Sequence[Job], int]:
            return [job_of(row) for row in connection.execute(statement)], connection.execute(total).scalar_one()

        return await self._store.read(work)

    async def change(self, job_id: str, change: Change) -> Job | None:
        def work(connection: Connection) -> Job | None:
            job = _find(connection, job_id, lock=True)
            return None if job is None else _put(connection, job, change(job), running=job.running)

        return await self._store.write(work)

    async def remove(self, job_id: str) -> bool:
        statement = delete(jobs).where(jobs.c.id == job_id)
        return await self._store.write(lambda connection: connection.execute(statement).rowcount > 0)

    async def count(self) -> int:
        statement = select(func.count()).select_from(jobs)
        return await self._store.read(lambda connection: int(connection.execute(statement).scalar_one()))

    async def added_since(self, origin: str, since: int) -> int:
        statement = select(func.count()).where(jobs.c.origin == origin, jobs.c.created_at >= since)
        return await self._store.read(lambda connection: int(connection.execute(statement).scalar_one()))

    # ---- claiming ------------------------------------------------------------------------------------------------

    async def next_due(self) -> int | None:
        return await self._store.read(lambda connection: connection.execute(_NEXT).scalar())

    async def claim(self, now: int, *, most: int, plan: Plan, at_once: AtOnce | None = None) -> Sequence[Claimed]:
        def work(connection: Connection) -> Sequence[Claimed]:
            claim, name = _Claim(connection, self.instance, now), new_id()
            for row in _DUE.all(connection, {"now": now, "most": most}):
                try:
                    job = job_of(row)
                except msgspec.MsgspecError:
                    # One that can't be read, from another version perhaps, must not hold up the others.
                    logger.exception("cron job %s can't be read; it is disabled", row.id)
                    connection.execute(update(jobs).where(jobs.c.id == row.id).values(enabled=False, next_at=None))
                    continue
                run_id = f"cron:{job.id}:{row.next_at}:{name}"
                firing = Firing(run_id=run_id, job=job, due_at=row.next_at, at=now)
                claim.take(firing, plan(job, now), None if at_once is None else at_once(firing))
            claim.write()
            return claim.taken

        return await self._store.write(work)

    async def reserve(self, job_id: str, run_id: str, now: int, *, manual: bool, note: str | None) -> Firing | None:
        def work(connection: Connection) -> Firing | None:
            job = _find(connection, job_id, lock=True)
            if job is None or job.running is not None:
                return None
            firing = Firing(run_id=run_id, job=job, due_at=now, at=now, manual=manual, note=note)
            taken = update(jobs).where(jobs.c.id == job_id).values(running=run_id, running_at=now)
            connection.execute(taken)
            connection.execute(insert(runs).values(going_row(firing, self.instance)))
            return firing

        return await self._store.write(work)

    async def adopt(self) -> Sequence[Firing]:
        going = select(runs).where(runs.c.status == "running", runs.c.owner != self.instance)

        def work(connection: Connection) -> Sequence[Firing]:
            alive: dict[str, bool] = {}
            found = []
            for row in connection.execute(going.order_by(runs.c.id).with_for_update(skip_locked=True)).all():
                if row.owner not in alive:
                    alive[row.owner] = self._store.pulse.alive(connection, row.owner)
                if not alive[row.owner]:
                    found.append(firing_of(row))
            ours = update(runs).where(runs.c.run_id.in_([firing.run_id for firing in found]))
            if found:
                connection.execute(ours.values(owner=self.instance))
            return found

        if await self._store.read(lambda connection: connection.execute(going.limit(1)).first()) is None:
            return ()  # a look costs no write while there is nobody else
        return await self._store.write(work)

    async def begin(self, run_id: str) -> bool:
        mine = (runs.c.run_id == run_id, runs.c.status == "running", runs.c.owner == self.instance)
        statement = update(runs).where(*mine).values(begun=True)
        return await self._store.write(lambda connection: connection.execute(statement).rowcount > 0)

    async def finish(self, firing: Firing, ending: Ending) -> Job | None:
        def work(connection: Connection) -> Job | None:
            known = {"wanted": firing.run_id}
            place = connection.execute(_MINE, {**known, "us": self.instance}).scalar()
            if place is None:
                raise Unclaimed(firing.run_id)
            job = _find(connection, firing.job.id, lock=True)
            if job is not None and job.running == firing.run_id:
                job = _put(connection, job, ending.settle(job), running=None)
            due = None if job is None else job.state.next_run_at_ms
            connection.execute(_END, {**known, **ended(_told(ending, due), ending.reap_at)})
            if _to_prune(place):
                _prune(connection, firing.job.id, ending.keep)
            if ending.event is not None:
                queue_all(connection, [ending.event])
            return job

        return await self._store.write(work)

    async def overdue(self, before: int) -> Sequence[tuple[str, int]]:
        statement = select(jobs.c.id, jobs.c.next_at).where(*_FREE, jobs.c.next_at < before).order_by(jobs.c.next_at)
        return await self._store.read(lambda c: [(row.id, row.next_at) for row in c.execute(statement)])

    async def put_off(self, times: Sequence[tuple[str, int, int | None]]) -> None:
        if not times:
            return
        same = (jobs.c.id == bindparam("wanted"), jobs.c.next_at == bindparam("had"))
        statement = update(jobs).where(*same).values(next_at=bindparam("next"))
        rows = [{"wanted": job_id, "had": had, "next": due} for job_id, had, due in times]
        await self._store.write(lambda connection: connection.execute(statement, rows) and None)

    # ---- what came of them ---------------------------------------------------------------------------------------

    async def log(self, query: LogQuery) -> tuple[Sequence[Json], int]:
        where = list(_log_filters(query))
        order = runs.c.id.desc() if query.descending else runs.c.id.asc()
        statement = select(runs.c.entry).where(*where).order_by(order).limit(query.limit).offset(query.offset)
        total = select(func.count()).select_from(runs).where(*where)

        def work(connection: Connection) -> tuple[Sequence[Json], int]:
            entries = [from_json(entry) for entry in connection.execute(statement).scalars()]
            return entries, connection.execute(total).scalar_one()

        return await self._store.read(work)

    async def reap(self, now: int, *, most: int) -> Sequence[str]:
        ripe = select(runs.c.id, runs.c.session_key).where(runs.c.reap_at <= now).limit(most)

        def work(connection: Connection) -> Sequence[str]:
            found = connection.execute(ripe).all()
            done = update(runs).where(runs.c.id.in_([row.id for row in found])).values(reap_at=None)
            connection.execute(done)
            connection.execute(delete(runs).where(runs.c.ended_at < now - KEPT_MS))
            return [row.session_key for row in found if row.session_key]

        return await self._store.write(work)

    async def queue(self, event: Queued) -> None:
        await self._store.write(lambda connection: queue_all(connection, [event]))


class _Claim:
    """The rows of one claim, gathered so that each table is written once however many jobs are due."""

    def __init__(self, connection: Connection, owner: str, now: int) -> None:
        self._connection, self._owner, self._now = connection, owner, now
        self.taken: list[Claimed] = []
        self._following: list[dict[str, Any]] = []
        self._settled: list[dict[str, Any]] = []
        self._gone: list[dict[str, Any]] = []
        self._runs: list[dict[str, Any]] = []
        self._over: list[dict[str, Any]] = []
        self._events: list[Queued] = []

    def take(self, firing: Firing, due: int | None, ending: Ending | None) -> None:
        job = firing.job
        if ending is None:
            self._following.append({"wanted": job.id, "run": firing.run_id, "now": self._now, "next": due})
            self._runs.append(going_row(firing, self._owner))
            self.taken.append(Claimed(firing=firing))
            return
        left = ending.settle(replaced(job, next_run_at_ms=due))
        if left is None:
            self._gone.append({"wanted": job.id})
        else:
            self._settled.append({"wanted": job.id, **columns(left), "running": None, "running_at": None})
        following = None if left is None else left.state.next_run_at_ms
        self._over.append(ended_row(firing, _told(ending, following), ending.reap_at, self._owner))
        if ending.event is not None:
            self._events.append(ending.event)
        self.taken.append(Claimed(firing=firing, ending=ending, job=left))

    def write(self) -> None:
        for statement, rows in (
            (_TAKE, self._following), (_SET, self._settled), (_DELETE, self._gone), (_PUT, self._runs),
            (_PUT, self._over),
        ):  # fmt: skip
            statement.run_each(self._connection, rows)
        if self._over:
            last = self._connection.execute(_LAST).scalar() or 0
            # As many places as were just taken: one in PRUNE_EVERY of them has its job's log looked at.
            ended = [one for one in self.taken if one.ending is not None]
            for place, one in enumerate(ended, last - len(ended) + 1):
                if one.ending is not None and _to_prune(place):
                    _prune(self._connection, one.firing.job.id, one.ending.keep)
        queue_all(self._connection, self._events)


def _to_prune(place: int) -> bool:
    return place % PRUNE_EVERY == 0


def _told(ending: Ending, due: int | None) -> Json:
    return ending.entry if due is None else {**ending.entry, "nextRunAtMs": due}


def _find(connection: Connection, job_id: str, *, lock: bool = False) -> Job | None:
    row = connection.execute(_BY_ID_LOCKED if lock else _BY_ID, {"wanted": job_id}).first()
    return None if row is None else job_of(row)


def _declared(key: str) -> Select[Any]:
    return select(jobs).where(jobs.c.declaration_key == key)


def _put(connection: Connection, before: Job, job: Job | None, *, running: str | None) -> Job | None:
    if job is None:
        _DELETE.run(connection, {"wanted": before.id})
        return None
    since = None if running is None else before.state.running_at_ms
    now = {"running": running, "running_at": since}
    _SET.run(connection, {"wanted": before.id, **columns(job), **now})
    return msgspec.structs.replace(replaced(job, running_at_ms=since), running=running)


def _prune(connection: Connection, job_id: str, keep: int) -> None:
    """Keep the newest entries of a job: the oldest to go is found by its place."""
    place = select(runs.c.id).where(runs.c.job_id == job_id).order_by(runs.c.id.desc()).offset(keep).limit(1)
    oldest = connection.execute(place).scalar()
    if oldest is not None:
        ended = (runs.c.job_id == job_id, runs.c.id <= oldest, runs.c.status != "running")
        connection.execute(delete(runs).where(*ended))


def _job_filters(query: JobQuery) -> Sequence[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = []
    if query.enabled is not None:
        where.append(jobs.c.enabled == query.enabled)
    for column, value in ((jobs.c.kind, query.kind), (jobs.c.session_key, query.session_key)):
        if value is not None:
            where.append(column == value)
    if query.agent_id is not None:
        where.append(jobs.c.agent_id == query.agent_id)
    if query.last_status is not None:
        unknown = query.last_status == "unknown"
        where.append(jobs.c.last_status.is_(None) if unknown else jobs.c.last_status == query.last_status)
    if query.words:
        where.append(jobs.c.words.contains(query.words.lower(), autoescape=True))
    return where


def _log_filters(query: LogQuery) -> Sequence[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = [runs.c.status != "running"]
    for column, value in ((runs.c.job_id, query.job_id), (runs.c.run_id, query.run_id)):
        if value is not None:
            where.append(column == value)
    if query.agent_id is not None:
        where.append(runs.c.agent_id == query.agent_id)
    if query.statuses:
        where.append(runs.c.status.in_(query.statuses))
    if query.deliveries:
        where.append(runs.c.delivery_status.in_(query.deliveries))
    if query.words:
        where.append(runs.c.words.contains(query.words.lower(), autoescape=True))
    return where
