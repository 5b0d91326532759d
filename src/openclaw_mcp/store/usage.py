"""What models used, by day."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Struct
from sqlalchemy import select

from ..core.sessions import DayUsage, RunUsage
from .store import SqlRepository
from .tables import runs, sessions


class _StoredResult(Struct, frozen=True):
    """The part of a run's result that is read here."""

    usage: RunUsage = RunUsage()


_decode = msgspec.json.Decoder(_StoredResult).decode


class SqlUsage(SqlRepository):
    """A `UsageRepository` over the store: the runs of sessions that are there."""

    async def by_day(self, since: int, until: int, *, agent_id: str | None) -> dict[str, DayUsage]:
        statement = select(runs.c.ended_at, runs.c.result).where(
            runs.c.ended_at >= since, runs.c.ended_at < until, runs.c.result.is_not(None)
        )
        if agent_id is not None:
            statement = statement.join(sessions).where(sessions.c.agent_id == agent_id)
        return await self._store.read(
            lambda connection: _sum_up((row.ended_at, row.result) for row in connection.execute(statement))
        )


def _sum_up(results: Iterable[tuple[int, str]]) -> dict[str, DayUsage]:
    days: dict[str, DayUsage] = {}
    for ended_at, result in results:
        usage = _decode(result).usage
        date = datetime.fromtimestamp(ended_at / 1000, UTC).date().isoformat()
        before = days.get(date, DayUsage(date=date))
        total = usage.total_tokens or usage.input + usage.output
        days[date] = DayUsage(
            date=date,
            input=before.input + usage.input,
            output=before.output + usage.output,
            cache_read=before.cache_read + usage.cache_read,
            cache_write=before.cache_write + usage.cache_write,
            total_tokens=before.total_tokens + total,
            total_cost=before.total_cost + (0.0 if usage.cost is UNSET else usage.cost.get("total", 0.0)),
            missing_cost_entries=before.missing_cost_entries + bool(total and usage.cost is UNSET),
        )
    return days
