"""One turn of a model runtime, in this process, against the scripted model."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from openclaw_mcp.core.agent import AgentEvent, PartialAnswer, Turn, TurnCompleted, TurnFailed
from openclaw_mcp.core.agents import AgentProfile, AgentRoster
from openclaw_mcp.core.chat_messages import ChatMessage
from openclaw_mcp.core.config.agents import AgentSettings
from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.core.lenient import read_struct
from openclaw_mcp.core.model import LOCAL_CALLER, Json
from openclaw_mcp.gateway.agents.models.model_clients import ModelClients
from openclaw_mcp.gateway.agents.models.runtime import ModelRuntime
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.registry import ToolRegistry

from ....conversation import Tools
from .fake import FakeModel

WAIT = 30.0
APIS = ("openai", "anthropic")
KEY = "sk-test-0123456789"


def provider(api: str, model: FakeModel, **more: Any) -> Json:
    base = f"{model.url}/v1" if api == "openai" else model.url
    return {"api": api, "baseUrl": base, "apiKey": KEY, **more}


class Agent:
    """An agent whose model is `fake/m`, and all it said so far."""

    def __init__(
        self, api: str, model: FakeModel | None = None, *, tools: Tools | None = None, config: Json | None = None,
        settings: Json | None = None, **more: Any,
    ) -> None:  # fmt: skip
        providers = {"fake": provider(api, model, **more)} if model is not None else {}
        self._config = read_config(config or {"models": {"providers": providers}})
        agent_settings = msgspec.convert({"model": "fake/m", **(settings or {})}, AgentSettings)
        card = AgentProfile(id="main", settings=agent_settings)
        self._roster = AgentRoster(agents=(card,))
        self.clients = ModelClients()
        self._runtime = ModelRuntime(api, self.clients, config=lambda: self._config, roster=lambda: self._roster)
        self._dispatcher = None if tools is None else ToolDispatcher(ToolRegistry({"test": tools}))
        self.events: list[AgentEvent] = []
        self.news = asyncio.Event()
        self.turns = 0

    async def hear(self, prompt: str = "hello", *, recall: Sequence[Json] = (), **more: Any) -> None:
        async def recalled(most: int) -> tuple[ChatMessage, ...]:
            return tuple(read_struct(body, ChatMessage) for body in recall[-most:])

        self.turns += 1
        turn = Turn(
            run_id=f"run{self.turns}", agent_id="main", session_key="agent:main:main", session_id="s", prompt=prompt,
            caller=LOCAL_CALLER, tools=self._dispatcher, load_history=recalled, **more,
        )  # fmt: skip
        async with aclosing(self._runtime.run(turn)) as events:
            async for event in events:
                self.events.append(event)
                self.news.set()

    async def ask(self, prompt: str = "hello", **more: Any) -> AgentEvent:
        """The end of the turn."""
        async with asyncio.timeout(WAIT):
            await self.hear(prompt, **more)
        return self.events[-1]

    async def until(self, kind: type) -> Any:
        async with asyncio.timeout(WAIT):
            while not (found := self.all(kind)):
                self.news.clear()
                await self.news.wait()
        return found[0]

    def all(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def text(self) -> str:
        """What the partials add up to."""
        text = ""
        for event in self.all(PartialAnswer):
            text = event.text if event.replace else text + event.text
        return text


def run(work: Any) -> Any:
    return asyncio.run(work)


async def answered(agent: Agent, prompt: str = "hello", **more: Any) -> TurnCompleted:
    end = await agent.ask(prompt, **more)
    await agent.clients.aclose()
    assert isinstance(end, TurnCompleted), end
    return end


async def failed(agent: Agent, prompt: str = "hello", **more: Any) -> TurnFailed:
    end = await agent.ask(prompt, **more)
    await agent.clients.aclose()
    assert isinstance(end, TurnFailed), end
    return end
