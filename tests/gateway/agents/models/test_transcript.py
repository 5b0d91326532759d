"""What a model's turn leaves in the transcript, and what the next turn makes of it."""

import asyncio
import json
from pathlib import Path

from openclaw_mcp.core.agents import AgentProfile, AgentRoster
from openclaw_mcp.core.config.agents import AgentSettings
from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.core.model import Caller, ToolCall, ToolResult, ToolSpec, text_result
from openclaw_mcp.gateway.agents.models.model_clients import ModelClients
from openclaw_mcp.gateway.agents.models.runtime import ModelRuntime
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.policy import PolicyDecision
from openclaw_mcp.tools.registry import ToolRegistry

from ....conversation import Tools
from ...sessions.gateways import open_harness
from .conversations import provider
from .fake import FakeModel, call, say


def test_tools_and_cuts_are_in_the_history(tmp_path: Path) -> None:
    callers: list[Caller] = []

    async def look(call: ToolCall) -> ToolResult:
        callers.append(call.caller)
        return text_result("a cat")

    async def scenario() -> None:
        with FakeModel(call("look"), say("It is a cat."), say("Noted.")) as model:
            config = read_config({"models": {"providers": {"fake": provider("openai", model, models=[SMALL])}}})
            roster = AgentRoster(
                agents=(AgentProfile(id="main", runtime="openai", settings=AgentSettings(model="fake/m")),)
            )
            clients = ModelClients()
            runtime = ModelRuntime("openai", clients, config=lambda: config, roster=lambda: roster)
            tools_dispatcher = ToolDispatcher(ToolRegistry({"test": Tools(look=look)}), policy=_allow)
            async with open_harness(
                str(tmp_path / "db.sqlite"), tools=tools_dispatcher, roster=lambda: roster, runtimes={"openai": runtime}
            ) as harness:
                await harness.say("What do you see?", run="r1")
                await harness.until("session.message", runId="r1")
                await harness.say("long " * 800, run="r2")
                await harness.say("long " * 800, run="r3")
                await harness.say("short", run="r4")
                history = (await harness.call("chat.history", {"sessionKey": "main"}))["messages"]
            await clients.aclose()
        roles = [message["role"] for message in history]
        assert roles[:4] == ["user", "assistant", "toolResult", "assistant"]
        assert history[1]["content"][0]["name"] == "look"
        assert history[2]["content"] == [{"type": "text", "text": "a cat"}]
        notices = [message for message in history if message.get("notice")]
        assert "no longer shown" in notices[0]["content"][0]["text"]
        last = json.dumps(model.requests[-1].body)
        assert "a cat" not in last  # the model no longer sees what was cut
        assert "no longer shown" not in last  # nor our words about it
        assert {caller.kind for caller in callers} == {"agent"}

    asyncio.run(scenario())


SMALL = {"id": "m", "contextWindow": 3000, "maxTokens": 500}


def _allow(caller: Caller, source: str, spec: ToolSpec) -> PolicyDecision:
    return PolicyDecision(True, "test")
