"""The ledger between desk and store: each record once, whatever the disk does meanwhile."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from openclaw_mcp.core.errors import StoreFull
from openclaw_mcp.core.model import CallRecord, Json
from openclaw_mcp.core.sessions import AuditQuery
from openclaw_mcp.tools import audit_writer as room
from openclaw_mcp.tools.audit_writer import MOST_PENDING, AuditWriter


class Book:
    """A twin of the audit's book: refuses so often, then takes what comes, slowly if told to."""

    def __init__(self, *, refusals: int = 0) -> None:
        self.kept: list[CallRecord] = []
        self.refusals = refusals
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
            raise StoreFull("no room")
        self.kept += records
        self.taken.set()

    async def find(self, query: AuditQuery) -> Sequence[Json]:
        return []


def record(number: int) -> CallRecord:
    return CallRecord(
        at=0.0, caller="agent main", entry_point="agent", session=None, tool=f"t{number}", source="gateway", digest="d",
        step="default", rule="no rule refuses it", outcome="ok", milliseconds=1.0,
    )  # fmt: skip


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 30))


def test_records_of_a_moment_share_one_write() -> None:
    async def story() -> None:
        book, ledger = Book(), AuditWriter()
        async with ledger.attach(book):
            for number in range(100):
                ledger.write(record(number))
            await book.writing.wait()
        assert [kept.tool for kept in book.kept] == [f"t{number}" for number in range(100)]

    run(story())


def test_leaving_while_a_write_goes_writes_each_record_once() -> None:
    async def story() -> None:
        book, ledger = Book(), AuditWriter()
        book.go_on.clear()
        async with ledger.attach(book):
            ledger.write(record(1))
            await book.writing.wait()
            ledger.write(record(2))
            asyncio.get_running_loop().call_later(0.05, book.go_on.set)
        assert [kept.tool for kept in book.kept] == ["t1", "t2"]

    run(story())


def test_a_disk_that_refuses_is_asked_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(room, "RETRY_PAUSE", 0.01)

    async def story() -> None:
        book, ledger = Book(refusals=2), AuditWriter()
        async with ledger.attach(book):
            ledger.write(record(1))
            await book.taken.wait()
            ledger.write(record(2))
        assert [kept.tool for kept in book.kept] == ["t1", "t2"]

    run(story())


def test_what_a_full_disk_leaves_waiting_is_bounded(caplog: Any) -> None:
    async def story() -> None:
        book, ledger = Book(), AuditWriter()
        for number in range(MOST_PENDING + 7):
            ledger.write(record(number))
        async with ledger.attach(book):
            pass
        assert len(book.kept) == MOST_PENDING

    run(story())
    assert "7 audit records were dropped" in caplog.text


def test_a_disk_that_refuses_to_the_end_does_not_keep_the_house_open(caplog: Any) -> None:
    async def story() -> None:
        ledger = AuditWriter()
        async with ledger.attach(Book(refusals=100)):
            ledger.write(record(1))

    run(story())
    assert "1 audit records could not be written" in caplog.text
