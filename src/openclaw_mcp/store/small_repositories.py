"""The smaller repositories: answers already given, devices, nodes, config history, audit."""

from collections.abc import Sequence
from operator import eq, ge, lt
from typing import Any, Final

from sqlalchemy import Column, Connection, Table, delete, func, insert, select

from ..core.model import CallRecord, Json
from ..core.sessions import AuditQuery, ConfigChange, now_ms
from .rows import from_json, to_json, upsert
from .store import SqlRepository
from .tables import answers, audit, config_history, devices, nodes

ANSWERS_KEPT_MS: Final = 24 * 3600 * 1000  # a client that retries does so within minutes
AUDIT_KEPT_MS: Final = 90 * 24 * 3600 * 1000
AUDIT_MOST: Final = 1_000_000  # records, some 300 bytes each, also within the time above
TOOL_CALL: Final = "tool"
MAX_NAME_LENGTH: Final = 256  # characters; the columns' own limit
MAX_RULE_LENGTH: Final = 1000
AUDIT_FIELDS: Final = {
    "id": "id", "at": "at", "caller": "actor", "door": "door", "sessionKey": "session", "tool": "target",
    "source": "source", "digest": "digest", "step": "step", "rule": "rule", "outcome": "outcome", "ms": "ms",
}  # fmt: skip
"""The fields of `audit.list`, each with its column."""
CHANGE_COLUMNS: Final = ("at", "hash", "actor", "method", "note", "raw")
CONFIGS_KEPT: Final = 200  # each holds a whole file


class SqlIdempotencyRepository(SqlRepository):
    async def get(self, scope: str, key: str) -> Json | None:
        statement = select(answers.c.answer).where(answers.c.scope == scope, answers.c.key == key)
        found = await self._store.read(lambda connection: connection.execute(statement).scalar())
        return None if found is None else from_json(found)

    async def put_if_absent(self, scope: str, key: str, answer: Json) -> Json:
        def work(connection: Connection) -> Json:
            at = now_ms()
            connection.execute(delete(answers).where(answers.c.at < at - ANSWERS_KEPT_MS))
            new = upsert(connection, answers).values(scope=scope, key=key, at=at, answer=to_json(answer))
            connection.execute(new.on_conflict_do_nothing(index_elements=["scope", "key"]))
            stored = select(answers.c.answer).where(answers.c.scope == scope, answers.c.key == key)
            return from_json(connection.execute(stored).scalar_one())  # type: ignore[no-any-return]  # an object

        return await self._store.write(work)


class _SqlPairingRepository(SqlRepository):
    """A `PairingRepository` over one table: a record for each id."""

    _table: Table

    @property
    def _id(self) -> Column[Any]:
        return next(iter(self._table.primary_key.columns))

    async def all(self) -> dict[str, Json]:
        statement = select(self._id, self._table.c.record).order_by(self._table.c.updated_at)
        return await self._store.read(lambda c: {id: from_json(record) for id, record in c.execute(statement)})

    async def put(self, id: str, record: Json) -> None:
        def work(connection: Connection) -> None:
            values = {"updated_at": now_ms(), "record": to_json(record)}
            statement = upsert(connection, self._table).values({self._id.name: id, **values})
            connection.execute(statement.on_conflict_do_update(index_elements=[self._id.name], set_=values))

        await self._store.write(work)

    async def remove(self, id: str) -> bool:
        statement = delete(self._table).where(self._id == id)
        return await self._store.execute(statement) > 0


class SqlDeviceRepository(_SqlPairingRepository):
    """Paired devices."""

    _table = devices


class SqlNodeRepository(_SqlPairingRepository):
    """Nodes, and the commands approved for each."""

    _table = nodes


class SqlConfigHistory(SqlRepository):
    """A `ConfigHistory` over the store."""

    async def add(self, change: ConfigChange) -> None:
        def work(connection: Connection) -> None:
            values = {name: getattr(change, name) for name in CHANGE_COLUMNS}
            added = connection.execute(insert(config_history).values(**values, paths=to_json(change.paths)))
            oldest = added.inserted_primary_key[0] - CONFIGS_KEPT  # type: ignore[index]  # one row was inserted
            connection.execute(delete(config_history).where(config_history.c.id <= oldest))

        await self._store.write(work)

    async def last(self, limit: int = 20) -> Sequence[ConfigChange]:
        rows = await self._store.fetch(select(config_history).order_by(config_history.c.id.desc()).limit(limit))
        return [
            ConfigChange(**{name: getattr(row, name) for name in CHANGE_COLUMNS}, paths=tuple(from_json(row.paths)))
            for row in rows
        ]


class SqlAuditTrail(SqlRepository):
    """An `AuditTrail` over the store."""

    async def add(self, records: Sequence[CallRecord]) -> None:
        rows = [
            {
                "at": round(record.at * 1000), "actor": record.caller[:MAX_NAME_LENGTH], "action": TOOL_CALL,
                "target": record.tool[:MAX_NAME_LENGTH], "outcome": record.outcome,
                "session": record.session and record.session[: 2 * MAX_NAME_LENGTH], "door": record.entry_point,
                "source": record.source and record.source[:MAX_NAME_LENGTH], "digest": record.digest,
                "step": record.step, "rule": record.rule[:MAX_RULE_LENGTH], "ms": round(record.milliseconds, 3),
            }
            for record in records
        ]  # fmt: skip

        def work(connection: Connection) -> None:
            connection.execute(insert(audit), rows)
            newest = connection.execute(select(func.max(audit.c.id))).scalar_one()
            old = (audit.c.id <= newest - AUDIT_MOST) | (audit.c.at < now_ms() - AUDIT_KEPT_MS)
            connection.execute(delete(audit).where(old))

        await self._store.write(work)

    async def find(self, query: AuditQuery) -> Sequence[Json]:
        filters = (
            (eq, audit.c.session, query.session),
            (eq, audit.c.target, query.tool),
            (eq, audit.c.outcome, query.outcome),
            (ge, audit.c.at, query.since),
            (lt, audit.c.at, query.until),
            (lt, audit.c.id, query.before),
        )
        conditions = [compare(column, value) for compare, column, value in filters if value is not None]
        if query.agent is not None:
            conditions.append(audit.c.session.startswith(f"agent:{query.agent}:", autoescape=True))
        if query.outcomes is not None:
            column = audit.c.outcome
            conditions.append(column.not_in(query.outcomes) if query.other_outcomes else column.in_(query.outcomes))
        columns = (audit.c[column].label(name) for name, column in AUDIT_FIELDS.items())
        statement = select(*columns).where(audit.c.action == TOOL_CALL, *conditions)
        rows = await self._store.fetch(statement.order_by(audit.c.id.desc()).limit(query.limit))
        return [dict(row._mapping) for row in rows]  # noqa: SLF001  (so SQLAlchemy names its public attribute)
