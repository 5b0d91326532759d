"""Connected nodes as tools: one source for each node, registered while the node is connected and approved."""

import contextlib
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from ...core.errors import (
    OpenClawError,
    ToolArguments,
    ToolBusy,
    ToolDenied,
    ToolNotFound,
    ToolTimeout,
    ToolUnavailable,
)
from ...core.model import (
    Audio,
    ContentBlock,
    Contents,
    Embedded,
    Image,
    Json,
    Text,
    ToolCall,
    ToolEffect,
    ToolResult,
    ToolSpec,
)
from ...core.ports import CallContext, ToolSource
from ...core.rpc import RpcError
from ...core.signal import Signal
from ...net.tasks import Tasks
from .approval_queue import device_credential
from .calls import NodeCallError
from .command_docs import COMMAND_DESCRIPTIONS, INTERNAL_COMMANDS, MCP_CALL
from .permissions import matches
from .reports import NodeToolDescription
from .rpc_methods import NodeService
from .tool_names import tool_name, tool_names

CALL_TIMEOUT: Final = 960.0  # seconds: a command of ten minutes, five for a person to allow it, and some slack
MAX_DESCRIPTION_LENGTH: Final = 1024  # characters; some model APIs refuse longer ones
MAX_PROGRESS_TASKS: Final = 32  # progress messages on their way to a slow client; more are dropped
PROGRESS_FLUSH_WAIT: Final = 1.0  # seconds the client gets for them once the result is there
ERRORS_OF_NODES: Final = {kind.code.upper(): kind for kind in (ToolArguments, ToolBusy, ToolDenied, ToolTimeout)}
"""A node's reasons that are an error of their own here, by its name for them; with others the tool is unavailable."""
_PICTURES: Final = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp"}
_SOUNDS: Final = {"wav": "audio/wav", "mp3": "audio/mpeg", "ogg": "audio/ogg"}


ReadMcp = Callable[[Json], ToolResult]
"""Reads the answer of an MCP server."""


class NodeTool(Struct, frozen=True):
    """A tool of a node: its command, and how the node describes it."""

    command: str
    title: str
    description: NodeToolDescription | None = None

    @property
    def is_mcp_tool(self) -> bool:
        return self.command == MCP_CALL

    def params(self, arguments: Json) -> Json:
        if not self.is_mcp_tool or self.description is None or self.description.mcp is None:
            return arguments
        return {"server": self.description.mcp.server, "tool": self.description.mcp.tool, "arguments": arguments}


def build_tools(
    alias: str, commands: Sequence[str], descriptions: Sequence[NodeToolDescription]
) -> dict[str, NodeTool]:
    """Tools by name. A tool has its command's name; those that share a command, the name the node gives them."""
    sharing: dict[str, list[NodeToolDescription]] = {}
    for tool in descriptions:
        if tool.command is not None:
            sharing.setdefault(tool.command, []).append(tool)
    names = tool_names(alias, [command for command in commands if len(sharing.get(command, ())) < 2])
    found = {
        name: NodeTool(command, command, next(iter(sharing.get(command, ())), None)) for name, command in names.items()
    }
    for command, tools in sharing.items():
        if command in names.values():
            continue
        for tool in tools:
            if command in commands or (command == MCP_CALL and tool.mcp is not None):
                found[tool_name(alias, tool.name, found)] = NodeTool(command, tool.name, tool)
    return found


class NodeToolSource:
    """A `ToolSource`: the commands that one node may run."""

    def __init__(self, node_id: str, alias: str, service: NodeService, read_mcp: ReadMcp) -> None:
        self.changed: Signal[None] = Signal()
        self.alias, self._node_id, self._service, self._read_mcp = alias, node_id, service, read_mcp
        self._specs: tuple[ToolSpec, ...] = ()
        self._tools: dict[str, NodeTool] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read again what it offers; emit `changed` if that changed."""
        registry, node_id = self._service.registry, self._node_id
        commands = [name for name in registry.commands(node_id) if not matches(name, INTERNAL_COMMANDS)]
        self._tools = build_tools(self.alias, commands, self._service.reports.tools(node_id))
        known = registry.find(node_id)
        where = known.name if known else self.alias
        specs = tuple(_tool_spec(name, tool, where) for name, tool in self._tools.items())
        if specs != self._specs:
            self._specs = specs
            self.changed.emit(None)

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def call(self, call: ToolCall) -> ToolResult:
        tool = self._tools.get(call.name)
        if tool is None:
            raise ToolNotFound(f"Unknown tool: {call.name}")
        progress = _ProgressForwarder(call.context)
        try:
            payload = await self._service.invoke(
                self._node_id,
                tool.command,
                tool.params(call.arguments),
                seconds=CALL_TIMEOUT,
                progress=progress.forward,
                caller_credentials=(device_credential(call.caller.name),) if call.caller.kind == "operator" else (),
                origin=self._service.origin_of(call.caller),
            )
        except RpcError as fault:
            if isinstance(fault, NodeCallError) and fault.node_code == "TIMEOUT":
                raise ToolTimeout("the node did not answer in time and was asked to stop") from None
            code = fault.node_code if isinstance(fault, NodeCallError) else None
            raise ERRORS_OF_NODES.get(code or "", ToolUnavailable)(str(fault)) from None
        finally:
            await progress.flush()
        if tool.is_mcp_tool and isinstance(payload.value, dict):
            return self._read_mcp(payload.value)
        return to_tool_result(payload.value, uri=f"openclaw://node/{self.alias}/{tool.command}")


class _ProgressForwarder:
    """A node's progress on its way to the caller: a node's message must not wait for a client that reads slowly."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._tasks = Tasks("node progress")

    def forward(self, number: int, text: str) -> None:
        if len(self._tasks) < MAX_PROGRESS_TASKS:
            self._tasks.spawn(self._send_progress(number, text), name="message")

    async def _send_progress(self, number: int, text: str) -> None:
        with contextlib.suppress(OpenClawError):  # the client has disconnected: its call ends by itself
            await self._context.progress(number + 1, message=text)

    async def flush(self) -> None:
        """Send what came before the result before it."""
        await self._tasks.finish(PROGRESS_FLUSH_WAIT)


class NodeToolSources:
    """Registers a source when its node connects with tools to offer, and removes it with the node."""

    def __init__(
        self,
        service: NodeService,
        *,
        add_source: Callable[[str, ToolSource], None],
        remove_source: Callable[[str], None],
        read_mcp: ReadMcp,
    ) -> None:
        self._service = service
        self._add_source, self._remove_source, self._read_mcp = add_source, remove_source, read_mcp
        self._sources: dict[str, NodeToolSource] = {}
        service.registry.changed.connect(self.refresh)
        service.reports.changed.connect(self.refresh)

    def refresh(self, node_id: str) -> None:
        known, source = self._service.registry.find(node_id), self._sources.get(node_id)
        alias = known.alias if known and self._service.registry.connection_of(node_id) else None
        if source is not None and source.alias != alias:
            self._remove_source(source_name(source.alias))
            del self._sources[node_id]
            source = None
        if alias is None:
            return
        if source is None:
            source = NodeToolSource(node_id, alias, self._service, self._read_mcp)
            self._sources[node_id] = source
            self._add_source(source_name(alias), source)
        else:
            source.refresh()

    def refresh_all(self) -> None:
        """The config's rules about commands have changed."""
        for node_id in list(self._sources):
            self.refresh(node_id)


def source_name(alias: str) -> str:
    """The name of all of a node's tools in rules."""
    return f"node/{alias}"


def _tool_spec(name: str, tool: NodeTool, node_name: str) -> ToolSpec:
    command, own = tool.command, tool.description
    usual = COMMAND_DESCRIPTIONS.get(command)
    effect: ToolEffect = usual.effect if usual else "run"
    if own is not None:
        description, schema = own.description, own.parameters
    elif usual is not None:
        description, schema = usual.description, usual.schema
    else:
        description, schema = f"Runs the command {command} there; it takes what the node expects.", None
    if schema is None or schema.get("type") != "object":  # no other schema must reach a model's API
        schema = {"type": "object"}
    return ToolSpec(
        name=name,
        title=f"{tool.title} on {node_name}",
        description=f"On the machine {node_name!r}: {description}"[:MAX_DESCRIPTION_LENGTH],
        input_schema=schema,
        effect=effect,
        deadline=CALL_TIMEOUT,
    )


def to_tool_result(payload: Any, *, uri: str) -> ToolResult:
    """A node's payload for a model: images, audio and video as blocks, and the rest as JSON without their bytes."""
    media = _media_block(payload, uri)
    if media is None:
        text = payload if isinstance(payload, str) else msgspec.json.encode(payload).decode()
        structured = payload if isinstance(payload, dict) else msgspec.UNSET
        return ToolResult((Text(text),), structured=structured)
    lean = {key: value for key, value in payload.items() if key not in ("base64", "image", "data")}
    return ToolResult((Text(msgspec.json.encode(lean).decode()), media))


def _media_block(payload: Any, uri: str) -> ContentBlock | None:
    if not isinstance(payload, dict) or not isinstance(payload.get("base64"), str):
        return None
    form = str(payload.get("format", "")).lower()
    try:
        data = b64decode(payload["base64"], validate=True)
    except (BadBase64, ValueError):
        return None
    if form in _PICTURES:
        return Image(data, _PICTURES[form])
    if form in _SOUNDS:
        return Audio(data, _SOUNDS[form])
    kind = "video/mp4" if form == "mp4" else "application/octet-stream"
    return Embedded(Contents(uri=uri, mime_type=kind, blob=data))
