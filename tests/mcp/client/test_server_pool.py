"""All servers together: who may use which, what is broken, and that nothing outlives us."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

import pytest
import uvloop

from openclaw_mcp.core.errors import ToolUnavailable
from openclaw_mcp.core.model import LOCAL_CALLER, InputRequest, Json, ToolCall
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.mcp.client.entry import BadServerEntry
from openclaw_mcp.mcp.client.server_pool import McpServerPool
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.registry import ToolRegistry
from tests.mcp.client.servers import ECHO, Person, alive, call, comes, odd, run, text, until
from tests.running import process, read_line


def test_servers_are_sources_of_the_registry_and_their_tools_come_when_they_start() -> None:
    async def scene() -> None:
        async with McpServerPool({"echo": ECHO, "odd": odd()}) as roster:
            dispatcher = ToolDispatcher(ToolRegistry(roster.sources()))
            assert await dispatcher.list(LOCAL_CALLER) == ()

            assert await roster.start() == {}

            names = {spec.name for spec in await dispatcher.list(LOCAL_CALLER)}
            assert {"echo__echo", "odd__echo"} <= names
            answer = await dispatcher.call(
                ToolCall(caller=LOCAL_CALLER, name="echo__echo", arguments={"text": "x"}, context=NULL_CONTEXT)
            )
            assert text(answer) == "x"

    run(scene())


def test_no_http_library_is_loaded_where_there_are_only_programs() -> None:
    code = "import sys, openclaw_mcp.mcp.client.server_pool; sys.exit('httpx' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_agent_gets_the_servers_that_are_open_to_it() -> None:
    servers = {"for_all": ECHO, "for_ada": {**ECHO, "agents": ["ada"]}, "for_none": {**ECHO, "agents": []}}

    async def scene() -> None:
        async with McpServerPool(servers) as roster:
            assert roster.sources("ada").keys() == {"mcp/for_all", "mcp/for_ada"}
            assert roster.sources("bob").keys() == {"mcp/for_all"}

    run(scene())


def test_one_broken_server_spoils_no_other() -> None:
    servers = {"echo": ECHO, "wrong": {"command": 5}, "dead": odd("dies"), "off": {**ECHO, "enabled": False}}

    async def scene() -> None:
        async with McpServerPool(servers) as roster:
            missing = await roster.start()

            assert missing.keys() == {"dead"}
            assert "I will not start" in missing["dead"]
            assert roster.errors.keys() == {"wrong"}
            assert roster.find("echo").is_connected
            with pytest.raises(BadServerEntry, match="no server 'off' is enabled"):
                roster.find("off")

    run(scene())


def test_servers_that_end_at_once_are_missed_by_name_on_the_web_server_s_event_loop() -> None:
    servers = {f"dead{number}": {"command": "true"} for number in range(20)}

    async def scene() -> None:
        async with asyncio.timeout(30), McpServerPool(servers) as roster:
            missing = await roster.start()

            assert missing.keys() == servers.keys()
            assert all(roster.find(name).is_backing_off for name in servers)

    uvloop.run(scene())


def test_a_fault_of_ours_with_one_server_is_that_server_s_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_era: str) -> None:
        raise RuntimeError("a bug")

    async def scene() -> None:
        async with McpServerPool({"echo": ECHO, "odd": odd()}) as roster:
            monkeypatch.setattr(roster.find("odd"), "_new_client", broken)

            assert await roster.start() == {"odd": "odd can't be used: RuntimeError"}

            assert roster.find("echo").is_connected
            assert "MCP server odd can't be used" in caplog.text

    run(scene())


def test_a_late_server_does_not_delay_others() -> None:
    async def scene() -> None:
        async with McpServerPool({"echo": ECHO, "slow": odd("silent")}) as roster:
            missing = await roster.start(wait=3)

            assert missing == {"slow": "slow is still starting after 3 s"}

    run(scene())


KEEPER = """
import asyncio, json, sys
from openclaw_mcp.mcp.client.server_pool import McpServerPool

async def main():
    async with McpServerPool(json.loads(sys.argv[1])) as pool:
        assert not await pool.start()
        for server in pool.sources().values():
            print(*(s.name.removeprefix("odd__child_") for s in server.specs() if "child" in s.name))
            print(server._client._transport._process.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("fault", ["stubborn", "parent"])
def test_when_we_are_killed_no_process_is_left(fault: str, number: signal.Signals) -> None:
    servers = json.dumps({"odd": odd(fault)})
    with process(sys.executable, "-c", KEEPER, servers, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as keeper:
        pids = [int(word) for _ in range(2) for word in read_line(keeper).split()]
        assert len(pids) == (2 if fault == "parent" else 1)
        assert all(map(alive, pids))

        os.kill(keeper.pid, number)

        assert until(lambda: not any(map(alive, pids)))


def test_a_watchman_that_was_killed_is_replaced() -> None:
    async def scene() -> None:
        async with McpServerPool({"one": odd("stubborn"), "two": odd()}) as roster:
            await roster.find("one").start()
            shell = roster._reaper._shell
            assert shell is not None
            shell.child.kill()
            shell.child.wait()

            await roster.find("two").start()

            assert roster._reaper._shell is not shell
            assert len(roster._reaper._groups) == 2

    run(scene())


def test_leaving_the_roster_while_a_server_starts_ends_it() -> None:
    async def scene() -> None:
        async with McpServerPool({"slow": odd("silent")}) as roster:
            server = roster.find("slow")
            waiting = asyncio.ensure_future(server.start())
            assert await comes(lambda: bool(roster._reaper._groups))
            (group,) = roster._reaper._groups
        await asyncio.wait([waiting])

        assert not alive(group)
        assert waiting.cancelled() or waiting.exception() is not None

    run(scene())


def test_a_changed_config_ends_removed_servers_starts_none_and_leaves_the_others_alone() -> None:
    async def scene() -> None:
        async with McpServerPool({"kept": odd(), "left": odd(), "other": odd()}) as roster:
            assert await roster.start() == {}
            unchanged, left = roster.find("kept"), roster.find("left")
            before = text(await call(unchanged, "pid"))
            left_pid = int(text(await call(left, "pid")))

            await roster.reconfigure({"kept": odd(), "other": odd(requestTimeoutMs=5000), "fresh": odd(), "bad": 5})

            assert roster.sources().keys() == {"mcp/kept", "mcp/other", "mcp/fresh"}
            assert roster.errors.keys() == {"bad"}
            assert roster.find("kept") is unchanged
            assert text(await call(unchanged, "pid")) == before
            assert not alive(left_pid)
            assert not roster.find("other").is_connected
            with pytest.raises(ToolUnavailable, match=r"left was removed from mcp\.servers"):
                await call(left, "pid")

    run(scene())


class Silent(Person):
    """Is asked, and does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.was_asked = asyncio.Event()

    async def ask(self, questions: Mapping[str, InputRequest]) -> Mapping[str, Json]:
        self.was_asked.set()
        await asyncio.Event().wait()
        return {}


@pytest.mark.parametrize(
    ("entry", "tool", "begun"),
    [
        pytest.param(odd(), "hang", "sent", id="waiting for the answer"),
        pytest.param(odd("stubborn"), "hang", "sent", id="whose server is slow to end"),
        pytest.param(odd("silent"), "hang", "starting", id="waiting for the server to start"),
        pytest.param(odd(), "ask", "asked", id="waiting for a person"),
    ],
)
def test_a_call_on_a_server_that_is_removed_ends_at_once_with_the_reason(entry: Json, tool: str, begun: str) -> None:
    async def scene() -> None:
        async with McpServerPool({"one": entry}) as roster:
            server, person = roster.find("one"), Silent()
            if begun != "starting":
                await server.start()
            waiting = asyncio.ensure_future(call(server, tool, line=person))
            if begun == "asked":
                await person.was_asked.wait()
            else:
                assert await comes(lambda: bool(roster._reaper._groups))
                await asyncio.sleep(0)

            closing = asyncio.ensure_future(roster.reconfigure({}))
            with pytest.raises(ToolUnavailable, match=r"one was removed from mcp\.servers"):
                await waiting

            await closing

    run(scene())


def test_a_call_that_its_own_caller_gives_up_is_cancelled_as_ever() -> None:
    async def scene() -> None:
        async with McpServerPool({"one": odd()}) as roster:
            await roster.find("one").start()
            waiting = asyncio.ensure_future(call(roster.find("one"), "hang"))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    run(scene())
