"""Do pages stay flat? One page of `sessions.list` and `chat.history`, few sessions against very many, in one run.

    python benchmarks/store.py [--sessions 100000] [--messages 1000000]

Also: acknowledged writes a second, alone and together, against the disk's own fsync.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table

from openclaw_mcp.core.model import Caller
from openclaw_mcp.core.rpc import RpcCall, RpcMethod
from openclaw_mcp.core.sessions import MessageDraft, NewSession
from openclaw_mcp.gateway.wiring import runs
from openclaw_mcp.store.store import SqlStore, open_store
from openclaw_mcp.store.tables import messages, session_counts, sessions

ROUNDS = 300
BATCH = 20_000
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "near", "some", "old", "river", "bank"]


class NoLink:
    id = "bench"

    def send_event(self, event: str, payload: Any) -> None: ...

    def subscriptions(self) -> set[str]:
        return set()

    async def acknowledge(self, payload: Any) -> None: ...


def insert(table: Table, rows: list[dict[str, Any]], connection: Connection) -> None:
    connection.execute(table.insert(), rows)


async def fill(store: SqlStore, n_sessions: int, n_messages: int) -> None:
    """Straight into the tables: one long transcript, the rest spread evenly."""
    epoch = 1_700_000_000_000
    in_first = n_messages // 2
    each = (n_messages - in_first) // n_sessions

    def rows_of_sessions(first: int, last: int) -> list[dict[str, Any]]:
        return [
            {
                "id": n + 1, "key": f"agent:main:s{n}", "agent_id": "main", "session_id": f"id{n}", "revision": "r",
                "classification": "custom", "created_at": epoch, "updated_at": epoch + n * 10,
                "message_count": in_first if n == 0 else each, "title": "a title", "preview": "a preview",
            }
            for n in range(first, last)
        ]  # fmt: skip

    for first in range(0, n_sessions, BATCH):
        rows = rows_of_sessions(first, min(first + BATCH, n_sessions))
        await store.write(partial(insert, sessions, rows))
    total = {"agent_id": "main", "archived": False, "n": n_sessions}
    await store.write(partial(insert, session_counts, [total]))
    places = [(1, seq + 1) for seq in range(in_first)]
    places += [(n + 1, seq + 1) for n in range(1, n_sessions) for seq in range(each)]
    for first in range(0, len(places), BATCH):
        chunk = [
            {
                "session": session, "epoch": 1, "seq": seq, "uid": f"{session}-{seq}", "at": epoch + seq,
                "role": "user" if seq % 2 else "assistant", "body": '{"role":"user","content":"' + text + '"}',
                "text": text,
            }
            for session, seq in places[first : first + BATCH]
            for text in (" ".join(WORDS[(seq + n) % len(WORDS)] for n in range(8)),)
        ]  # fmt: skip
        await store.write(partial(insert, messages, chunk))


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter()
    await work()
    return (time.perf_counter() - start) * 1e6


def calls(methods: dict[str, RpcMethod]) -> dict[str, Callable[[], Awaitable[Any]]]:
    caller = Caller(kind="operator", name="bench", scopes=frozenset({"operator.admin"}))

    def one(name: str, **params: Any) -> Callable[[], Awaitable[Any]]:
        return lambda: methods[name].handle(RpcCall(method=name, params=params, caller=caller, peer=NoLink()))

    return {
        "sessions.list, first page": one("sessions.list", limit=50),
        "sessions.list, page 2 by cursor": one("sessions.list", limit=50, cursor="1700000000500.51"),
        "chat.history, newest": one("chat.history", sessionKey="s0", limit=50),
        "chat.history, 20 pages back": one("chat.history", sessionKey="s0", limit=50, offset=1000),
        "sessions.describe": one("sessions.describe", key="s50"),
        "sessions.search, common words": one("sessions.search", query="quick fox"),
    }


async def pages(folder: Path, n_sessions: int, n_messages: int) -> None:
    async with AsyncExitStack() as stack:
        sides = []
        for name, counts in (("few", (100, 4000)), ("many", (n_sessions, n_messages))):
            async with open_store(str(folder / name)) as store:
                start = time.perf_counter()
                await fill(store, *counts)
                print(f"{name}: {counts[0]} sessions, {counts[1]} messages in {time.perf_counter() - start:.0f} s")
            services = await stack.enter_async_context(runs.open_store_services(str(folder / name), lambda _: None))
            sides.append(calls({m.name: m for module in services.rpc_modules for m in module.methods()}))
        for name in sides[0]:
            few, many = [], []
            for _ in range(ROUNDS):
                few.append(await timed(sides[0][name]))
                many.append(await timed(sides[1][name]))
            a, b = statistics.median(few), statistics.median(many)
            print(f"{name:32} {a:8.0f} µs  {b:8.0f} µs  x {b / a:.2f}")


async def writes(folder: Path) -> None:
    async with runs.open_store_services(str(folder / "writes"), lambda _: None) as services:
        sessions = services.sessions
        await sessions.create(NewSession(key="agent:main:w", agent_id="main", classification="custom"))
        draft = MessageDraft(role="user", body={"role": "user", "content": "hello"}, text="hello")
        floor, alone = [], []
        with (folder / "floor").open("wb") as file:
            for _ in range(ROUNDS):
                start = time.perf_counter()
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
                floor.append((time.perf_counter() - start) * 1e6)
                alone.append(await timed(lambda: sessions.append("agent:main:w", [draft])))
        a, b = statistics.median(floor), statistics.median(alone)
        print(f"{'one acknowledged message':32} {b:8.0f} µs  against one fsync {a:.0f} µs  x {b / a:.1f}")
        before, start = services.store.commits, time.perf_counter()
        await asyncio.gather(*(sessions.append("agent:main:w", [draft]) for _ in range(2000)))
        took = time.perf_counter() - start
        print(f"2,000 at once: {2000 / took:.0f} a second in {services.store.commits - before} commits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(writes(Path(place)))
        asyncio.run(pages(Path(place), options.sessions, options.messages))


if __name__ == "__main__":
    main()
