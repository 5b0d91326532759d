"""The node's caretaker: its capabilities, its rules, its doors, opened and closed as the settings file says."""

import asyncio
import contextlib
import hmac
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from .. import __version__
from ..core.errors import OpenClawError, Unauthorized
from ..core.model import Caller, Json, Text, ToolCall, ToolResult, ToolSpec
from ..core.numbers import whole
from ..core.signal import Bell
from ..mcp.server.http_gate import Gate, Headers, Identify
from ..mcp.server.server import Info, McpServer
from ..net.http_limits import Bounds
from ..net.orphan_reaper import Watchman
from ..tools.audit import Record, log
from ..tools.dispatcher import Desk
from ..tools.registry import Registry
from . import settings as node_settings
from .canvas.canvas import Canvas
from .capability import Capability, Missing
from .consent import Consents
from .desktop import Desktop
from .device import Device
from .exec.approvals import Approvals
from .gateway_questions import OnGateway
from .location import Location
from .media.camera import Camera
from .media.screen import Screen
from .media.tts import Tts
from .questions import Asking
from .registry import Capabilities
from .resources import NodeShelf
from .settings import BadSettings, Settings
from .system import System
from .terminal_questions import NoSocket, Terminal
from .token import TokenFile

LOOK_AGAIN: Final = 1.0  # seconds between looks at the settings file
LOOK_ROUND: Final = 5  # looks between checks of what can work here: a display or a camera may have come or gone
NEXT_PORTS: Final = 50  # ports tried after the wanted one with --port auto
LONGEST_REQUEST: Final = 4500.0  # seconds; longer than the longest tool, so that the tool's own limit speaks
HOST: Final = "127.0.0.1"
CALLER: Final = Caller(kind="local", name="mcp-client", scopes=frozenset({"*"}))
"""Whoever holds the token file's token is this machine's own user."""

logger = logging.getLogger(__name__)


class Node:
    """This machine's capabilities behind one counter, whatever door leads to it."""

    def __init__(self, state_dir: Path, settings: Settings | None = None) -> None:
        self.state_dir = state_dir
        self.settings_path = state_dir / node_settings.FILE
        self.settings = settings or node_settings.load(self.settings_path)
        self.desktop = Desktop(asks=lambda: self.settings.ask_on_desktop)
        self.terminal = Terminal(state_dir)
        self.on_gateway = OnGateway(on=lambda: self.settings.ask_on_gateway, seconds=lambda: self.settings.ask_seconds)
        self.asking = Asking(
            [self.desktop, self.terminal, self.on_gateway],
            seconds=lambda: self.settings.ask_seconds,
            in_client=lambda: self.settings.ask_in_client,
        )
        self.approvals = Approvals(state_dir=state_dir, asking=self.asking)
        self.consents = Consents(state_dir=state_dir, asking=self.asking)
        self._watchman = Watchman()
        self._toasts: set[asyncio.Task[None]] = set()
        self.capabilities = Capabilities(switch=self._switch)
        for capability in self._own():
            self.capabilities.add(capability)
        self.shelf = NodeShelf(lambda: shown_settings(self))
        self._desk = Desk(Registry({"node": self.capabilities}), audit=self._audit)
        self.tools = NodeTools(self.capabilities, self._desk, self.shelf)

    def server(self) -> McpServer:
        return server(self.tools, self.shelf)

    def _own(self) -> Sequence[Capability]:
        """Every capability this package has, once."""
        settings = self.settings
        return (
            System(approvals=self.approvals, desktop=self.desktop, guard=self._watchman),
            Device(display_name=lambda: self.settings.display_name),
            Screen(consent=self.consents, tell=self._tell),
            Canvas(state_dir=self.state_dir, browser=settings.canvas_browser, trusted=settings.canvas_trusted),
            Camera(consent=self.consents, device=settings.camera_device, source=settings.camera_source),
            Location(fixed=settings.location_fixed),
            Tts(
                state_dir=self.state_dir,
                provider=settings.tts_provider,
                voice=settings.tts_voice,
                elevenlabs_voice=settings.elevenlabs_voice,
                elevenlabs_model=settings.elevenlabs_model,
            ),
        )

    def _tell(self, text: str) -> None:
        """Let the person know; where there is no desktop there is nobody to tell."""
        if self.desktop.missing() is None:
            task = asyncio.ensure_future(self._toast(text))
            self._toasts.add(task)
            task.add_done_callback(self._toasts.discard)

    async def _toast(self, text: str) -> None:
        with contextlib.suppress(OpenClawError):
            await self.desktop.notify("OpenClaw", text, urgency="low", sound=False)

    def _switch(self, category: str, command: str) -> Missing | None:
        if not self.settings.on(category):
            remedy = (
                f'Run `openclaw node setup`, or write "capabilities": {{"{category}": true}} into {self.settings_path}.'
            )
            return Missing(f"{category} is switched off.", remedy)
        if command in ("system.run", "system.run.prepare") and not self.settings.run_system_tools:
            return Missing("Running commands is switched off.", f"Set runSystemTools to true in {self.settings_path}.")
        return None

    def _audit(self, record: Record) -> None:
        log(record)
        self.shelf.record(record)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Be ready to ask people; leaving closes what the capabilities hold."""
        try:
            await self.terminal.open()
        except (NoSocket, OSError) as exc:
            logger.warning("%s", exc)
        try:
            yield
        finally:
            for toast in self._toasts:
                toast.cancel()
            await self.terminal.aclose()
            await self.capabilities.aclose()
            await asyncio.to_thread(self._watchman.close)


class NodeTools:
    """A `Toolbox` that looks at what can work whenever it is asked, and says why something can't."""

    def __init__(self, capabilities: Capabilities, desk: Desk, shelf: NodeShelf) -> None:
        self._capabilities = capabilities
        self._desk = desk
        self._shelf = shelf

    @property
    def changed(self) -> Bell[None]:
        return self._desk.changed

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        self._capabilities.refresh()
        return await self._desk.list(caller)

    async def call(self, call: ToolCall) -> ToolResult:
        if not self._capabilities.offers(call.name) and self._capabilities.knows(call.name):
            self._capabilities.require(call.name)  # says why it can't be used,
            self._capabilities.refresh()  # or it can by now
        result = await self._desk.call(call)
        if len(result.content) > 1:
            self._shelf.keep(call.name, result)
        return result


class SeenByModels:
    """The node's tools as MCP clients should get them: a picture is shown once, as a picture.

    Some clients hand the model `structuredContent` instead of the blocks; with the bytes in it, the model would read
    base64 and see nothing.
    """

    def __init__(self, tools: NodeTools) -> None:
        self._tools = tools

    @property
    def changed(self) -> Bell[None]:
        return self._tools.changed

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        return await self._tools.list(caller)

    async def call(self, call: ToolCall) -> ToolResult:
        result = await self._tools.call(call)
        if len(result.content) == 1 and isinstance(result.content[0], Text):
            return result  # nearly always
        if any(not isinstance(block, Text) for block in result.content):
            return msgspec.structs.replace(result, structured=msgspec.UNSET)
        return result


def server(tools: NodeTools, shelf: NodeShelf) -> McpServer:
    info = Info(name="openclaw-node", version=__version__, title="OpenClaw node")
    return McpServer(info, SeenByModels(tools), resources=shelf, instructions=INSTRUCTIONS)


INSTRUCTIONS: Final = (
    "These tools act on the machine this server runs on. Commands, the camera and screen recordings may need its "
    "person's approval; a refusal says how to get it."
)


def shown_settings(node: Node) -> Json:
    """The settings and what is on offer, without secrets."""
    standings = node.capabilities.standings()
    return {
        "settings": msgspec.to_builtins(node.settings),
        "stateDirectory": str(node.state_dir),
        "commands": {standing.name: standing.missing is None for standing in standings},
    }


# ---- the HTTP door ---------------------------------------------------------------------------------------------------


class PortChoice(msgspec.Struct, frozen=True):
    port: int
    auto: bool = False
    """Take the next free one when it is taken."""
    option: str = "--port"
    """What chooses another, for people."""


def chosen_port(flag: str | None, settings: Settings) -> PortChoice:
    """A flag wins over OPENCLAW_MCP_PORT, that over the setting. Raises BadSettings."""
    said = flag or os.environ.get("OPENCLAW_MCP_PORT")
    if not said:
        return PortChoice(settings.mcp_port)
    if said == "auto":
        return PortChoice(settings.mcp_port, auto=True)
    port = whole(said, most=65535)
    if port is None:
        raise BadSettings(f"{said!r} is no port: give a number from 0 to 65535, or auto")
    return PortChoice(port)


def identify(token: TokenFile) -> Identify:
    """Admit whoever carries the token the file holds right now."""

    def check(headers: Headers) -> Caller:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        wanted = token.current()
        if wanted and scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), wanted.encode()):
            return CALLER
        raise Unauthorized("missing or invalid bearer token")

    return check


@asynccontextmanager
async def mcp_over_http(node: Node, choice: PortChoice, *, bounds: Bounds = Bounds()) -> AsyncIterator[str]:
    """The local MCP server, answering while the block runs; yields its address."""
    # Here for start-up: `openclaw node --stdio` and the doctor need no web server.
    from ..mcp.server.http import McpHttp
    from ..net import listen

    token = TokenFile(node.state_dir)
    if node.settings.require_token:
        token.ensure()
        if token.readable_by_others():
            logger.warning("%s can be read by other users: chmod 600 it", token.path)
    listener = _bound(choice, listen)
    address = f"http://{HOST}:{listener.getsockname()[1]}/"
    gate = Gate(
        identify=identify(token) if node.settings.require_token else lambda _: CALLER,
        loopback_peers=True,
        origins=frozenset(),
        browsers=False,
        json_only=True,
        silent_401=True,
        slots=node.settings.mcp_slots,
        longest=LONGEST_REQUEST,
    )
    endpoint = McpHttp(node.server(), gate=gate, probe=f"OpenClaw MCP server. POST JSON-RPC to {address}\n")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(listen.serving(endpoint, listener, bounds=bounds))
        stack.push_async_callback(endpoint.aclose)  # first, so that no open stream holds the server up
        yield address


def _bound(choice: PortChoice, listen: Any) -> Any:
    last = choice.port + NEXT_PORTS if choice.auto and choice.port else choice.port
    for port in range(choice.port, min(last, 65535)):
        with contextlib.suppress(listen.PortTaken):
            return listen.bind(HOST, port, option=choice.option)
    return listen.bind(HOST, 0 if choice.auto else choice.port, option=choice.option)


# ---- the gateway -----------------------------------------------------------------------------------------------------


class Gateway(Protocol):
    """A connection to a gateway that offers the node's commands and brings its invocations."""

    def __call__(self, node: Node, /) -> contextlib.AbstractAsyncContextManager[str]:
        """Stay connected, redialling, while the block runs; yields the address for people."""


# ---- doors as the settings say ---------------------------------------------------------------------------------------


class NodeHost:
    """Keeps the doors as the settings file says, while `run` runs."""

    def __init__(
        self,
        node: Node,
        *,
        port: str | None = None,
        gateway: Gateway | None = None,
        announce: Callable[[str], None] = lambda _: None,
        option: str = "--port",
    ) -> None:
        """`option`: what chooses another port, for people."""
        self._node = node
        self._port = port
        self._option = option
        self._gateway = gateway
        self._announce = announce
        self._doors: dict[str, tuple[object, AsyncExitStack]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises at once when a door that is wanted from the start can't be opened."""
        async with self._node.open():
            try:
                seen = _stamp(self._node.settings_path)
                await self._apply()
                await self._follow(stop, seen)
            finally:
                for name in list(self._doors):
                    await self._close(name)

    async def _follow(self, stop: asyncio.Event, seen: object) -> None:
        looks = 0
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN):
                    await stop.wait()
            looks += 1
            if looks % LOOK_ROUND == 0:
                self._node.capabilities.refresh()
            now = _stamp(self._node.settings_path)
            if now != seen and not stop.is_set():
                seen = now
                await self._reload()

    async def _reload(self) -> None:
        try:
            self._node.settings = node_settings.load(self._node.settings_path)
            self._node.capabilities.refresh()
            await self._apply()
        except (OpenClawError, OSError) as exc:
            self._announce(f"settings: {exc}")

    async def _apply(self) -> None:
        """Close what is no longer wanted, open what is; a door whose settings changed is opened anew."""
        settings = self._node.settings
        choice = msgspec.structs.replace(chosen_port(self._port, settings), option=self._option)
        wanted: dict[str, object] = {}
        if settings.enable_mcp_server:
            wanted["mcp"] = (choice, settings.mcp_slots, settings.require_token)
        if settings.enable_node_mode and self._gateway is not None:
            wanted["gateway"] = (settings.gateway_url, settings.display_name)
        for name in [name for name, (made_for, _) in self._doors.items() if wanted.get(name) != made_for]:
            await self._close(name)
        for name, made_for in wanted.items():
            if name not in self._doors:
                door = mcp_over_http(self._node, choice) if name == "mcp" else self._open_gateway()
                stack = AsyncExitStack()
                address = await stack.enter_async_context(door)
                self._doors[name] = (made_for, stack)
                self._announce(f"{name}: {address}")
        if not wanted:
            self._announce(f"node: neither MCP nor gateway is switched on in {self._node.settings_path}; waiting")

    def _open_gateway(self) -> contextlib.AbstractAsyncContextManager[str]:
        assert self._gateway is not None
        return self._gateway(self._node)

    async def _close(self, name: str) -> None:
        _, stack = self._doors.pop(name)
        await stack.aclose()
        self._announce(f"{name}: closed")


def _stamp(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ino, status.st_size)
