"""Programs and their process groups: the same on the standard library's event loop and on uvloop."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import uvloop

from openclaw_mcp.net.process_streams import Input, KeptOutput, LineOutput, Output
from openclaw_mcp.net.processes import RUN_MARK_VARIABLE, Ending, Process, ProcessStartError, start_process

Run = Callable[[Awaitable[None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_on_loop(work: Awaitable[None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await work

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return run_on_loop


class RecordingGuard:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.groups: list[int] = []

    def prepare(self) -> str:
        self.calls.append("prepare")
        return "mark"

    def watch(self, group: int) -> None:
        self.calls.append("watch")
        self.groups.append(group)

    def unwatch(self, group: int) -> None:
        self.calls.append("unwatch")


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def wait_until_gone(pid: int) -> None:
    while is_running(pid):  # noqa: ASYNC110  the end of another's child has no event
        await asyncio.sleep(0.01)


async def read_pid(path: Path) -> int:
    def read() -> str:
        return path.read_text() if path.exists() else ""

    while not read().endswith("\n"):  # noqa: ASYNC110  a file has no event
        await asyncio.sleep(0.01)
    return int(read())


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def test_output_and_exit_status_of_a_program(run: Run) -> None:
    async def work() -> None:
        out, err = KeptOutput(head=100), KeptOutput(tail=100)
        async with await start_process(shell("echo one; echo two >&2; exit 3"), stdout=out, stderr=err) as process:
            assert await process.wait_finished() == 3

        assert (out.data, err.last_line(), process.status) == (b"one\n", "two", 3)

    run(work())


def test_a_status_is_minus_the_signal(run: Run) -> None:
    async def work() -> None:
        async with await start_process(shell("kill -9 $$")) as process:
            assert await process.wait() == -signal.SIGKILL

    run(work())


def test_the_exit_is_noticed_while_the_pipes_are_held(run: Run) -> None:
    async def work() -> None:
        out = KeptOutput(head=100)
        argv = shell("setsid sleep 60 & echo $!")
        async with await start_process(argv, stdout=out, ending=Ending(drain=0.2)) as process:
            async with asyncio.timeout(5):
                assert await process.wait() == 0
                assert await process.wait_finished() == 0
            os.kill(int(out.data), signal.SIGKILL)

    run(work())


def test_without_a_drain_limit_output_lasts_as_long_as_its_holder(run: Run) -> None:
    async def work() -> None:
        out = KeptOutput(head=100)
        argv = shell("(sleep 0.7; echo late) & echo soon")
        async with await start_process(argv, stdout=out, ending=Ending(drain=None)) as process:
            await process.wait_finished()

        assert out.data == b"soon\nlate\n"

    run(work())


def test_leaving_ends_the_whole_group(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        file, guard = tmp_path / "pid", RecordingGuard()
        async with await start_process(shell(f"sleep 60 & echo $! > {file}; wait"), guard=guard) as process:
            child = await read_pid(file)
        await wait_until_gone(child)

        assert not is_running(process.pid)
        assert guard.calls == ["prepare", "watch", "unwatch"]
        assert guard.groups == [process.pid]

    run(work())


def test_a_cancelled_owner_still_ends_the_group(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        file, started = tmp_path / "pid", asyncio.Event()

        async def own() -> None:
            argv = shell(f"trap '' TERM; echo $$ > {file}; while :; do sleep 0.05; done")
            async with await start_process(argv, ending=Ending(term_grace=0.3)):
                started.set()
                await asyncio.Event().wait()

        owner = asyncio.ensure_future(own())
        await started.wait()
        pid = await read_pid(file)
        owner.cancel()
        await asyncio.sleep(0.1)
        owner.cancel()  # once more, amid the clean-up
        with contextlib.suppress(asyncio.CancelledError):
            await owner

        assert owner.cancelled()
        assert not is_running(pid)

    run(work())


def test_a_group_gets_its_grace_before_it_is_killed(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        file = tmp_path / "last words"
        argv = [sys.executable, "-c", f"""
import signal, sys, time
def end(*_):
    time.sleep(0.2); open({str(file)!r}, "w").write("done"); sys.exit(7)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)"""]  # fmt: skip
        out = LineOutput(max_length=100)
        async with await start_process(argv, stdout=out, ending=Ending(term_grace=10)) as process:
            assert await out.wait_line()

        assert file.read_text() == "done"
        assert process.status == 7

    run(work())


def test_what_a_program_leaves_behind_gets_no_grace_where_only_the_leader_has_one(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        file = tmp_path / "pid"
        argv = shell(f"(trap '' TERM; sleep 60; sleep 60) & echo $! > {file}")
        async with await start_process(argv, ending=Ending(term_grace=60, leader_only=True)) as process:
            await process.wait()
            child = await read_pid(file)
        await wait_until_gone(child)

    run(work())


def test_a_program_that_ends_with_its_input_is_not_signalled(run: Run) -> None:
    async def work() -> None:
        async with await start_process(["/bin/cat"], stdin=Input(), ending=Ending(eof_grace=10)) as process:
            pass

        assert process.status == 0

    run(work())


def test_descendants_that_left_the_group_end_too(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        file = tmp_path / "pid"
        argv = shell(f"setsid sleep 60 & echo $! > {file}; wait")
        async with await start_process(argv, ending=Ending(strays=True)):
            child = await read_pid(file)
        await wait_until_gone(child)

    run(work())


def test_a_program_is_ended_in_time_while_the_loops_threads_are_all_busy(run: Run) -> None:
    """They wait for slow name servers and disks: a caller that fills them must not keep a stopped command running."""

    async def work() -> None:
        loop, free, threads = asyncio.get_running_loop(), threading.Event(), ThreadPoolExecutor(1)
        loop.set_default_executor(threads)
        busy = loop.run_in_executor(None, free.wait)
        try:
            async with asyncio.timeout(5):
                mark = f"test-{os.getpid()}-{time.time()}"
                async with await start_process(["sleep", "60"], ending=Ending(strays=True, mark=mark)) as process:
                    pass
            assert not is_running(process.pid)
        finally:
            free.set()
            await busy

    run(work())


def test_marked_processes_end_too_when_their_parents_are_gone(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        file, env = tmp_path / "pid", {**os.environ, RUN_MARK_VARIABLE: f"test-{os.getpid()}-{time.time()}"}
        ending = Ending(mark=env[RUN_MARK_VARIABLE])
        argv = shell(f"setsid sh -c 'echo $$ > {file}; sleep 60; true' &")
        async with await start_process(argv, env=env, ending=ending) as process:
            await process.wait()
            child = await read_pid(file)
        await wait_until_gone(child)

    run(work())


@pytest.mark.parametrize(
    ("argv", "cwd", "reason"),
    [
        (["/no/such/program"], None, "No such file or directory"),
        (["/etc/passwd"], None, "Permission denied"),
        (["/bin/echo", "a\0b"], None, "an argument holds a NUL character"),
        (["/bin/echo"], "/no/such/folder", "No such file or directory"),
    ],
)
def test_a_program_that_cannot_be_started_says_why(run: Run, argv: list[str], cwd: str | None, reason: str) -> None:
    async def work() -> None:
        guard = RecordingGuard()
        with pytest.raises(ProcessStartError, match=reason):
            await start_process(argv, cwd=cwd, stdout=KeptOutput(), guard=guard)

        assert guard.calls == ["prepare"]

    run(work())


def test_the_program_sees_the_name_it_is_called_by_and_real_pipes(run: Run) -> None:
    """uvloop alone would replace the name by the path, and give sockets, which /dev/stdout can't open."""

    async def work() -> None:
        out, err = KeptOutput(head=200), KeptOutput(head=200)
        argv = ["other-name", "-c", "echo $0; echo error > /dev/stderr; echo again > /dev/stdout"]
        async with await start_process(argv, executable="/bin/sh", stdout=out, stderr=err) as process:
            await process.wait_finished()

        assert out.data == b"other-name\nagain\n"
        assert err.data == b"error\n"

    run(work())


def test_input_larger_than_a_pipe_arrives_whole(run: Run) -> None:
    async def work() -> None:
        out, data = KeptOutput(head=100), b"x" * (5 << 20)
        async with await start_process(["/usr/bin/wc", "-c"], stdin=data, stdout=out) as process:
            await process.wait_finished()

        assert int(out.data) == len(data)

    run(work())


def test_a_program_that_does_not_read_its_input_is_no_trouble(run: Run) -> None:
    async def work() -> None:
        async with await start_process(["/bin/true"], stdin=b"x" * (5 << 20)) as process:
            assert await process.wait_finished() == 0

    run(work())


def test_a_closed_input_is_noticed(run: Run) -> None:
    async def work() -> None:
        lost = asyncio.Event()
        channel = Input(lost.set)
        async with await start_process(shell("read line; exec <&-; sleep 60"), stdin=channel):
            channel.write(b"first\n")
            await lost.wait()

            assert not channel.is_open
            with pytest.raises(BrokenPipeError):
                channel.write(b"more")

    run(work())


def test_a_conversation_over_the_pipes(run: Run) -> None:
    async def work() -> None:
        channel, lines = Input(), LineOutput(max_length=100)
        async with await start_process(["/bin/cat"], stdin=channel, stdout=lines):
            for word in (b"one", b"two"):
                channel.write(word + b"\n")
                await lines.wait_line()
                assert lines.take_line() == word
            channel.close()

            assert not await lines.wait_line()

    run(work())


def test_a_flooding_program_waits_for_its_reader(run: Run) -> None:
    async def work() -> None:
        lines = LineOutput(max_length=100, max_waiting=50)
        async with await start_process(shell("seq 1 200000"), stdout=lines, ending=Ending(drain=0.05)) as process:
            await lines.wait_line()
            await asyncio.sleep(0.3)
            assert lines.is_paused
            assert process.status is None

            found = [line async for line in lines]

        assert found == [b"%d" % number for number in range(1, 200_001)]

    run(work())


def test_a_paused_program_that_has_exited_loses_nothing(run: Run) -> None:
    async def work() -> None:
        lines = LineOutput(max_length=100, max_waiting=5)
        async with await start_process(shell("seq 1 5000"), stdout=lines, ending=Ending(drain=0.01)) as process:
            await process.wait()
            await asyncio.sleep(0.1)
            found = [line async for line in lines]

        assert len(found) == 5000

    run(work())


def test_a_line_over_the_limit_is_skipped_and_the_last_needs_no_newline(run: Run) -> None:
    async def work() -> None:
        lines = LineOutput(max_length=10)
        argv = shell("printf 'short\\n\\n12345678901\\nlast'")
        async with await start_process(argv, stdout=lines):
            assert [line async for line in lines] == [b"short", None, b"last"]

    run(work())


def test_head_and_tail_are_kept_of_much_output(run: Run) -> None:
    async def work() -> None:
        out = KeptOutput(head=10, tail=10)
        async with await start_process(shell("seq -w 0 99999"), stdout=out) as process:
            await process.wait_finished()

        assert out.text() == f"00000\n0000\n[... {600_000 - 20} bytes left out ...]\n998\n99999\n"

    run(work())


def test_output_that_is_not_kept_takes_no_memory() -> None:
    async def work() -> None:
        output = KeptOutput(head=2)
        for _ in range(1000):
            output.data_received(b"x")
        assert (output.data, output.dropped_bytes, len(output._tail)) == (b"xx", 998, 0)

    asyncio.run(work())


def test_too_much_output_can_close_the_pipe(run: Run) -> None:
    async def work() -> None:
        out = KeptOutput(head=1000, close_when_full=True)
        async with await start_process(["/usr/bin/yes"], stdout=out) as process:
            await out.closed.wait()
            assert await process.wait_finished() != 0

        assert len(out.data) == 1000
        assert out.dropped_bytes

    run(work())


def test_output_can_be_read_after_the_group_was_ended(run: Run) -> None:
    async def work() -> None:
        out, lines = KeptOutput(head=10), LineOutput(max_length=10, max_waiting=1)
        argv = shell("printf '1\\n2\\n3\\n4\\n'; echo ready >&2; sleep 60")
        async with await start_process(argv, stdout=lines, stderr=out) as process:
            while not out.data:  # noqa: ASYNC110  no event for it
                await asyncio.sleep(0.01)
            await process.end()

            assert [line async for line in lines] == [b"1", b"2", b"3", b"4"]

    run(work())


def test_descriptors_can_be_passed_on(run: Run) -> None:
    async def work() -> None:
        read, write = os.pipe()
        async with await start_process(shell(f"echo through > /dev/fd/{write}"), pass_fds=(write,)) as process:
            os.close(write)
            await process.wait()
        with os.fdopen(read) as file:
            assert file.read() == "through\n"

    run(work())


def test_closing_twice_at_once_ends_the_group_once(run: Run) -> None:
    async def work() -> None:
        guard = RecordingGuard()
        process = await start_process(shell("sleep 60"), guard=guard)
        async with asyncio.TaskGroup() as group:
            group.create_task(process.aclose())
            group.create_task(process.aclose())
        await process.aclose()

        assert guard.calls.count("unwatch") == 1
        assert process.status == -signal.SIGKILL

    run(work())


def test_an_exit_is_noticed_without_pidfd(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError

    monkeypatch.setattr(os, "pidfd_open", refuse)

    async def work() -> None:
        async with await start_process(shell("exit 4")) as process:
            assert await process.wait() == 4

    run(work())


def test_output_pieces_reach_a_callback(run: Run) -> None:
    async def work() -> None:
        pieces: list[bytes] = []
        ends: list[bool] = []
        out = Output(pieces.append, lambda: ends.append(True))
        process: Process
        async with await start_process(shell("echo hello"), stdout=out) as process:
            await process.wait_finished()

        assert (b"".join(pieces), ends) == (b"hello\n", [True])

    run(work())


def test_a_start_that_is_cancelled_leaves_no_process_and_no_open_pipe(run: Run) -> None:
    async def work() -> None:
        async with await start_process(
            ["/bin/true"], stdout=KeptOutput()
        ) as first:  # so that the loop has what it needs
            await first.wait()
        before, guard = count_descriptors(), RecordingGuard()
        for turns in range(6):
            starting = asyncio.ensure_future(
                start_process(["/bin/cat"], stdin=Input(), stdout=KeptOutput(), stderr=KeptOutput(), guard=guard)
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await starting).aclose()
        await asyncio.sleep(0.05)

        assert not any(map(is_running, guard.groups))
        assert count_descriptors() <= before

    run(work())
