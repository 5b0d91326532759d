"""Connected nodes as tools: one source a node, on the menu while the node is here and approved."""

import asyncio
import contextlib
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from ...core.errors import OpenClawError, ToolNotFound, ToolTimeout, ToolUnavailable
from ...core.model import Audio, Block, Contents, Effect, Embedded, Image, Json, Text, ToolCall, ToolResult, ToolSpec
from ...core.ports import Line, ToolSource
from ...core.rpc import Fault
from ...core.signal import Bell
from .approval_queue import device_credential
from .command_docs import MCP_CALL, NOT_TOOLS, WORDS
from .permissions import matches
from .registry import Roll
from .reports import Described, Telling
from .rpc_methods import Nodes
from .tool_names import tool_name, tool_names

LONGEST_CALL: Final = 960.0  # seconds: a command of ten minutes, five for its person to allow it, and some slack
LONGEST_DESCRIPTION: Final = 1024  # characters; some model APIs refuse longer ones
MOST_NEWS: Final = 32  # pieces of progress on their way to a slow reader; more are dropped
NEWS_WAIT: Final = 1.0  # seconds a reader gets for them once the result is there
_PICTURES: Final = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp"}
_SOUNDS: Final = {"wav": "audio/wav", "mp3": "audio/mpeg", "ogg": "audio/ogg"}


ReadMcp = Callable[[Json], ToolResult]
"""Reads the answer of an MCP server."""


class Offer(Struct, frozen=True):
    """What is behind a tool: a command, and the node's words for it."""

    command: str
    title: str
    told: Described | None = None

    @property
    def of_server(self) -> bool:
        return self.command == MCP_CALL

    def params(self, arguments: Json) -> Json:
        if not self.of_server or self.told is None or self.told.mcp is None:
            return arguments
        return {"server": self.told.mcp.server, "tool": self.told.mcp.tool, "arguments": arguments}


def offered(alias: str, commands: Sequence[str], told: Sequence[Described]) -> dict[str, Offer]:
    """Tools by name. One is called as its command; those that share a command, as the node calls them."""
    sharing: dict[str, list[Described]] = {}
    for tool in told:
        if tool.command is not None:
            sharing.setdefault(tool.command, []).append(tool)
    names = tool_names(alias, [command for command in commands if len(sharing.get(command, ())) < 2])
    offers = {name: Offer(word, word, next(iter(sharing.get(word, ())), None)) for name, word in names.items()}
    for command, tools in sharing.items():
        if command in names.values():
            continue
        for tool in tools:
            if command in commands or (command == MCP_CALL and tool.mcp is not None):
                offers[tool_name(alias, tool.name, offers)] = Offer(command, tool.name, tool)
    return offers


class NodeTools:
    """A `ToolSource`: what one node may be asked to do."""

    def __init__(self, node_id: str, alias: str, roll: Roll, telling: Telling, room: Nodes, read_mcp: ReadMcp) -> None:
        self.changed: Bell[None] = Bell()
        self.alias = alias
        self._node_id = node_id
        self._roll = roll
        self._telling = telling
        self._room = room
        self._read_mcp = read_mcp
        self._specs: tuple[ToolSpec, ...] = ()
        self._offers: dict[str, Offer] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look again at what it offers; ring if that changed."""
        commands = [name for name in self._roll.commands(self._node_id) if not matches(name, NOT_TOOLS)]
        self._offers = offered(self.alias, commands, self._telling.tools(self._node_id))
        known = self._roll.find(self._node_id)
        where = known.name if known else self.alias
        specs = tuple(_spec(name, offer, where) for name, offer in self._offers.items())
        if specs != self._specs:
            self._specs = specs
            self.changed.ring(None)

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def call(self, call: ToolCall) -> ToolResult:
        offer = self._offers.get(call.name)
        if offer is None:
            raise ToolNotFound(f"Unknown tool: {call.name}")
        teller = _Teller(call.line)
        try:
            payload = await self._room.ask(
                self._node_id,
                offer.command,
                offer.params(call.arguments),
                seconds=LONGEST_CALL,
                progress=teller.hear,
                by=(device_credential(call.caller.name),) if call.caller.kind == "operator" else (),
            )
        except Fault as fault:
            raise _as_tool_error(fault) from None
        finally:
            await teller.settle()
        if offer.of_server and isinstance(payload.value, dict):
            return self._read_mcp(payload.value)
        return as_result(payload.value, uri=f"openclaw://node/{self.alias}/{offer.command}")


class _Teller:
    """A node's progress on its way to the caller: a node's word must not wait for a reader."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._news: set[asyncio.Task[None]] = set()

    def hear(self, number: int, text: str) -> None:
        if len(self._news) < MOST_NEWS:
            task = asyncio.ensure_future(self._tell(number, text))
            self._news.add(task)
            task.add_done_callback(self._news.discard)

    async def _tell(self, number: int, text: str) -> None:
        with contextlib.suppress(OpenClawError):  # the caller has gone: its call ends by itself
            await self._line.progress(number + 1, message=text)

    async def settle(self) -> None:
        """Let what came before the result be told before it."""
        if self._news:
            await asyncio.wait(self._news, timeout=NEWS_WAIT)
        for task in self._news:
            task.cancel()


class Stalls:
    """Keeps the menu: a source comes when its node has tools to offer, and goes with it."""

    def __init__(
        self,
        roll: Roll,
        telling: Telling,
        room: Nodes,
        *,
        add: Callable[[str, ToolSource], None],
        remove: Callable[[str], None],
        read_mcp: ReadMcp,
    ) -> None:
        self._roll = roll
        self._telling = telling
        self._room = room
        self._add = add
        self._remove = remove
        self._read_mcp = read_mcp
        self._stalls: dict[str, NodeTools] = {}
        roll.changed.listen(self.look)
        telling.changed.listen(self.look)

    def look(self, node_id: str) -> None:
        known, stall = self._roll.find(node_id), self._stalls.get(node_id)
        alias = known.alias if known and self._roll.here(node_id) else None
        if stall is not None and stall.alias != alias:
            self._remove(source_name(stall.alias))
            del self._stalls[node_id]
            stall = None
        if alias is None:
            return
        if stall is None:
            stall = NodeTools(node_id, alias, self._roll, self._telling, self._room, self._read_mcp)
            self._stalls[node_id] = stall
            self._add(source_name(alias), stall)
        else:
            stall.refresh()

    def look_at_all(self) -> None:
        """The config's rules about commands have changed."""
        for node_id in list(self._stalls):
            self.look(node_id)


def source_name(alias: str) -> str:
    """What rules call a node's tools as a whole."""
    return f"node/{alias}"


def _spec(name: str, offer: Offer, where: str) -> ToolSpec:
    command, told = offer.command, offer.told
    word = WORDS.get(command)
    effect: Effect = word.effect if word else "run"
    if told is not None:
        description, schema = told.description, told.parameters
    else:
        description = word.description if word else f"Runs the command {command} there; it takes what the node expects."
        schema = word.schema if word else None
    return ToolSpec(
        name=name,
        title=f"{offer.title} on {where}",
        description=f"On the machine {where!r}: {description}"[:LONGEST_DESCRIPTION],
        input_schema=_object(schema),
        effect=effect,
        deadline=LONGEST_CALL,
    )


def _object(schema: Json | None) -> Json:
    """A node's schema, if it is one for an object; what is no such schema must not reach a model's API."""
    return schema if schema is not None and schema.get("type") == "object" else {"type": "object"}


def _as_tool_error(fault: Fault) -> Exception:
    details: Any = fault.details
    error: Any = details.get("nodeError") if isinstance(details, dict) else None
    if isinstance(error, dict) and error.get("code") == "TIMEOUT":
        return ToolTimeout("the node did not answer in time and was told to stop")
    return ToolUnavailable(str(fault))


def as_result(payload: Any, *, uri: str) -> ToolResult:
    """A node's payload for a model: pictures, sound and films as blocks, and the rest as JSON without their bytes."""
    media = _media(payload, uri)
    if media is None:
        text = payload if isinstance(payload, str) else msgspec.json.encode(payload).decode()
        structured = payload if isinstance(payload, dict) else msgspec.UNSET
        return ToolResult((Text(text),), structured=structured)
    lean = {key: value for key, value in payload.items() if key not in ("base64", "image", "data")}
    return ToolResult((Text(msgspec.json.encode(lean).decode()), media))


def _media(payload: Any, uri: str) -> Block | None:
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
