"""The caretaker of orders: finds a gateway to carry them to, or keeps the agent in this very process."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from . import __version__
from .configured import gateway_place
from .core.agent import AgentEvent
from .core.errors import ToolUnavailable
from .core.model import Json
from .core.rpc import READ, WRITE
from .order.conversation import Gateway, Hear, Order, carried
from .rpc.client import CannotConnect, Client, on_this_machine
from .rpc.handshake import ClientInfo, Credentials, Introduction, Signer
from .state import known_gateway_token
from .wire.frames import News

KNOCK_WITHIN: Final = 1.0  # seconds to find out whether anybody listens at the default place
FRAME_SPARE: Final = 4096  # bytes of a frame that are not its attachments


class Orders:
    """Carries orders. The agent is looked for at the first one and kept until `aclose`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self._finding: asyncio.Task[Gateway] | None = None

    async def carry(self, order: Order) -> AsyncGenerator[AgentEvent, None]:
        """Have an order carried out; closing the iterator stops it. Raises OpenClawError when nobody can."""
        async with aclosing(carried(await self.gateway(), order)) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.wait((self._finding,))
        await self._stack.aclose()

    async def gateway(self) -> Gateway:
        """Whoever carries orders. One search at a time; a failed one is tried again by the next order."""
        if self._finding is None or (self._finding.done() and not _fine(self._finding)):
            self._finding = asyncio.ensure_future(self._find())
        return await asyncio.shield(self._finding)

    async def _find(self) -> Gateway:
        config = await asyncio.to_thread(_config, self._folder)
        url, token = gateway_place(config)
        named = os.environ.get("OPENCLAW_GATEWAY_URL") or config.get("gateway", {}).get("mode") == "remote"
        if named or await _anybody(url):
            given = os.environ.get("OPENCLAW_GATEWAY_TOKEN", "").strip() or token
            return await self._stack.enter_async_context(dialled(url, given, self._folder))
        # Here for start-up: with a gateway about, this process needs neither store nor agent.
        from .embedded import Embedded

        return await self._stack.enter_async_context(Embedded(self._folder))


class Remote:
    """A gateway at the other end of a WebSocket."""

    near = False

    def __init__(self, url: str, token: str | None, *, signer: Signer | None = None) -> None:
        me = ClientInfo(id="gateway-client", mode="backend", version=__version__, platform=sys.platform)
        introduction = Introduction(client=me, scopes=(READ, WRITE), caps=("tool-events",))
        self._url = url
        self._client = Client(url, introduction, credentials=Credentials(token=token), signer=signer)

    async def __aenter__(self) -> "Remote":
        try:
            await self._client.__aenter__()
        except CannotConnect as exc:
            raise ToolUnavailable(f"the gateway at {self._url} can't be used: {exc}") from exc
        return self

    async def __aexit__(self, *ending: Any) -> None:
        await self._client.__aexit__(*ending)

    async def call(self, method: str, params: Json, *, within: float) -> Any:
        size = sum(len(item["content"]) for item in params.get("attachments", ()))
        most = ((self._client.hello or {}).get("policy") or {}).get("maxPayload")
        if type(most) is int and size + FRAME_SPARE > most:
            reason = f"the attachments are larger than the gateway takes in one message ({most} bytes as base64)"
            raise ToolUnavailable(f"{reason}; send fewer or smaller ones")
        return await self._client.call(method, params, within=within)

    def listen(self, hear: Hear) -> Callable[[], None]:
        def news(event: News) -> None:
            hear(event.event, event.payload)

        deaf = self._client.events.listen(news)
        quiet = self._client.greeted.listen(lambda hello: hear("hello", hello))

        def stop() -> None:
            deaf()
            quiet()

        return stop


def dialled(url: str, token: str | None, folder: Path) -> Remote:
    """A gateway to be entered: this machine's by the token kept here, another one as a device too."""
    if on_this_machine(url):
        return Remote(url, token or known_gateway_token(folder))
    # Here for start-up: only a gateway elsewhere wants a device, and with it cryptography.
    from .rpc.identity import Identity

    return Remote(url, token, signer=Identity.load(folder / "device.json"))


def _config(folder: Path) -> Json:
    """The config, as far as it says where the gateway is; nothing when there is none or it can't be used."""
    if not (folder / "openclaw.json").exists():
        return {}
    # Here for start-up: most orders go where the environment says, or to the agent in this process.
    from .config.file import ConfigFile

    snapshot = ConfigFile(folder).read()
    return snapshot.config if snapshot.valid else {}


async def _anybody(url: str) -> bool:
    place = urlsplit(url)
    try:
        async with asyncio.timeout(KNOCK_WITHIN):
            _, writer = await asyncio.open_connection(place.hostname, place.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _fine(task: "asyncio.Task[Gateway]") -> bool:
    return not task.cancelled() and task.exception() is None
