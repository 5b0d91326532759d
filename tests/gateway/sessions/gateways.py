"""Rooms called as the intercom calls them, over a twin of its link."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from openclaw_mcp.core.model import Caller, Json
from openclaw_mcp.core.ports import Toolbox
from openclaw_mcp.core.rpc import RpcCall, RpcEvent, RpcMethod, has_scope, scope_error
from openclaw_mcp.gateway.wiring import runs

PATIENCE = 30.0  # seconds a test waits for something that must come


class TwinLink:
    """A connection that records the events it is sent."""

    def __init__(self, *scopes: str) -> None:
        self.id = "link"
        self.scopes = frozenset(scopes or ("operator.admin",))
        self.first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._interests: set[str] = set()

    def send_event(self, event: str, payload: Any) -> None:
        raise NotImplementedError

    def subscriptions(self) -> set[str]:
        return self._interests

    async def acknowledge(self, payload: Any) -> None:
        self.first.set_result(payload)


class GatewayHarness:
    """Every room's methods by name, and every event published."""

    def __init__(self) -> None:
        self.events: list[RpcEvent] = []
        self.news = asyncio.Event()
        self.methods: dict[str, RpcMethod] = {}
        self.memory: runs.StoreServices

    def publish(self, event: RpcEvent) -> None:
        self.events.append(event)
        self.news.set()

    def offer(self, methods: Sequence[RpcMethod]) -> None:
        self.methods |= {method.name: method for method in methods}

    async def call(self, name: str, params: Json | None = None, *, link: TwinLink | None = None) -> Any:
        link = link or TwinLink()
        method = self.methods[name]
        if method.scope is not None and not has_scope(link.scopes, method.scope):
            raise scope_error(method.scope)
        caller = Caller(kind="operator", name="tester", scopes=link.scopes)
        return await method.handle(RpcCall(method=name, params=params or {}, caller=caller, peer=link))

    def received(self, name: str, **fields: Any) -> list[Json]:
        return [
            event.payload
            for event in self.events
            if event.name == name and all(event.payload.get(key) == value for key, value in fields.items())
        ]

    async def until(self, name: str, **fields: Any) -> Json:
        """The first such event, published already or yet to come."""
        async with asyncio.timeout(PATIENCE):
            while not (found := self.received(name, **fields)):
                self.news.clear()
                await self.news.wait()
        return found[0]

    async def say(self, message: str, *, run: str, key: str = "main", **more: Any) -> Json:
        """Send, and wait for the end of the run."""
        await self.call("chat.send", {"sessionKey": key, "message": message, "idempotencyKey": run, **more})
        ended: Json = await self.call("agent.wait", {"runId": run, "timeoutMs": int(PATIENCE * 1000)})
        return ended


@asynccontextmanager
async def open_harness(where: str, *, tools: Toolbox | None = None, **more: Any) -> AsyncIterator[GatewayHarness]:
    harness = GatewayHarness()
    async with runs.open_store_services(where, harness.publish, tools=tools, **more) as remembered:
        harness.memory = remembered
        for module in remembered.rpc_modules:
            harness.offer(module.methods())
        yield harness
