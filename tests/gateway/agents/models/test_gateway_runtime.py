"""Turns passed on to another gateway, over a twin of it: what its events become, and what a lost connection costs."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from openclaw_mcp.core.agent import (
    AgentEvent,
    MediaAttached,
    ModelSelected,
    PartialAnswer,
    ThinkingText,
    ToolOutcome,
    ToolUpdate,
    ToolUse,
    Turn,
    TurnCompleted,
    TurnFailed,
)
from openclaw_mcp.core.agents import AgentProfile, AgentRoster
from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.core.model import LOCAL_CALLER, Json
from openclaw_mcp.gateway.agents.models.gateway_runtime import OpenClawRuntime

from .conversations import WAIT

Hear = Callable[[str, Any], None]
REMOTE: Json = {"gateway": {"remote": {"url": "ws://far", "token": "t"}}}


class FakeGateway:
    """Does what the test's script says when a message is sent; keeps what it was asked."""

    def __init__(self, *script: tuple[str, Json], waited: Json | None = None) -> None:
        self._script = script
        self._waited = waited
        self.history: list[Json] = []
        self.asked: list[tuple[str, Json]] = []
        self.dialled: list[tuple[str, str | None]] = []
        self.sent = asyncio.Event()
        self._handlers: list[Hear] = []

    def dial(self, url: str, token: str | None) -> "FakeGateway":
        self.dialled.append((url, token))
        return self

    async def __aenter__(self) -> "FakeGateway":
        return self

    async def __aexit__(self, *ending: object) -> None:
        return

    def subscribe(self, handler: Hear) -> Callable[[], None]:
        self._handlers.append(handler)
        return lambda: self._handlers.remove(handler)

    async def call(self, method: str, params: Json, *, within: float) -> Any:
        self.asked.append((method, params))
        if method == "agent.wait":
            return self._waited
        if method == "chat.history":
            return {"messages": self.history}
        if method == "chat.send":
            self.sent.set()
            for event, payload in self._script:
                for receive in self._handlers:
                    receive(event, {"runId": params["idempotencyKey"], **payload})
        return {}


def chat(state: str, **more: Any) -> tuple[str, Json]:
    return "chat", {"state": state, **more}


def agent(stream: str, **data: Any) -> tuple[str, Json]:
    return "agent", {"stream": stream, "data": data}


def message(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks)}


async def events_of(gateway: FakeGateway, *, config: Json = REMOTE, **more: Any) -> list[AgentEvent]:
    roster = AgentRoster(agents=(AgentProfile(id="main"),))
    runtime = OpenClawRuntime(gateway.dial, config=lambda: read_config(config), roster=lambda: roster)
    turn = Turn(
        run_id="r",
        agent_id="main",
        session_key="agent:main:main",
        session_id="s",
        prompt="hello",
        caller=LOCAL_CALLER,
        **more,
    )
    async with asyncio.timeout(WAIT), aclosing(runtime.run(turn)) as events:
        received = [event async for event in events]
    await runtime.aclose()
    return received


def test_everything_the_other_agent_does_is_reported() -> None:
    text, picture = {"type": "text", "text": "Done."}, {"type": "image", "mimeType": "image/png", "data": "aGk="}
    content = {"content": [{"type": "text", "text": "x"}]}
    gateway_script = (
        agent("lifecycle", phase="model", provider="p", model="m"),
        agent("thinking", delta="hm", text="hm"),
        chat("delta", deltaText="Do", message=message({"type": "text", "text": "Do"})),
        agent("tool", phase="start", toolCallId="c", name="ls", args={"path": "."}),
        agent("tool", phase="update", toolCallId="c", name="ls", partialResult=content),
        agent("tool", phase="result", toolCallId="c", name="ls", result=content, isError=True),
        chat("delta", deltaText="Done.", replace=True, message=message(text)),
        ("agent", {"stream": "tool", "data": None}),
        chat("final", stopReason="stop", message=message(text, picture)),
    )

    async def scenario() -> None:
        gateway = FakeGateway(*gateway_script)
        received = await events_of(gateway)
        blocks = ({"type": "text", "text": "x"},)
        assert received[1:8] == [
            ModelSelected("p", "m"), ThinkingText("hm"), PartialAnswer("Do"), ToolUse("c", "ls", {"path": "."}),
            ToolUpdate("c", "ls", blocks), ToolOutcome("c", "ls", blocks, True), PartialAnswer("Done.", replace=True),
        ]  # fmt: skip
        assert isinstance(received[8], MediaAttached)
        assert received[8].attachment.data == b"hi"
        end = received[-1]
        assert isinstance(end, TurnCompleted)
        assert end.text == "Done."
        assert end.resume == gateway.asked[0][1]["sessionKey"]
        assert gateway.dialled == [("ws://far", "t")]

    asyncio.run(scenario())


def test_the_same_far_session_is_used_again() -> None:
    async def scenario() -> None:
        gateway = FakeGateway(chat("final", message=message({"type": "text", "text": "ok"})))
        await events_of(gateway, resume="agent:main:hop1:x", system_prompt="not again")
        (_, params) = gateway.asked[0]
        assert (params["sessionKey"], params["message"]) == ("agent:main:hop1:x", "hello")

    asyncio.run(scenario())


def test_an_end_lost_with_the_connection_is_asked_for() -> None:
    async def scenario() -> None:
        ended = {"status": "ok", "terminalReply": {"text": "Done meanwhile."}}
        received = await events_of(FakeGateway(chat("delta", deltaText="Do"), ("hello", {}), waited=ended))
        assert isinstance(received[-1], TurnCompleted)
        assert received[-1].text == "Done meanwhile."
        failed = {"status": "error", "error": "it broke"}
        received = await events_of(FakeGateway(("hello", {}), waited=failed))
        assert isinstance(received[-1], TurnFailed)
        assert "it broke" in received[-1].message

    asyncio.run(scenario())


def test_leaving_stops_the_far_run() -> None:
    async def scenario() -> None:
        gateway = FakeGateway()
        turn = asyncio.ensure_future(events_of(gateway))
        await asyncio.wait_for(gateway.sent.wait(), WAIT)
        turn.cancel()
        await asyncio.wait({turn})
        (_, sent), (method, stop) = gateway.asked
        assert method == "chat.abort"
        assert stop == {"sessionKey": sent["sessionKey"], "runId": sent["idempotencyKey"]}

    asyncio.run(scenario())


def test_without_a_gateway_to_ask_it_says_what_to_set() -> None:
    async def scenario() -> None:
        received = await events_of(FakeGateway(), config={})
        assert isinstance(received[-1], TurnFailed)
        assert "set gateway.remote.url" in received[-1].message

    asyncio.run(scenario())


def test_an_end_is_received_however_many_events_came_before_it() -> None:
    async def scenario() -> None:
        pieces = [chat("delta", deltaText="x") for _ in range(10_100)]
        received = await events_of(
            FakeGateway(*pieces, chat("final", message=message({"type": "text", "text": "end"})))
        )
        assert isinstance(received[-1], TurnCompleted)
        assert received[-1].text == "end"

    asyncio.run(scenario())


def test_a_message_that_had_to_wait_gets_its_own_answer() -> None:
    """A real OpenClaw ends such a run with nothing, and answers it in the transcript."""

    async def scenario() -> None:
        gateway = FakeGateway(chat("final"), waited={"status": "ok"})
        gateway.history = [message({"type": "text", "text": "late"})]
        received = await events_of(gateway)
        assert isinstance(received[-1], TurnCompleted)
        assert received[-1].text == "late"

    asyncio.run(scenario())
