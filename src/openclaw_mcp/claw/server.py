"""The server of the 29 tools, and its one connection to the gateway."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

from .. import __version__
from ..core.errors import ToolUnavailable
from ..core.model import Caller, Json, ToolSpec
from ..core.rpc import ADMIN, READ, WRITE
from ..core.session_target import SessionAddress
from ..core.signal import Signal
from ..mcp.server.server import McpServer, McpServerInfo
from ..net.file_access import FileAccess, sendable_folders
from ..net.gateway_client.acting_headers import TOOLS_CHANGED, is_grant_token, session_headers
from ..net.gateway_client.address import is_local_gateway
from ..net.gateway_client.client import CallTimeout, CannotConnect, ConnectionGone, GatewayClient
from ..net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials
from ..net.side_effects_file import EffectsFile
from ..net.state_dir import state_dir_path
from ..net.tasks import Tasks
from ..protocol.gateway_frames import EventFrame
from ..tools.dispatcher import ToolDispatcher
from ..tools.policy import Policy, PolicyDecision
from ..tools.registry import ToolRegistry
from .further_tools import FurtherTools
from .settings import ClawSettings
from .tool_context import CALL_TIMEOUT, ClawContext, GatewayOffer, OutcomeUnknown
from .toolbox import ClawToolbox, ClawTools

SERVER_NAME: Final = "remoteclaw"
FURTHER_SOURCE: Final = "gateway"
"""The source of the tools besides the 29."""
FIRST_LIST_TIMEOUT: Final = 3.0  # seconds the first list waits for the gateway's answer which tools this session has
RECONNECT_TIMEOUT: Final = 45.0  # seconds a gateway that was there gets to come back: a real one takes half of that
RECONNECT_INTERVAL: Final = 0.25  # seconds between two attempts to reach a gateway that is coming back
LocateGateway = Callable[[], tuple[str, Credentials]]
UNADVERTISED_METHODS: Final = frozenset({"sessions.resolve"})


class ClawGatewayClient:
    """A `ClawGateway` over the network. One connection, dialled by the first call."""

    def __init__(self, settings: ClawSettings, locate: LocateGateway | None = None) -> None:
        client_info = ClientInfo(
            id="gateway-client", mode="backend", version=__version__, platform=sys.platform, display_name="mcp-server"
        )
        # Under the gateway's own token the rules of the session named here hold; a grant knows its session itself.
        address = SessionAddress(
            session=settings.session_key, channel=settings.channel, account=settings.account, to=settings.to,
            thread=settings.thread,
        )  # fmt: skip
        self._client = GatewayClient(
            settings.url,
            # A grant opens what its run may do, whichever scopes are asked for; the gateway's own token opens all.
            ClientProfile(client=client_info, scopes=(READ, WRITE, ADMIN)),
            credentials=Credentials(token=settings.token),
            headers=session_headers(address),
            locate=locate,
        )
        self.offered: Signal[GatewayOffer] = Signal()
        self._stack = AsyncExitStack()
        self._tasks = Tasks("claw gateway")
        self._connect_task: asyncio.Task[GatewayClient] | None = None
        self._methods: frozenset[str] = frozenset()
        self._client.connected.connect(self._on_hello)
        self._client.events.connect(self._on_event)

    async def aclose(self) -> None:
        await self._tasks.aclose()
        await self._stack.aclose()

    async def methods(self) -> frozenset[str]:
        await self._connect()
        return self._methods

    async def call(self, method: str, params: Json, *, within: float = CALL_TIMEOUT, repeatable: bool = False) -> Any:
        await self._connect()
        try:
            return await self._call_with_retry(method, params, within)
        except (ConnectionGone, CallTimeout) as exc:
            if not repeatable or isinstance(exc, CallTimeout):
                raise OutcomeUnknown(f"{exc}; whether it was done is not known") from exc
        try:
            return await self._call_with_retry(method, params, within)
        except (ConnectionGone, CallTimeout, ToolUnavailable) as exc:
            raise OutcomeUnknown(f"{exc}; whether it was done is not known") from exc

    async def _call_with_retry(self, method: str, params: Json, within: float) -> Any:
        """Call; a gateway that was lost gets a while to come back."""
        loop = asyncio.get_running_loop()
        until = loop.time() + RECONNECT_TIMEOUT
        while True:
            try:
                return await self._client.call(method, params, within=within)
            except CannotConnect as exc:
                if exc.permanent or loop.time() > until:
                    raise ToolUnavailable(f"the gateway can't be used: {exc}") from exc
                await asyncio.sleep(RECONNECT_INTERVAL)

    async def _connect(self) -> None:
        """The first dial: one at a time, and tried again by the next call when it failed."""
        if self._connect_task is None or (self._connect_task.done() and _has_failed(self._connect_task)):
            connect = self._stack.enter_async_context(self._client)
            self._connect_task = self._tasks.spawn(connect, name="first connection", on_failure="raise")
        try:
            await asyncio.shield(self._connect_task)
        except CannotConnect as exc:
            raise ToolUnavailable(f"the gateway can't be used: {exc}") from exc

    def _on_hello(self, hello: Json) -> None:
        features = hello.get("features")
        features = features if isinstance(features, dict) else {}
        methods = features.get("methods")
        self._methods = frozenset(map(str, methods if isinstance(methods, list) else ())) | UNADVERTISED_METHODS
        self._announce(features.get("tools"))

    def _on_event(self, event: EventFrame) -> None:
        if event.event == TOOLS_CHANGED and isinstance(event.payload, dict):
            self._announce(event.payload.get("tools"))

    def _announce(self, tools: object) -> None:
        granted = frozenset(map(str, tools)) if isinstance(tools, list) else None
        self.offered.emit(GatewayOffer(self._methods, granted))


class ClawServer:
    """Everything behind `remoteclaw-mcp-server`."""

    def __init__(
        self,
        settings: ClawSettings,
        allowed_tools: frozenset[str],
        further_tools: frozenset[str] | None = None,
        *,
        locate: LocateGateway | None = None,
    ) -> None:
        """`allowed_tools` are those of the 29 that the environment gives this run, `further_tools` its others; None:
        every other tool that the gateway has for it. `locate` gives the gateway's address and token before each dial;
        without it, those of the settings are used."""
        self._effects = EffectsFile(settings.effects_file, provider=settings.channel, account=settings.account)
        self._gateway = ClawGatewayClient(settings, locate)
        context = ClawContext(
            self._gateway,
            settings,
            self._effects,
            file_access=local_file_access(settings),
            is_local=is_local_gateway(settings.url),
        )
        tools = ClawTools(context)
        self._further = FurtherTools(self._gateway)
        dispatcher = ToolDispatcher(
            ToolRegistry({"claw": tools, FURTHER_SOURCE: self._further}),
            policy=_allowlist_policy(allowed_tools, further_tools, tools),
        )
        # Of a grant's tools, the environment lists the 29. The gateway lists all others, and those of its own token.
        before_list = None if is_grant_token(settings.token) and not further_tools else self._wait_for_tools
        info = McpServerInfo(name=SERVER_NAME, version=__version__, title="RemoteClaw gateway tools")
        self.toolbox = ClawToolbox(dispatcher, before_list=before_list)
        self.mcp = McpServer(info, self.toolbox)

    async def _wait_for_tools(self) -> None:
        """Give the gateway a moment to announce its tools; without an answer the list stays as it is."""
        with suppress(ToolUnavailable, TimeoutError):
            async with asyncio.timeout(FIRST_LIST_TIMEOUT):
                await self._gateway.methods()
                await self._further.wait_until_known()

    async def aclose(self) -> None:
        await self._further.aclose()
        await self._gateway.aclose()
        self._effects.close()


def local_file_access(settings: ClawSettings) -> FileAccess:
    """The files this server itself may read and send: those of the folder it was started in, a project or a workspace.

    None under a run's grant, and none where that folder is the home or contains it: then it was not chosen.
    """
    try:
        here, home = Path.cwd().resolve(), Path.home().resolve()
    except (OSError, RuntimeError):  # the folder is gone, or this user has no home
        return FileAccess()
    if settings.has_grant or home.is_relative_to(here):
        return FileAccess()
    state = state_dir_path()
    return FileAccess(
        folders=sendable_folders((here,), state),
        secrets=(state,),
        secret_texts=(settings.token.encode(),) if settings.token else (),
        allows_hidden=settings.owner is not False,
    )


def _allowlist_policy(allowed: frozenset[str], further: frozenset[str] | None, tools: ClawTools) -> Policy:
    """The tools the environment lists, as far as the gateway has and grants them once that is known."""

    def decide(caller: Caller, source: str, spec: ToolSpec) -> PolicyDecision:
        listed = further if source == FURTHER_SOURCE else allowed
        if listed is not None and spec.name not in listed:
            return PolicyDecision(False, f"{spec.name} is not among the tools this run was given")
        refusal = tools.refusal_reason(spec.name)
        return PolicyDecision(True, "this run has it") if refusal is None else PolicyDecision(False, refusal)

    return decide


def _has_failed(task: "asyncio.Task[GatewayClient]") -> bool:
    return task.cancelled() or task.exception() is not None
