"""The agent in this very process: the gateway's rooms without its doors, on the same store."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ...config.file import ConfigFile, invalid
from ...config.views import database, media_settings, roster_of
from ...core.errors import ToolTimeout
from ...core.gateway_port import Hear
from ...core.model import Caller, Json
from ...core.ports import Toolbox
from ...core.rpc import ADMIN, Event, Fault, Method, RpcCall
from ...core.signal import Bell
from ...tools import policy_rules
from .cli_runtimes import cli_runtimes
from .model_runtimes import model_runtimes
from .runs import by_rules, remembering

ME = Caller(kind="operator", name="embedded", scopes=frozenset({ADMIN}))
"""Whoever started this process could as well have opened the store themselves."""


class Embedded:
    """Answers the methods of the rooms it holds, and tells their events. Also the `Link` of its own calls."""

    near = True
    gone = False

    def __init__(self, folder: Path) -> None:
        self.id = "embedded"
        self._folder = folder
        self._stack = AsyncExitStack()
        self._methods: dict[str, Method] = {}
        self._events: Bell[Event] = Bell()
        self._interests: set[str] = set()

    async def __aenter__(self) -> "Embedded":
        snapshot = await asyncio.to_thread(lambda: ConfigFile(self._folder).read())
        if not snapshot.valid:
            raise invalid(snapshot.issues, snapshot.path)
        roster, book = roster_of(snapshot.config), policy_rules.from_config(snapshot.config)
        models = await self._stack.enter_async_context(
            model_runtimes(self._folder, lambda: snapshot.config, lambda: roster)
        )
        # They answer here too; without a gateway there is nothing their tools could call.
        clis = await self._stack.enter_async_context(cli_runtimes(self._folder, lambda: roster))
        memory = await self._stack.enter_async_context(
            remembering(
                database(self._folder, snapshot.config), self._events.ring, roster=lambda: roster,
                runtimes={**models, **clis}, media=lambda: media_settings(snapshot.config),
                tools=await self._tools(snapshot.config, book), act=lambda claim: by_rules(claim, book),
            )
        )  # fmt: skip
        self._methods = {method.name: method for room in memory.rooms for method in room.methods()}
        return self

    async def _tools(self, config: Json, book: policy_rules.RuleBook) -> Toolbox | None:
        servers = config.get("mcp", {}).get("servers")
        if not servers:
            return None
        from .embedded_tools import lent  # here for start-up: most agents here have no servers

        return await self._stack.enter_async_context(lent(servers, book))

    async def __aexit__(self, *ending: Any) -> None:
        await self._stack.__aexit__(*ending)

    async def call(self, method: str, params: Json, *, within: float) -> Any:
        found = self._methods.get(method)
        if found is None:
            raise Fault(f"unknown method: {method}")
        try:
            async with asyncio.timeout(within):
                return await found.run(RpcCall(method=method, params=params, caller=ME, link=self))
        except TimeoutError:
            raise ToolTimeout(f"{method} was not answered within {within:g} s") from None

    def listen(self, hear: Hear) -> Callable[[], None]:
        return self._events.listen(lambda event: hear(event.name, event.payload))

    # ---- Link ----

    def tell(self, event: str, payload: Any) -> None:
        self._events.ring(Event(name=event, payload=payload))

    def interests(self) -> set[str]:
        return self._interests

    async def accepted(self, payload: Any) -> None:
        return
