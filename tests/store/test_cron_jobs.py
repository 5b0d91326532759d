"""The book of jobs, on each database: a due job is claimed once, and what a dead process had claimed is taken over."""

import asyncio
import re

import pytest

from openclaw_mcp.core.jobs import (
    CronJob,
    FiringNotClaimed,
    FiringOutcome,
    IntervalSchedule,
    JobFiring,
    JobLogQuery,
    JobQuery,
    JobSpec,
    JobState,
    QueuedEvent,
    SystemEventPayload,
    replace_job,
)
from openclaw_mcp.core.model import Grant
from openclaw_mcp.core.sessions import NewSession, RunOptions, RunRequest
from openclaw_mcp.store.cron_jobs import SqlCronJobRepository
from openclaw_mcp.store.runs import SqlRunRepository
from openclaw_mcp.store.store import open_store

OWNERS = RunOptions(grant=Grant(owner=True))


def job(name: str, due: int | None) -> CronJob:
    spec = JobSpec(
        name=name, enabled=True, schedule=IntervalSchedule(every_ms=1000), session_target="main", wake_mode="now",
        payload=SystemEventPayload(text="tick"),
    )  # fmt: skip
    return CronJob(
        id=name, spec=spec, state=JobState(next_run_at_ms=due), created_at=1, updated_at=1, origin="agent:main:x"
    )


def later(job: CronJob, now: int) -> int:
    return now + 1000


def entry(firing: JobFiring, status: str = "ok") -> dict[str, object]:
    return {"ts": 5, "jobId": firing.job.id, "status": status, "summary": "Hello 100%", "sessionKey": "agent:main:s"}


def test_of_several_processes_one_claims_a_due_job(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as first, open_store(where) as second:
            repositories = SqlCronJobRepository(first), SqlCronJobRepository(second)
            for n in range(40):
                await repositories[0].add(job(f"j{n}", n), max_jobs=100)
            claims = await asyncio.gather(*(repositories[n % 2].claim(19, limit=7, plan=later) for n in range(8)))
            ids = [one.firing.job.id for claim in claims for one in claim]
            assert sorted(ids) == sorted(f"j{n}" for n in range(20))
            assert await repositories[1].next_due() == 20
            found = await repositories[1].get("j3")
            assert found is not None
            assert (found.state.next_run_at_ms, found.state.running_at_ms) == (1019, 19)
            assert await repositories[0].reserve("j3", "manual", 20, manual=True, note=None) is None  # it runs
            assert not await repositories[0].adopt()  # every process is alive

    asyncio.run(scenario())


def test_what_a_process_left_is_taken_over_once_and_its_own_end_comes_too_late(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as second, open_store(where) as third:
            async with open_store(where) as first:
                dead = SqlCronJobRepository(first)
                await dead.add(job("a", 1), max_jobs=10)
                firing = (await dead.claim(5, limit=10, plan=later))[0].firing
                assert await dead.begin(firing.run_id) is True
            found = [*await SqlCronJobRepository(second).adopt(), *await SqlCronJobRepository(third).adopt()]
            assert [(one.run_id, one.begun, one.job.spec) for one in found] == [(firing.run_id, True, firing.job.spec)]
            with pytest.raises(FiringNotClaimed):
                await SqlCronJobRepository(third).finish(
                    firing, FiringOutcome(entry=entry(firing), change_job=lambda j: j)
                )
            result = await SqlCronJobRepository(second).finish(
                firing, FiringOutcome(entry=entry(firing), change_job=lambda j: replace_job(j, last_run_status="ok"))
            )
            assert result is not None
            assert (result.running, result.state.running_at_ms, result.state.last_run_status) == (None, None, "ok")

    asyncio.run(scenario())


def test_an_end_is_all_or_nothing(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlCronJobRepository(store)
            await repository.add(job("a", 1), max_jobs=10)
            firing = (await repository.claim(5, limit=10, plan=later))[0].firing
            event = QueuedEvent(session="agent:main:main", text="told", at=5, key="k", owner=True)

            def fails(job: CronJob) -> CronJob:
                raise RuntimeError("settling went wrong")

            with pytest.raises(RuntimeError):
                await repository.finish(firing, FiringOutcome(entry=entry(firing), change_job=fails, event=event))
            assert await repository.read_log(JobLogQuery()) == ([], 0)
            await repository.finish(
                firing, FiringOutcome(entry=entry(firing), change_job=lambda job: None, event=event, reap_at=7)
            )
            assert await repository.get("a") is None
            assert (await repository.read_log(JobLogQuery(search="hello 100%", statuses=("ok",))))[1] == 1
            assert (await repository.read_log(JobLogQuery(search="hello 1000")))[1] == 0
            assert await repository.reap_sessions(6, limit=10) == []
            assert await repository.reap_sessions(7, limit=10) == ["agent:main:s"]
            assert await repository.reap_sessions(7, limit=10) == []
            new = NewSession(key="agent:main:main", agent_id="main", classification="main")
            admission = await SqlRunRepository(store).admit(
                RunRequest(run_id="r", session=new, message="hi", options=OWNERS)
            )
            assert admission.claim is not None
            assert admission.claim.prompt.endswith("told\n\nhi")
            assert [message.role for message in admission.claim.messages] == ["user", "user"]

    asyncio.run(scenario())


def test_what_needs_nobody_is_claimed_and_ended_in_one_commit(where: str) -> None:
    broken: str | None = "broken"

    def at_once(firing: JobFiring) -> FiringOutcome | None:
        if firing.job.id == "agent":
            return None
        event = QueuedEvent(
            session="agent:main:main", text=f"tick {firing.job.id}", at=5, key=firing.run_id, owner=True
        )
        gone = firing.job.id == "once"

        def settle(job: CronJob) -> CronJob | None:
            if firing.job.id == broken:
                raise RuntimeError("settling went wrong")
            return None if gone else replace_job(job, last_run_status="ok")

        return FiringOutcome(entry=entry(firing), change_job=settle, event=event)

    async def scenario() -> None:
        nonlocal broken
        async with open_store(where) as store:
            repository = SqlCronJobRepository(store)
            for name in ("again", "once", "agent", "broken"):
                await repository.add(job(name, 1), max_jobs=10)
            with pytest.raises(RuntimeError):
                await repository.claim(5, limit=10, plan=later, instant_outcome=at_once)
            assert await repository.read_log(JobLogQuery()) == ([], 0)
            assert await repository.next_due() == 1  # nothing was taken
            broken = None
            ids = {
                one.firing.job.id: one
                for one in await repository.claim(5, limit=10, plan=later, instant_outcome=at_once)
            }
            assert {name for name, one in ids.items() if one.outcome is None} == {"agent"}
            entries, total = await repository.read_log(JobLogQuery())
            assert {line["jobId"]: line.get("nextRunAtMs") for line in entries} == {
                "again": 1005, "broken": 1005, "once": None,
            }  # fmt: skip
            assert (total, await repository.get("once")) == (3, None)
            again = await repository.get("again")
            assert again is not None
            assert (again.running, again.state.next_run_at_ms, again.state.last_run_status) == (None, 1005, "ok")
            assert not await repository.claim(5, limit=10, plan=later, instant_outcome=at_once)
        async with open_store(where) as store:  # of those that are over nothing is taken up again
            assert [one.job.id for one in await SqlCronJobRepository(store).adopt()] == ["agent"]
            new = NewSession(key="agent:main:main", agent_id="main", classification="main")
            admission = await SqlRunRepository(store).admit(
                RunRequest(run_id="r", session=new, message="hi", options=OWNERS)
            )
            assert admission.claim is not None
            texts = sorted(re.findall("tick [a-z]+", admission.claim.prompt))
            assert texts == ["tick again", "tick broken", "tick once"]

    asyncio.run(scenario())


def test_jobs_are_found_counted_and_put_off(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlCronJobRepository(store)
            for n, due in enumerate((30, None, 10, 20)):
                await repository.add(job(f"j{n}", due), max_jobs=4)
            assert await repository.add(job("more", 1), max_jobs=4) is None
            found, total = await repository.page(JobQuery(limit=3))
            assert ([one.id for one in found], total) == (["j2", "j3", "j0"], 4)
            found, _ = await repository.page(JobQuery(sort="name", descending=True, limit=1))
            assert [one.id for one in found] == ["j3"]
            assert await repository.list_overdue(25) == [("j2", 10), ("j3", 20)]
            await repository.reschedule([("j2", 10, 99), ("j3", 21, 99)])
            assert await repository.list_overdue(25) == [("j3", 20)]  # j3 had another time by then
            assert await repository.count_added_since("agent:main:x", 1) == 4
            assert await repository.count_added_since("agent:main:x", 2) == 0
            assert await repository.remove("j0") is True
            assert await repository.remove("j0") is False
            assert await repository.count() == 3

    asyncio.run(scenario())
