"""Background work: it ends with its owner, and its failures are seen."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from openclaw_mcp.core.errors import StoreFull
from openclaw_mcp.net import tasks as module
from openclaw_mcp.net.tasks import Tasks, finish, run_all


class Broke(Exception):
    pass


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, 10))


async def fail() -> None:
    raise Broke("once")


def test_what_runs_is_cancelled_and_over_when_the_owner_has_left() -> None:
    async def scene() -> None:
        ended = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("work")

        async with Tasks("owner") as tasks:
            tasks.spawn(work(), name="work")
            await asyncio.sleep(0)
        assert ended == ["work"]
        with pytest.raises(RuntimeError, match="owner is closed"):
            tasks.spawn(work(), name="work")

    run(scene())


def test_a_failure_nobody_awaits_is_logged_with_its_owner(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with Tasks("owner") as tasks:
            await asyncio.wait([tasks.spawn(fail(), name="counting")])
            await asyncio.sleep(0)

    run(scene())

    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "owner: counting failed")
    ]


def test_a_failure_that_explains_itself_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async def refuse() -> None:
            raise StoreFull("the disk is full")

        async with Tasks("owner") as tasks:
            await asyncio.wait([tasks.spawn(refuse(), name="writing"), tasks.spawn(fail(), name="counting")])
            await asyncio.sleep(0)

    run(scene())

    lines = {record.getMessage(): record.exc_info is not None for record in caplog.records}
    assert lines == {"owner: writing failed: the disk is full": False, "owner: counting failed": True}


def test_a_loop_that_fails_is_logged_and_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_BACK_OFF", 0.001)
    steps: list[int] = []

    async def scene() -> None:
        enough = asyncio.Event()

        async def step() -> None:
            steps.append(len(steps))
            if len(steps) == 4:
                enough.set()
            if len(steps) in (1, 2):
                raise Broke

        async with Tasks("owner") as tasks:
            tasks.loop(step, every=0.001, name="counting", on_failure="restart")
            await enough.wait()

    run(scene())

    assert steps[:4] == [0, 1, 2, 3]
    assert [record.getMessage() for record in caplog.records] == [
        "owner: counting failed, next attempt in 0.001 s",
        "owner: counting failed, next attempt in 0.002 s",
    ]


def test_a_loop_outlives_the_cancellation_of_what_it_waits_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loop would end without a word: a cancelled task counts as one that its owner has ended."""
    monkeypatch.setattr(module, "FIRST_BACK_OFF", 0.01)

    async def scene() -> None:
        steps = asyncio.Semaphore(0)

        async def step() -> None:
            steps.release()
            waited_for: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waited_for.cancel()
            await waited_for

        async with Tasks("owner") as tasks:
            loop = tasks.loop(step, name="counting", on_failure="restart")
            for _ in range(3):
                await steps.acquire()
            assert not loop.done()
        assert loop.cancelled()

    run(scene())

    assert caplog.records[0].getMessage() == "owner: counting failed, next attempt in 0.01 s"


def test_work_that_may_not_fail_takes_its_owners_block_down_with_its_own_failure() -> None:
    async def scene() -> None:
        with pytest.raises(Broke):
            async with Tasks("owner") as tasks:
                tasks.spawn(fail(), name="fail", on_failure="crash")
                await asyncio.Event().wait()
        current = asyncio.current_task()
        assert current is not None
        assert not current.cancelling()

    run(scene())


def test_a_loop_may_be_one_that_brings_the_process_down() -> None:
    async def scene() -> None:
        with pytest.raises(Broke):
            async with Tasks("owner") as tasks:
                tasks.loop(fail, name="fail", every=0.001, on_failure="crash")
                await asyncio.Event().wait()

    run(scene())


def test_a_cancellation_from_outside_stays_one() -> None:
    async def scene() -> None:
        async def block() -> None:
            async with Tasks("owner"):
                await asyncio.Event().wait()

        task = asyncio.ensure_future(block())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(scene())


def test_work_gets_its_time_to_finish_and_no_more() -> None:
    async def scene() -> None:
        finished = []

        async def brief() -> None:
            await asyncio.sleep(0)
            finished.append("brief")

        tasks = Tasks("owner")
        tasks.spawn(brief(), name="brief")
        endless = tasks.spawn(asyncio.Event().wait(), name="endless")
        await tasks.finish(0.05)
        assert finished == ["brief"]
        assert endless.cancelled()
        assert len(tasks) == 0

    run(scene())


def test_cleaning_up_runs_to_its_end_whoever_cancels_it() -> None:
    async def scene() -> None:
        finished = []

        async def clean() -> None:
            await asyncio.sleep(0.01)
            finished.append("clean")

        task = asyncio.ensure_future(finish(clean()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert finished == ["clean"]

    run(scene())


def test_all_are_closed_though_one_fails() -> None:
    async def scene() -> None:
        closed = []

        async def close(name: str) -> None:
            await asyncio.sleep(0)
            closed.append(name)

        with pytest.raises(Broke):
            await run_all([close("a"), fail(), close("b")])
        assert closed == ["a", "b"]
        await run_all([])

    run(scene())
