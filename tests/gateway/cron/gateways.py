"""Cron with store and agents, a time that the test sets, and a delivery that keeps messages in memory."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from openclaw_mcp.core.agents import AgentRoster
from openclaw_mcp.core.channel import ChannelRefused, ChatAddress, DeliveryReceipt, OutboundMessage, PostResult
from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.core.model import Json
from openclaw_mcp.core.ports import RunExecutor
from openclaw_mcp.core.sessions import Run
from openclaw_mcp.gateway.cron.rpc_methods import CronMethods
from openclaw_mcp.store.cron_jobs import SqlCronJobRepository

from ..sessions.gateways import PATIENCE, GatewayHarness, open_harness

TURN = {"kind": "agentTurn", "message": "!say done"}
EVENT = {"kind": "systemEvent", "text": "tick"}


def ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


class ManualTime:
    """Stands still until the test moves it."""

    def __init__(self, at: str = "2027-01-01T00:00:00") -> None:
        self._now = ms(at)
        self._sleepers: dict[object, tuple[int, asyncio.Event]] = {}

    def now(self) -> int:
        return self._now

    async def wait_until(self, at: int, woken: asyncio.Event) -> None:
        ticket, alarm = object(), asyncio.Event()
        self._sleepers[ticket] = (at, alarm)
        if at <= self._now:
            alarm.set()
        waiting = [asyncio.ensure_future(woken.wait()), asyncio.ensure_future(alarm.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._sleepers[ticket]
            for task in waiting:
                task.cancel()

    @property
    def next(self) -> int | None:
        """When the clock wants to be woken; None while it is up."""
        return min((at for at, _ in self._sleepers.values()), default=None)

    def move(self, to: int) -> None:
        assert to >= self._now
        self._now = to
        for at, alarm in self._sleepers.values():
            if at <= to:
                alarm.set()

    def after(self, seconds: float) -> None:
        self.move(self._now + round(seconds * 1000))


class MemoryDelivery:
    """A `MessageDelivery` into a list, once per key."""

    def __init__(self, *, route: ChatAddress | None = None, refuse: str | None = None) -> None:
        self.posted: dict[str, tuple[ChatAddress, OutboundMessage]] = {}
        self.known = route
        self.refuse = refuse

    async def post(
        self, address: ChatAddress, message: OutboundMessage, *, key: str, wait: float = 0.0, session: str | None = None
    ) -> PostResult:
        if self.refuse is not None:
            raise ChannelRefused(self.refuse)
        self.posted.setdefault(key, (address, message))
        return PostResult(id=key, status="sent", receipts=(DeliveryReceipt(message_id="1", at=0),))

    async def find_address(self, session: str) -> ChatAddress | None:
        return self.known

    async def has_run_message(self, run: Run, address: ChatAddress) -> bool:
        return False

    @property
    def texts(self) -> list[tuple[str, str, str]]:
        return [(address.channel, address.to, message.text) for address, message in self.posted.values()]


class CronHarness(GatewayHarness):
    """All methods of the gateway, and the time."""

    service: CronMethods
    jobs: SqlCronJobRepository
    time: ManualTime

    async def add(self, schedule: Json, payload: Json = TURN, **more: Any) -> Json:
        job = {"name": "a job", "schedule": schedule, "payload": payload, "delivery": {"mode": "none"}, **more}
        if payload.get("kind") == "systemEvent":
            del job["delivery"]
            job |= {"wakeMode": "next-heartbeat", **more}
        added: Json = await self.call("cron.add", job)
        return added

    async def pass_time(self, seconds: float) -> None:
        """Let time go by, stopping wherever the clock wants to be woken, and let it finish what it began."""
        end = self.time.now() + round(seconds * 1000)
        while True:
            due = await self.quiet()
            self.time.move(min(due, end))
            if due > end:
                return

    async def quiet(self) -> int:
        """Wait until nothing goes and the clock sleeps, knowing all there is to know; when it wants to be woken."""
        async with asyncio.timeout(PATIENCE):
            while True:
                busy = self.service._executor._tasks or self.service.scheduler._woken.is_set()
                if not busy and self.time.next is not None and self.time.next > self.time.now():
                    return self.time.next
                await asyncio.sleep(0.001)

    async def runs(self, **params: Any) -> list[Json]:
        found = await self.call("cron.runs", {"limit": 200, "sortDir": "asc", **params})
        entries: list[Json] = found["entries"]
        return entries


@asynccontextmanager
async def open_cron(
    where: str,
    *,
    time: ManualTime | None = None,
    runner: RunExecutor | None = None,
    channels: Any = None,
    roster: AgentRoster = AgentRoster(),
    **config: Any,
) -> AsyncIterator[CronHarness]:
    async with open_harness(where, roster=lambda: roster) as rooms:
        cron = CronHarness()
        cron.methods, cron.events, cron.news, cron.memory = rooms.methods, rooms.events, rooms.news, rooms.memory
        cron.time, cron.jobs = time or ManualTime(), SqlCronJobRepository(rooms.memory.store)
        cron.service = CronMethods(
            cron.jobs,
            runner or rooms.memory.runs,
            rooms.memory.sessions,
            rooms.publish,
            store_path=where,
            roster=lambda: roster,
            settings=lambda: read_config({"cron": config}).cron,
            channels=channels,
            time=cron.time,
        )
        cron.offer(cron.service.methods())
        async with cron.service:
            yield cron


async def until(happened: Callable[[], Awaitable[bool]]) -> None:
    """For what is not announced by an event."""
    async with asyncio.timeout(PATIENCE):
        while not await happened():  # noqa: ASYNC110  (as above)
            await asyncio.sleep(0.01)
