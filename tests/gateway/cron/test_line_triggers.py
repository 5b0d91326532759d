"""Programs whose lines start a job."""

import asyncio

import pytest

from openclaw_mcp.core.errors import OpenClawError
from openclaw_mcp.core.jobs import StreamSchedule
from openclaw_mcp.gateway.cron import programs
from openclaw_mcp.gateway.cron.line_triggers import MAX_LINE_LENGTH, StreamSource


def test_a_source_that_fails_unexpectedly_ends_the_wait_for_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_args: object, **_more: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(programs, "start_program", fail)

    async def work() -> None:
        source = StreamSource(StreamSchedule(command=["true"]), None)
        async with asyncio.timeout(5):
            with pytest.raises(OpenClawError, match="it failed; see the log"):
                await source.next_batch()
        await source.aclose()

    asyncio.run(work())


def test_lines_of_both_streams_come_in_batches_and_long_ones_are_cut() -> None:
    async def work() -> None:
        script = f"echo one; echo two >&2; sleep 0.6; head -c {3 * MAX_LINE_LENGTH} /dev/zero | tr '\\0' x; sleep 60"
        source = StreamSource(StreamSchedule(command=["sh", "-c", script], max_batch_bytes=65_536), None)
        async with asyncio.timeout(10):
            assert sorted((await source.next_batch()).splitlines()) == ["one", "two"]
            long = (await source.next_batch()).splitlines()
        await source.aclose()

        assert all(len(line) <= 2 * MAX_LINE_LENGTH for line in long)
        assert len("".join(long)) >= 2 * MAX_LINE_LENGTH

    asyncio.run(work())
