"""What nodes tell of themselves: their state, the tools they describe, what happened on them."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from ...core.json_nesting import TooDeep, decode
from ...core.model import Json
from ...core.rpc import SAFE_INTEGER, Event, Fault, Method, Publish, RpcCall, read_params
from ...core.signal import Bell
from .command_docs import MCP_CALL
from .registry import Roll

MOST_TOOLS: Final = 128  # tools one node may describe
LARGEST_TOOL: Final = 16 << 10  # bytes of one description with its schema
STATS: Final = "node.host.stats"
ALIVE: Final = "node.presence.alive"

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, le=SAFE_INTEGER)]


class Behind(Struct, frozen=True):
    """A tool of an MCP server that runs on the node."""

    server: Text
    tool: Text


class Described(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A tool in the node's own words, and the command that does it. Several may share one."""

    plugin_id: Text
    name: Annotated[str, Meta(pattern="^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
    description: Text
    parameters: dict[str, Any] | None = None
    command: Text | None = None
    mcp: Behind | None = None


class Stats(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    cpu_count: Annotated[int, Meta(ge=1, le=4096)]
    load_average: tuple[float, float, float] | None = None
    memory_total_bytes: Count = 0
    memory_free_bytes: Count = 0
    disk_total_bytes: Count | None = None
    disk_available_bytes: Count | None = None


class _Tools(Struct, frozen=True):
    tools: Annotated[tuple[Any, ...], Meta(max_length=MOST_TOOLS)]


class _Said(Struct, frozen=True, kw_only=True):
    event: Text
    payload: Any = None
    payload_json: str | None = msgspec.field(default=None, name="payloadJSON")


class Telling:
    """Remembered for as long as the connection that told it."""

    def __init__(self, roll: Roll, publish: Publish) -> None:
        self.changed: Bell[str] = Bell()
        """Rings with the id of a node that describes its tools anew."""
        self._roll = roll
        self._publish = publish
        self._tools: dict[str, tuple[Described, ...]] = {}
        self._stats: dict[str, Json] = {}

    def methods(self) -> Sequence[Method]:
        return (
            Method("node.event", None, self._event, role="node"),
            Method("node.pluginTools.update", None, self._describe, role="node"),
            # Told by OpenClaw's own node host, and of no use here: it is content with an answer.
            Method("node.skills.update", None, self._nothing, role="node"),
            Method("node.runnerInventory.update", None, self._nothing, role="node", advertised=False),
            Method("skills.bins", None, self._no_bins, role="node"),
        )

    def tools(self, node_id: str) -> Sequence[Described]:
        """What the node describes of what it may be asked to do."""
        arrival = self._roll.here(node_id)
        if arrival is None:
            return ()
        allowed = set(self._roll.commands(node_id))
        return [tool for tool in self._tools.get(arrival.connection, ()) if tool.command in allowed]

    def view(self, node_id: str) -> Json:
        """What `node.list` adds."""
        view: Json = {"nodePluginTools": msgspec.to_builtins(self.tools(node_id))}
        return view | ({"hostStats": self._stats[node_id]} if node_id in self._stats else {})

    def went(self, node_id: str, connection: str) -> None:
        self._tools.pop(connection, None)
        if self._roll.here(node_id) is None:
            self._stats.pop(node_id, None)

    async def _describe(self, call: RpcCall) -> Json:
        node_id, connection = call.caller.name, call.link.id
        wanted = read_params(call.params, _Tools, call.method).tools
        told = [_tool(entry, call.method) for entry in wanted]
        tools = tuple({(tool.plugin_id, tool.name): tool for tool in told}.values())  # said twice: as it was said last
        if self._roll.holds(node_id, connection):
            self._tools[connection] = tools
            self.changed.ring(node_id)
        return {"ok": True, "nodeId": node_id, "tools": msgspec.to_builtins(self.tools(node_id))}

    async def _event(self, call: RpcCall) -> Json:
        said = read_params(call.params, _Said, call.method)
        payload = _decoded(said.payload_json, call.method) if said.payload_json is not None else said.payload
        node_id = call.caller.name
        if said.event == STATS:
            stats: Json = msgspec.to_builtins(read_params(payload, Stats, STATS))
            self._stats[node_id] = stats
            self._publish(Event(name="node.hostStats", payload={"nodeId": node_id, "hostStats": stats}))
            return {"ok": True, "event": said.event, "handled": True, "reason": "updated"}
        if said.event == ALIVE:
            self._roll.heard_of(node_id, ALIVE)
            return {"ok": True, "event": said.event, "handled": True, "reason": "updated"}
        return {"ok": True, "event": said.event, "handled": False, "reason": "unsupported_event"}

    async def _nothing(self, call: RpcCall) -> Json:
        return {"ok": True}

    async def _no_bins(self, call: RpcCall) -> Json:
        return {"bins": []}


def _tool(entry: Any, method: str) -> Described:
    tool = read_params(entry, Described, method)
    if tool.mcp is not None and tool.command is None:
        tool = msgspec.structs.replace(tool, command=MCP_CALL)
    if len(msgspec.json.encode(tool)) > LARGEST_TOOL:
        raise Fault(f"invalid {method} params: the tool {tool.name} takes more than {LARGEST_TOOL} bytes to describe")
    return tool


def _decoded(text: str, method: str) -> Any:
    try:
        return decode(text)
    except TooDeep as exc:
        raise Fault(f"invalid {method} params: payloadJSON can't be kept: {exc}") from None
    except ValueError:
        raise Fault(f"invalid {method} params: payloadJSON is no JSON") from None
