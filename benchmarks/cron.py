"""Ten thousand jobs: how late the due ones begin, and what the clock costs while none is due.

    python benchmarks/cron.py [--jobs 10000] [--due 500] [--turns 100] [--idle 30]

The clock runs in this process on a store of its own. One, `--due`, and at last as many again as there are jobs become
due at the same moment; each tells the main session something, which needs no agent: it has fired when the event is in
the store. `--turns` of another kind ask the demo agent, and have fired when they are claimed; how many agents work at
once is a setting. The floor of the idle figure is the same gateway with no jobs; of the lateness, one job alone.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from openclaw_mcp.core.jobs import (
    AgentTurnPayload,
    AtSchedule,
    CronJob,
    CronSchedule,
    IntervalSchedule,
    JobPayload,
    JobSpec,
    JobState,
    Schedule,
    SystemEventPayload,
)
from openclaw_mcp.core.rpc import RpcEvent
from openclaw_mcp.core.sessions import now_ms
from openclaw_mcp.gateway.cron.job_state import schedule_next
from openclaw_mcp.gateway.cron.rpc_methods import CronMethods
from openclaw_mcp.gateway.cron.schedule import to_iso
from openclaw_mcp.gateway.wiring import runs
from openclaw_mcp.store.cron_jobs import SqlCronJobRepository
from openclaw_mcp.store.cron_rows import job_columns
from openclaw_mcp.store.store import SqlStore
from openclaw_mcp.store.tables import cron_jobs

ROUNDS = 5
AHEAD = 2.0  # seconds between adding the due jobs and their time
WRITING = 0.001  # seconds more for each, to make and store it


class Bench:
    """A gateway with a clock."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.began: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self._news = asyncio.Event()
        self.store: SqlStore
        self.methods: CronMethods

    def on_event(self, event: RpcEvent) -> None:
        if event.name == "cron" and event.payload["action"] == "started":
            self.began[event.payload["jobId"]] = now_ms()
        elif event.name == "cron" and event.payload["action"] == "finished":
            self.ended[event.payload["jobId"]] = now_ms()
            self._news.set()

    async def open(self, path: Path, jobs: int) -> None:
        services = await self._stack.enter_async_context(runs.open_store_services(str(path), self.on_event))
        self.store = services.store
        await self.fill(jobs)
        repository = SqlCronJobRepository(services.store)
        self.methods = CronMethods(repository, services.runs, services.sessions, self.on_event, store_path=str(path))
        await self._stack.enter_async_context(self.methods)

    async def fill(self, jobs: int) -> None:
        """Straight into the table, all due long from now."""
        kinds: list[Schedule] = [
            IntervalSchedule(every_ms=86_400_000 * 30, anchor_ms=now_ms()),
            CronSchedule(expr="0 9 1 1 *", tz="Europe/Vienna"),
            AtSchedule(at=to_iso(now_ms() + 86_400_000 * 300)),
        ]
        rows = [row(f"far-{n}", kinds[n % len(kinds)]) for n in range(jobs)]
        for first in range(0, len(rows), 1000):
            await self.store.write(partial(insert, rows[first : first + 1000]))

    async def fire(self, count: int, name: str, payload: JobPayload | None = None) -> tuple[list[int], int, float]:
        """How late each of so many jobs began, how long after their time all had ended, and the processor time it
        took, in milliseconds. On a busy machine the last tells more than the others."""
        due = now_ms() + round((AHEAD + count * WRITING) * 1000)
        rows = [row(f"{name}-{n}", AtSchedule(at=to_iso(due)), payload) for n in range(count)]
        await self.store.write(partial(insert, rows))
        assert now_ms() < due, "the jobs were not stored before their time"
        self.methods.scheduler.wake()
        names, used = {job["id"] for job in rows}, time.process_time()
        while not names <= self.ended.keys():
            self._news.clear()
            await self._news.wait()
        over = max(self.ended[each] for each in names) - due
        work = (time.process_time() - used) * 1000
        return sorted(self.began[each] - due for each in names), over, work


def insert(rows: list[dict[str, Any]], connection: Connection) -> None:
    connection.execute(cron_jobs.insert(), rows)


def row(job_id: str, schedule: Schedule, payload: JobPayload | None = None) -> dict[str, Any]:
    turn = isinstance(payload, AgentTurnPayload)
    spec = JobSpec(
        name=job_id,
        enabled=True,
        schedule=schedule,
        session_target="isolated" if turn else "main",
        wake_mode="next-heartbeat",
        payload=payload or SystemEventPayload(text=f"event of {job_id}"),
        delete_after_run=True if isinstance(schedule, AtSchedule) else None,
    )
    at = now_ms()
    job = schedule_next(
        CronJob(id=job_id, spec=spec, state=JobState(), created_at=at, updated_at=at), at, activated=False
    )
    return {"id": job.id, "created_at": at, **job_columns(job)}


async def idle(bench: Bench, seconds: float) -> float:
    """Share of one processor used while nothing is due, in percent."""
    await asyncio.sleep(1.0)
    began, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - used) / (time.perf_counter() - began) * 100


async def measure(options: argparse.Namespace, folder: Path) -> None:
    rested = {}
    for jobs in (0, options.jobs):
        async with AsyncExitStack() as stack:
            bench = Bench(stack)
            await bench.open(folder / f"{jobs}.sqlite", jobs)
            rested[jobs] = await idle(bench, options.idle)
            if not jobs:
                continue
            print(f"{options.jobs} jobs stored; lateness in ms of jobs due at the same moment")
            turn = AgentTurnPayload(message="!say done")
            for count, payload in ((1, None), (options.due, None), (options.turns, turn), (options.jobs, None)):
                for number in range(ROUNDS):
                    kind = "events" if payload is None else "turns"
                    late, over, work = await bench.fire(count, f"{kind}-{count}-{number}", payload)
                    figures = f"median {statistics.median(late):6.0f}  worst {late[-1]:6}  all ended after {over:6}"
                    print(f"  {count:5} {kind:6}: {figures}  processor {work:6.0f}")
    print(f"idle: {rested[0]:.2f} % of a core without jobs, {rested[options.jobs]:.2f} % with {options.jobs}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--due", type=int, default=500)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--idle", type=float, default=30.0, metavar="SECONDS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()
