"""The tables: those of a new database, and those of a database that the version before wrote."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, inspect, text

from openclaw_mcp.core.channel import ChatAddress, Poll
from openclaw_mcp.core.effects import RunEffects, SentMessage
from openclaw_mcp.core.errors import StoreDamaged, StoreError
from openclaw_mcp.core.jobs import JobLogQuery, JobQuery
from openclaw_mcp.core.model import Grant, Sender
from openclaw_mcp.core.sessions import AuditQuery, RunFailure, RunOptions, RunResult, RunUsage, SessionQuery
from openclaw_mcp.store.cron_jobs import SqlCronJobRepository
from openclaw_mcp.store.local_messages import SqlLocalMessageRepository
from openclaw_mcp.store.messages import SqlInbox, SqlOutbox, SqlSenderApprovalRepository
from openclaw_mcp.store.runs import SqlRunRepository
from openclaw_mcp.store.schema import REVISION
from openclaw_mcp.store.sessions import SqlSessionRepository
from openclaw_mcp.store.small_repositories import (
    SqlAuditTrail,
    SqlConfigHistory,
    SqlDeviceRepository,
    SqlIdempotencyRepository,
    SqlNodeRepository,
)
from openclaw_mcp.store.store import SqlStore, open_store
from openclaw_mcp.store.subagents import SqlSubagentRepository
from openclaw_mcp.store.tables import metadata

EARLIER = Path(__file__).parent / "revision_0005"
"""Databases as the version before wrote them, with rows in every table."""
KEY = "agent:main:telegram:direct:7"


@pytest.fixture
def earlier(where: str) -> str:
    """A database that the version before wrote."""
    if where.startswith("postgresql"):
        engine = create_engine(where.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            connection.exec_driver_sql((EARLIER / "postgresql.sql").read_text())
        engine.dispose()
        return where
    Path(where).parent.mkdir(parents=True)
    with closing(sqlite3.connect(where)) as plain:
        plain.executescript((EARLIER / "sqlite.sql").read_text())
    return where


def layout(connection: Connection) -> dict[str, Any]:
    """Everything a database says about its tables, indexes, constraints and triggers."""
    if connection.dialect.name == "postgresql":
        statements = (
            "SELECT table_name, column_name, ordinal_position, data_type, character_maximum_length, is_nullable, "
            "column_default, generation_expression FROM information_schema.columns WHERE table_schema = 'public'",
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'",
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = 'public'::regnamespace",
        )
        return {sql: sorted(map(str, connection.execute(text(sql)))) for sql in statements}
    found: dict[str, Any] = {}
    for name, kind, sql in connection.execute(text("SELECT name, type, sql FROM sqlite_master")).all():
        if kind == "table":
            pragmas: tuple[str, ...] = ("table_xinfo", "foreign_key_list")
        else:
            pragmas = ("index_xinfo",) if kind == "index" else ()
            found[f"{name} as written"] = sql and " ".join(sql.split())
        for pragma in pragmas:
            found[f"{pragma} {name}"] = sorted(map(str, connection.exec_driver_sql(f"PRAGMA {pragma}({name})").all()))
    return found


def test_a_database_of_the_version_before_has_the_layout_of_a_new_one(earlier: str, tmp_path: Path) -> None:
    async def read(where: str) -> tuple[dict[str, Any], str]:
        async with open_store(where) as store:
            revision = "SELECT version_num FROM alembic_version"
            return await store.read(lambda c: (layout(c), c.execute(text(revision)).scalar_one()))

    before = asyncio.run(read(earlier))
    if earlier.startswith("postgresql"):
        engine = create_engine(earlier.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        engine.dispose()
        new = asyncio.run(read(earlier))
    else:
        new = asyncio.run(read(str(tmp_path / "new.sqlite")))
    assert before == new
    assert new[1] == REVISION


def test_every_row_of_a_database_of_the_version_before_is_read(earlier: str) -> None:
    async def scenario() -> None:
        async with open_store(earlier) as store:
            empty = await store.read(
                lambda c: [t.name for t in metadata.sorted_tables if c.execute(t.select()).first() is None]
            )
            assert empty == []
            sessions, runs = SqlSessionRepository(store), SqlRunRepository(store)
            page = await sessions.page(SessionQuery())
            assert ([s.key for s in page.sessions], page.total) == (["agent:main:main", KEY], 2)
            assert page.active == {KEY: ("run-2",)}
            (hit,) = await sessions.search("quokka", keys=None, agent_id=None, limit=5)
            assert hit.session_key == KEY
            history = await sessions.history(KEY, limit=10)
            assert [m.role for m in history.messages] == ["user", "assistant"]
            digest = history.messages[0].body["attachments"][0]["sha256"]
            assert await sessions.blob(KEY, digest) == b"hello"
            await check_runs(runs)
            assert await SqlIdempotencyRepository(store).get("sessions.create", "k1") == {"ok": True}
            assert await SqlDeviceRepository(store).all() == {"device-1": {"name": "phone"}}
            assert await SqlNodeRepository(store).all() == {"node-1": {"name": "laptop"}}
            (change,) = await SqlConfigHistory(store).last()
            assert (change.note, change.paths) == ("first", ("gateway.port",))
            (call,) = await SqlAuditTrail(store).find(AuditQuery(session=KEY))
            assert (call["tool"], call["door"], call["ms"]) == ("read", "mcp", 1.5)
            (child,) = await SqlSubagentRepository(store).children(KEY)
            assert (child.task, child.grant.sender) == ("count", Sender(id="7", name="Ann", username="ann"))

    asyncio.run(scenario())


async def check_runs(runs: SqlRunRepository) -> None:
    answered, queued, failed = [await runs.get(f"run-{n}") for n in (1, 2, 0)]
    assert answered is not None
    assert queued is not None
    assert failed is not None
    assert answered.options == RunOptions(
        grant=Grant(
            channel="telegram", account="default", to="7", sender=Sender(id="7", name="Ann", username="ann"),
            owner=True, depth=1, led_by=("@main",), tools=frozenset({"read"}), delivers_to=("telegram", "default", "7"),
        ),
        origin={"channel": "telegram", "accountId": "default", "to": "7", "chatType": "direct",
                "sender": {"id": "7", "name": "Ann"}},
        sender="telegram:7", answers_in_conversation=True, thinking="low", model="m/one", provider="m", cwd="/tmp",
        extra_system_prompt="Be brief.", input_provenance={"kind": "external_user"}, lane="main", tools_allow=["read"],
        cron={"jobId": "j1"},
    )  # fmt: skip
    usage = RunUsage(input=3, output=4, total_tokens=7, cost={"total": 0.5})
    sent = SentMessage(tool="message", provider="telegram", to="7", text="x", ts=5)
    picture = {"type": "image", "mimeType": "image/png", "sizeBytes": 3, "sha256": "00"}
    assert answered.result == RunResult(
        text="A small kangaroo.", media=[picture], usage=usage, tools=["read"], provider="m", model="one",
        effects=RunEffects(sent=(sent,)),
    )  # fmt: skip
    assert (queued.options, queued.result) == (RunOptions(sender="cli"), RunResult())
    assert failed.result == RunResult(usage=usage, failure=RunFailure(kind="auth", detail={"provider": "m"}))


def test_mail_and_jobs_of_the_version_before_are_read(earlier: str) -> None:
    async def scenario() -> None:
        async with open_store(earlier) as store:
            sent, queued = await SqlOutbox(store).page(status=None, limit=10)
            assert (sent.poll, sent.receipts[0].message_id) == (
                Poll(question="?", options=("a", "b")),
                "77",
            )
            assert queued.address == ChatAddress(channel="telegram", account="default", to="7", thread="t")
            (whole,) = await SqlOutbox(store).adopt()
            (part,) = whole.parts
            assert (part.text, part.attachments[0].data, part.reply_to, part.silent) == ("Hi", b"abc", "5", True)
            (entry,) = await SqlInbox(store).pending(after=0)
            assert (entry.run_id, entry.status, entry.message.sender.name) == ("run-1", "asked", "Ann")
            assert (entry.message.text, entry.message.attachments[0].data) == ("hello there", b"png")
            (approval,) = await SqlSenderApprovalRepository(store).all()
            assert (approval.sender, approval.code, approval.approved) == ("8", "ABC", False)
            local = SqlLocalMessageRepository(store)
            (message,) = await local.read("default", "c", limit=5)
            assert (message.text, message.extra) == ("local hello", {"b": 2})
            assert [file.data for file in await local.files("default", "c", message.id)] == [b"file"]
            jobs = SqlCronJobRepository(store)
            found, total = await jobs.page(JobQuery(sort="name"))
            assert ([job.id for job in found], total) == (["j1", "j2", "j3"], 3)
            (firing,) = await jobs.adopt()
            assert (firing.job.id, firing.begun, firing.job.spec.declaration_key) == ("j2", True, "d-j2")
            assert (await jobs.read_log(JobLogQuery()))[0][0]["summary"] == "Ticked"

    asyncio.run(scenario())


def test_a_database_of_another_revision_is_refused(where: str) -> None:
    async def stamp(revision: str) -> None:
        async with open_store(where) as store:
            await store.write(
                lambda c: c.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'")) and None
            )

    asyncio.run(stamp("9999"))
    with pytest.raises(StoreDamaged, match="newer version"):
        SqlStore(where)


def test_a_database_of_a_development_version_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "db")) as plain:
        plain.executescript(
            "CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('0003')"
        )
    with pytest.raises(StoreError, match="another state directory"):
        SqlStore(str(tmp_path / "db"))


def test_every_partial_index_is_partial_on_both_databases(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            column = "indexdef" if where.startswith("postgresql") else "sql"
            table = "pg_indexes" if where.startswith("postgresql") else "sqlite_master"
            statement = text(f"SELECT count(*) FROM {table} WHERE {column} LIKE 'CREATE%INDEX%WHERE%'")
            assert await store.read(lambda c: c.execute(statement).scalar_one()) == 6
            assert await store.read(lambda c: inspect(c).has_table("sessions"))

    asyncio.run(scenario())


OPEN_SQLITE = """
import sys
from openclaw_mcp.store.store import SqlStore
SqlStore(sys.argv[1]).close()
print([name for name in sys.modules if name.startswith("sqlalchemy.dialects.postgresql")])
"""


def test_a_sqlite_store_does_not_load_the_code_for_postgresql(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OPEN_SQLITE, str(tmp_path / "db")],
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout.strip() == "[]"
