"""What a gateway asks of the node, and what it gets back. The gateway is a list of the calls it received."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.errors import OpenClawError
from openclaw_mcp.core.model import Json
from openclaw_mcp.node.exec import process
from openclaw_mcp.node.exec.rules import ExecPolicy
from openclaw_mcp.node.host import LocalNode
from openclaw_mcp.node.invocations import MAX_INVOCATIONS, Invocations

WAIT = 20.0


class Gateway:
    """Hears the node's answers."""

    def __init__(self, node: LocalNode, *, takes_progress: bool = True) -> None:
        node.approvals.save_policy(ExecPolicy(default_action="allow"))
        self.invocations = Invocations(node.tools, self._tell)
        self.progress: list[Json] = []
        self._takes_progress = takes_progress
        self._answers: asyncio.Queue[Json] = asyncio.Queue()

    async def _tell(self, method: str, params: Json) -> Any:
        if method == "node.invoke.result":
            self._answers.put_nowait(params)
        elif self._takes_progress:
            self.progress.append(params)
        else:
            raise OpenClawError("unknown method")

    def invoke(self, id: str, command: str, params: Any = None, **more: Any) -> None:
        text = params if isinstance(params, str | None) else json.dumps(params)
        payload = {"id": id, "nodeId": "N", "command": command, "paramsJSON": text, **more}
        self.invocations.on_event("node.invoke.request", payload)

    async def answer(self) -> Json:
        async with asyncio.timeout(WAIT):
            return await self._answers.get()


@contextlib.asynccontextmanager
async def connected(folder: Path, *, takes_progress: bool = True) -> AsyncIterator[Gateway]:
    node = LocalNode(folder)
    async with node.open():
        yield Gateway(node, takes_progress=takes_progress)


def test_an_invocation_is_answered_with_the_commands_result(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(tmp_path) as gateway:
            gateway.invoke("1", "system.run", {"command": ["echo", "hi"]}, timeoutMs=5000)
            answer = await gateway.answer()
            assert (answer["id"], answer["nodeId"], answer["ok"]) == ("1", "N", True)
            assert answer["payload"]["stdout"] == "hi\n"
            assert answer["payload"]["success"] is True

            gateway.invoke("2", "device.info", "not json {")
            assert (await gateway.answer())["payload"]["systemName"] == "Linux"
            gateway.invoke("3", "device.info", None)
            assert (await gateway.answer())["ok"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("command", "params", "code"),
    [
        ("no.such", {}, "TOOL_NOT_FOUND"),
        ("rm -rf /", {}, "TOOL_NOT_FOUND"),
        ("", {}, "TOOL_NOT_FOUND"),
        ("system.run", {}, "TOOL_ARGUMENTS"),
        ("system.run", {"command": ["echo"], "env": {"PATH": "."}}, "TOOL_DENIED"),
        ("system.run", {"command": ["sleep", "30"]}, "TOOL_TIMEOUT"),
    ],
)
def test_a_refusal_has_a_stable_code_and_a_sentence(tmp_path: Path, command: str, params: Json, code: str) -> None:
    async def scenario() -> None:
        async with connected(tmp_path) as gateway:
            gateway.invoke("1", command, params, timeoutMs=300)
            answer = await gateway.answer()
            assert not answer["ok"]
            assert answer["error"]["code"] == code
            assert len(answer["error"]["message"]) > 10

    asyncio.run(scenario())


def test_a_cancelled_invocation_ends_and_says_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(tmp_path) as gateway:
            gateway.invoke("1", "system.run", {"command": ["sleep", "30"]})
            await asyncio.sleep(0)
            gateway.invocations.on_event("node.invoke.cancel", {"invokeId": "1"})
            gateway.invoke("2", "device.info")
            assert (await gateway.answer())["id"] == "2"
            async with asyncio.timeout(WAIT):
                await gateway.invocations.aclose()

    asyncio.run(scenario())


def test_calls_beyond_the_slots_are_refused_as_busy_and_a_repeated_id_is_answered_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(tmp_path) as gateway:
            for number in range(MAX_INVOCATIONS):
                gateway.invoke(str(number), "system.run", {"command": ["sleep", "30"]})
            gateway.invoke("0", "device.info")
            gateway.invoke("extra", "device.info")
            answer = await gateway.answer()
            assert (answer["id"], answer["error"]["message"]) == ("extra", "node busy, retry")
            async with asyncio.timeout(WAIT):
                await gateway.invocations.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("takes_progress", [True, False])
def test_a_long_command_reports_progress_to_a_gateway_that_takes_it(
    tmp_path: Path, takes_progress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "PROGRESS_EVERY", 0.05)

    async def scenario() -> None:
        async with connected(tmp_path, takes_progress=takes_progress) as gateway:
            gateway.invoke("1", "system.run", {"command": ["sh", "-c", "echo working; sleep 0.4"]})
            assert (await gateway.answer())["ok"]
            assert [entry["seq"] for entry in gateway.progress] == list(range(len(gateway.progress)))
            assert bool(gateway.progress) is takes_progress

    asyncio.run(scenario())
