"""The caretaker of the 29 tools: their one connection to the gateway, and the server that offers them."""

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
from ..core.session_target import Place
from ..mcp.server.server import Info, McpServer
from ..net.file_access import FileAccess, outside_secrets
from ..net.gateway_client.acting_headers import TOOLS_CHANGED, headers_of, is_grant
from ..net.gateway_client.address import on_this_machine
from ..net.gateway_client.client import CallTimeout, CannotConnect, Client, ConnectionGone
from ..net.gateway_client.handshake import ClientInfo, Credentials, Introduction
from ..net.side_effects_file import EffectsFile
from ..net.state_dir import state_place
from ..protocol.gateway_frames import News
from ..tools.dispatcher import Desk
from ..tools.policy import Decision, Policy
from ..tools.registry import Registry
from .catalogue import ClawTools, Front
from .settings import Settings
from .tool_context import CALL_WITHIN, Seat, Unsure

NAME: Final = "remoteclaw"
LOOK_WITHIN: Final = 3.0  # seconds the first list waits for the gateway to say which tools this session has
COMING_BACK: Final = 45.0  # seconds a gateway that was there gets to come back: a real one takes half of that
KNOCK_EVERY: Final = 0.25  # seconds between two attempts to reach a gateway that is coming back
UNADVERTISED: Final = frozenset({"sessions.resolve"})

Learn = Callable[[frozenset[str], frozenset[str] | None], None]


class GatewayLink:
    """A `claw` Gateway over the network. One connection, dialled by the first call."""

    def __init__(self, settings: Settings, *, learn: Learn | None = None) -> None:
        me = ClientInfo(
            id="gateway-client", mode="backend", version=__version__, platform=sys.platform, display_name="mcp-server"
        )
        self._url = settings.url
        # A grant opens what its run may do, whatever is asked for here; the gateway's own token opens all of it.
        introduction = Introduction(client=me, scopes=(READ, WRITE, ADMIN))
        # Under the gateway's own token the session's rules hold; a grant knows its session itself.
        place = Place(
            session=settings.session_key, channel=settings.channel, account=settings.account, to=settings.to,
            thread=settings.thread,
        )  # fmt: skip
        credentials = Credentials(token=settings.token)
        self._client = Client(settings.url, introduction, credentials=credentials, headers=headers_of(place))
        self.learn = learn
        self._stack = AsyncExitStack()
        self._opening: asyncio.Task[Client] | None = None
        self._methods: frozenset[str] = frozenset()
        self._client.greeted.listen(self._greeted)
        self._client.events.listen(self._heard)

    async def aclose(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        await self._stack.aclose()

    async def methods(self) -> frozenset[str]:
        await self._open()
        return self._methods

    async def look(self) -> None:
        """Give the gateway a moment to say what is to be had; one that does not leaves the list as it is."""
        with suppress(ToolUnavailable, TimeoutError):
            async with asyncio.timeout(LOOK_WITHIN):
                await self._open()

    async def call(self, method: str, params: Json, *, within: float = CALL_WITHIN, again: bool = False) -> Any:
        await self._open()
        try:
            return await self._reached(method, params, within)
        except (ConnectionGone, CallTimeout) as exc:
            if not again or isinstance(exc, CallTimeout):
                raise Unsure(f"{exc}; whether it was done is not known") from exc
        try:
            return await self._reached(method, params, within)
        except (ConnectionGone, CallTimeout, ToolUnavailable) as exc:
            raise Unsure(f"{exc}; whether it was done is not known") from exc

    async def _reached(self, method: str, params: Json, within: float) -> Any:
        """Call; a gateway that was there and is not gets a while to come back."""
        loop = asyncio.get_running_loop()
        until = loop.time() + COMING_BACK
        while True:
            try:
                return await self._client.call(method, params, within=within)
            except CannotConnect as exc:
                if exc.lasting or loop.time() > until:
                    raise ToolUnavailable(f"the gateway can't be used: {exc}") from exc
                await asyncio.sleep(KNOCK_EVERY)

    async def _open(self) -> None:
        """The first dial; one at a time, and tried anew by the next call when it failed."""
        if self._opening is None or (self._opening.done() and _failed(self._opening)):
            self._opening = asyncio.ensure_future(self._stack.enter_async_context(self._client))
        try:
            await asyncio.shield(self._opening)
        except CannotConnect as exc:
            raise ToolUnavailable(f"the gateway can't be used: {exc}") from exc

    def _greeted(self, hello: Json) -> None:
        features = hello.get("features")
        features = features if isinstance(features, dict) else {}
        methods = features.get("methods")
        self._methods = frozenset(map(str, methods if isinstance(methods, list) else ())) | UNADVERTISED
        self._told(features.get("tools"))

    def _heard(self, news: News) -> None:
        if news.event == TOOLS_CHANGED and isinstance(news.payload, dict):
            self._told(news.payload.get("tools"))

    def _told(self, tools: object) -> None:
        if self.learn is not None:
            self.learn(self._methods, frozenset(map(str, tools)) if isinstance(tools, list) else None)


class ClawServer:
    """Everything behind `remoteclaw-mcp-server`. `menu` is what the environment says this run may have."""

    def __init__(self, settings: Settings, menu: frozenset[str]) -> None:
        self._effects = EffectsFile(settings.effects_file, provider=settings.channel, account=settings.account)
        self._link = GatewayLink(settings)
        near = on_this_machine(settings.url)
        tools = ClawTools(Seat(self._link, settings, self._effects, files=own_files(settings), near=near))
        self._link.learn = tools.learn
        desk = Desk(Registry({"claw": tools}), policy=_only(menu, tools))
        # A grant's menu came with the environment; what the gateway's own token opens here, the gateway says.
        self.toolbox = Front(desk, look=None if is_grant(settings.token) else self._link.look)
        self.mcp = McpServer(Info(name=NAME, version=__version__, title="RemoteClaw gateway tools"), self.toolbox)

    async def aclose(self) -> None:
        await self._link.aclose()
        self._effects.close()


def own_files(settings: Settings) -> FileAccess:
    """What this server itself may read and send: files of the folder it was started in, a project or a workspace.

    Nothing under a run's grant, and nothing where that folder is the home or holds it: then it was not chosen.
    """
    try:
        here, home = Path.cwd().resolve(), Path.home().resolve()
    except (OSError, RuntimeError):  # the folder is gone, or this user has no home
        return FileAccess()
    if settings.granted or home.is_relative_to(here):
        return FileAccess()
    state = state_place()
    return FileAccess(
        folders=outside_secrets((here,), state),
        secrets=(state,),
        words=(settings.token.encode(),) if settings.token else (),
        hidden=settings.owner is not False,
    )


def _only(menu: frozenset[str], tools: ClawTools) -> Policy:
    """What the environment lists, and of that what the gateway has and grants, once it has said so."""

    def decide(caller: Caller, source: str, spec: ToolSpec) -> Decision:
        if spec.name not in menu:
            return Decision(False, f"{spec.name} is not among the tools this run was given")
        refusal = tools.refusal(spec.name)
        return Decision(True, "this run has it") if refusal is None else Decision(False, refusal)

    return decide


def _failed(task: "asyncio.Task[Client]") -> bool:
    return task.cancelled() or task.exception() is not None
