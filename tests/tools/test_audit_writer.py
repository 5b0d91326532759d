"""The audit writer between dispatcher and store: each record once, whatever the disk does meanwhile."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from openclaw_mcp.core.errors import StoreFull
from openclaw_mcp.core.model import CallRecord, Json
from openclaw_mcp.core.sessions import AuditQuery
from openclaw_mcp.net import tasks
from openclaw_mcp.tools.audit_writer import MOST_PENDING, AuditQueue, AuditWriter


class Trail:
    """An audit trail in memory: fails so often, then takes what comes, once it may."""

    def __init__(self, *, refusals: int = 0, failure: type[Exception] = StoreFull) -> None:
        self.kept: list[CallRecord] = []
        self.refusals = refusals
        self.failure = failure
        self.writing = asyncio.Event()
        self.taken = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def record(
        self, *, actor: str, action: str, target: str | None, outcome: str, detail: Json | None = None
    ) -> None:
        raise NotImplementedError

    async def add(self, records: Sequence[CallRecord]) -> None:
        self.writing.set()
        await self.go_on.wait()
        if self.refusals:
            self.refusals -= 1
            raise self.failure("no room")
        self.kept += records
        self.taken.set()

    async def find(self, query: AuditQuery) -> Sequence[Json]:
        return []


def record(number: int) -> CallRecord:
    return CallRecord(
        at=0.0, caller="agent main", entry_point="agent", session=None, tool=f"t{number}", source="gateway", digest="d",
        step="default", rule="no rule refuses it", outcome="ok", milliseconds=1.0,
    )  # fmt: skip


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30))


def test_records_of_a_moment_share_one_write() -> None:
    async def scenario() -> None:
        trail, queue = Trail(), AuditQueue()
        async with AuditWriter(queue, trail):
            for number in range(100):
                queue.write(record(number))
            await trail.writing.wait()
        assert [record.tool for record in trail.kept] == [f"t{number}" for number in range(100)]

    run(scenario())


def test_leaving_while_a_write_goes_writes_each_record_once() -> None:
    async def scenario() -> None:
        trail, queue = Trail(), AuditQueue()
        trail.go_on.clear()
        async with AuditWriter(queue, trail):
            queue.write(record(1))
            await trail.writing.wait()
            queue.write(record(2))
            asyncio.get_running_loop().call_later(0.05, trail.go_on.set)
        assert [record.tool for record in trail.kept] == ["t1", "t2"]

    run(scenario())


def test_a_disk_that_refuses_is_asked_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(tasks, "FIRST_BACK_OFF", 0.01)

    async def scenario() -> None:
        trail, queue = Trail(refusals=2), AuditQueue()
        async with AuditWriter(queue, trail):
            queue.write(record(1))
            await trail.taken.wait()
            queue.write(record(2))
        assert [record.tool for record in trail.kept] == ["t1", "t2"]

    run(scenario())


def test_a_writer_that_fails_unexpectedly_is_logged_and_goes_on(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(tasks, "FIRST_BACK_OFF", 0.01)

    async def scenario() -> None:
        trail, queue = Trail(refusals=1, failure=ValueError), AuditQueue()
        async with AuditWriter(queue, trail):
            queue.write(record(1))
            await trail.taken.wait()
        assert [record.tool for record in trail.kept] == ["t1"]

    run(scenario())
    assert "audit: writing records failed" in caplog.text


def test_what_a_full_disk_leaves_waiting_is_bounded(caplog: Any) -> None:
    async def scenario() -> None:
        trail, queue = Trail(), AuditQueue()
        for number in range(MOST_PENDING + 7):
            queue.write(record(number))
        async with AuditWriter(queue, trail):
            pass
        assert len(trail.kept) == MOST_PENDING

    run(scenario())
    assert "7 records were dropped" in caplog.text


def test_a_disk_that_refuses_to_the_end_does_not_keep_the_gateway_open(caplog: Any) -> None:
    async def scenario() -> None:
        queue = AuditQueue()
        async with AuditWriter(queue, Trail(refusals=100)):
            queue.write(record(1))

    run(scenario())
    assert "1 records could not be written" in caplog.text
