"""The one writer: whose work shares a commit, whose fault is whose, and what happens at the end."""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError, OperationalError

from openclaw_mcp.core.errors import OpenClawError, StoreBusy, StoreDamaged, StoreFull
from openclaw_mcp.store.engine import create_engines
from openclaw_mcp.store.writer import Writer

PATIENCE = 30.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("CREATE TABLE kept (name TEXT PRIMARY KEY)")
    return path


@pytest.fixture
def writer(file: Path) -> Iterator[Writer]:
    engine, readers = create_engines(str(file))
    instance = Writer(engine, location="the store")
    yield instance
    instance.close()
    engine.dispose()
    readers.dispose()


def stored_names(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as plain:
        return {row[0] for row in plain.execute("SELECT name FROM kept")}


def put(name: str) -> Callable[[Connection], str]:
    def work(connection: Connection) -> str:
        connection.execute(text("INSERT INTO kept VALUES (:name)"), {"name": name})
        return name

    return work


def raising(error: Exception) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        put(f"half of {error}")(connection)
        raise error

    return work


def within(scenario: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await scenario

    asyncio.run(bounded())


@asynccontextmanager
async def held(writer: Writer) -> AsyncIterator[threading.Event]:
    """The writer is at work until the event is set, or this is left; writes that come meanwhile wait."""
    started, go_on = threading.Event(), threading.Event()

    def work(_: Connection) -> None:
        started.set()
        go_on.wait(PATIENCE)

    first = asyncio.ensure_future(writer.write(work))
    await asyncio.to_thread(started.wait, PATIENCE)
    try:
        yield go_on
    finally:
        go_on.set()
        await first


async def together(writer: Writer, *works: Callable[[Connection], Any]) -> list[Any]:
    """What comes of works that wait at the same time."""
    async with held(writer):
        waiting = [asyncio.ensure_future(writer.write(work)) for work in works]
        await asyncio.sleep(0)
    return await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize(("count", "commits"), [(0, 0), (1, 1), (2, 1), (256, 1), (257, 2), (513, 3)])
def test_what_waits_shares_a_commit_up_to_so_many(writer: Writer, file: Path, count: int, commits: int) -> None:
    async def scenario() -> None:
        names = [str(n) for n in range(count)]
        assert await together(writer, *map(put, names)) == names
        assert writer.commits == 1 + commits  # and that of the one they waited for
        assert stored_names(file) == set(names)

    within(scenario())


def test_works_are_done_in_the_order_they_came(writer: Writer) -> None:
    async def scenario() -> None:
        order: list[int] = []
        await together(writer, *(lambda _, n=n: order.append(n) for n in range(300)))
        assert order == list(range(300))

    within(scenario())


def test_ten_thousand_wait_and_no_more(writer: Writer) -> None:
    async def scenario() -> None:
        async with held(writer):
            waiting = [asyncio.ensure_future(writer.write(lambda _: None)) for _ in range(10_000)]
            await asyncio.sleep(0)
            with pytest.raises(StoreBusy, match="Too many writes are waiting"):
                await writer.write(lambda _: None)
        await asyncio.gather(*waiting)
        await writer.write(lambda _: None)

    within(scenario())


# ---- whose fault -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "logged"),
    [(ValueError("ours"), "store: a write failed"), (OpenClawError("theirs"), "")],
)
def test_ones_own_fault_spoils_nobody_elses_work(
    writer: Writer, file: Path, caplog: pytest.LogCaptureFixture, error: Exception, logged: str
) -> None:
    async def scenario() -> None:
        for works in ([put("a"), raising(error), put("b")], [raising(error)]):
            caplog.clear()
            results = await together(writer, *works)
            assert [result for result in results if isinstance(result, Exception)] == [error]
            assert (logged in caplog.text) if logged else (caplog.text == "")
        assert stored_names(file) == {"a", "b"}

    within(scenario())


def test_only_who_shared_a_commit_with_anothers_fault_is_done_again(writer: Writer) -> None:
    async def scenario() -> None:
        calls: list[str] = []

        def noting(name: str, work: Callable[[Connection], Any]) -> Callable[[Connection], Any]:
            def noted(connection: Connection) -> Any:
                calls.append(name)
                return work(connection)

            return noted

        def nowhere(connection: Connection) -> None:
            connection.execute(text("INSERT INTO nowhere VALUES (1)"))

        for works, times in (
            ({"a": put("a"), "b": raising(ValueError("b"))}, ["a", "b", "a", "b"]),
            ({"alone": raising(ValueError("alone"))}, ["alone"]),
            ({"c": put("c"), "trouble": nowhere}, ["c", "trouble"]),
            ({"trouble": nowhere}, ["trouble"]),
        ):
            calls.clear()
            await together(writer, *(noting(name, work) for name, work in works.items()))
            assert calls == times

    within(scenario())


def test_who_breaks_a_rule_of_the_tables_hears_of_it_alone(writer: Writer, file: Path) -> None:
    async def scenario() -> None:
        first, again, other = await together(writer, put("a"), put("a"), put("b"))
        assert (first, other) == ("a", "b")
        assert isinstance(again, IntegrityError)
        assert stored_names(file) == {"a", "b"}
        assert writer.commits == 2

    within(scenario())


def test_where_the_database_fails_no_caller_gets_success(writer: Writer, file: Path) -> None:
    async def scenario() -> None:
        def nowhere(connection: Connection) -> None:
            connection.execute(text("INSERT INTO nowhere VALUES (1)"))

        results = await together(writer, put("a"), nowhere, put("b"))
        assert [type(result) for result in results] == [OperationalError] * 3
        mine = ValueError("mine")
        results = await together(writer, put("a"), raising(mine), nowhere)
        assert [type(result) for result in results] == [OperationalError, ValueError, OperationalError]
        assert (stored_names(file), writer.commits) == (set(), 2)
        assert await writer.write(put("a")) == "a"  # and it goes on

    within(scenario())


@pytest.mark.parametrize(
    ("name", "kind"),
    [("SQLITE_FULL", StoreFull), ("SQLITE_CORRUPT", StoreDamaged), ("SQLITE_BUSY", StoreBusy), ("SQLITE_ERROR", None)],
)
def test_what_the_database_says_is_said_in_our_words(
    writer: Writer, caplog: pytest.LogCaptureFixture, name: str, kind: type[Exception] | None
) -> None:
    async def scenario() -> None:
        trouble = sqlite3.OperationalError("its own words")
        trouble.sqlite_errorname = name
        (result,) = await together(writer, raising(trouble))
        if kind is None:
            assert result is trouble
            assert "store: a write failed" in caplog.text
        else:
            assert type(result) is kind
            assert "the store" in str(result)
            assert f"store: {result}" in caplog.text
            assert "a write failed" not in caplog.text

    within(scenario())


# ---- who asks --------------------------------------------------------------------------------------------------------


def test_what_somebody_asked_who_has_left_is_done_all_the_same(writer: Writer, file: Path) -> None:
    async def scenario() -> None:
        async with held(writer):
            leaving, staying = (asyncio.ensure_future(writer.write(put(name))) for name in ("a", "b"))
            await asyncio.sleep(0)
            leaving.cancel()
        assert await staying == "b"
        assert leaving.cancelled()
        assert stored_names(file) == {"a", "b"}

    within(scenario())


def test_each_loop_hears_of_its_own_and_one_that_has_closed_of_nothing(
    writer: Writer, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        async with held(writer):
            mine = asyncio.ensure_future(writer.write(put("mine")))
            await asyncio.sleep(0)
            other = asyncio.new_event_loop()

            async def leave() -> None:
                leaving = asyncio.ensure_future(writer.write(put("theirs")))
                await asyncio.sleep(0)
                leaving.cancel()

            await asyncio.to_thread(other.run_until_complete, leave())
            other.close()
        assert await mine == "mine"
        assert await asyncio.to_thread(lambda: asyncio.run(writer.write(put("third")))) == "third"
        assert stored_names(file) == {"mine", "theirs", "third"}
        assert "store: 1 writes done after their loop closed" in caplog.text

    within(scenario())


def test_what_was_taken_is_written_before_the_writer_closes_and_nothing_after(writer: Writer, file: Path) -> None:
    async def scenario() -> None:
        async with held(writer) as go_on:
            waiting = asyncio.ensure_future(writer.write(put("a")))
            await asyncio.sleep(0)
            closed = asyncio.create_task(asyncio.to_thread(writer.close))
            go_on.set()
            await closed
        assert await waiting == "a"
        with pytest.raises(StoreBusy, match="The store is closing"):
            await writer.write(put("b"))
        assert stored_names(file) == {"a"}

    within(scenario())


def test_a_broken_store_takes_nothing(writer: Writer, file: Path) -> None:
    async def scenario() -> None:
        writer.fatal_error = StoreDamaged("broken")
        with pytest.raises(StoreDamaged, match="broken"):
            await writer.write(put("a"))
        writer.fatal_error = None
        assert await writer.write(put("b")) == "b"
        assert stored_names(file) == {"b"}

    within(scenario())
