"""`usage.cost`: the tokens that agents used and what they cost, by day."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from ...core.agents import AgentRoster
from ...core.clock import now_ms
from ...core.fields import NonEmptyStr
from ...core.repositories import UsageRepository
from ...core.rpc import READ, RpcCall, RpcError, RpcMethod, make_method
from ...core.sessions import DayUsage

DEFAULT_DAYS: Final = 30
MAX_DAYS: Final = 366  # days of one answer, each a row


class _CostParams(Struct, frozen=True, kw_only=True, rename="camel"):
    """The last so many days, or those from one date to another; days are UTC days."""

    days: Annotated[int, Meta(ge=1, le=MAX_DAYS)] = DEFAULT_DAYS
    start_date: date | None = None
    end_date: date | None = None
    mode: Literal["utc"] = "utc"
    agent_id: NonEmptyStr | None = None
    agent_scope: Literal["all"] | None = None


class UsageTotals(Struct, frozen=True, kw_only=True, rename="camel"):
    input: int
    output: int
    cache_read: int
    cache_write: int
    total_tokens: int
    total_cost: float
    missing_cost_entries: int


class UsageCost(Struct, frozen=True, kw_only=True, rename="camel"):
    updated_at: int
    days: int
    daily: list[DayUsage]
    totals: UsageTotals


class UsageMethods(Struct, frozen=True, kw_only=True):
    """An `RpcModule`."""

    usage: UsageRepository
    roster: Callable[[], AgentRoster]

    def methods(self) -> Sequence[RpcMethod]:
        return (make_method("usage.cost", READ, _CostParams, self._cost),)

    async def _cost(self, call: RpcCall, asked: _CostParams) -> UsageCost:
        if asked.agent_scope and asked.agent_id:
            raise RpcError("agentScope=all cannot be combined with agentId")
        roster = self.roster()
        agent_id = None if asked.agent_scope else roster.get_agent(asked.agent_id or roster.default_id).id
        first, last = _days_of(asked)
        used = await self.usage.by_day(_start_ms(first), _start_ms(last + timedelta(days=1)), agent_id=agent_id)
        dates = [(first + timedelta(days=number)).isoformat() for number in range((last - first).days + 1)]
        daily = [used.get(name, DayUsage(date=name)) for name in dates]
        return UsageCost(updated_at=now_ms(), days=len(daily), daily=daily, totals=_sum_days(daily))


def _days_of(asked: _CostParams) -> tuple[date, date]:
    if (asked.start_date is None) != (asked.end_date is None):
        raise RpcError("startDate and endDate must be provided together")
    if asked.start_date is None or asked.end_date is None:
        today = datetime.now(UTC).date()
        return today - timedelta(days=asked.days - 1), today
    if asked.start_date > asked.end_date:
        raise RpcError("startDate must not be after endDate")
    if (asked.end_date - asked.start_date).days >= MAX_DAYS:
        raise RpcError(f"startDate and endDate are more than {MAX_DAYS} days apart; ask for fewer at once")
    return asked.start_date, asked.end_date


def _start_ms(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)


def _sum_days(daily: Sequence[DayUsage]) -> UsageTotals:
    rows = [asdict(day) for day in daily]
    return UsageTotals(**{name: sum(row[name] for row in rows) for name in UsageTotals.__struct_fields__})
