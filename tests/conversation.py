"""An MCP conversation with a server in this process: what a transport does, without one."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from openclaw_mcp.core.model import LOCAL_CALLER, Caller, Json, ToolCall, ToolResult, ToolSpec
from openclaw_mcp.core.signal import Signal
from openclaw_mcp.mcp.server.exchange import Exchange, Peer
from openclaw_mcp.mcp.server.server import McpServer, McpServerInfo
from openclaw_mcp.protocol import jsonrpc, mcp
from openclaw_mcp.tools.dispatcher import ToolDispatcher
from openclaw_mcp.tools.registry import ToolRegistry

HEAR_WAIT = 10.0


class Tools:
    """A source whose tools are plain functions of the call."""

    def __init__(self, **tools: Any) -> None:
        self.changed: Signal[None] = Signal()
        self._tools: dict[str, tuple[ToolSpec, Any]] = {}
        for name, work in tools.items():
            self.add(ToolSpec(name=name), work)

    def add(self, spec: ToolSpec, work: Any) -> None:
        self._tools[spec.name] = (spec, work)
        self.changed.emit(None)

    def specs(self) -> Sequence[ToolSpec]:
        return [spec for spec, _ in self._tools.values()]

    async def call(self, call: ToolCall) -> ToolResult:
        result = await self._tools[call.name][1](call)
        assert isinstance(result, ToolResult)
        return result


def serving(tools: Tools, **options: Any) -> McpServer:
    return McpServer(McpServerInfo(name="test", version="1"), ToolDispatcher(ToolRegistry({"test": tools})), **options)


def call_request(**params: Any) -> jsonrpc.JsonRpcRequest:
    return jsonrpc.JsonRpcRequest(1, "tools/call", params)


class Conversation:
    """One client's side. Results come back as plain JSON values, as they would over a wire."""

    def __init__(
        self,
        server: McpServer,
        *,
        stateless: bool = True,
        capabilities: Json | None = None,
        caller: Caller = LOCAL_CALLER,
        answers_us: bool = False,
    ) -> None:
        self.received: list[Json] = []
        self._arrival = asyncio.Event()
        self.peer = Peer(version=mcp.NEWEST_HANDSHAKE, accepts_requests=answers_us)
        self.peer.capabilities = mcp.ClientCapabilities(capabilities or {})
        self._server = server
        self._stateless = stateless
        self._capabilities = capabilities or {}
        self._caller = caller

    async def ask(self, method: str, params: Json | None = None, *, headers: dict[str, str] | None = None) -> Any:
        params = dict(params or {})
        if self._stateless:
            meta = params.get("_meta", {})
            required = {mcp.PROTOCOL_VERSION: mcp.STATELESS_VERSIONS[0], mcp.CLIENT_CAPABILITIES: self._capabilities}
            params["_meta"] = {**required, **meta}
        request = jsonrpc.JsonRpcRequest(1, method, params)
        envelope = mcp.stateless_envelope(request) if self._stateless else self.peer.envelope(request)
        exchange = Exchange(request, envelope, self._caller, peer=self.peer, write=self._receive, headers=headers)
        return msgspec.json.decode(jsonrpc.encode(await self._server.answer(exchange)))

    async def call(self, name: str, arguments: Json | None = None, **more: Any) -> Any:
        return await self.ask("tools/call", {"name": name, "arguments": arguments or {}, **more})

    async def wait_messages(self, count: int) -> list[Json]:
        """Wait until so many messages were received; all of them so far."""
        async with asyncio.timeout(HEAR_WAIT):
            while len(self.received) < count:
                self._arrival.clear()
                await self._arrival.wait()
        return self.received

    async def _receive(self, message: bytes) -> None:
        self.received.append(msgspec.json.decode(message))
        self._arrival.set()
