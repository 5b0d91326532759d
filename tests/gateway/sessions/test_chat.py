"""Talking to an agent: admission, events, queues, aborts, restarts, in the shapes clients know."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.agents import AgentProfile, AgentRoster
from openclaw_mcp.core.errors import ToolDenied
from openclaw_mcp.core.model import Caller, ToolCall, ToolResult, ToolSpec, text_result
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.core.signal import Signal
from tests.gateway.sessions.gateways import GatewayHarness, TwinLink, open_harness

MAIN = "agent:main:main"


def text_of(message: Any) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


async def transcript(harness: GatewayHarness, key: str = "main") -> list[tuple[str, str]]:
    page = await harness.call("chat.history", {"sessionKey": key})
    return [(message["role"], text_of(message)) for message in page["messages"]]


async def send(harness: GatewayHarness, run: str, message: str, key: str = "main", **more: Any) -> Any:
    return await harness.call("chat.send", {"sessionKey": key, "message": message, "idempotencyKey": run, **more})


def test_a_fresh_machine_answers_and_says_it_is_a_demo(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            assert await send(harness, "r1", "hello there") == {"runId": "r1", "status": "started"}
            final = await harness.until("chat", runId="r1", state="final")
            answer = text_of(final["message"])
            assert "demo agent" in answer
            assert answer.endswith("hello there")
            assert (final["sessionKey"], final["agentId"], final["stopReason"]) == (MAIN, "main", "stop")
            page = await harness.call("chat.history", {"sessionKey": "main"})
            user, assistant = page["messages"]
            assert (user["role"], user["content"], user["idempotencyKey"]) == ("user", "hello there", "r1:user")
            assert (assistant["provider"], assistant["stopReason"]) == ("demo", "stop")
            assert [m["__openclaw"]["seq"] for m in page["messages"]] == [1, 2]
            assert (page["totalMessages"], page["hasMore"], page["sessionKey"]) == (2, False, "main")
            assert page["pendingInputs"] == {"items": [], "total": 0}
            assert page["sessionInfo"]["status"] == "done"
            assert (await harness.call("chat.history", {"sessionKey": "never"}))["messages"] == []

    asyncio.run(scenario())


def test_the_answer_streams_in_numbered_pieces_that_add_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await send(harness, "r1", "!say one two\n!sleep 0.2\n!say three\n!sleep 0.2\n!say four")
            final = await harness.until("chat", runId="r1", state="final")
            deltas = harness.received("chat", runId="r1", state="delta")
            assert len(deltas) >= 3
            assert "".join(delta["deltaText"] for delta in deltas) == text_of(final["message"])
            assert text_of(deltas[-1]["message"]) == text_of(final["message"])
            numbers = [payload["seq"] for payload in harness.received("chat", runId="r1")]
            assert numbers == sorted(numbers)
            phases = [p["data"]["phase"] for p in harness.received("agent", runId="r1", stream="lifecycle")]
            assert phases == ["start", "model", "end"]
            end = harness.received("agent", runId="r1", stream="lifecycle")[-1]["data"]
            assert end["terminalReply"]["text"] == text_of(final["message"])

    asyncio.run(scenario())


def test_the_same_key_again_runs_nothing_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await send(harness, "r1", "!sleep 0.3\n!say done")
            assert await send(harness, "r1", "!sleep 0.3\n!say done") == {"runId": "r1", "status": "in_flight"}
            await harness.until("chat", runId="r1", state="final")
            assert await send(harness, "r1", "x") == {"runId": "r1", "status": "ok"}
            with pytest.raises(RpcError, match="already used in another session"):
                await send(harness, "r1", "x", key="other")
            assert await transcript(harness) == [("user", "!sleep 0.3\n!say done"), ("assistant", "done")]

    asyncio.run(scenario())


def test_agent_answers_twice_and_a_repeat_only_finally(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            link = TwinLink()
            params = {"message": "!say hi", "idempotencyKey": "R", "sessionKey": "agent:main:x"}
            second = await harness.call("agent", params, link=link)
            first = link.first.result()
            assert (first["runId"], first["status"], first["sessionKey"]) == ("R", "accepted", "agent:main:x")
            assert isinstance(first["acceptedAt"], int)
            assert (second["status"], second["summary"]) == ("ok", "completed")
            assert second["result"]["payloads"] == [{"text": "hi", "mediaUrl": None}]
            assert second["result"]["meta"]["agentMeta"]["provider"] == "demo"
            again = TwinLink()
            assert (await harness.call("agent", params, link=again))["result"] == second["result"]
            assert not again.first.done()

    asyncio.run(scenario())


def test_a_runtime_not_set_up_answers_with_what_there_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        roster = AgentRoster(agents=(AgentProfile(id="main", runtime="cluade"),))
        async with open_harness(str(tmp_path / "db"), roster=lambda: roster) as harness:
            bad = await harness.say("hello", run="r1")
            assert bad["status"] == "error"
            assert "runtime 'cluade', which is not set up; choose one of demo" in bad["error"]

    asyncio.run(scenario())


def test_waiting_tells_how_a_run_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            ok = await harness.say("!say hi", run="r1")
            assert (ok["status"], ok["stopReason"], ok["terminalReply"]["text"]) == ("ok", "stop", "hi")
            bad = await harness.say("!fail no luck today", run="r2")
            assert (bad["status"], bad["error"]) == ("error", "no luck today")
            error = await harness.until("chat", runId="r2", state="error")
            assert error["errorMessage"] == "no luck today"
            assert await harness.call("agent.wait", {"runId": "unknown", "timeoutMs": 20}) == {
                "runId": "unknown",
                "status": "timeout",
            }
            late = await harness.say("!sleep 30", run="r3", timeoutMs=100)
            assert (late["status"], late["stopReason"]) == ("error", "timeout")

    asyncio.run(scenario())


def test_abort_stops_at_once_and_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await send(harness, "r1", "!say so far\n!sleep 60")
            await harness.until("chat", runId="r1", state="delta")
            aborted = await harness.call("chat.abort", {"sessionKey": "main"})
            assert aborted == {"ok": True, "aborted": True, "runIds": ["r1"]}
            event = await harness.until("chat", runId="r1", state="aborted")
            assert event["stopReason"] == "rpc"
            ended = await harness.call("agent.wait", {"runId": "r1", "timeoutMs": 10_000})
            assert (ended["status"], ended["error"], ended["stopReason"]) == ("error", "aborted", "rpc")
            nothing = await harness.call("chat.abort", {"sessionKey": "main"})
            assert nothing == {"ok": True, "aborted": False, "runIds": []}
            assert (await harness.call("sessions.abort", {"key": "main"}))["abortedRunId"] is None

    asyncio.run(scenario())


def test_a_message_to_a_busy_session_steers_and_the_last_run_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await send(harness, "r1", "!sleep 60\n!say never")
            await harness.until("agent", runId="r1", stream="lifecycle")
            assert (await send(harness, "r2", "!say instead"))["status"] == "started"
            overtaken = await harness.until("chat", runId="r1", state="final")
            assert "message" not in overtaken
            final = await harness.until("chat", runId="r2", state="final")
            assert text_of(final["message"]) == "instead"
            roles = [role for role, _ in await transcript(harness)]
            assert roles == ["user", "user", "assistant"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("mode", "answers"), [("followup", ["first", "second", "third"]), ("collect", ["first", "secondthird"])]
)
def test_queue_modes_that_wait(tmp_path: Path, mode: str, answers: list[str]) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await send(harness, "r1", "!sleep 0.3\n!say first")
            await send(harness, "r2", "!say second", queueMode=mode)
            await send(harness, "r3", "!say third", queueMode=mode)
            page = await harness.call("chat.history", {"sessionKey": "main"})
            assert [item["runId"] for item in page["pendingInputs"]["items"]] == ["r2", "r3"]
            for run in ("r1", "r2", "r3"):
                await harness.until("chat", runId=run, state="final")
            assert [text for role, text in await transcript(harness) if role == "assistant"] == answers

    asyncio.run(scenario())


def test_steer_interrupts_and_stop_drops_what_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await send(harness, "r1", "!sleep 60")
            steered = await harness.call(
                "sessions.steer", {"key": "main", "message": "!say now", "idempotencyKey": "r2"}
            )
            assert steered == {"runId": "r2", "status": "started", "interruptedActiveRun": True}
            await harness.until("chat", runId="r1", state="aborted")
            await harness.until("chat", runId="r2", state="final")
            await send(harness, "r3", "!sleep 60")
            await send(harness, "r4", "!say later", queueMode="followup")
            await send(harness, "r5", "/stop")
            for run in ("r3", "r4"):
                await harness.until("chat", runId=run, state="aborted")

    asyncio.run(scenario())


class Box:
    """One tool, for one kind of caller."""

    def __init__(self) -> None:
        self.changed: Signal[None] = Signal()
        self.calls: list[ToolCall] = []

    async def list(self, caller: Caller) -> tuple[ToolSpec, ...]:
        return (ToolSpec(name="shout"),)

    async def call(self, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        if call.name != "shout":
            raise ToolDenied(f"{call.name} is not for you")
        return text_result(call.arguments["text"].upper())


def test_a_scripted_tool_call_is_made_as_the_run_and_written_down(tmp_path: Path) -> None:
    async def scenario() -> None:
        box = Box()
        async with open_harness(str(tmp_path / "db"), tools=box) as harness:
            ended = await harness.say('!tool shout {"text":"hey"}\n!tool rm {}', run="r1")
            assert ended["terminalReceipt"]["successfulToolNames"] == ["shout"]
            assert ended["terminalReply"]["text"] == "HEYrm is not for you"
            assert (box.calls[0].caller.kind, box.calls[0].caller.session) == ("agent", MAIN)
            page = await harness.call("chat.history", {"sessionKey": "main"})
            roles = [message["role"] for message in page["messages"]]
            assert roles == ["user", "assistant", "toolResult", "assistant", "toolResult", "assistant"]
            call, result = page["messages"][1], page["messages"][2]
            assert call["content"] == [
                {"type": "toolCall", "id": "call_1", "name": "shout", "arguments": {"text": "hey"}}
            ]
            assert (result["toolCallId"], result["isError"]) == ("call_1", False)
            phases = [p["data"]["phase"] for p in harness.received("agent", stream="tool")]
            assert phases == ["start", "result"] * 2

    asyncio.run(scenario())


def test_attachments_reach_the_agent_and_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            picture = base64.b64encode(b"\x89PNG fake").decode()
            attachments = [{"type": "image", "mimeType": "image/png", "fileName": "a.png", "content": picture}]
            await send(harness, "r1", "look", attachments=attachments)
            first = await harness.until("chat", runId="r1", state="final")
            assert "a.png (image/png, 9 bytes)" in text_of(first["message"])
            await send(harness, "r2", "!return", attachments=attachments)
            final = await harness.until("chat", runId="r2", state="final")
            block = final["message"]["content"][-1]
            assert (block["type"], block["data"], block["fileName"]) == ("image", picture, "a.png")
            page = await harness.call("chat.history", {"sessionKey": "main"})
            assert page["messages"][0]["attachments"][0]["sizeBytes"] == 9
            message = page["messages"][-1]
            assert "data" not in message["content"][-1]
            assert message["content"][-1]["omitted"] is True
            whole = {"sessionKey": "main", "messageId": message["__openclaw"]["id"]}
            result = await harness.call("chat.message.get", whole)
            assert result["message"]["content"][-1]["data"] == picture
            for bad in ("%%%", 7, None):
                with pytest.raises(RpcError, match=r"attachments\[0\]"):
                    await send(harness, "r9", "x", attachments=[{"content": bad}])

    asyncio.run(scenario())


def test_history_pages_backwards_and_a_cursor_brings_only_what_is_new(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            for n in range(5):
                await harness.say(f"!say {n}", run=f"r{n}")
            newest = await harness.call("chat.history", {"sessionKey": "main", "limit": 4})
            assert [text_of(m) for m in newest["messages"]] == ["!say 3", "3", "!say 4", "4"]
            assert (newest["hasMore"], newest["nextOffset"], newest["totalMessages"]) == (True, 4, 10)
            older = await harness.call("chat.history", {"sessionKey": "main", "limit": 4, "offset": 4})
            assert [text_of(m) for m in older["messages"]] == ["!say 1", "1", "!say 2", "2"]
            cursor = newest["deltaCursor"]
            nothing = await harness.call("chat.history", {"sessionKey": "main", "cursor": cursor})
            assert (nothing["kind"], nothing["messages"]) == ("delta", [])
            await harness.say("!say 5", run="r5")
            delta = await harness.call("chat.history", {"sessionKey": "main", "cursor": cursor})
            assert [text_of(m) for m in delta["messages"]] == ["!say 5", "5"]
            await harness.call("sessions.reset", {"key": "main"})
            assert await harness.call("chat.history", {"sessionKey": "main", "cursor": cursor}) == {"kind": "reset"}
            with pytest.raises(RpcError, match="cursor"):
                await harness.call("chat.history", {"sessionKey": "main", "cursor": "nonsense"})

    asyncio.run(scenario())


def test_inject_adds_to_the_transcript_and_tells(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await harness.say("!say hi", run="r1")
            result = await harness.call("chat.inject", {"sessionKey": "main", "message": "psst", "label": "note"})
            event = await harness.until("chat", runId=f"inject-{result['messageId']}")
            assert (event["state"], event["seq"], text_of(event["message"])) == ("final", 0, "[note]\n\npsst")
            assert (await transcript(harness))[-1] == ("assistant", "[note]\n\npsst")
            with pytest.raises(RpcError, match="missing scope"):
                await harness.call(
                    "chat.inject", {"sessionKey": "main", "message": "x"}, link=TwinLink("operator.write")
                )

    asyncio.run(scenario())


def test_a_stop_of_the_gateway_ends_runs_and_what_waited_is_done_at_the_next_start(tmp_path: Path) -> None:
    async def first() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            await send(harness, "r1", "!sleep 60")
            await send(harness, "r2", "!say after all", queueMode="followup")

    async def second() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            cut = await harness.call("agent.wait", {"runId": "r1", "timeoutMs": 10_000})
            assert (cut["status"], cut["stopReason"]) == ("error", "restart")
            after = await harness.call("agent.wait", {"runId": "r2", "timeoutMs": 10_000})
            assert after["terminalReply"]["text"] == "after all"

    asyncio.run(first())
    asyncio.run(second())


def test_two_processes_on_one_store_answer_each_message_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        where = str(tmp_path / "db")
        async with open_harness(where) as here, open_harness(where) as there:
            await send(here, "r1", "!sleep 0.4\n!say one")
            assert (await send(there, "r1", "!sleep 0.4\n!say one"))["status"] == "in_flight"
            await send(there, "r2", "!say two", queueMode="followup")
            ended = await there.call("agent.wait", {"runId": "r2", "timeoutMs": 20_000})
            assert ended["terminalReply"]["text"] == "two"
            await there.until("chat", runId="r2", state="final")
            assert [text for role, text in await transcript(there) if role == "assistant"] == ["one", "two"]
            await send(here, "r3", "!sleep 60")
            await there.call("chat.abort", {"sessionKey": "main"})
            ended = await here.call("agent.wait", {"runId": "r3", "timeoutMs": 20_000})
            assert ended["stopReason"] == "rpc"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"sessionKey": "main", "message": "x"}, "idempotencyKey"),
        ({"message": "x", "idempotencyKey": "k"}, "sessionKey"),
        ({"sessionKey": "main", "message": "  ", "idempotencyKey": "k"}, "message or attachment required"),
        ({"sessionKey": "agent:ghost:main", "message": "x", "idempotencyKey": "k"}, "unknown agent"),
        ({"sessionKey": "agent:main", "message": "x", "idempotencyKey": "k"}, "malformed"),
        ({"sessionKey": "agent:main:x", "agentId": "b", "message": "x", "idempotencyKey": "k"}, "belongs to agent"),
        ({"sessionKey": "main", "message": "x", "idempotencyKey": "k", "queueMode": "?"}, "queueMode"),
        ({"sessionKey": "main", "message": 7, "idempotencyKey": "k"}, "string"),
    ],
)
def test_bad_requests_say_what_to_change(tmp_path: Path, params: Any, complaint: str) -> None:
    async def scenario() -> None:
        async with open_harness(str(tmp_path / "db")) as harness:
            with pytest.raises(RpcError, match=complaint):
                await harness.call("chat.send", params)

    asyncio.run(scenario())
