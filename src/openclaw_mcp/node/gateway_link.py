"""The node on a gateway's wire: paired as a device, its commands offered, invocations answered, redialled for ever."""

import asyncio
import contextlib
import logging
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from .. import __version__
from ..core.errors import OpenClawError
from ..core.model import Json, ToolSpec
from ..core.rpc import APPROVALS, Fault
from ..net.gateway_client.client import CannotConnect, Client, gateway_url
from ..net.gateway_client.handshake import ClientInfo, Credentials, Introduction
from ..net.gateway_client.identity import DeviceTokens, Identity
from ..protocol.gateway_frames import News
from .host import Node
from .invocations import Invocations
from .private_files import read_private

IDENTITY: Final = "device-identity.json"
TOKENS: Final = "device-tokens.json"
SHARED_TOKEN: Final = "gateway-token.txt"  # noqa: S105  a file's name
DEFAULT_PORT: Final = 18789
WAITS: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)  # seconds between dials; the last for ever
JITTER: Final = 0.25  # share of a wait added at random, so that nodes do not redial in step
RESULT_WITHIN: Final = 60.0  # seconds a gateway may take to take a result
LARGEST_TOKEN: Final = 4096
PLUGIN: Final = "openclaw-mcp"
"""Who describes our commands, to a gateway."""

logger = logging.getLogger(__name__)

_SYSTEMS: Final = {"linux": ("linux", "Linux"), "darwin": ("macos", "Mac"), "win32": ("windows", "Windows")}
"""Platform and device family as gateways class them; any other pair loses the system commands."""

Announce = Callable[[str], None]


def gateway_link(
    announce: Announce, *, near: str | None = None
) -> Callable[[Node], contextlib.AbstractAsyncContextManager[str]]:
    """A door for `NodeHost`: open at once, connected as soon as the gateway lets it.

    `near` is the gateway that is meant when the settings name none.
    """

    @asynccontextmanager
    async def link(node: Node) -> AsyncIterator[str]:
        url = node.settings.gateway_url or near or gateway_url(DEFAULT_PORT)
        keeper = asyncio.ensure_future(_Keeper(node, url, announce).run())
        try:
            yield url
        finally:
            keeper.cancel()
            await asyncio.wait((keeper,))

    return link


class _Keeper:
    """Dials until cancelled. One connection for each set of commands: a gateway learns them when we connect."""

    def __init__(self, node: Node, url: str, announce: Announce) -> None:
        self._node = node
        self._url = url
        self._announce = announce
        self._said = ""
        self._tokens = DeviceTokens(node.state_dir / TOKENS)
        self._distrusted = False

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                await self._connected()
                failures = 0
            except OpenClawError as exc:
                self._say(f"gateway: {exc}")
                wait = (
                    WAITS[-1]
                    if isinstance(exc, CannotConnect) and exc.lasting
                    else WAITS[min(failures, len(WAITS) - 1)]
                )
                failures += 1
                await asyncio.sleep(wait * (1 + random.uniform(0, JITTER)))  # noqa: S311  spreads load, guards nothing

    async def _connected(self) -> None:
        """One connection and its redials, until the commands on offer change."""
        offered = self._commands()
        identity = Identity.load(self._node.state_dir / IDENTITY)
        credentials = self._credentials()
        client = Client(self._url, self._introduction(offered), credentials=credentials, signer=identity)
        invocations = Invocations(self._node.tools, _teller(client))
        stops = [client.events.listen(lambda news: _hear(invocations, news)), client.greeted.listen(self._greeted)]
        stops.append(client.greeted.listen(lambda _: invocations.drop()))
        changed, untold = asyncio.Event(), asyncio.Event()
        stops.append(self._node.tools.changed.listen(lambda _: changed.set()))
        stops.append(client.greeted.listen(lambda _: untold.set()))
        stops.append(client.events.listen(lambda news: untold.set() if news.event == "node.pair.resolved" else None))
        teller = asyncio.ensure_future(self._describe(client, untold))
        try:
            async with client:
                with self._node.on_gateway.attached(self._asker(client)):
                    while self._commands() == offered:
                        changed.clear()
                        await changed.wait()
        except CannotConnect:
            # A device token that is no longer known: the next attempt carries the shared one.
            self._distrusted = credentials.device_token is not None and not self._distrusted
            raise
        finally:
            for stop in stops:
                stop()
            teller.cancel()
            await asyncio.wait((teller,))
            await invocations.aclose()

    async def _describe(self, client: Client, untold: asyncio.Event) -> None:
        """Tell the gateway how our commands are used, whenever it may want to know: its agents see them as tools."""
        while True:
            await untold.wait()
            untold.clear()
            tools = [_described(spec) for spec in self._node.capabilities.specs()]
            with contextlib.suppress(OpenClawError):  # an older gateway has no use for it
                await client.call("node.pluginTools.update", {"tools": tools}, within=RESULT_WITHIN)

    def _asker(self, client: Client) -> Callable[[str, Json], Any]:
        """The way to the gateway's operators: as the node we are, or else as an operator who may only ask."""

        async def tell(method: str, params: Json) -> Any:
            within = self._node.settings.ask_seconds + RESULT_WITHIN
            try:
                return await client.call(method, params, within=within)
            except Fault as fault:
                if "unauthorized role" not in str(fault):
                    raise
            async with self._operator() as operator:
                return await operator.call(method, params, within=within)

        return tell

    @asynccontextmanager
    async def _operator(self) -> AsyncIterator[Client]:
        """OpenClaw's own gateway takes questions from operators alone. On its machine the device is let in as one at
        once; elsewhere a person approves that first. Raises CannotConnect."""
        platform, family = _system()
        who = ClientInfo(id="cli", version=__version__, platform=platform, mode="cli", device_family=family)
        shared = _shared_token(self._node)
        credentials = Credentials(
            token=shared, device_token=None if shared else self._tokens.find(self._url, "operator")
        )
        identity = Identity.load(self._node.state_dir / IDENTITY)
        told = Introduction(client=who, scopes=(APPROVALS,))
        async with Client(self._url, told, credentials=credentials, signer=identity, redial=False) as operator:
            auth: Any = (operator.hello or {}).get("auth")
            token = auth.get("deviceToken") if isinstance(auth, dict) else None
            if isinstance(token, str) and token:
                self._tokens.keep(self._url, "operator", token)
            yield operator

    def _commands(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self._node.capabilities.specs())

    def _introduction(self, commands: tuple[str, ...]) -> Introduction:
        platform, family = _system()
        categories = {standing.name: standing.category for standing in self._node.capabilities.standings()}
        return Introduction(
            client=ClientInfo(
                id="node-host",
                version=__version__,
                platform=platform,
                mode="node",
                display_name=self._node.settings.display_name or os.uname().nodename,
                device_family=family,
            ),
            role="node",
            caps=tuple(dict.fromkeys(categories[name] for name in commands)),
            commands=commands,
            permissions={
                "camera.capture": "camera.snap" in commands,
                "screen.record": "screen.record" in commands,
            },
        )

    def _credentials(self) -> Credentials:
        kept = None if self._distrusted else self._tokens.find(self._url, "node")
        if kept:
            return Credentials(device_token=kept)
        return Credentials(token=_shared_token(self._node))

    def _greeted(self, hello: Json) -> None:
        auth: Any = hello.get("auth")
        token = auth.get("deviceToken") if isinstance(auth, dict) else None
        if isinstance(token, str) and token:
            self._tokens.keep(self._url, "node", token)
        self._distrusted = False
        self._say(f"gateway: connected to {self._url}")

    def _say(self, news: str) -> None:
        if news != self._said:
            self._said = news
            self._announce(news)


def _system() -> tuple[str, str]:
    return _SYSTEMS.get(sys.platform, (sys.platform, sys.platform))


def _described(spec: ToolSpec) -> Json:
    """A command as a gateway's agents see it."""
    return {
        "pluginId": PLUGIN,
        "name": spec.name.replace(".", "_"),
        "description": spec.description,
        "parameters": spec.input_schema,
        "command": spec.name,
    }


def _shared_token(node: Node) -> str | None:
    """The gateway's token for those it does not know yet: the environment, or a private file beside the settings."""
    said = os.environ.get("OPENCLAW_GATEWAY_TOKEN")
    if said:
        return said
    try:
        return read_private(node.state_dir / SHARED_TOKEN, largest=LARGEST_TOKEN).decode().strip() or None
    except FileNotFoundError:
        return None


def _teller(client: Client) -> Callable[[str, Json], Any]:
    async def tell(method: str, params: Json) -> Any:
        return await client.call(method, params, within=RESULT_WITHIN)

    return tell


def _hear(invocations: Invocations, news: News) -> None:
    invocations.hear(news.event, news.payload)
