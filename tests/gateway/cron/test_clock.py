"""Jobs fire on time, once, however many processes there are and however they end."""

import asyncio
import contextlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from openclaw_mcp.core.model import Json
from openclaw_mcp.core.ports import RunExecutor
from openclaw_mcp.core.sessions import Run, RunAdmission, RunEvent, RunRequest
from openclaw_mcp.core.signal import Signal
from openclaw_mcp.gateway.cron.scheduler import CATCH_UP_AT_ONCE, CATCH_UP_WITHIN_MS
from openclaw_mcp.store.runs import QUEUE_CAP

from .gateways import EVENT, TURN, CronHarness, ManualTime, MemoryDelivery, ms, open_cron, until

MINUTE = 60_000


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "openclaw.sqlite")


def every(seconds: float) -> Json:
    return {"kind": "every", "everyMs": round(seconds * 1000)}


def test_a_job_fires_when_it_is_due_and_not_before(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where) as cron:
            job = await cron.add(every(60), EVENT)
            assert job["nextRunAtMs"] == ms("2027-01-01T00:01:00")
            await cron.pass_time(59.999)
            assert await cron.runs() == []
            await cron.pass_time(0.001)
            await cron.until("cron", action="finished")
            await cron.pass_time(120)
            await cron.quiet()
            due = [ms(f"2027-01-01T00:0{n}:00") for n in (1, 2, 3)]
            assert [entry["runAtMs"] for entry in await cron.runs()] == due
            assert (await cron.call("cron.get", {"id": job["id"]}))["nextRunAtMs"] == due[-1] + MINUTE

    asyncio.run(scenario())


def test_a_year_of_jobs_in_several_zones_through_the_clock(where: str) -> None:
    """The schedules themselves are compared with an oracle elsewhere: here nothing is lost or doubled on the way."""

    async def scenario() -> None:
        async with open_cron(where, time=ManualTime("2028-01-01T00:00:00")) as cron:
            wanted = {
                ("30 2 * * *", "Europe/Vienna"): 366,
                ("0 9 * * 1", "America/New_York"): 52,
                ("0 0 29 2 *", "Australia/Lord_Howe"): 1,
                ("15 12 1,15 * *", "Asia/Kolkata"): 24,
            }
            names = {}
            for expr, zone in wanted:
                schedule = {"kind": "cron", "expr": expr, "tz": zone}
                names[(await cron.add(schedule, EVENT))["id"]] = (expr, zone)
            fired: list[tuple[str, int]] = []
            end = ms("2029-01-01T00:00:00")
            while (due := await cron.jobs.next_due()) is not None and due < end:
                cron.time.move(max(due, cron.time.now()))
                await cron.quiet()
            fired = [(event["jobId"], event["runAtMs"]) for event in cron.received("cron", action="finished")]
            assert len(set(fired)) == len(fired)
            counted = {names[job]: sum(job == other for other, _ in fired) for job in names}
            assert counted == wanted

    asyncio.run(scenario())


def test_two_processes_on_one_store_fire_each_job_once(where: str) -> None:
    async def scenario() -> None:
        time = ManualTime()
        async with open_cron(where, time=time) as one, open_cron(where, time=time) as other:
            for _ in range(20):
                await one.add(every(60), EVENT)
            for _ in range(5):
                time.after(60)
                one.service.scheduler.wake()
                other.service.scheduler.wake()
                await settled(one, other)
            entries = await one.runs()
            assert len(entries) == 100
            assert len({(entry["jobId"], entry["runAtMs"] // MINUTE) for entry in entries}) == 100

    asyncio.run(scenario())


async def settled(*crons: CronHarness) -> None:
    """Until nothing is due and nothing goes."""
    async with asyncio.timeout(30):
        while True:
            due = await crons[0].jobs.next_due()
            if due is not None and due > crons[0].time.now() and not any(len(w.service._executor) for w in crons):
                return
            await asyncio.sleep(0.01)


def test_a_job_that_still_runs_is_not_begun_again(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where) as cron:
            job = await cron.add(every(60), {"kind": "command", "argv": ["sleep", "30"]})
            cron.time.after(60)
            await cron.until("cron", action="started")
            for _ in range(3):
                cron.time.after(60)
                cron.service.scheduler.wake()
                await asyncio.sleep(0.05)  # it would begin at once
            assert len(cron.received("cron", action="started")) == 1
            again = await cron.call("cron.run", {"id": job["id"]})
            assert (again["ran"], again["reason"]) == (False, "already-running")
            stored = await cron.call("cron.get", {"id": job["id"]})
            assert stored["state"]["runningAtMs"] == ms("2027-01-01T00:01:00")

    asyncio.run(scenario())


def test_missed_jobs_run_once_each_and_not_all_at_the_same_moment(where: str) -> None:
    async def scenario() -> None:
        count = CATCH_UP_AT_ONCE + 10
        async with open_cron(where) as cron:
            jobs = [(await cron.add(every(60), EVENT))["id"] for _ in range(count)]
        down = ManualTime("2027-01-03T12:00:30")
        async with open_cron(where, time=down) as cron:
            await cron.quiet()
            assert len(await cron.runs()) == CATCH_UP_AT_ONCE
            await cron.pass_time(29)
            await cron.quiet()
            first: dict[str, int] = {}
            for entry in await cron.runs():
                first.setdefault(entry["jobId"], entry["runAtMs"])
            assert len(first) == CATCH_UP_AT_ONCE + 5
            await cron.pass_time(CATCH_UP_WITHIN_MS / 1000)
            assert {entry["jobId"] for entry in await cron.runs()} == set(jobs)

    asyncio.run(scenario())


def test_missed_recurring_jobs_can_be_skipped_but_one_shots_never_are(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where) as cron:
            await cron.add(every(60), EVENT)
            once = await cron.add({"kind": "at", "at": "2027-01-01T06:00:00Z"}, EVENT, name="once")
        down = ManualTime("2027-01-03T12:00:30")
        async with open_cron(where, time=down, skipMissedJobs=True) as cron:
            await cron.quiet()
            assert [entry["jobId"] for entry in await cron.runs()] == [once["id"]]

    asyncio.run(scenario())


def test_failures_in_a_row_wait_longer_and_a_success_forgets_them(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where) as cron:
            failing = {"kind": "agentTurn", "message": "!fail on purpose"}
            job = await cron.add(every(10), failing)
            for _ in range(6):
                due = (await cron.call("cron.get", {"id": job["id"]}))["nextRunAtMs"]
                cron.time.move(due)
                await cron.quiet()
            entries = await cron.runs()
            assert {(entry["status"], entry["error"]) for entry in entries} == {("error", "on purpose")}
            times = [entry["runAtMs"] for entry in entries]
            waits = [later - sooner for sooner, later in pairwise(times)]
            assert waits == [30_000, 60_000, 300_000, 900_000, 3_600_000]
            assert (await cron.call("cron.get", {"id": job["id"]}))["state"]["consecutiveErrors"] == 6
            await cron.call("cron.update", {"id": job["id"], "patch": {"payload": TURN}})
            cron.time.after(3600)
            await cron.quiet()
            state = (await cron.call("cron.get", {"id": job["id"]}))["state"]
            assert (state["consecutiveErrors"], state["lastRunStatus"]) == (0, "ok")
            assert state["nextRunAtMs"] - cron.time.now() <= 10_000

    asyncio.run(scenario())


def test_a_one_shot_is_removed_after_success_and_stays_disabled_otherwise(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where) as cron:
            at = {"kind": "at", "at": "2027-01-01T00:01:00Z"}
            good = await cron.add(at, name="good")
            lasting = await cron.add(at, name="kept", deleteAfterRun=False)
            bad = await cron.add(at, {"kind": "agentTurn", "message": "!fail no"}, name="bad")
            cron.time.after(60)
            await cron.quiet()
            left = (await cron.call("cron.list", {"includeDisabled": True, "sortBy": "name"}))["jobs"]
            assert [(job["name"], job["enabled"], job.get("nextRunAtMs")) for job in left] == [
                ("bad", False, None),
                ("kept", False, None),
            ]
            assert {job["id"] for job in left} == {lasting["id"], bad["id"]}
            assert cron.received("cron", action="removed") == [{"jobId": good["id"], "action": "removed"}]
            assert len(await cron.runs(id=good["id"])) == 1  # its history stays

    asyncio.run(scenario())


def test_a_one_shot_moved_while_it_runs_keeps_its_new_time(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where) as cron:
            sleeping = {"kind": "command", "argv": ["sh", "-c", "read line"], "input": None}
            job = await cron.add({"kind": "at", "at": "2027-01-01T00:01:00Z"}, {**sleeping, "argv": ["sleep", "0.3"]})
            cron.time.after(60)
            await cron.until("cron", action="started")
            later = {"schedule": {"kind": "at", "at": "2027-01-01T02:00:00Z"}}
            await cron.call("cron.update", {"id": job["id"], "patch": later})
            await cron.until("cron", action="finished")
            stored = await cron.call("cron.get", {"id": job["id"]})
            assert (stored["enabled"], stored["nextRunAtMs"]) == (True, ms("2027-01-01T02:00:00"))

    asyncio.run(scenario())


def test_a_disabled_job_does_not_fire_but_can_be_tried(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where) as cron:
            job = await cron.add(every(60), EVENT, enabled=False)
            assert "nextRunAtMs" not in job
            await cron.pass_time(300)
            assert await cron.runs() == []
            assert (await cron.call("cron.run", {"id": job["id"], "mode": "if-enabled"}))["reason"] == "disabled"
            assert (await cron.call("cron.run", {"id": job["id"]}))["enqueued"] is True
            await cron.quiet()
            assert len(await cron.runs()) == 1
            stored = await cron.call("cron.get", {"id": job["id"]})
            assert (stored["enabled"], stored.get("nextRunAtMs")) == (False, None)

    asyncio.run(scenario())


def test_trying_a_job_leaves_its_next_time_alone(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where) as cron:
            job = await cron.add(every(3600), {"kind": "agentTurn", "message": "!fail no"})
            cron.time.after(10)
            await cron.call("cron.run", {"id": job["id"]})
            await cron.until("cron", action="finished")
            assert (await cron.call("cron.get", {"id": job["id"]}))["nextRunAtMs"] == job["nextRunAtMs"]

    asyncio.run(scenario())


def test_a_schedule_faster_than_it_can_be_is_slowed_down(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where) as cron:
            await cron.add({"kind": "every", "everyMs": 1}, EVENT)
            await cron.pass_time(10)
            await cron.quiet()
            assert len(await cron.runs()) == 5

    asyncio.run(scenario())


def test_with_cron_switched_off_nothing_fires_and_everything_can_be_read(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where, enabled=False) as cron:
            await cron.add(every(60), EVENT)
            cron.time.after(600)
            await cron.quiet()
            status = await cron.call("cron.status")
            assert (status["enabled"], status["jobs"]) == (False, 1)
            assert await cron.runs() == []

    asyncio.run(scenario())


def test_at_most_so_many_agents_work_at_once_and_the_others_wait_their_turn(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where, maxConcurrentRuns=2) as cron:
            at = {"kind": "at", "at": "2027-01-01T00:01:00Z"}
            for n in range(6):
                await cron.add(at, {"kind": "agentTurn", "message": "!sleep 0.05\n!say x"}, name=f"j{n}")
            most = 0
            cron.time.after(60)
            await cron.until("cron", action="started")
            while len(cron.received("cron", action="finished")) < 6:
                most = max(
                    most,
                    len(
                        await cron.memory.store.read(
                            lambda c: c.exec_driver_sql("SELECT 1 FROM runs WHERE status = 'running'").all()
                        )
                    ),
                )
                await asyncio.sleep(0.005)
            assert most == 2
            assert {entry["status"] for entry in await cron.runs()} == {"ok"}

    asyncio.run(scenario())


def test_a_job_that_cannot_be_read_does_not_hold_up_the_others(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where) as cron:
            broken = await cron.add(every(60), EVENT)
            cron.time.after(1)
            good = await cron.add(every(60), EVENT)
            spoil = f"UPDATE cron_jobs SET spec = '{{}}' WHERE id = '{broken['id']}'"
            await cron.memory.store.write(lambda connection: connection.exec_driver_sql(spoil) and None)
            await cron.pass_time(61)
            await cron.quiet()
            assert [entry["jobId"] for entry in await cron.runs()] == [good["id"]]

    asyncio.run(scenario())


def test_an_event_for_a_session_that_is_too_busy_comes_with_its_next_prompt(where: str) -> None:
    async def scenario() -> None:
        async with open_cron(where) as cron:
            await cron.call("chat.send", {"sessionKey": "main", "message": "!sleep 60", "idempotencyKey": "long"})
            for n in range(QUEUE_CAP):
                reply = {"sessionKey": "main", "message": "x", "idempotencyKey": f"r{n}", "queueMode": "followup"}
                await cron.call("chat.send", reply)
            job = await cron.add(every(3600), {"kind": "systemEvent", "text": "tea"}, wakeMode="now")
            run = await cron.call("cron.run", {"id": job["id"]})
            ended = await cron.until("cron", action="finished", runId=run["runId"])
            assert (ended["status"], ended["summary"]) == ("ok", "tea")
            await cron.call("chat.abort", {"sessionKey": "main"})
            await cron.say("hello", run="last")
            history = await cron.call("chat.history", {"sessionKey": "main"})
            prompts = [message["content"] for message in history["messages"] if message["role"] == "user"]
            assert prompts[-2].endswith("] tea")

    asyncio.run(scenario())


# ---- after a crash -----------------------------------------------------------------------------------------------


class Deaf:
    """A runner whose process dies at the worst moment: the run is admitted, and no process records it."""

    def __init__(self, inner: RunExecutor, *, after: bool) -> None:
        self._inner, self._after = inner, after
        self.events: Signal[RunEvent] = Signal()

    async def submit(self, request: RunRequest) -> RunAdmission:
        if self._after:
            await self._inner.submit(request)
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def record(self, request: RunRequest, reply: str) -> Run:
        raise NotImplementedError

    async def find(self, run_id: str) -> Run | None:
        raise NotImplementedError

    async def abort(
        self, key: str, *, run_id: str | None = None, include_queued: bool = True, reason: str = "rpc"
    ) -> Sequence[str]:
        return ()

    async def wait(self, run_id: str, *, seconds: float) -> Run | None:
        return None


@pytest.mark.parametrize("after", [False, True], ids=["before it was admitted", "after it was admitted"])
def test_a_firing_whose_process_died_is_taken_up_and_its_agent_asked_once(where: str, after: bool) -> None:
    async def scenario() -> None:
        time = ManualTime()
        async with contextlib.AsyncExitStack() as first:
            cron = await first.enter_async_context(open_cron(where, time=time))
            cron.service._executor._runner = Deaf(cron.memory.runs, after=after)
            at = {"kind": "at", "at": "2027-01-01T00:01:00Z"}
            job = await cron.add(at, sessionTarget="session:target", deleteAfterRun=False)
            time.after(60)
            await cron.until("cron", action="started")
            if after:

                async def answered(cron: CronHarness = cron) -> bool:
                    history = await cron.call("chat.history", {"sessionKey": "target"})
                    return bool(history["totalMessages"] == 2)

                await until(answered)
        async with open_cron(where, time=time) as cron:
            await cron.until("cron", action="finished")
            (entry,) = await cron.runs(id=job["id"])
            assert (entry["status"], entry["summary"]) == ("ok", "done")
            history = await cron.call("chat.history", {"sessionKey": "target"})
            assert history["totalMessages"] == 2  # asked once, answered once

    asyncio.run(scenario())


def test_a_program_whose_gateway_died_is_not_started_twice(where: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        time, file = ManualTime(), tmp_path / "started"
        at = {"kind": "at", "at": "2027-01-01T00:01:00Z"}
        argv = ["sh", "-c", f"echo x >> {file}; sleep 30"]
        async with open_cron(where, time=time) as cron:
            job = await cron.add(at, {"kind": "command", "argv": argv})
            time.after(60)

            async def has_started() -> bool:
                return file.exists()

            await until(has_started)
        async with open_cron(where, time=time) as cron:
            ended = await cron.until("cron", action="finished")
            assert ended["status"] == "error"
            assert "not started a second time" in ended["error"]
            assert file.read_text() == "x\n"
            assert (await cron.call("cron.get", {"id": job["id"]}))["enabled"] is False

    asyncio.run(scenario())


def test_a_firing_that_another_process_took_over_is_no_failure(where: str) -> None:
    async def scenario() -> None:
        channels = MemoryDelivery()
        async with open_cron(where, channels=channels) as cron:
            alert = {"after": 1, "channel": "matrix", "to": "!room"}
            await cron.add(every(60), {"kind": "command", "argv": ["true"]}, failureAlert=alert)

            async def is_not_ours(run_id: str) -> bool:
                return False

            cron.jobs.begin = is_not_ours  # type: ignore[method-assign]
            cron.time.after(60)
            await cron.until("cron", action="started")
            await cron.quiet()
            assert channels.posted == {}
            assert await cron.runs() == []

    asyncio.run(scenario())
