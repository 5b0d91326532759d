"""What the store promises: on disk when acknowledged, whole or refused, shared by several processes."""

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from openclaw_mcp.core.errors import OpenClawError, StoreDamaged, StoreError, StoreFull
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.core.sessions import (
    ConfigChange,
    MessageDraft,
    NewSession,
    RunOutcome,
    RunRequest,
    RunResult,
    SessionQuery,
)
from openclaw_mcp.store.runs import QUEUE_CAP, SqlRunRepository
from openclaw_mcp.store.sessions import SqlSessionRepository
from openclaw_mcp.store.small_repositories import (
    SqlConfigHistory,
    SqlDeviceRepository,
    SqlIdempotencyRepository,
    SqlNodeRepository,
)
from openclaw_mcp.store.store import SqlStore, open_store


def new(name: str, **more: str) -> NewSession:
    return NewSession(key=f"agent:main:{name}", agent_id="main", classification="custom", **more)  # type: ignore[arg-type]


def draft(text: str) -> MessageDraft:
    return MessageDraft(role="user", body={"role": "user", "content": text}, text=text)


def asking(run_id: str, name: str = "a", message: str = "hello", **more: object) -> RunRequest:
    return RunRequest(run_id=run_id, session=new(name), message=message, **more)  # type: ignore[arg-type]


OUTCOME = RunOutcome(status="ok", stop_reason="stop", result=RunResult(text="hi"))


def test_what_was_written_is_there_after_reopening(where: str) -> None:
    async def write() -> None:
        async with open_store(where) as store:
            await SqlSessionRepository(store).create(new("a", label="Mine"))
            await SqlSessionRepository(store).append("agent:main:a", [draft("one"), draft("two")])
            await SqlIdempotencyRepository(store).put_if_absent("sessions.create", "k", {"n": 1})
            await SqlDeviceRepository(store).put("d1", {"name": "phone"})
            await SqlNodeRepository(store).put("n1", {"name": "laptop"})
            await SqlNodeRepository(store).put("n1", {"name": "workstation"})
            await SqlNodeRepository(store).put("n2", {"name": "gone"})
            assert await SqlNodeRepository(store).remove("n2")
            await SqlConfigHistory(store).add(ConfigChange(at=1, hash="h", actor="me", method="config.set", raw="{}"))

    async def read() -> None:
        async with open_store(where) as store:
            page = await SqlSessionRepository(store).history("agent:main:a", limit=10)
            assert [m.body["content"] for m in page.messages] == ["one", "two"]
            assert [m.seq for m in page.messages] == [1, 2]
            assert page.session is not None
            assert (page.session.label, page.session.title, page.session.preview) == ("Mine", "one", "two")
            assert await SqlIdempotencyRepository(store).put_if_absent("sessions.create", "k", {"n": 2}) == {"n": 1}
            assert await SqlDeviceRepository(store).all() == {"d1": {"name": "phone"}}
            assert await SqlNodeRepository(store).all() == {"n1": {"name": "workstation"}}
            assert [change.hash for change in await SqlConfigHistory(store).last()] == ["h"]

    asyncio.run(write())
    asyncio.run(read())


def test_many_writes_share_one_fsync_and_one_bad_one_spoils_none(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlSessionRepository(store)
            await repository.create(new("a", label="taken"))
            before = store.commits
            writes = [repository.append("agent:main:a", [draft(str(n))]) for n in range(100)]
            clash = repository.create(new("b", label="taken"))
            results = await asyncio.gather(*writes, clash, return_exceptions=True)
            assert isinstance(results[-1], RpcError)
            assert not [r for r in results[:-1] if isinstance(r, BaseException)]
            assert store.commits - before < 20
            page = await repository.history("agent:main:a", limit=1000)
            assert [m.seq for m in page.messages] == list(range(1, 101))
            assert await repository.get("agent:main:b") is None

    asyncio.run(scenario())


def test_pages_go_on_where_the_last_one_ended(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlSessionRepository(store)
            for n in range(25):
                await repository.create(new(f"s{n}"))
            await repository.patch("agent:main:s3", {"archived": True}, {})
            keys: list[str] = []
            after = None
            while True:
                page = await repository.page(SessionQuery(limit=10, after=after))
                assert page.total == 24
                if not page.sessions:
                    break
                keys += [s.key for s in page.sessions]
                after = (page.sessions[-1].updated_at, page.sessions[-1].position)
            assert len(keys) == len(set(keys)) == 24
            by_offset = await repository.page(SessionQuery(limit=10, offset=10))
            assert [s.key for s in by_offset.sessions] == keys[10:20]
            assert (await repository.page(SessionQuery(archived=True))).total == 1
            assert (await repository.page(SessionQuery(search="S1"))).total == 11
            assert await repository.delete("agent:main:s4", transcript=True)
            assert (await repository.page(SessionQuery())).total == 23

    asyncio.run(scenario())


def test_search_finds_words_and_takes_no_orders_from_the_query(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlSessionRepository(store)
            await repository.create(new("a"))
            await repository.create(new("b"))
            await repository.append("agent:main:a", [draft("The quick brown fox"), draft("nothing here")])
            await repository.append("agent:main:b", [draft("a slow fox, \0 quickly painted")])

            async def keys(query: str, **more: object) -> set[str]:
                options: dict[str, object] = {"keys": None, "agent_id": None, "limit": 10, **more}
                return {hit.session_key for hit in await repository.search(query, **options)}  # type: ignore[arg-type]

            assert await keys("fox") == {"agent:main:a", "agent:main:b"}
            assert await keys("brown qui") == {"agent:main:a"}
            assert await keys("fox", keys=["agent:main:b"]) == {"agent:main:b"}
            assert await keys("fox", agent_id="other") == set()
            for nasty in ('"', "fox OR", "text:fox*", "fox)", "' & !", "NEAR(fox"):
                await keys(nasty)
            await repository.delete("agent:main:a", transcript=True)
            assert await keys("fox") == {"agent:main:b"}
            await repository.reset("agent:main:b")
            assert await keys("fox") == set()

    asyncio.run(scenario())


def test_a_run_is_admitted_once_and_goes_alone(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store, open_store(where) as other:
            here, there = SqlRunRepository(store), SqlRunRepository(other)
            first = await here.admit(asking("r1"))
            assert first.claim is not None
            again = await there.admit(asking("r1"))
            assert (again.is_new, again.run.status) == (False, "running")
            waits = await there.admit(asking("r2", mode="followup"))
            assert waits.claim is None
            assert waits.blocking_run is not None
            assert await there.finish("r1", OUTCOME) is None  # not theirs to end
            result = await here.finish("r1", OUTCOME)
            assert result is not None
            assert result.next is not None
            assert result.next.run.run_id == "r2"
            history = await SqlSessionRepository(store).history("agent:main:a", limit=10)
            assert [m.idempotency_key for m in history.messages] == ["r1:user", "r2:user"]
            assert await here.finish("r1", OUTCOME) is None  # once

    asyncio.run(scenario())


def test_messages_that_may_be_answered_together_are(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlRunRepository(store)
            await repository.admit(asking("r1"))
            for name, mode in (("r2", "collect"), ("r3", "collect"), ("r4", "followup")):
                await repository.admit(asking(name, message=name, mode=mode))
            result = await repository.finish("r1", OUTCOME)
            assert result is not None
            assert result.next is not None
            assert (result.next.run.run_id, result.next.prompt) == ("r3", "r2\n\nr3")
            assert [(r.run_id, r.status, r.merged_into) for r in result.next.merged] == [("r2", "ok", "r3")]
            result = await repository.finish("r3", OUTCOME)
            assert result is not None
            assert result.next is not None
            assert result.next.run.run_id == "r4"

    asyncio.run(scenario())


def test_a_queue_has_an_end(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlRunRepository(store)
            for n in range(QUEUE_CAP + 1):
                await repository.admit(asking(f"r{n}"))
            with pytest.raises(RpcError, match="already wait"):
                await repository.admit(asking("one too many"))

    asyncio.run(scenario())


CLAIM_AND_DIE = """
import asyncio, os, sys
from openclaw_mcp.store.store import open_store
from openclaw_mcp.store.runs import SqlRunRepository
from tests.store.test_store import asking
async def main():
    async with open_store(sys.argv[1]) as store:
        book = SqlRunRepository(store)
        assert (await book.admit(asking("r1"))).claim
        assert not (await book.admit(asking("r2", mode="followup"))).claim
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""


def test_a_dead_processs_run_is_ended_as_cut_short_and_what_waited_goes_on(where: str) -> None:
    assert subprocess.run([sys.executable, "-c", CLAIM_AND_DIE, where], timeout=60, check=False).returncode == -9

    async def scenario() -> None:
        async with open_store(where) as store:
            claims, cut = await SqlRunRepository(store).sweep()
            assert [(run.run_id, run.status, run.stop_reason) for run in cut] == [("r1", "error", "restart")]
            assert [claim.run.run_id for claim in claims] == ["r2"]
            assert await SqlRunRepository(store).sweep() == ([], [])

    asyncio.run(scenario())


def test_who_comes_to_a_dead_processs_session_is_told_what_was_ended_there(where: str) -> None:
    assert subprocess.run([sys.executable, "-c", CLAIM_AND_DIE, where], timeout=60, check=False).returncode == -9

    async def scenario() -> None:
        async with open_store(where) as store:
            admission = await SqlRunRepository(store).admit(asking("r3", mode="followup"))
            assert [(run.run_id, run.stop_reason, run.is_over) for run in admission.ended_runs] == [
                ("r1", "restart", True)
            ]
            assert admission.claim is not None
            assert admission.claim.run.run_id == "r2"

    asyncio.run(scenario())


def test_who_meets_another_at_a_new_database_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        with closing(sqlite3.connect(tmp_path / "db", isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")  # as one does that is about to lay it out
            asyncio.get_running_loop().call_later(0.2, other.execute, "COMMIT")
            async with open_store(str(tmp_path / "db")) as store:
                assert not other.in_transaction
                await SqlSessionRepository(store).create(new("a"))

    asyncio.run(scenario())


def test_the_database_is_its_owners_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_store(str(tmp_path / "s" / "db")) as store:
            await SqlSessionRepository(store).create(new("a"))
            for file in (tmp_path / "s").glob("db*"):
                assert file.stat().st_mode & 0o077 == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["db", "db-live"])
def test_a_database_file_the_system_refuses_is_an_error_with_its_name(tmp_path: Path, name: str) -> None:
    if name == "db":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).touch()

    with pytest.raises(OpenClawError, match=f"{tmp_path / name} can't be"):
        SqlStore(str(tmp_path / "db"))


@pytest.mark.parametrize("harm", ["header", "middle", "truncated", "other"])
def test_a_damaged_database_stops_the_start_and_is_left_alone(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "db"

    async def fill() -> None:
        async with open_store(str(path)) as store:
            await SqlSessionRepository(store).create(new("a"))
            for _ in range(20):
                await SqlSessionRepository(store).append("agent:main:a", [draft("word " * 500)])

    asyncio.run(fill())
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    harmed = bytearray(path.read_bytes())
    if harm == "header":
        harmed[:16] = b"\0" * 16
    elif harm == "middle":
        harmed[4096:-4096] = os.urandom(len(harmed) - 8192)
    elif harm == "truncated":
        del harmed[len(harmed) // 2 :]
    else:
        harmed[:] = b"{} this is no database"
    path.write_bytes(harmed)
    with pytest.raises(StoreDamaged, match="recover"):
        SqlStore(str(path))
    assert path.read_bytes() == harmed


FILL_THE_DISK = """
import asyncio, resource, sys
from openclaw_mcp.core.errors import StoreFull
from openclaw_mcp.store.store import open_store
from openclaw_mcp.store.sessions import SqlSessionRepository
from tests.store.test_store import draft, new
async def main():
    async with open_store(sys.argv[1]) as store:
        book = SqlSessionRepository(store)
        await book.create(new("a"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        stored = 0
        try:
            while True:
                await book.append("agent:main:a", [draft("x" * 20_000)])
                stored += 1
        except StoreFull as exc:
            print(stored, flush=True)
            print(exc, flush=True)
        page = await book.history("agent:main:a", limit=1000)
        assert page.total == stored, (page.total, stored)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await book.append("agent:main:a", [draft("room again")])
asyncio.run(main())
"""


def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    path = tmp_path / "db"
    ran = subprocess.run(
        [sys.executable, "-c", FILL_THE_DISK, str(path)], timeout=120, check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    count, message = ran.stdout.splitlines()
    assert int(count) > 5
    assert "full" in message
    assert StoreFull.code == "store_full"

    async def read() -> None:
        async with open_store(str(path)) as store:
            assert (await SqlSessionRepository(store).history("agent:main:a", limit=1)).total == int(count) + 1

    asyncio.run(read())


def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_store(str(tmp_path / "db")) as store:
            repository = SqlSessionRepository(store)
            await repository.create(new("a"))
            holding, release = asyncio.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()

            def hold(_connection: object) -> None:
                loop.call_soon_threadsafe(holding.set)
                asyncio.run_coroutine_threadsafe(release.wait(), loop).result(30)

            writing = asyncio.ensure_future(store.write(hold))
            await holding.wait()
            assert await asyncio.wait_for(repository.get("agent:main:a"), 10) is not None
            release.set()
            await writing

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["write", "read"])
def test_an_error_of_the_database_repeats_nothing_that_was_written(tmp_path: Path, method: str) -> None:
    """It reaches the log, with the statement. What people wrote must not."""

    async def story() -> str:
        async with open_store(str(tmp_path / "db")) as store:
            work = getattr(store, method)
            with pytest.raises(DBAPIError) as caught:
                await work(
                    lambda connection: connection.execute(text("SELECT :said FROM nowhere"), {"said": "my words"})
                )
            return str(caught.value)

    message = asyncio.run(story())

    assert "nowhere" in message
    assert "my words" not in message


def test_nothing_is_acknowledged_by_a_store_whose_file_was_removed(tmp_path: Path) -> None:
    """SQLite goes on writing into a file without a name, which is gone with the process."""

    async def main() -> None:
        path = tmp_path / "state" / "openclaw.sqlite"
        async with open_store(str(path)) as store:
            sessions = SqlSessionRepository(store)
            await sessions.create(new("before"))
            path.rename(tmp_path / "away")
            with pytest.raises(StoreError, match="was moved away or removed"):
                await sessions.create(new("lost"))
            path.touch()
            with pytest.raises(StoreError, match="was moved away or removed"):
                await sessions.create(new("lost"))
            path.unlink()
            (tmp_path / "away").rename(path)
            await sessions.create(new("after"))
            found = [await sessions.get(f"agent:main:{name}") is not None for name in ("before", "lost", "after")]
            assert found == [True, False, True]

    asyncio.run(main())
