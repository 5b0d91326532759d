"""The agent in this very process: the gateway's rooms without its doors, on the same store."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ...config.file import ConfigFile, invalid_config_error
from ...config.locations import store_location
from ...config.roster import roster_from_config
from ...core.errors import ToolTimeout
from ...core.gateway_port import GatewayEventHandler
from ...core.model import Caller, Json
from ...core.ports import Toolbox
from ...core.rpc import ADMIN, RpcCall, RpcError, RpcEvent, RpcMethod
from ...core.signal import Signal
from ...tools import policy_rules
from .cli_runtimes import cli_runtimes
from .model_runtimes import model_runtimes
from .runs import caller_under_rules, open_store_services

EMBEDDED_CALLER = Caller(kind="operator", name="embedded", scopes=frozenset({ADMIN}))
"""Whoever started this process could as well have opened the store themselves."""


class EmbeddedGateway:
    """Answers the methods of the rooms it holds, and tells their events. Also the `Link` of its own calls."""

    is_local = True
    is_lost = False

    def __init__(self, folder: Path) -> None:
        self.id = "embedded"
        self._folder = folder
        self._stack = AsyncExitStack()
        self._methods: dict[str, RpcMethod] = {}
        self._events: Signal[RpcEvent] = Signal()
        self._subscriptions: set[str] = set()

    async def __aenter__(self) -> "EmbeddedGateway":
        snapshot = await asyncio.to_thread(lambda: ConfigFile(self._folder).read())
        if not snapshot.is_valid:
            raise invalid_config_error(snapshot.issues, snapshot.path)
        roster, book = roster_from_config(snapshot.config), policy_rules.from_config(snapshot.resolved)
        models = await self._stack.enter_async_context(
            model_runtimes(self._folder, lambda: snapshot.config, lambda: roster)
        )
        # They answer here too; without a gateway there is nothing their tools could call.
        clis = await self._stack.enter_async_context(cli_runtimes(self._folder, lambda: roster))
        memory = await self._stack.enter_async_context(
            open_store_services(
                store_location(self._folder, snapshot.config),
                self._events.emit,
                roster=lambda: roster,
                runtimes={**models, **clis},
                media_settings=lambda: snapshot.config.media,
                tools=await self._open_tools(snapshot.config.mcp.servers, book),
                make_caller=lambda claim: caller_under_rules(claim, book),
            )
        )
        self._methods = {method.name: method for room in memory.rpc_modules for method in room.methods()}
        return self

    async def _open_tools(self, servers: Json, rules: policy_rules.PolicyRules) -> Toolbox | None:
        if not servers:
            return None
        from .embedded_tools import open_embedded_tools  # here for start-up: most agents here have no servers

        return await self._stack.enter_async_context(open_embedded_tools(servers, rules))

    async def __aexit__(self, *ending: Any) -> None:
        await self._stack.__aexit__(*ending)

    async def call(self, method: str, params: Json, *, within: float) -> Any:
        found = self._methods.get(method)
        if found is None:
            raise RpcError(f"unknown method: {method}")
        try:
            async with asyncio.timeout(within):
                return await found.handle(RpcCall(method=method, params=params, caller=EMBEDDED_CALLER, peer=self))
        except TimeoutError:
            raise ToolTimeout(f"{method} was not answered within {within:g} s") from None

    def subscribe(self, handler: GatewayEventHandler) -> Callable[[], None]:
        return self._events.connect(lambda event: handler(event.name, event.payload))

    # ---- Link ----

    def send_event(self, event: str, payload: Any) -> None:
        self._events.emit(RpcEvent(name=event, payload=payload))

    def subscriptions(self) -> set[str]:
        return self._subscriptions

    async def acknowledge(self, payload: Any) -> None:
        return
