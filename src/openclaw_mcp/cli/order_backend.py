"""Where orders are carried out: by a gateway that is found, else by the agent in this process."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ..core.gateway_port import OrderGateway
from ..net.listening_ports import can_connect
from ..net.tasks import Tasks
from ..order.approvals import OrderEvent
from ..order.conversation import AgentOrder, run_remote_order
from ..order.running_order import SuspendedOrders
from .locations import find_gateway

if TYPE_CHECKING:
    # For the types alone: see `_load_embedded`.
    from ..gateway.wiring.embedded import EmbeddedGateway


class FoundGateway(Struct, frozen=True):
    """A gateway, and how orders are carried out there."""

    gateway: OrderGateway
    run: Callable[[AgentOrder], AsyncGenerator[OrderEvent, None]]


class OrderService:
    """Carries out orders. The agent is looked for at the first one, and again once it is lost; kept until `aclose`."""

    def __init__(self, folder: Callable[[], Path], announce: Callable[[str], None]) -> None:
        """`folder` gives the state folder when it is needed; it may raise OpenClawError. `announce` gets a sentence
        that says which agent carries out the orders, each time one is found."""
        self._folder = folder
        self._announce = announce
        self.suspended = SuspendedOrders()
        self._stack = AsyncExitStack()
        self._tasks = Tasks("orders")
        self._search: asyncio.Task[FoundGateway] | None = None

    async def execute(self, order: AgentOrder) -> AsyncGenerator[OrderEvent, None]:
        """The events of an order; closing the iterator stops it. Raises OpenClawError when there is no agent."""
        return (await self._find()).run(order)

    async def get_gateway(self) -> OrderGateway:
        return (await self._find()).gateway

    async def aclose(self) -> None:
        await self.suspended.aclose()
        await self._tasks.aclose()
        await self._stack.aclose()

    async def _find(self) -> FoundGateway:
        """One search at a time; after a failed one, the next order searches again."""
        if self._search is None or (self._search.done() and not _is_usable(self._search)):
            self._search = self._tasks.spawn(self._find_gateway(), name="search for an agent", on_failure="raise")
        return await asyncio.shield(self._search)

    async def _find_gateway(self) -> FoundGateway:
        await self._stack.aclose()  # of one that is lost: orders that waited there have failed by now
        folder = await asyncio.to_thread(self._folder)
        place = await asyncio.to_thread(find_gateway, folder)
        if place.is_expected or await asyncio.to_thread(can_connect, place.url):
            # Here for start-up: the agent in this process needs no WebSocket.
            from ..net.gateway_client.run_client import make_gateway_client

            remote = await self._stack.enter_async_context(make_gateway_client(place.url, place.token, folder))
            self._announce(f"orders go to the gateway at {place.url}")
            return FoundGateway(remote, partial(run_remote_order, remote))
        self._announce(
            f"no gateway runs at {place.url}, so the agent in this process carries out the orders, without the "
            f"gateway's tools, channels and nodes; its state is in {folder}. openclaw up starts a gateway"
        )
        # In a thread: meanwhile a client that pings or cancels is answered.
        embedded = await self._stack.enter_async_context(await asyncio.to_thread(_load_embedded, folder))
        from ..order.local_order import run_local_order  # here for start-up: with a gateway, no run is local

        return FoundGateway(embedded, partial(run_local_order, embedded))


def _load_embedded(folder: Path) -> "EmbeddedGateway":
    gc.disable()  # imports leave no garbage, and looking for some takes a quarter of the time
    try:
        # Here for start-up: with a gateway elsewhere, this process needs neither store nor agent.
        from ..gateway.wiring.embedded import EmbeddedGateway
    finally:
        gc.enable()
    gc.freeze()  # it stays as long as the process: later collections skip it
    return EmbeddedGateway(folder)


def _is_usable(search: "asyncio.Task[FoundGateway]") -> bool:
    return not search.cancelled() and search.exception() is None and not search.result().gateway.is_lost
