"""What the tests of the MCP client share: entries, calls, people who answer, processes that must be gone."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from openclaw_mcp.core.model import LOCAL_CALLER, Caller, InputRequest, Json, Text, ToolCall, ToolResult
from openclaw_mcp.core.ports import NULL_CONTEXT, CallContext, NullCallContext
from openclaw_mcp.mcp.client.server import PooledMcpServer
from tests.running import OPENCLAW, ROOT

WAIT = 30.0  # seconds anything here may take
ECHO: Json = {"command": OPENCLAW, "args": ["echo"]}
EVERYTHING: Json = {"command": sys.executable, "args": ["-m", "tests.mcp.server.everything_stdio"], "cwd": str(ROOT)}


def odd(fault: str = "", **more: Any) -> Json:
    args = ["-m", "tests.mcp.client.odd", *([fault] if fault else [])]
    return {"command": sys.executable, "args": args, "cwd": str(ROOT), **more}


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT):
            await work

    asyncio.run(bounded())


async def call(
    server: PooledMcpServer,
    tool: str,
    arguments: Json | None = None,
    *,
    line: CallContext = NULL_CONTEXT,
    caller: Caller = LOCAL_CALLER,
) -> ToolResult:
    """Call a tool by the server's own name for it."""
    name = f"{server.entry.name}__{tool}"
    return await server.call(ToolCall(caller=caller, name=name, arguments=arguments or {}, context=line))


def text(result: ToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, Text)
    return block.text


class Person(NullCallContext):
    """Answers every form with a name, and receives progress."""

    def __init__(self, name: str = "Ada") -> None:
        self.name = name
        self.asked: list[InputRequest] = []
        self.steps: list[float] = []

    def can_ask(self, capability: str, mode: str = "") -> bool:
        return capability == "elicitation"

    async def ask(self, questions: Mapping[str, InputRequest]) -> Mapping[str, Json]:
        self.asked += questions.values()
        return {key: {"action": "accept", "content": {"name": self.name}} for key in questions}

    async def progress(self, value: float, *, total: float | None = None, message: str | None = None) -> None:
        self.steps.append(value)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be counted out does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def until(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it came true in time: for what other processes do, of which no event reaches us."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


async def comes(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    """The same, while our own loop goes on."""
    return await asyncio.to_thread(until, true, seconds)
