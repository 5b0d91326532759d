"""Servers killed, gateways restarted, connections cut: no record lost, nothing done twice, nothing half-written."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.claw import server as clawlink
from openclaw_mcp.claw.server import ClawServer
from openclaw_mcp.claw.settings import from_environment
from openclaw_mcp.core.model import LOCAL_CALLER, Text, ToolCall
from openclaw_mcp.core.ports import NULL_CONTEXT
from openclaw_mcp.core.rpc import WRITE, RpcCall, RpcMethod
from openclaw_mcp.net.side_effects_file import read_effects
from openclaw_mcp.tools.tool_names import CLAW_TOOLS
from tests.gateway.rpc.gateways import TOKEN, running, within
from tests.running import StdioServer

from .gateways import call, environment, introduce, server

KILLS = 6


class Post:
    """A room that sends each message once, by its key, whichever gateway it is in; it can be set not to answer."""

    def __init__(self) -> None:
        self.sent: dict[str, str] = {}
        self.asked = 0
        self.came = asyncio.Event()
        self.answer = asyncio.Event()
        self.answer.set()

    def methods(self) -> Sequence[RpcMethod]:
        return RpcMethod("message.action", WRITE, self._act), RpcMethod("cron.add", WRITE, self._add)

    async def _act(self, call: RpcCall) -> Any:
        key, inner = call.params["idempotencyKey"], call.params["params"]
        self.asked += 1
        self.sent.setdefault(key, inner["message"])
        self.came.set()
        await self.answer.wait()
        return {"kind": "send", "channel": "local", "to": inner["to"], "payload": {"messageId": key}}

    async def _add(self, call: RpcCall) -> Any:
        self.sent[f"job {len(self.sent)}"] = "job"
        self.came.set()
        await self.answer.wait()
        return {"id": "job"}


def ask(peer: StdioServer, id: int) -> None:
    arguments = {"target": "a", "message": f"message {id}"}
    params = {"name": "message_send", "arguments": arguments}
    peer.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})


def test_a_server_killed_before_the_answer_came_has_recorded_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        post, effects = Post(), tmp_path / "effects"
        post.answer.clear()
        async with running(tmp_path, modules=[post]) as harness:
            with server(environment(harness.url, TOKEN, effects)) as peer:
                await asyncio.to_thread(introduce, peer)
                ask(peer, 1)
                async with asyncio.timeout(20):
                    await post.came.wait()
                peer.child.kill()
                await asyncio.to_thread(peer.child.wait)
                post.answer.set()
        assert read_effects(effects).sent == ()
        assert effects.read_bytes() == b""

    within(work())


def test_any_was_answered_is_recorded_and_any_is_recorded_was_sent(tmp_path: Path) -> None:
    """Kill at random moments of a stream of calls, again and again on one file."""
    dice = random.Random(7)  # the moments differ anyway; the order of waits need not

    async def work() -> None:
        post, effects = Post(), tmp_path / "effects"
        answered: set[str] = set()
        async with running(tmp_path, modules=[post]) as harness:
            for round in range(KILLS):
                with server(environment(harness.url, TOKEN, effects)) as peer:
                    await asyncio.to_thread(introduce, peer)
                    await asyncio.to_thread(call, peer, "message_send", 10_000 + round, target="a", message="warm")
                    ids = range(round * 1000, round * 1000 + 200)
                    for id in ids:
                        ask(peer, id)
                    await asyncio.sleep(dice.uniform(0.0, 0.15))
                    os.kill(peer.child.pid, signal.SIGKILL)
                    answered |= {f"message {id}" for id in await asyncio.to_thread(_answers, peer)}
        found = read_effects(effects)
        recorded = [text for text in found.texts if text != "warm"]
        assert found.skipped == 0
        assert len(recorded) == len(set(recorded))
        assert answered <= set(recorded) <= set(post.sent.values())
        assert found.texts.count("warm") == KILLS

    within(work())


def _answers(peer: StdioServer) -> list[int]:
    """The ids answered before the end; a torn last line is no answer."""
    ids = []
    with contextlib.suppress(AssertionError):
        while True:
            message = peer.receive(5)
            if message.get("result", {}).get("isError") is False and message["id"] < 10_000:
                ids.append(message["id"])
    return ids


def test_a_gateway_restarted_in_the_middle_of_a_call_does_it_once(tmp_path: Path) -> None:
    async def work() -> None:
        post, effects = Post(), tmp_path / "effects"
        post.answer.clear()
        async with running(tmp_path / "one", modules=[post]) as harness:
            port = harness.port
            with server(environment(harness.url, TOKEN, effects)) as peer:
                await asyncio.to_thread(introduce, peer)
                ask(peer, 1)
                async with asyncio.timeout(20):
                    await post.came.wait()
                stopping = asyncio.create_task(harness.stop())
                await asyncio.sleep(0.1)
                post.answer.set()
                await stopping
                async with running(tmp_path / "two", modules=[post], port=port):
                    message = await asyncio.to_thread(_result, peer, 1)
                    assert message["result"]["isError"] is False, message
                    assert (await asyncio.to_thread(call, peer, "message_send", 2, target="a", message="next"))[
                        "isError"
                    ] is False
        assert list(post.sent.values()) == ["message 1", "next"]
        assert post.asked == 3
        assert read_effects(effects).texts == ("message 1", "next")

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    within(work())


def _result(peer: StdioServer, id: int) -> Any:
    while True:
        message = peer.receive(30)
        if message.get("id") == id:
            return message


def test_a_gateway_that_comes_late_is_found_by_the_next_call(tmp_path: Path) -> None:
    async def work() -> None:
        post, effects = Post(), tmp_path / "effects"
        async with running(tmp_path, modules=[post]) as harness:
            port = harness.port
            await harness.stop()
            with server(environment(harness.url, TOKEN, effects)) as peer:
                await asyncio.to_thread(introduce, peer)
                early = await asyncio.to_thread(call, peer, "message_send", 1, target="a", message="early")
                assert "can't be used" in early["content"][0]["text"]
                async with running(tmp_path, modules=[post], port=port):
                    late = await asyncio.to_thread(call, peer, "message_send", 2, target="a", message="late")
                    assert late["isError"] is False
        assert read_effects(effects).texts == ("late",)

    within(work())


@pytest.mark.parametrize("tool", ["message_send", "cron_add"])
def test_a_gateway_that_does_not_come_back_leaves_the_question_open(
    tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clawlink, "RECONNECT_TIMEOUT", 0.4)
    arguments: dict[str, Any] = {
        "message_send": {"target": "a", "message": "x"},
        "cron_add": {"job": {"schedule": {}, "payload": {}}},
    }

    async def work() -> None:
        post, effects = Post(), tmp_path / "effects"
        post.answer.clear()
        async with running(tmp_path, modules=[post]) as harness:
            served = ClawServer(from_environment(environment(harness.url, TOKEN, effects)), frozenset(CLAW_TOOLS))
            order = ToolCall(caller=LOCAL_CALLER, name=tool, arguments=arguments[tool], context=NULL_CONTEXT)
            calling = asyncio.create_task(served.toolbox.call(order))
            await post.came.wait()
            stopping = asyncio.create_task(harness.stop())
            result = await calling
            post.answer.set()
            await stopping
            await served.aclose()
        assert result.failed
        assert isinstance(result.content[0], Text)
        assert "whether it was done is not known" in result.content[0].text
        found = read_effects(effects)
        assert (found.sent, found.cron_added) == ((), ())
        assert [record.text for record in found.unsure] == (["x"] if tool == "message_send" else [])

    within(work())


def test_calls_at_once_share_the_connection_and_each_is_recorded(tmp_path: Path) -> None:
    async def work() -> None:
        post, effects = Post(), tmp_path / "effects"
        async with running(tmp_path, modules=[post]) as harness:
            served = ClawServer(from_environment(environment(harness.url, TOKEN, effects)), frozenset(CLAW_TOOLS))

            async def send(number: int) -> None:
                arguments = {"target": f"room {number}", "message": str(number)}
                order = ToolCall(caller=LOCAL_CALLER, name="message_send", arguments=arguments, context=NULL_CONTEXT)
                assert not (await served.toolbox.call(order)).failed

            await asyncio.gather(*(send(number) for number in range(100)))
            assert len(harness.gateway.rpc_server.connections) == 1
            await served.aclose()
        found = read_effects(effects)
        assert sorted(found.texts, key=int) == [str(number) for number in range(100)]
        assert found.skipped == 0

    within(work())
