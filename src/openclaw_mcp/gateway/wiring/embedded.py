"""The agent in this process: the gateway's session methods on the same store, without its servers."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ...config.file import ConfigFile, invalid_config_error
from ...config.locations import store_location
from ...config.roster import roster_from_config
from ...core.errors import ToolTimeout
from ...core.model import Caller, Json
from ...core.ports import Toolbox
from ...core.rpc import ADMIN, NULL_PEER, RpcCall, RpcError, RpcMethod
from ...core.sessions import RunEvent
from ...core.signal import Signal
from ...tools import policy_rules
from .cli_runtimes import cli_runtimes
from .model_runtimes import model_runtimes
from .runs import caller_under_rules, open_store_services

EMBEDDED_CALLER = Caller(kind="operator", name="embedded", scopes=frozenset({ADMIN}))
"""Who started this process could as well have opened the store."""


class EmbeddedGateway:
    """A `LocalGateway`: answers the methods of sessions and chats."""

    is_lost = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self._methods: dict[str, RpcMethod] = {}
        self.run_events: Signal[RunEvent] = Signal()

    async def __aenter__(self) -> "EmbeddedGateway":
        snapshot = await asyncio.to_thread(lambda: ConfigFile(self._folder).read())
        if not snapshot.is_valid:
            raise invalid_config_error(snapshot.issues, snapshot.path)
        roster, rules = roster_from_config(snapshot.config), policy_rules.from_config(snapshot.resolved)
        models = await self._stack.enter_async_context(
            model_runtimes(self._folder, lambda: snapshot.config, lambda: roster)
        )
        # CLI agents answer here too; without a gateway their tools have nothing to call.
        clis = await self._stack.enter_async_context(cli_runtimes(self._folder, lambda: roster))
        services = await self._stack.enter_async_context(
            open_store_services(
                store_location(self._folder, snapshot.config),
                lambda event: None,  # nothing in this process follows the events of the wire
                roster=lambda: roster,
                runtimes={**models.by_name, **clis},
                media_settings=lambda: snapshot.config.media,
                tools=await self._open_tools(snapshot.config.mcp.servers, rules),
                make_caller=lambda claim: caller_under_rules(claim, rules),
            )
        )
        services.runs.events.connect(self.run_events.emit)
        self._methods = {method.name: method for module in services.rpc_modules for method in module.methods()}
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
                return await found.handle(RpcCall(method=method, params=params, caller=EMBEDDED_CALLER, peer=NULL_PEER))
        except TimeoutError:
            raise ToolTimeout(f"{method} was not answered within {within:g} s") from None
