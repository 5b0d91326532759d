"""The book of sub-agents: who was sent off with which task, and whether the result came back."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, delete, insert, select, update

from ..core.records import Subagent
from .rows import from_json, to_json
from .store import Store
from .tables import subagents

AT_ONCE: Final = 100  # rows an archiving round looks at
MOST_CHILDREN: Final = 1000  # rows told of one requester, the newest
SETTLED: Final = ("delivered", "silent", "killed", "failed")


class Subagents:
    """A `SubagentBook` over the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, subagent: Subagent) -> None:
        values = {name: getattr(subagent, name) for name in Subagent.__struct_fields__}
        statement = insert(subagents).values(values | {"grant": to_json(subagent.grant)})
        await self._store.write(lambda connection: connection.execute(statement) and None)

    async def change(self, child_key: str, **columns: Any) -> Subagent | None:
        def work(connection: Connection) -> Subagent | None:
            connection.execute(update(subagents).where(subagents.c.child_key == child_key).values(columns))
            return next(iter(_found(connection, _ROW.where(subagents.c.child_key == child_key))), None)

        return await self._store.write(work)

    async def drop(self, child_key: str) -> None:
        statement = delete(subagents).where(subagents.c.child_key == child_key)
        await self._store.write(lambda connection: connection.execute(statement) and None)

    async def get(self, child_key: str) -> Subagent | None:
        return next(iter(await self._all(_ROW.where(subagents.c.child_key == child_key))), None)

    async def children(self, requester_key: str) -> Sequence[Subagent]:
        newest = _ROW.where(subagents.c.requester_key == requester_key).order_by(subagents.c.id.desc())
        return list(await self._all(newest.limit(MOST_CHILDREN)))[::-1]

    async def unsettled(self) -> Sequence[Subagent]:
        return await self._all(_ROW.where(subagents.c.delivery.not_in(SETTLED)).order_by(subagents.c.id))

    async def idle_since(self, before: int) -> Sequence[Subagent]:
        settled = subagents.c.delivery.in_(SETTLED) & (subagents.c.ended_at < before) & ~subagents.c.archived
        return await self._all(_ROW.where(settled).order_by(subagents.c.id).limit(AT_ONCE))

    async def _all(self, statement: Select[Any]) -> Sequence[Subagent]:
        return await self._store.read(lambda connection: _found(connection, statement))


_ROW = select(subagents)


def _found(connection: Connection, statement: Select[Any]) -> list[Subagent]:
    return [_of(row) for row in connection.execute(statement)]


def _of(row: Row[Any]) -> Subagent:
    fields = {name: getattr(row, name) for name in Subagent.__struct_fields__}
    return Subagent(**fields | {"grant": from_json(row.grant)})
