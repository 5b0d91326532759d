"""What nodes report: their state, the tools they describe, events on them."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from ...core.fields import NonEmptyStr
from ...core.json_nesting import JsonTooDeep, decode_json
from ...core.rpc import SAFE_INTEGER, Publish, RpcCall, RpcError, RpcEvent, RpcMethod, read_params
from ...core.signal import Signal
from .command_docs import MCP_CALL
from .registry import NodeRegistry

MAX_TOOLS: Final = 128  # tools one node may describe
MAX_TOOL_BYTES: Final = 16 << 10  # bytes of one description with its schema
STATS_EVENT: Final = "node.host.stats"
ALIVE_EVENT: Final = "node.presence.alive"

_Count = Annotated[int, Meta(ge=0, le=SAFE_INTEGER)]


class McpToolReference(Struct, frozen=True):
    """A tool of an MCP server that runs on the node."""

    server: NonEmptyStr
    tool: NonEmptyStr


class NodeToolDescription(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A tool as the node describes it, and the command it runs. Several may share one."""

    plugin_id: NonEmptyStr
    name: Annotated[str, Meta(pattern="^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
    description: NonEmptyStr
    parameters: dict[str, Any] | None = None
    command: NonEmptyStr | None = None
    mcp: McpToolReference | None = None


class HostStats(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    cpu_count: Annotated[int, Meta(ge=1, le=4096)]
    load_average: tuple[float, float, float] | None = None
    memory_total_bytes: _Count = 0
    memory_free_bytes: _Count = 0
    disk_total_bytes: _Count | None = None
    disk_available_bytes: _Count | None = None


class _ToolsParams(Struct, frozen=True):
    tools: Annotated[tuple[Any, ...], Meta(max_length=MAX_TOOLS)]


class _EventParams(Struct, frozen=True, kw_only=True):
    event: NonEmptyStr
    payload: Any = None
    payload_json: str | None = msgspec.field(default=None, name="payloadJSON")


class NodeReports:
    """Reports are kept for as long as the connection they came by."""

    def __init__(self, registry: NodeRegistry, publish: Publish) -> None:
        self.changed: Signal[str] = Signal()
        """Emits the id of a node that described its tools again."""
        self._registry, self._publish = registry, publish
        self._tools: dict[str, tuple[NodeToolDescription, ...]] = {}
        self._stats: dict[str, HostStats] = {}

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("node.event", None, self._on_event, role="node"),
            RpcMethod("node.pluginTools.update", None, self._update_tools, role="node"),
            # Sent by OpenClaw's own node host, and not needed here: it only expects an answer.
            RpcMethod("node.skills.update", None, self._acknowledge, role="node"),
            RpcMethod("node.runnerInventory.update", None, self._acknowledge, role="node", advertised=False),
            RpcMethod("skills.bins", None, self._empty_bins, role="node"),
        )

    def tools(self, node_id: str) -> Sequence[NodeToolDescription]:
        """The node's descriptions of the commands it may run."""
        connection = self._registry.connection_of(node_id)
        if connection is None:
            return ()
        allowed = set(self._registry.commands(node_id))
        return [tool for tool in self._tools.get(connection.connection_id, ()) if tool.command in allowed]

    def stats(self, node_id: str) -> HostStats | None:
        return self._stats.get(node_id)

    def on_disconnect(self, node_id: str, connection_id: str) -> None:
        self._tools.pop(connection_id, None)
        if self._registry.connection_of(node_id) is None:
            self._stats.pop(node_id, None)

    async def _update_tools(self, call: RpcCall) -> dict[str, bool | str | Sequence[NodeToolDescription]]:
        node_id, connection = call.caller.name, call.peer.id
        wanted = read_params(call.params, _ToolsParams, call.method).tools
        described = [_parse_tool(entry, call.method) for entry in wanted]
        tools = tuple({(tool.plugin_id, tool.name): tool for tool in described}.values())  # of two, the last counts
        if self._registry.has_connection(node_id, connection):
            self._tools[connection] = tools
            self.changed.emit(node_id)
        return {"ok": True, "nodeId": node_id, "tools": self.tools(node_id)}

    async def _on_event(self, call: RpcCall) -> dict[str, bool | str]:
        report = read_params(call.params, _EventParams, call.method)
        payload = (
            _decode_payload(report.payload_json, call.method) if report.payload_json is not None else report.payload
        )
        node_id = call.caller.name
        if report.event == STATS_EVENT:
            self._stats[node_id] = stats = read_params(payload, HostStats, STATS_EVENT)
            self._publish(RpcEvent(name="node.hostStats", payload={"nodeId": node_id, "hostStats": stats}))
        elif report.event == ALIVE_EVENT:
            self._registry.record_contact(node_id, ALIVE_EVENT)
        else:
            return {"ok": True, "event": report.event, "handled": False, "reason": "unsupported_event"}
        return {"ok": True, "event": report.event, "handled": True, "reason": "updated"}

    async def _acknowledge(self, call: RpcCall) -> dict[str, bool]:
        return {"ok": True}

    async def _empty_bins(self, call: RpcCall) -> dict[str, list[str]]:
        return {"bins": []}


def _parse_tool(entry: Any, method: str) -> NodeToolDescription:
    tool = read_params(entry, NodeToolDescription, method)
    if tool.mcp is not None and tool.command is None:
        tool = msgspec.structs.replace(tool, command=MCP_CALL)
    if len(msgspec.json.encode(tool)) > MAX_TOOL_BYTES:
        raise RpcError(
            f"invalid {method} params: the tool {tool.name} takes more than {MAX_TOOL_BYTES} bytes to describe"
        )
    return tool


def _decode_payload(text: str, method: str) -> Any:
    try:
        return decode_json(text)
    except JsonTooDeep as exc:
        raise RpcError(f"invalid {method} params: payloadJSON can't be kept: {exc}") from None
    except ValueError:
        raise RpcError(f"invalid {method} params: payloadJSON is no JSON") from None
