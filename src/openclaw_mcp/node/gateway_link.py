"""The node as a gateway's device: paired, its commands offered, invocations answered, connected again for ever."""

import asyncio
import contextlib
import functools
import os
import random
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from .. import __version__
from ..core.errors import OpenClawError
from ..core.model import Json, ToolSpec
from ..core.rpc import APPROVALS, RpcError
from ..net.gateway_client.address import DEFAULT_GATEWAY_PORT, gateway_url
from ..net.gateway_client.client import CannotConnect, GatewayClient
from ..net.gateway_client.handshake import ClientInfo, ClientProfile, Credentials
from ..net.gateway_client.identity import DeviceIdentity, DeviceTokens
from ..net.state_dir import TOKEN_FILE
from ..net.tasks import Tasks
from ..protocol.gateway_frames import EventFrame
from .host import LocalNode
from .invocations import CallGateway, Invocations
from .private_files import read_private
from .token import BadToken

IDENTITY_FILE: Final = "device-identity.json"
TOKENS_FILE: Final = "device-tokens.json"
REDIAL_WAITS: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)  # seconds between dials; the last for ever
REDIAL_JITTER: Final = 0.25  # share of a wait added at random, so that nodes do not redial in step
RESULT_TIMEOUT: Final = 60.0  # seconds a gateway may take to take a result
MAX_TOKEN_BYTES: Final = 4096
PLUGIN_ID: Final = "openclaw-mcp"
"""The name under which a gateway lists our commands."""

_PLATFORMS: Final = {"linux": ("linux", "Linux"), "darwin": ("macos", "Mac"), "win32": ("windows", "Windows")}
"""Platform and device family as gateways classify them; with any other pair the system commands are refused."""

AnnounceStatus = Callable[[str], None]


def make_gateway_connector(
    announce: AnnounceStatus, *, default_url: str | None = None
) -> Callable[[LocalNode], contextlib.AbstractAsyncContextManager[str]]:
    """A `NodeGatewayConnector`: its block runs at once, the connection follows as soon as the gateway admits it.

    `default_url` is the gateway that is meant when the settings name none.
    """

    @asynccontextmanager
    async def connect(node: LocalNode) -> AsyncIterator[str]:
        url = node.settings.gateway_url or default_url or gateway_url(DEFAULT_GATEWAY_PORT)
        link = _GatewayLink(node, url, announce)
        async with Tasks("gateway link") as tasks:
            tasks.loop(link.connect_once, name=url, on_failure="restart")
            yield url

    return connect


class _GatewayLink:
    """One connection for each set of commands: a gateway learns them when we connect."""

    def __init__(self, node: LocalNode, url: str, announce: AnnounceStatus) -> None:
        self._node, self._url, self._announce = node, url, announce
        self._last_message = ""
        self._tokens = DeviceTokens(node.state_dir / TOKENS_FILE)
        self._device_token_rejected = False
        self._failures = 0

    async def connect_once(self) -> None:
        """Until the connection ends; after a failure, wait before the next one."""
        try:
            await self._run_connection()
            self._failures = 0
        except OpenClawError as exc:
            self._announce_change(f"gateway: {exc}")
            permanent = isinstance(exc, CannotConnect) and exc.permanent
            wait = REDIAL_WAITS[-1 if permanent else min(self._failures, len(REDIAL_WAITS) - 1)]
            self._failures += 1
            await asyncio.sleep(wait * (1 + random.uniform(0, REDIAL_JITTER)))  # noqa: S311  spreads load, guards nothing

    async def _run_connection(self) -> None:
        """One connection and its redials, until the commands on offer change."""
        offered = self._command_names()
        identity = DeviceIdentity.load(self._node.state_dir / IDENTITY_FILE)
        credentials = self._credentials()
        client = GatewayClient(self._url, self._introduction(offered), credentials=credentials, signer=identity)
        invocations = Invocations(self._node.tools, functools.partial(client.call, within=RESULT_TIMEOUT))
        changed, unpublished = asyncio.Event(), asyncio.Event()

        def on_connected(hello: Json) -> None:
            self._save_device_token("node", hello)
            self._device_token_rejected = False
            self._announce_change(f"gateway: connected to {self._url}")
            invocations.cancel_all()
            unpublished.set()

        def on_event(event: EventFrame) -> None:
            invocations.on_event(event.event, event.payload)
            if event.event == "node.pair.resolved":
                unpublished.set()

        stops = [
            client.events.connect(on_event),
            client.connected.connect(on_connected),
            self._node.tools.changed.connect(lambda _: changed.set()),
        ]
        try:
            async with Tasks("gateway link") as tasks, client:
                publish = functools.partial(self._publish_tools, client, unpublished)
                tasks.loop(publish, name="publishing of tools", on_failure="restart")
                with self._node.gateway_prompter.attach(self._make_operator_call(client)):
                    while self._command_names() == offered:
                        changed.clear()
                        await changed.wait()
        except CannotConnect:
            # A device token that is no longer known: the next attempt carries the shared one.
            self._device_token_rejected = credentials.device_token is not None and not self._device_token_rejected
            raise
        finally:
            for stop in stops:
                stop()
            await invocations.aclose()

    async def _publish_tools(self, client: GatewayClient, update_needed: asyncio.Event) -> None:
        """Describe our commands to the gateway when it needs that: its agents get them as tools."""
        await update_needed.wait()
        update_needed.clear()
        tools = [_describe_tool(spec) for spec in self._node.capabilities.specs()]
        with contextlib.suppress(OpenClawError):  # an older gateway has no use for it
            await client.call("node.pluginTools.update", {"tools": tools}, within=RESULT_TIMEOUT)

    def _make_operator_call(self, client: GatewayClient) -> CallGateway:
        """Calls to the gateway's operators: as the node we are, or else as an operator who may only ask."""

        async def call(method: str, params: Json) -> Any:
            within = self._node.settings.ask_seconds + RESULT_TIMEOUT
            try:
                return await client.call(method, params, within=within)
            except RpcError as fault:
                if "unauthorized role" not in str(fault):
                    raise
            async with self._connect_operator() as operator:
                return await operator.call(method, params, within=within)

        return call

    @asynccontextmanager
    async def _connect_operator(self) -> AsyncIterator[GatewayClient]:
        """OpenClaw's own gateway takes questions from operators alone. On its machine the device is admitted as one at
        once; elsewhere a person approves that first. Raises CannotConnect."""
        platform, family = _platform_names()
        who = ClientInfo(id="cli", version=__version__, platform=platform, mode="cli", device_family=family)
        shared = _read_shared_token(self._node)
        credentials = Credentials(
            token=shared, device_token=None if shared else self._tokens.find(self._url, "operator")
        )
        identity = DeviceIdentity.load(self._node.state_dir / IDENTITY_FILE)
        profile = ClientProfile(client=who, scopes=(APPROVALS,))
        async with GatewayClient(
            self._url, profile, credentials=credentials, signer=identity, redial=False
        ) as operator:
            self._save_device_token("operator", operator.hello or {})
            yield operator

    def _command_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self._node.capabilities.specs())

    def _introduction(self, commands: tuple[str, ...]) -> ClientProfile:
        platform, family = _platform_names()
        categories = {status.name: status.category for status in self._node.capabilities.statuses()}
        return ClientProfile(
            client=ClientInfo(
                id="node-host",
                version=__version__,
                platform=platform,
                mode="node",
                display_name=self._node.settings.display_name or socket.gethostname(),
                device_family=family,
            ),
            role="node",
            caps=tuple(dict.fromkeys(categories[name] for name in commands)),
            commands=commands,
            permissions={"camera.capture": "camera.snap" in commands, "screen.record": "screen.record" in commands},
        )

    def _credentials(self) -> Credentials:
        token = None if self._device_token_rejected else self._tokens.find(self._url, "node")
        if token:
            return Credentials(device_token=token)
        return Credentials(token=_read_shared_token(self._node))

    def _save_device_token(self, role: str, hello: Json) -> None:
        auth: Any = hello.get("auth")
        token = auth.get("deviceToken") if isinstance(auth, dict) else None
        if isinstance(token, str) and token:
            self._tokens.save(self._url, role, token)

    def _announce_change(self, message: str) -> None:
        if message != self._last_message:
            self._last_message = message
            self._announce(message)


def _platform_names() -> tuple[str, str]:
    return _PLATFORMS.get(sys.platform, (sys.platform, sys.platform))


def _describe_tool(spec: ToolSpec) -> Json:
    """A command as a gateway's agents see it."""
    return {
        "pluginId": PLUGIN_ID,
        "name": spec.name.replace(".", "_"),
        "description": spec.description,
        "parameters": spec.input_schema,
        "command": spec.name,
    }


def _read_shared_token(node: LocalNode) -> str | None:
    """The gateway's token for devices it does not know yet: from the environment, or a private file beside the
    settings. Raises BadToken."""
    token = os.environ.get("OPENCLAW_GATEWAY_TOKEN")
    if token:
        return token
    path = node.state_dir / TOKEN_FILE
    try:
        return read_private(path, largest=MAX_TOKEN_BYTES).decode().strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise BadToken(f"{path} can't be read: make it a plain file of yours, or delete it") from exc
