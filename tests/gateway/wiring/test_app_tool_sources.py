"""Which of the proxy's sessions the gateway beside it looks at, and for whom."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.agents import AgentProfile, AgentRoster
from openclaw_mcp.core.model import LOCAL_CALLER
from openclaw_mcp.gateway.wiring import app_tools
from openclaw_mcp.gateway.wiring.app_tools import AppToolSources
from openclaw_mcp.gateway.wiring.gateway import GatewayServer
from openclaw_mcp.proxy.engine.app_session import AppSession
from tests.proxy.proxies import Proxy, proxy

MAIN = "agent:main:main"


class Beside:
    """A gateway and a proxy in one process."""

    def __init__(self, running: Proxy, folder: Path) -> None:
        self.proxy = running
        self.gateway = GatewayServer(folder, "t" * 40)
        self.roster = AgentRoster(agents=(AgentProfile(id="main"),))
        self.apps = AppToolSources(self.gateway.registry, running.state, lambda: self.roster)

    async def register(self, tools: int = 1, **about: Any) -> str:
        names = [{"name": f"tool{number}"} for number in range(tools)]
        answer = await self.proxy.send("POST", "/v1/chat/sessions", {"tools": names, **about})
        id: str = answer.json["mcpSessionId"]
        return id

    def lent(self, session: str = MAIN, **options: Any) -> int:
        return len(self.apps.sources_for_session(session, **{"include_all": False, **options}))


@asynccontextmanager
async def beside(folder: Path) -> AsyncIterator[Beside]:
    async with proxy() as running:
        instance = Beside(running, folder)
        with instance.apps:
            yield instance


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions whose tools were looked up."""
    ids: list[str] = []
    specs = AppSession.specs

    def noted(session: AppSession) -> Any:
        ids.append(session.registration.id)
        return specs(session)

    monkeypatch.setattr(AppSession, "specs", noted)
    return ids


def test_sessions_without_an_app_cost_no_work(tmp_path: Path, looked: list[str]) -> None:
    async def main() -> None:
        async with beside(tmp_path) as server:
            before = await server.gateway.dispatcher.list(LOCAL_CALLER)
            changes: list[None] = []
            server.gateway.registry.app_changed.connect(lambda _: changes.append(None))
            for number in range(100):
                await server.register(chatId="main" if number % 2 else "elsewhere")
            assert (server.lent(), server.lent(include_all=True), looked, changes) == (0, 0, [], [])
            assert await server.gateway.dispatcher.list(LOCAL_CALLER) is before

    asyncio.run(main())


@pytest.mark.parametrize(
    ("chat", "session", "lent"),
    [
        ("main", MAIN, 1), ("Main ", MAIN, 1), ("agent:main:main", MAIN, 1), ("side", "agent:main:side", 1),
        ("side", MAIN, 0), ("agent::", MAIN, 0), ("", MAIN, 0), (None, MAIN, 0), ("x" * 600, MAIN, 0),
    ],
)  # fmt: skip
def test_an_app_that_came_is_lent_to_the_conversation_it_names(
    tmp_path: Path, looked: list[str], chat: str | None, session: str, lent: int
) -> None:
    async def main() -> None:
        async with beside(tmp_path) as server:
            before = await server.gateway.dispatcher.list(LOCAL_CALLER)
            id = await server.register(1, **({"chat_id": chat} if chat is not None else {}))
            other = await server.register(chat_id="another")
            async with server.proxy.app(id), server.proxy.app(other):
                assert await server.gateway.dispatcher.list(LOCAL_CALLER) is before
                looked.clear()
                assert (server.lent(session), server.lent(include_all=True)) == (lent, 2)
                server.roster = AgentRoster(agents=(AgentProfile(id="main"),), main_key="home")
                assert server.lent("agent:main:home") == (1 if session == MAIN and lent else 0)
            async with server.proxy.app(id):  # back again with a new bridge
                assert server.lent(include_all=True) == 2
            await server.proxy.send("DELETE", f"/v1/chat/sessions/{id}")
            assert server.lent(include_all=True) == 1

    asyncio.run(main())


def test_one_conversation_is_lent_so_many_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_tools, "MAX_APP_TOOLS", 10)

    async def main() -> None:
        async with beside(tmp_path) as server, AsyncExitStack() as apps:
            for tools in (4, 0, 4, 4, 1):
                await apps.enter_async_context(server.proxy.app(await server.register(tools, chat_id="main")))
            assert server.lent() == 3

    asyncio.run(main())
