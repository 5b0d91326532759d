"""Bombs sent to every entry point that takes a schema: `python -m tests.tools.schemas.entry_points REDIS`.

Each line it reads names a bomb, which gets a process of its own with little memory: what goes wrong there harms no
other test. That process is forked, so that it need not import anything. It prints a line of JSON for each entry
point and one for its memory; a last line has its exit code.
"""

import asyncio
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

import openclaw_mcp.proxy.engine.redis
import openclaw_mcp.tools.schema_check  # noqa: F401, loaded when needed, and so in every process if not here
from openclaw_mcp.core.errors import OpenClawError
from openclaw_mcp.core.model import LOCAL_CALLER, ToolCall
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.mcp.client.server_pool import McpServerPool
from openclaw_mcp.proxy.engine.app_session import AppRegistration
from openclaw_mcp.proxy.engine.tool_list import ToolManifest
from openclaw_mcp.proxy.settings import ProxySettings
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.registry import ToolRegistry
from tests.gateway.nodes.gateways import machines
from tests.proxy.proxies import Proxy, proxy, soon, text_of
from tests.running import ROOT

from .bombs import BOMBS, Bomb

MEMORY = 3 << 30  # bytes of address space
PROCESSOR = 60  # seconds
DEADLINE = 120  # seconds for all entry points together: generous, for a machine that has more to do
QUIET = ProxySettings(audit="off")


class Case(Struct, frozen=True):
    name: str
    redis_url: str

    @property
    def bomb(self) -> Bomb:
        return BOMBS[self.name]


def tools(bomb: Bomb) -> list[Any]:
    return [{"name": "t", "input_schema": bomb.schema()}]


async def called(running: Proxy, id: str, bomb: Bomb) -> str:
    return text_of(await running.call(id, "t", **bomb.arguments()))


async def registered(case: Case) -> str:
    async with proxy(QUIET) as running:
        answer = await running.send("POST", "/v1/chat/sessions", {"deviceId": "x", "tools": tools(case.bomb)})
        if answer.status != 200:
            return str(answer.json["detail"])
        return await called(running, answer.json["mcpSessionId"], case.bomb)


async def put(case: Case) -> str:
    async with proxy(QUIET) as running:
        id = (await running.create(device_id="x"))["mcpSessionId"]
        answer = await running.send("PUT", f"/v1/chat/sessions/{id}/tools", tools(case.bomb))
        return str(answer.json["detail"]) if answer.status != 200 else await called(running, id, case.bomb)


async def send_over_the_bridge(case: Case) -> str:
    async with proxy(QUIET) as running:
        id = (await running.create(device_id="x"))["mcpSessionId"]
        async with running.app(id) as app:
            await app.say(type="update_tools", tools=tools(case.bomb))
            await app.say(type="ping")  # answered after it
            await soon(app.others.get())
            return str(app.errors.get_nowait()) if not app.errors.empty() else await called(running, id, case.bomb)


async def store_in_redis(case: Case) -> str:
    """Written by an instance that did not look, asked for at one that must."""
    settings = ProxySettings(audit="off", redis_url=case.redis_url)
    async with proxy(settings) as first, proxy(settings) as second:
        session = AppRegistration(id="5" * 32, created=time.time(), about=b"{}")
        await first.state.engine.add(session, ToolManifest(json.dumps(tools(case.bomb)).encode(), ()))
        answer = await called(second, session.id, case.bomb)
        await first.state.engine.remove(session.id)
        return answer


async def described_by_a_node(case: Case) -> str:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            machines(Path(folder)) as machine,
            machine.gateway.client() as operator,
            machine.approved(operator) as node,
        ):
            described = {"pluginId": "p", "name": "t", "description": "x", "command": "device.info"}
            try:
                update = {"tools": [described | {"parameters": case.bomb.schema()}]}
                await node.client.call("node.pluginTools.update", update)
            except RpcError as fault:
                return str(fault)
            return await ordered(machine.gateway.gateway.dispatcher, "laptop__device_info", case.bomb)


async def offered_by_a_server(case: Case) -> str:
    entry = {"command": sys.executable, "args": ["-m", "tests.tools.schemas.server", case.name], "cwd": str(ROOT)}
    async with McpServerPool({"bomb": entry}) as pool:
        dispatcher = ToolDispatcher(ToolRegistry(pool.sources()))
        assert await pool.start() == {}
        return await ordered(dispatcher, "bomb__t", case.bomb)


async def ordered(dispatcher: ToolDispatcher, name: str, bomb: Bomb) -> str:
    try:
        return str(
            await dispatcher.call(
                ToolCall(caller=LOCAL_CALLER, name=name, arguments=bomb.arguments(), context=NULL_CONTEXT)
            )
        )
    except OpenClawError as exc:
        return str(exc)


ENTRY_POINTS: tuple[Callable[[Case], Awaitable[str]], ...] = (
    registered,
    put,
    send_over_the_bridge,
    store_in_redis,
    described_by_a_node,
    offered_by_a_server,
)


async def attempt(case: Case) -> None:
    for entry_point in ENTRY_POINTS:
        start = time.process_time()
        answer = await entry_point(case)
        print(json.dumps([entry_point.__name__, answer[:500], time.process_time() - start]), flush=True)
    print(json.dumps(["memory", _most_memory()]), flush=True)


def _most_memory() -> int:
    """KiB of this program at its largest. What `getrusage` says begins with what its parent had."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1])


def _in_a_process(case: Case) -> int:
    """The exit code of a process that attempts it."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        signal.alarm(DEADLINE)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR))
        asyncio.run(attempt(case))
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(["exit", _in_a_process(Case(line.rstrip("\n"), sys.argv[1]))]), flush=True)
