"""The node: its capabilities behind one dispatcher, and its endpoints, opened and closed as the settings file says."""

import asyncio
import contextlib
import hmac
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from .. import __version__
from ..core.errors import OpenClawError, Unauthorized
from ..core.model import Caller, Json, Text, ToolCall, ToolResult, ToolSpec
from ..core.numbers import parse_whole_number
from ..core.signal import Signal
from ..mcp.server.http_gate import HeaderMap, HttpAccessRules, Identify
from ..mcp.server.server import McpServer, McpServerInfo
from ..net.http_limits import ConnectionBounds
from ..net.orphan_reaper import OrphanReaper
from ..net.tasks import Tasks
from ..tools.audit import AuditRecord, log_record
from ..tools.dispatcher import ToolDispatcher
from ..tools.registry import ToolRegistry
from . import settings as node_settings
from .address_file import AddressFile
from .canvas.canvas import CanvasCapability
from .capability import Capability, UnavailableReason
from .consent import ConsentStore
from .desktop import DesktopNotifier
from .device import DeviceCapability
from .exec.approvals import ExecAuthorizer
from .gateway_questions import GatewayPrompter
from .location import LocationCapability
from .media.camera import CameraCapability
from .media.screen import ScreenCapability
from .media.tts import TtsCapability
from .private_files import file_stamp
from .prompts import NodePrompts
from .questions import PromptRouter
from .registry import CapabilityRegistry
from .resources import NodeResources
from .settings import BadSettings, NodeSettings
from .system import SystemCapability
from .terminal_questions import SocketUnavailable, TerminalPrompter
from .token import TokenFile

SETTINGS_POLL: Final = 1.0  # seconds between checks of the settings file
POLLS_PER_REFRESH: Final = 5  # polls between checks of what can work here: a display or a camera may have come or gone
MOST_AUTO_PORTS: Final = 50  # ports tried after the one of the settings when that is taken
MAX_REQUEST: Final = 4500.0  # seconds; longer than the longest tool, so that the tool's own limit counts
HOST: Final = "127.0.0.1"
MCP_CLIENT_CALLER: Final = Caller(kind="local", name="mcp-client", scopes=frozenset({"*"}))
"""The holder of the token file's token is this machine's own user."""

logger = logging.getLogger(__name__)


class LocalNode:
    """This machine's capabilities behind one dispatcher, which every endpoint uses."""

    def __init__(self, state_dir: Path, settings: NodeSettings | None = None) -> None:
        self.state_dir = state_dir
        self.settings_path = state_dir / node_settings.SETTINGS_FILE
        self.settings = settings or node_settings.load_settings(self.settings_path)
        self.desktop = DesktopNotifier(ask_on_desktop=lambda: self.settings.ask_on_desktop)
        self.terminal = TerminalPrompter(state_dir)
        self.gateway_prompter = GatewayPrompter(
            ask_on_gateway=lambda: self.settings.ask_on_gateway, seconds=lambda: self.settings.ask_seconds
        )
        self.prompt_router = PromptRouter(
            [self.desktop, self.terminal, self.gateway_prompter],
            seconds=lambda: self.settings.ask_seconds,
            ask_in_client=lambda: self.settings.ask_in_client,
            wait_for_person=self.terminal.wait_for_watcher,
        )
        self.approvals = ExecAuthorizer(state_dir=state_dir, prompt_router=self.prompt_router)
        self.consents = ConsentStore(state_dir=state_dir, prompt_router=self.prompt_router)
        self._orphan_reaper = OrphanReaper()
        self._tasks = Tasks("node")
        self.capabilities = CapabilityRegistry(off_reason=self._off_reason)
        for capability in self._create_capabilities():
            self.capabilities.add(capability)
        self.resources = NodeResources(lambda: describe_settings(self))
        self._dispatcher = ToolDispatcher(ToolRegistry({"node": self.capabilities}), audit=self._audit)
        self.tools = LocalNodeTools(self.capabilities, self._dispatcher, self.resources)
        self._mcp_tools = McpNodeTools(self.capabilities, self._dispatcher, self.resources)
        self._prompts = NodePrompts(self.capabilities)

    def create_mcp_server(self) -> McpServer:
        info = McpServerInfo(name="openclaw-node", version=__version__, title="OpenClaw node")
        return McpServer(
            info, self._mcp_tools, resources=self.resources, prompts=self._prompts, instructions=INSTRUCTIONS
        )

    def follow_settings(self) -> None:
        """Use the settings file as it is edited, while `open` runs; for a node without a `NodeHost`."""
        poll = SettingsPoll(self)

        async def look() -> None:
            if poll.has_changed():
                try:
                    self.reload_settings()
                except OpenClawError as exc:
                    logger.warning("node: the settings stay as they were: %s", exc)

        self._tasks.loop(look, name="settings", every=SETTINGS_POLL, on_failure="restart")

    def reload_settings(self) -> None:
        """Raises BadSettings; the settings stay as they were then."""
        self.settings = node_settings.load_settings(self.settings_path)
        self.capabilities.refresh()

    def _current_settings(self) -> NodeSettings:
        return self.settings

    def _create_capabilities(self) -> Sequence[Capability]:
        """Every capability this package has, once."""
        settings, folder = self._current_settings, self.state_dir
        return (
            SystemCapability(approvals=self.approvals, desktop=self.desktop, guard=self._orphan_reaper),
            DeviceCapability(display_name=lambda: self.settings.display_name),
            ScreenCapability(consent=self.consents, notify=self._notify_user),
            CanvasCapability(state_dir=folder, settings=settings),
            CameraCapability(consent=self.consents, settings=settings),
            LocationCapability(settings=settings),
            TtsCapability(state_dir=folder, settings=settings),
        )

    def _notify_user(self, text: str) -> None:
        """Where there is no desktop, there is no person to notify."""
        if self.desktop.unavailable_reason() is None:
            self._tasks.spawn(self._show_notification(text), name="desktop notification")

    async def _show_notification(self, text: str) -> None:
        with contextlib.suppress(OpenClawError):
            await self.desktop.notify("OpenClaw", text, urgency="low", sound=False)

    def _off_reason(self, category: str, command: str) -> UnavailableReason | None:
        if not self.settings.is_enabled(category):
            remedy = (
                f'Run `openclaw node setup`, or write "capabilities": {{"{category}": true}} into {self.settings_path}.'
            )
            return UnavailableReason(f"{category} is switched off.", remedy)
        if command in ("system.run", "system.run.prepare") and not self.settings.run_system_tools:
            return UnavailableReason(
                "Running commands is switched off.", f"Set runSystemTools to true in {self.settings_path}."
            )
        return None

    def _audit(self, record: AuditRecord) -> None:
        log_record(record)
        self.resources.record_call(record)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Be ready to ask people; leaving closes what the capabilities hold."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, self._orphan_reaper.close)
            stack.push_async_callback(self.capabilities.aclose)
            stack.push_async_callback(self._tasks.aclose)
            try:
                await stack.enter_async_context(self.terminal.listen())
            except (SocketUnavailable, OSError) as exc:
                logger.warning("node: the socket for terminals can't be opened (%s), going on without", exc)
            yield


class SettingsPoll:
    """One look at a time: has the settings file changed, and, at every few looks, which commands can work?"""

    def __init__(self, node: LocalNode) -> None:
        self._node = node
        self._looks = 0
        self._stamp = file_stamp(node.settings_path)

    def has_changed(self) -> bool:
        """Whether the settings file is another one than at the last look."""
        self._looks += 1
        if self._looks % POLLS_PER_REFRESH == 0:
            self._node.capabilities.refresh()
        before, self._stamp = self._stamp, file_stamp(self._node.settings_path)
        return self._stamp != before


class LocalNodeTools:
    """A `Toolbox` that checks what can work at each listing, and reports why a command can't."""

    def __init__(self, capabilities: CapabilityRegistry, dispatcher: ToolDispatcher, resources: NodeResources) -> None:
        self._capabilities, self._dispatcher, self._resources = capabilities, dispatcher, resources

    @property
    def changed(self) -> Signal[None]:
        return self._dispatcher.changed

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        self._capabilities.refresh()
        return await self._dispatcher.list(caller)

    async def call(self, call: ToolCall) -> ToolResult:
        if not self._capabilities.is_available(call.name) and self._capabilities.has_command(call.name):
            self._capabilities.require(call.name)  # raises with the reason,
            self._capabilities.refresh()  # unless it can be used by now
        result = await self._dispatcher.call(call)
        if len(result.content) > 1:
            self._resources.keep_captures(call.name, result)
        return result


class McpNodeTools(LocalNodeTools):
    """The node's tools as MCP clients get them: a picture once, as a picture.

    Some clients hand the model `structuredContent` instead of the blocks; with the bytes in it, the model would read
    base64 instead of seeing it.
    """

    async def call(self, call: ToolCall) -> ToolResult:
        result = await super().call(call)
        if all(isinstance(block, Text) for block in result.content):
            return result
        return msgspec.structs.replace(result, structured=msgspec.UNSET)


INSTRUCTIONS: Final = (
    "These tools act on the machine this server runs on. Commands, the camera and screen recordings may need its "
    "person's approval; a refusal says how to get it."
)


def describe_settings(node: LocalNode) -> Json:
    """The settings and which commands are available, without secrets."""
    return {
        "settings": msgspec.to_builtins(node.settings),
        "stateDirectory": str(node.state_dir),
        "commands": {status.name: status.missing is None for status in node.capabilities.statuses()},
    }


# ---- the HTTP endpoint -----------------------------------------------------------------------------------------------


class PortChoice(msgspec.Struct, frozen=True):
    port: int
    auto: bool = False
    """Take the next free one when it is taken."""
    option: str = "--port"
    """The command-line option that chooses another, for error texts."""


def choose_port(flag: str | None, settings: NodeSettings) -> PortChoice:
    """A flag wins over OPENCLAW_MCP_PORT, that over the setting, which gives way to the next free one when it is
    taken. Raises BadSettings."""
    text = flag or os.environ.get("OPENCLAW_MCP_PORT")
    if not text or text == "auto":
        return PortChoice(settings.mcp_port, auto=True)
    port = parse_whole_number(text, maximum=65535)
    if port is None:
        raise BadSettings(f"{text!r} is no port: give a number from 0 to 65535, or auto")
    return PortChoice(port)


def make_token_check(token: TokenFile) -> Identify:
    """Admit requests with the token that the file holds right now."""

    def check(headers: HeaderMap) -> Caller:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        wanted = token.current_token()
        if wanted and scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), wanted.encode()):
            return MCP_CLIENT_CALLER
        raise Unauthorized("missing or invalid bearer token")

    return check


@asynccontextmanager
async def serve_mcp_http(
    node: LocalNode, choice: PortChoice, *, bounds: ConnectionBounds = ConnectionBounds()
) -> AsyncIterator[str]:
    """The local MCP server, answering while the block runs; yields its address, which a file holds meanwhile."""
    # Here for start-up: `openclaw node --stdio` and the doctor need no web server.
    from ..mcp.server.http import McpHttp
    from ..net import listen

    token = TokenFile(node.state_dir)
    if node.settings.require_token:
        token.ensure()
        if token.is_readable_by_others():
            logger.warning("%s can be read by other users: chmod 600 it", token.path)
    listener = _bind_socket(choice)
    address = f"http://{HOST}:{listener.getsockname()[1]}/"
    gate = HttpAccessRules(
        identify=make_token_check(token) if node.settings.require_token else lambda _: MCP_CLIENT_CALLER,
        loopback_only=True,
        allowed_origins=frozenset(),
        allow_browsers=False,
        json_only=True,
        silent_401=True,
        max_concurrent=node.settings.mcp_slots,
        max_seconds=MAX_REQUEST,
    )
    endpoint = McpHttp(
        node.create_mcp_server(), access_rules=gate, probe_text=f"OpenClaw MCP server. POST JSON-RPC to {address}\n"
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(listen.serve_in_background(endpoint, listener, bounds=bounds))
        stack.push_async_callback(endpoint.aclose)  # closed first, so that no open stream delays the server
        file = AddressFile(node.state_dir)
        file.write(address)
        stack.callback(file.remove, address)
        yield address


def _bind_socket(choice: PortChoice) -> socket.socket:
    from ..net import listen  # here for start-up, as above

    last = choice.port + MOST_AUTO_PORTS if choice.auto and choice.port else choice.port
    for port in range(choice.port, min(last, 65535)):
        with contextlib.suppress(listen.PortTaken):
            return listen.bind(HOST, port, option=choice.option)
    return listen.bind(HOST, 0 if choice.auto else choice.port, option=choice.option)


class NodeGatewayConnector(Protocol):
    """A connection to a gateway that offers the node's commands and brings its invocations."""

    def __call__(self, node: LocalNode, /) -> AbstractAsyncContextManager[str]:
        """Stay connected, redialling, while the block runs; yields the address for people."""


class NodeHost:
    """Keeps the endpoints as the settings file says, while `run` runs."""

    def __init__(
        self,
        node: LocalNode,
        *,
        port: str | None = None,
        gateway: NodeGatewayConnector | None = None,
        announce: Callable[[str], None] = lambda _: None,
        port_option: str = "--port",
    ) -> None:
        """`port_option`: the command-line option that chooses another port, for error texts."""
        self._node, self._port, self._port_option, self._gateway = node, port, port_option, gateway
        self._announce = announce
        self._endpoints: dict[str, tuple[object, AsyncExitStack]] = {}
        """By name: the settings it was opened with, and what closes it."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises at once when an endpoint that is wanted from the start can't be opened."""
        async with self._node.open():
            try:
                poll = SettingsPoll(self._node)
                await self._apply_settings()
                await self._watch_settings(stop, poll)
            finally:
                for name in list(self._endpoints):
                    await self._close_endpoint(name)

    async def _watch_settings(self, stop: asyncio.Event, poll: SettingsPoll) -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTINGS_POLL):
                    await stop.wait()
            if poll.has_changed() and not stop.is_set():
                await self._reload_settings()

    async def _reload_settings(self) -> None:
        try:
            self._node.reload_settings()
            await self._apply_settings()
        except (OpenClawError, OSError) as exc:
            self._announce(f"settings: {exc}")

    async def _apply_settings(self) -> None:
        """Close what is no longer wanted, open what is; an endpoint whose settings changed is closed and opened."""
        settings, gateway = self._node.settings, self._gateway
        choice = msgspec.structs.replace(choose_port(self._port, settings), option=self._port_option)
        wanted: dict[str, tuple[object, Callable[[], AbstractAsyncContextManager[str]]]] = {}
        if settings.enable_mcp_server:
            options = (choice, settings.mcp_slots, settings.require_token)
            wanted["mcp"] = (options, lambda: serve_mcp_http(self._node, choice))
        if settings.enable_node_mode and gateway is not None:
            wanted["gateway"] = ((settings.gateway_url, settings.display_name), lambda: gateway(self._node))
        for name in [
            name for name, (used, _) in self._endpoints.items() if name not in wanted or wanted[name][0] != used
        ]:
            await self._close_endpoint(name)
        for name, (used, open_endpoint) in wanted.items():
            if name not in self._endpoints:
                stack = AsyncExitStack()
                address = await stack.enter_async_context(open_endpoint())
                self._endpoints[name] = (used, stack)
                self._announce(f"{name}: {address}")
                if name == "mcp" and choice.port and urlsplit(address).port != choice.port:
                    file = AddressFile(self._node.state_dir).path
                    self._announce(f"node: port {choice.port} is taken, so this one is used; {file} holds the address")
        if not wanted:
            self._announce(f"node: neither MCP nor gateway is switched on in {self._node.settings_path}; waiting")

    async def _close_endpoint(self, name: str) -> None:
        _, stack = self._endpoints.pop(name)
        await stack.aclose()
        self._announce(f"{name}: closed")
