"""Runs are executed to their end, and a failure on the way never leaves a session waiting for ever."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from openclaw_mcp.core.agent import AgentEvent, Turn, TurnCompleted, TurnFailed
from openclaw_mcp.core.sessions import NewSession, RunEvent, RunRequest, RunStarted
from openclaw_mcp.gateway.runs import runs as run_executor
from openclaw_mcp.gateway.runs.runs import LocalRunExecutor
from openclaw_mcp.gateway.wiring.runs import agent_caller
from openclaw_mcp.net import tasks
from openclaw_mcp.store.runs import SqlRunRepository
from openclaw_mcp.store.sessions import SqlSessionRepository
from openclaw_mcp.store.store import open_store

WAIT = 20.0  # seconds a test waits for an event that must come
SESSION = NewSession(key="agent:main:a", agent_id="main", classification="custom")


class Runtime:
    """Answers "done"; a prompt `unstorable` gets a failure that no JSON can hold."""

    id = "test"
    media_types: tuple[str, ...] = ()

    async def run(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        if turn.prompt == "unstorable":
            yield TurnFailed(message="broken", detail={"object": object()})
        else:
            yield TurnCompleted(text="done")


def execute(folder: Path, scenario: Callable[[LocalRunExecutor, SqlRunRepository], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_store(str(folder / "db")) as store:
            repository = SqlRunRepository(store)
            executor = LocalRunExecutor(
                repository,
                SqlSessionRepository(store),
                select_runtime=lambda run: Runtime(),
                resolve_caller=agent_caller,
            )
            async with asyncio.timeout(60):
                await scenario(executor, repository)

    asyncio.run(main())


async def answer(executor: LocalRunExecutor, run_id: str, message: str = "hello") -> str | None:
    """How a run ends; None when it does not."""
    await executor.submit(RunRequest(run_id=run_id, session=SESSION, message=message))
    run = await executor.wait(run_id, seconds=WAIT if message != "unstorable" else 5.0)
    return None if run is None else run.status


def test_a_listener_that_fails_leaves_no_session_stuck(tmp_path: Path) -> None:
    async def scenario(executor: LocalRunExecutor, _repository: SqlRunRepository) -> None:
        def fail_once(event: RunEvent) -> None:
            if isinstance(event, RunStarted) and event.claim.run.run_id == "one":
                raise ValueError("a listener's own mistake")

        executor.events.connect(fail_once)
        async with executor:
            await executor.submit(RunRequest(run_id="one", session=SESSION, message="hello"))
            ended = await executor.wait("one", seconds=5)
            assert ended is not None
            assert await answer(executor, "two") == "ok"
            assert executor.is_idle

    execute(tmp_path, scenario)


def test_a_result_that_can_not_be_stored_ends_its_run_as_failed(tmp_path: Path) -> None:
    async def scenario(executor: LocalRunExecutor, _repository: SqlRunRepository) -> None:
        async with executor:
            assert await answer(executor, "one", "unstorable") == "error"
            assert await answer(executor, "two") == "ok"

    execute(tmp_path, scenario)


def test_polling_goes_on_after_an_unexpected_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_executor, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(tasks, "FIRST_BACK_OFF", 0.01)

    async def scenario(executor: LocalRunExecutor, repository: SqlRunRepository) -> None:
        polled = asyncio.Event()
        failures = [ValueError("not a store error")]

        async def has_open_runs() -> bool:
            if failures:
                raise failures.pop()
            polled.set()
            return False

        repository.has_open_runs = has_open_runs  # type: ignore[method-assign]
        async with executor:
            await asyncio.wait_for(polled.wait(), WAIT)

    execute(tmp_path, scenario)


def test_closing_waits_for_a_run_and_stores_that_it_was_stopped(tmp_path: Path) -> None:
    async def scenario(executor: LocalRunExecutor, repository: SqlRunRepository) -> None:
        started = asyncio.Event()

        class Waiting(Runtime):
            async def run(self, turn: Turn) -> AsyncIterator[AgentEvent]:
                started.set()
                await asyncio.Event().wait()
                yield TurnCompleted(text="never")

        executor._select_runtime = lambda run: Waiting()
        async with executor:
            await executor.submit(RunRequest(run_id="one", session=SESSION, message="hello"))
            await started.wait()
        run = await repository.get("one")
        assert run is not None
        assert (run.status, run.stop_reason) == ("error", "restart")

    execute(tmp_path, scenario)


def test_a_turn_that_is_cancelled_from_elsewhere_ends_as_failed_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended as if it had answered, with nothing."""

    class Cancelled(Runtime):
        async def run(self, turn: Turn) -> AsyncIterator[AgentEvent]:
            shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            shared.cancel()
            await shared
            yield TurnCompleted(text="never")

    async def scenario(executor: LocalRunExecutor, _repository: SqlRunRepository) -> None:
        executor._select_runtime = lambda run: Cancelled()
        async with executor:
            assert await answer(executor, "one") == "error"
            executor._select_runtime = lambda run: Runtime()
            assert await answer(executor, "two") == "ok"

    execute(tmp_path, scenario)
    assert "runs: run one was cancelled from elsewhere" in caplog.text
