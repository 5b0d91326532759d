"""Stores sub-agents: their tasks, and whether the results were delivered."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, Select, delete, false, func, insert, or_, select, tuple_, update

from ..core.model import Grant
from ..core.sessions import Subagent, SubagentQuery
from .rows import to_json
from .store import SqlRepository
from .tables import subagents

ARCHIVE_BATCH_SIZE: Final = 100  # rows that one archiving round reads
MAX_CHILDREN: Final = 1000  # of one requester, the newest
SETTLED: Final = ("delivered", "silent", "killed", "failed")


class SqlSubagentRepository(SqlRepository):
    """A `SubagentRepository` over the store."""

    async def put(self, subagent: Subagent) -> None:
        values = {name: getattr(subagent, name) for name in Subagent.__struct_fields__}
        statement = insert(subagents).values(values | {"grant": to_json(subagent.grant)})
        await self._store.execute(statement)

    async def change(self, child_key: str, **columns: Any) -> Subagent | None:
        if "grant" in columns:
            columns["grant"] = to_json(columns["grant"])

        def work(connection: Connection) -> Subagent | None:
            connection.execute(update(subagents).where(subagents.c.child_key == child_key).values(columns))
            return next(iter(_fetch_all(connection, _SELECT_SUBAGENT.where(subagents.c.child_key == child_key))), None)

        return await self._store.write(work)

    async def drop(self, child_key: str) -> None:
        statement = delete(subagents).where(subagents.c.child_key == child_key)
        await self._store.execute(statement)

    async def get(self, child_key: str) -> Subagent | None:
        return next(iter(await self._select(_SELECT_SUBAGENT.where(subagents.c.child_key == child_key))), None)

    async def children(self, requester_key: str) -> Sequence[Subagent]:
        newest = _SELECT_SUBAGENT.where(subagents.c.requester_key == requester_key).order_by(subagents.c.id.desc())
        return list(await self._select(newest.limit(MAX_CHILDREN)))[::-1]

    async def find(self, id: str) -> Subagent | None:
        key = subagents.c.child_key
        named = or_(subagents.c.run_id == id, key == id, key.endswith(f":{id}", autoescape=True))
        return next(
            iter(await self._select(_SELECT_SUBAGENT.where(named).order_by(subagents.c.id.desc()).limit(1))), None
        )

    async def page(self, query: SubagentQuery) -> Sequence[tuple[int, Subagent]]:
        statement = _page_statement(query)
        return await self._store.read(
            lambda connection: [(row.id, _subagent_from_row(row)) for row in connection.execute(statement)]
        )

    async def list_awaiting_delivery(self) -> Sequence[Subagent]:
        return await self._select(_SELECT_SUBAGENT.where(subagents.c.delivery.not_in(SETTLED)).order_by(subagents.c.id))

    async def list_idle(self, before: int) -> Sequence[Subagent]:
        settled = subagents.c.delivery.in_(SETTLED) & (subagents.c.ended_at < before) & ~subagents.c.archived
        return await self._select(_SELECT_SUBAGENT.where(settled).order_by(subagents.c.id).limit(ARCHIVE_BATCH_SIZE))

    async def list_announced_since(self, since: int) -> Sequence[Subagent]:
        announced = (subagents.c.delivery == "delivered") & (subagents.c.ended_at >= since)
        return await self._select(_SELECT_SUBAGENT.where(announced).order_by(subagents.c.id))

    async def prune(self, before: int) -> None:
        old = subagents.c.delivery.in_(SETTLED) & (subagents.c.ended_at < before)
        await self._store.execute(delete(subagents).where(old))

    async def _select(self, statement: Select[Any]) -> Sequence[Subagent]:
        return await self._store.read(lambda connection: _fetch_all(connection, statement))


_SELECT_SUBAGENT = select(subagents)
_decode_grant = msgspec.json.Decoder(Grant).decode


def _page_statement(query: SubagentQuery) -> Select[Any]:
    table = subagents.c
    active = func.coalesce(table.ended_at, table.started_at)
    statement = _SELECT_SUBAGENT.order_by(active.desc(), table.id.desc()).limit(query.limit)
    if query.outcomes is not None:
        ends = [end for end in query.outcomes if end is not None]
        running = table.outcome.is_(None) if None in query.outcomes else false()
        statement = statement.where(or_(table.outcome.in_(ends), running))
    if query.agent_id is not None:
        statement = statement.where(table.child_key.startswith(f"agent:{query.agent_id}:", autoescape=True))
    if query.session_key is not None:
        statement = statement.where(or_(table.requester_key == query.session_key, table.child_key == query.session_key))
    if query.after is not None:
        statement = statement.where(tuple_(active, table.id) < tuple_(*query.after))
    return statement


def _fetch_all(connection: Connection, statement: Select[Any]) -> list[Subagent]:
    return [_subagent_from_row(row) for row in connection.execute(statement)]


def _subagent_from_row(row: Row[Any]) -> Subagent:
    fields = {name: getattr(row, name) for name in Subagent.__struct_fields__}
    return Subagent(**fields | {"grant": _decode_grant(row.grant)})
