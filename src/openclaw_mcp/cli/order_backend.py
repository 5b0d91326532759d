"""The caretaker of orders: finds a gateway to carry them to, or keeps the agent in this very process."""

import asyncio
import gc
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.views import gateway_endpoint
from ..core.agent import AgentEvent
from ..core.gateway_port import OrderGateway
from ..core.model import Json
from ..net.listening_ports import can_connect
from ..order.conversation import AgentOrder, run_order

if TYPE_CHECKING:
    # For the type alone: see `_embedded`.
    from ..gateway.wiring.embedded import EmbeddedGateway

logger = logging.getLogger(__name__)


class OrderService:
    """Carries orders. The agent is looked for at the first one, and again once it has gone; kept until `aclose`."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        """`folder` says where the state is, when it is needed; it may raise OpenClawError."""
        self._folder = folder
        self._stack = AsyncExitStack()
        self._find_task: asyncio.Task[OrderGateway] | None = None

    async def execute(self, order: AgentOrder) -> AsyncGenerator[AgentEvent, None]:
        """Have an order carried out; closing the iterator stops it. Raises OpenClawError when nobody can."""
        async with aclosing(run_order(await self.get_gateway(), order)) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        if self._find_task is not None:
            self._find_task.cancel()
            await asyncio.wait((self._find_task,))
        await self._stack.aclose()

    async def get_gateway(self) -> OrderGateway:
        """Whoever carries orders. One search at a time; a failed one is tried again by the next order."""
        if self._find_task is None or (self._find_task.done() and not _is_usable(self._find_task)):
            self._find_task = asyncio.ensure_future(self._find_gateway())
        return await asyncio.shield(self._find_task)

    async def _find_gateway(self) -> OrderGateway:
        await self._stack.aclose()  # of one that has gone: whoever waited there knows by now
        folder = await asyncio.to_thread(self._folder)
        config = await asyncio.to_thread(_read_config, folder)
        url, token = gateway_endpoint(config)
        named = os.environ.get("OPENCLAW_GATEWAY_URL") or config.get("gateway", {}).get("mode") == "remote"
        if named or await asyncio.to_thread(can_connect, url):
            logger.info("orders go to the gateway at %s", url)
            given = os.environ.get("OPENCLAW_GATEWAY_TOKEN", "").strip() or token
            # Here for start-up: the agent in this process needs no WebSocket.
            from ..net.gateway_client.run_client import make_gateway_client

            return await self._stack.enter_async_context(make_gateway_client(url, given, folder))
        logger.info("nobody listens at %s: orders go to the agent in this process, in %s", url, folder)
        # In a thread: a client that pings or cancels meanwhile is heard.
        return await self._stack.enter_async_context(await asyncio.to_thread(_load_embedded, folder))


def _load_embedded(folder: Path) -> "EmbeddedGateway":
    gc.disable()  # nothing that is being imported is garbage, and looking for some takes a quarter of the time
    try:
        # Here for start-up: with a gateway about, this process needs neither store nor agent.
        from ..gateway.wiring.embedded import EmbeddedGateway
    finally:
        gc.enable()
    gc.freeze()  # it stays as long as we do: later looks pass it by
    return EmbeddedGateway(folder)


def _read_config(folder: Path) -> Json:
    """The config, as far as it says where the gateway is; nothing when there is none or it can't be used."""
    if not (folder / "openclaw.json").exists():
        return {}
    # Here for start-up: most orders go where the environment says, or to the agent in this process.
    from ..config.file import ConfigFile

    snapshot = ConfigFile(folder).read()
    return snapshot.config if snapshot.is_valid else {}


def _is_usable(task: "asyncio.Task[OrderGateway]") -> bool:
    return not task.cancelled() and task.exception() is None and not task.result().is_lost
