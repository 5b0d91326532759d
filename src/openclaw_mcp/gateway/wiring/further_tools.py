"""`tools.list` and `tools.call`: for a CLI agent, the tools of MCP servers, nodes and apps that its session has.

The gateway's own tools are not among them: a CLI agent has those as the 29, each behind its own method. The dispatcher
decides, bounds and audits each call, as it does for a model's.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from ...core.claw_methods import CALL_FURTHER_TOOL, LIST_FURTHER_TOOLS, METHODS_BY_TOOL
from ...core.errors import ToolNotFound
from ...core.model import SOURCE_SCOPE_PREFIX, Caller, Json, ToolCall, ToolResult, ToolSpec
from ...core.ports import NULL_CONTEXT, Toolbox
from ...core.rpc import READ, WRITE, RpcCall, RpcMethod, make_method
from ...core.session_target import ALL_SCOPES
from ...protocol.mcp import ToolCallResult, encode_tool, encode_tool_result
from ...tools.policy import APP_SOURCE_PREFIX, apps_for_caller
from ...tools.registry import RESERVED_SOURCE_PREFIXES, ToolRegistry
from ...tools.rpc_methods import operator_caller
from ..rpc.connection import RpcConnection
from ..rpc.connections import Connections
from .granted_calls import call_until

FURTHER_SOURCES: Final = (*RESERVED_SOURCE_PREFIXES, APP_SOURCE_PREFIX)
LIST_WAIT: Final = 0.5  # seconds a list waits for servers that start: some CLIs give all their servers one second


class _NoParams(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _CallParams(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1)]
    arguments: Json = {}


class FurtherToolMethods(Struct, frozen=True):
    """An `RpcModule`."""

    toolbox: Toolbox
    ready: Toolbox
    """The same without the MCP servers that have not started, and without waiting for them."""
    registry: ToolRegistry
    connections: Connections

    def methods(self) -> Sequence[RpcMethod]:
        return (
            make_method(LIST_FURTHER_TOOLS, READ, _NoParams, self._list),
            make_method(CALL_FURTHER_TOOL, WRITE, _CallParams, self._call),
        )

    async def list_tools(self, caller: Caller) -> Sequence[ToolSpec]:
        """Those of this caller. An agent's wait until its servers have started, as a model's turn waits."""
        return await self._list_from(self.toolbox, caller)

    async def _list(self, call: RpcCall, _: _NoParams) -> Json:
        """What is there soon: a CLI takes none of its tools if the list is late. The rest is announced."""
        try:
            async with asyncio.timeout(LIST_WAIT):
                listed = await self.list_tools(call.caller)
        except TimeoutError:  # only the waiting ends: the servers go on starting
            listed = await self._list_from(self.ready, call.caller)
        return {"tools": [encode_tool(spec) for spec in listed]}

    async def _list_from(self, toolbox: Toolbox, caller: Caller) -> Sequence[ToolSpec]:
        caller = _tool_caller(caller)
        return [spec for spec in await toolbox.list(caller) if not self._is_own(caller, spec.name)]

    async def _call(self, call: RpcCall, wanted: _CallParams) -> ToolCallResult:
        caller = _tool_caller(call.caller)
        if self._is_own(caller, wanted.name):
            raise ToolNotFound(f"Unknown tool: {wanted.name}")
        tool_call = ToolCall(caller=caller, name=wanted.name, arguments=wanted.arguments, context=NULL_CONTEXT)
        return encode_tool_result(await self._call_while_connected(tool_call, call.peer.id))

    async def _call_while_connected(self, call: ToolCall, connection_id: str) -> ToolResult:
        """The result. The call ends with its connection."""
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_disconnect(connection: RpcConnection) -> None:
            if connection.id == connection_id and not gone.done():
                gone.set_result(None)

        disconnect = self.connections.disconnected.connect(on_disconnect)
        try:
            return await call_until(self.toolbox, call, gone, "the program that called the tool is gone")
        finally:
            disconnect()

    def _is_own(self, caller: Caller, name: str) -> bool:
        """Whether it is a tool of the gateway itself; a name of the 29 always means that tool."""
        found = self.registry.tools_by_name(apps_for_caller(caller)).get(name, ())
        return name in METHODS_BY_TOOL or any(not tool.source_name.startswith(FURTHER_SOURCES) for tool in found)


def _tool_caller(caller: Caller) -> Caller:
    """The caller of a connection as the dispatcher knows it: in its session, with the apps lent to that session."""
    if caller.kind == "agent":
        lent = (scope for scope in caller.scopes if scope.startswith(SOURCE_SCOPE_PREFIX))
        return replace(caller, scopes=ALL_SCOPES.union(lent), entry_point="mcp")
    operator = operator_caller(caller.name, entry_point="mcp", owner=caller.is_owner)
    return replace(operator, session=caller.session, session_grant=caller.session_grant)
