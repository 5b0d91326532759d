"""A bomb sent to every entry point that takes a schema: `python -m tests.tools.schemas.entry_points NAME REDIS`.

A process of its own with little memory: what goes wrong here harms no other test.
Prints a line of JSON for each entry point.
"""

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

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
QUIET = ProxySettings(audit="off")


def tools(bomb: Bomb) -> list[Any]:
    return [{"name": "t", "input_schema": bomb.schema()}]


async def called(running: Proxy, id: str, bomb: Bomb) -> str:
    return text_of(await running.call(id, "t", **bomb.arguments()))


async def registered(bomb: Bomb) -> str:
    async with proxy(QUIET) as running:
        answer = await running.send("POST", "/v1/chat/sessions", {"deviceId": "x", "tools": tools(bomb)})
        if answer.status != 200:
            return str(answer.json["detail"])
        return await called(running, answer.json["mcpSessionId"], bomb)


async def put(bomb: Bomb) -> str:
    async with proxy(QUIET) as running:
        id = (await running.create(device_id="x"))["mcpSessionId"]
        answer = await running.send("PUT", f"/v1/chat/sessions/{id}/tools", tools(bomb))
        return str(answer.json["detail"]) if answer.status != 200 else await called(running, id, bomb)


async def send_over_the_bridge(bomb: Bomb) -> str:
    async with proxy(QUIET) as running:
        id = (await running.create(device_id="x"))["mcpSessionId"]
        async with running.app(id) as app:
            await app.say(type="update_tools", tools=tools(bomb))
            await app.say(type="ping")  # answered after it
            await soon(app.others.get())
            return str(app.errors.get_nowait()) if not app.errors.empty() else await called(running, id, bomb)


async def store_in_redis(bomb: Bomb) -> str:
    """Written by an instance that did not look, asked for at one that must."""
    settings = ProxySettings(audit="off", redis_url=sys.argv[2])
    async with proxy(settings) as first, proxy(settings) as second:
        session = AppRegistration(id="5" * 32, created=time.time(), about=b"{}")
        await first.state.engine.add(session, ToolManifest(json.dumps(tools(bomb)).encode(), ()))
        answer = await called(second, session.id, bomb)
        await first.state.engine.remove(session.id)
        return answer


async def described_by_a_node(bomb: Bomb) -> str:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            machines(Path(folder)) as machine,
            machine.gateway.client() as operator,
            machine.approved(operator) as node,
        ):
            described = {"pluginId": "p", "name": "t", "description": "x", "command": "device.info"}
            try:
                update = {"tools": [described | {"parameters": bomb.schema()}]}
                await node.client.call("node.pluginTools.update", update)
            except RpcError as fault:
                return str(fault)
            return await ordered(machine.gateway.gateway.dispatcher, "laptop__device_info", bomb)


async def offered_by_a_server(bomb: Bomb) -> str:
    entry = {"command": sys.executable, "args": ["-m", "tests.tools.schemas.server", sys.argv[1]], "cwd": str(ROOT)}
    async with McpServerPool({"bomb": entry}) as pool:
        dispatcher = ToolDispatcher(ToolRegistry(pool.sources()))
        assert await pool.start() == {}
        return await ordered(dispatcher, "bomb__t", bomb)


async def ordered(dispatcher: ToolDispatcher, name: str, bomb: Bomb) -> str:
    try:
        return str(
            await dispatcher.call(
                ToolCall(caller=LOCAL_CALLER, name=name, arguments=bomb.arguments(), context=NULL_CONTEXT)
            )
        )
    except OpenClawError as exc:
        return str(exc)


ENTRY_POINTS: tuple[Callable[[Bomb], Awaitable[str]], ...] = (
    registered,
    put,
    send_over_the_bridge,
    store_in_redis,
    described_by_a_node,
    offered_by_a_server,
)


async def main() -> None:
    bomb = BOMBS[sys.argv[1]]
    for entry_point in ENTRY_POINTS:
        start = time.process_time()
        answer = await entry_point(bomb)
        print(json.dumps([entry_point.__name__, answer[:500], time.process_time() - start]), flush=True)
    print(json.dumps(["memory", _most_memory()]), flush=True)


def _most_memory() -> int:
    """KiB of this program at its largest. What `getrusage` says begins with what its parent had."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1])


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR))
    asyncio.run(main())
