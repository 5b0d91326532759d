"""Servers that are programs: their lives, their faults, their ends."""

import asyncio
import json
import os
import signal

import pytest
import uvloop

from openclaw_mcp.core.errors import ToolError, ToolTimeout, ToolUnavailable
from openclaw_mcp.mcp.client.server import PooledMcpServer
from openclaw_mcp.mcp.client.server_pool import McpServerPool
from tests.mcp.client.servers import ECHO, EVERYTHING, Person, alive, call, comes, odd, run, text


def test_a_server_starts_when_first_needed_and_is_shared() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd()}) as roster:
            server = roster.find("odd")
            assert not server.is_connected

            pids = await asyncio.gather(*(call_after_ready(server, "pid") for _ in range(5)))

            assert len(set(pids)) == 1

    run(scene())


async def call_after_ready(server: PooledMcpServer, tool: str) -> str:
    await server.start()
    return text(await call(server, tool))


@pytest.mark.parametrize("protocol", ["auto", "stateless", "handshake"])
def test_our_own_echo_answers_in_either_era(protocol: str) -> None:
    async def scene() -> None:
        async with McpServerPool({"echo": {**ECHO, "protocol": protocol}}) as roster:
            server = roster.find("echo")
            client = await server.start()

            assert client.stateless == (protocol != "handshake")
            assert text(await call(server, "echo", {"text": "hi"})) == "hi"

    run(scene())


def test_every_page_of_a_list_is_fetched_and_tools_carry_their_server_s_name() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd()}) as roster:
            server = roster.find("odd")
            await server.start()

            names = [spec.name for spec in server.specs()]

            assert len(names) == 12
            assert names[0] == "odd__echo"

    run(scene())


def test_a_changed_list_is_announced_and_the_new_tool_can_be_called() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd()}) as roster:
            server = roster.find("odd")
            await server.start()
            changed = asyncio.Event()
            server.changed.connect(lambda _: changed.set())

            await call(server, "more", {"name": "fresh"})
            await changed.wait()

            assert "odd__fresh" in [spec.name for spec in server.specs()]
            with pytest.raises(ToolError, match="Unknown tool: fresh"):
                await call(server, "fresh")

    run(scene())


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_changes_and_progress_of_either_era_come_over_a_pipe(era: str) -> None:
    async def scene() -> None:
        async with McpServerPool({"all": {**EVERYTHING, "protocol": era}}) as roster:
            server = roster.find("all")
            client = await server.start()
            changed = asyncio.Event()
            client.changed.connect(lambda _: changed.set())
            person = Person()

            await call(server, "test_trigger_tool_change")
            await call(server, "test_tool_with_progress", line=person)

            await changed.wait()
            assert person.steps == [0, 50, 100]

    run(scene())


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_a_cancelled_call_over_a_pipe_ends_at_the_server(era: str) -> None:
    async def scene() -> None:
        async with McpServerPool({"all": {**EVERYTHING, "protocol": era}}) as roster:
            server = roster.find("all")
            await server.start()
            waiting = asyncio.ensure_future(call(server, "test_wait_for_ever"))
            while text(await call(server, "test_count_running")) != "1":
                pass

            waiting.cancel()
            await asyncio.wait([waiting])

            while text(await call(server, "test_count_running")) != "0":
                pass

    run(scene())


def test_a_server_killed_in_mid_call_fails_that_call_at_once_with_its_last_words() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd(env={"PASSWORD": "hunter2-hunter2"})}) as roster:
            server = roster.find("odd")
            await server.start()
            hanging = asyncio.ensure_future(call(server, "hang"))

            with pytest.raises(ToolUnavailable, match=r"SIGKILL.*the disk is on fire") as caught:
                await call(server, "die")
            with pytest.raises(ToolUnavailable, match="SIGKILL"):
                await hanging

            assert "hunter2" not in str(caught.value)

    run(scene())


def test_a_server_that_died_is_started_again_for_the_next_call() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd()}) as roster:
            server = roster.find("odd")
            await server.start()
            before = text(await call(server, "pid"))
            with pytest.raises(ToolUnavailable):
                await call(server, "die")

            after = text(await call(server, "pid"))

            assert after != before

    run(scene())


def test_a_server_that_keeps_dying_is_left_alone_for_longer_and_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.mcp.client.server.FIRST_PAUSE", 4.0)
    monkeypatch.setattr("openclaw_mcp.mcp.client.server.RESTART_WAIT", 1.0)

    async def scene() -> None:
        async with McpServerPool({"odd": odd("dies")}) as roster:
            server = roster.find("odd")
            with pytest.raises(ToolUnavailable, match=r"I will not start$"):
                await server.start()

            with pytest.raises(ToolUnavailable, match=r"I will not start; it is tried again in [2-4] s"):
                await server.start()

            monkeypatch.setattr("openclaw_mcp.mcp.client.server.RESTART_WAIT", 9.0)
            with pytest.raises(ToolUnavailable, match=r"I will not start$"):
                await server.start()
            monkeypatch.setattr("openclaw_mcp.mcp.client.server.RESTART_WAIT", 1.0)
            with pytest.raises(ToolUnavailable, match=r"tried again in [4-8] s"):
                await server.start()

    run(scene())


def test_a_server_that_never_introduces_itself_is_given_up_and_ended() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd("silent", connectionTimeoutMs=1000)}) as roster:
            with pytest.raises(ToolUnavailable, match="did not introduce itself within 1 s"):
                await roster.find("odd").start()

    run(scene())


def test_a_server_that_ends_when_probed_is_opened_with_the_handshake() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd("dies-of-probe")}) as roster:
            client = await roster.find("odd").start()

            assert client.version == "2025-06-18"

    run(scene())


@pytest.mark.parametrize("fault", ["garbage", "floods"])
def test_noise_on_either_output_does_no_harm(fault: str) -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd(fault)}) as roster:
            server = roster.find("odd")
            await server.start()

            assert text(await call(server, "echo", {"text": "still here"})) == "still here"
            if fault == "floods":
                assert text(await call(server, "complain")) == "complained"

    run(scene())


def test_a_huge_result_comes_whole_and_one_beyond_the_limit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.mcp.client.stdio.MAX_LINE_LENGTH", 9 << 20)

    async def scene() -> None:
        async with McpServerPool({"odd": odd()}) as roster:
            server = roster.find("odd")
            await server.start()

            assert len(text(await call(server, "huge"))) == 8 << 20
            with pytest.raises(ToolUnavailable, match="longer than 9 MiB"):
                await call(server, "too_long")
            assert text(await call(server, "echo", {"text": "next"})) == "next"

    run(scene())


def test_a_call_that_takes_too_long_is_cancelled_at_the_server_too() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd(requestTimeoutMs=1000)}) as roster:
            server = roster.find("odd")
            await server.start()
            before = json.loads(text(await call(server, "count")))

            with pytest.raises(ToolTimeout, match=r"within 1 s"):
                await call(server, "hang")

            assert len(json.loads(text(await call(server, "count")))) == len(before) + 1

    run(scene())


def test_a_caller_who_goes_away_cancels_its_call_and_no_other() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd()}) as roster:
            server = roster.find("odd")
            await server.start()
            task = asyncio.ensure_future(call(server, "hang"))
            await asyncio.sleep(0)
            await call(server, "echo")

            task.cancel()
            await asyncio.wait([task])

            assert task.cancelled()
            assert len(json.loads(text(await call(server, "count")))) == 1

    run(scene())


def test_fifty_calls_at_once_each_get_their_own_answer() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd()}) as roster:
            server = roster.find("odd")
            await server.start()

            results = await asyncio.gather(*(call(server, "echo", {"text": str(number)}) for number in range(50)))

            assert [text(result) for result in results] == [str(number) for number in range(50)]

    run(scene())


def test_progress_reaches_the_caller_before_the_result() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd()}) as roster:
            server = roster.find("odd")
            await server.start()
            person = Person()

            await call(server, "step", line=person)

            assert person.steps == [1]

    run(scene())


def test_a_server_sees_only_the_environment_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_GATEWAY_TOKEN", "our own secret")
    monkeypatch.setenv("FROM_OUTSIDE", "filled in")

    async def scene() -> None:
        async with McpServerPool({"odd": odd(env={"GIVEN": "${FROM_OUTSIDE}"})}) as roster:
            server = roster.find("odd")
            await server.start()

            variables = json.loads(text(await call(server, "env")))

            assert variables["GIVEN"] == "filled in"
            assert variables["PATH"] == os.environ["PATH"]
            assert "OPENCLAW_GATEWAY_TOKEN" not in variables

    run(scene())


def test_a_program_that_is_not_there_is_named() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": {"command": "no-such-program-anywhere"}}) as roster:
            with pytest.raises(ToolUnavailable, match="no program 'no-such-program-anywhere'"):
                await roster.find("odd").start()

    run(scene())


@pytest.mark.parametrize("fault", ["", "stubborn", "parent"])
def test_after_a_stop_no_process_is_left(fault: str) -> None:
    pids: list[int] = []

    async def scene() -> None:
        async with McpServerPool({"odd": odd(fault)}) as roster:
            server = roster.find("odd")
            await server.start()
            pids.append(int(text(await call(server, "pid"))))
            pids.extend(int(s.name.removeprefix("odd__child_")) for s in server.specs() if "child" in s.name)
            assert all(map(alive, pids))

    run(scene())

    assert len(pids) == (2 if fault == "parent" else 1)
    assert not any(map(alive, pids))


def test_the_children_of_a_server_that_crashed_end_too() -> None:
    async def scene() -> None:
        async with McpServerPool({"odd": odd("parent")}) as roster:
            server = roster.find("odd")
            await server.start()
            (child,) = (int(s.name.removeprefix("odd__child_")) for s in server.specs() if "child" in s.name)

            os.kill(int(text(await call(server, "pid"))), signal.SIGKILL)

            assert await comes(lambda: not alive(child))

    run(scene())


def test_the_web_server_s_event_loop_serves_programs_as_well() -> None:
    async def scene() -> None:
        async with asyncio.timeout(30), McpServerPool({"odd": odd("parent")}) as roster:
            server = roster.find("odd")
            await server.start()
            assert len(text(await call(server, "huge"))) == 8 << 20
            with pytest.raises(ToolUnavailable, match=r"SIGKILL.*the disk is on fire"):
                await call(server, "die")
            assert text(await call(server, "echo", {"text": "again"})) == "again"

    uvloop.run(scene())
