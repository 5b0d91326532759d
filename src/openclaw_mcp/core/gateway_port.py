"""A gateway as orders and agents see it: methods to call and events to receive, in this process or elsewhere."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from .model import Json
from .signal import Signal

if TYPE_CHECKING:
    # For the types alone: with a gateway elsewhere, this process needs no runs.
    from .sessions import RunEvent

GatewayEventHandler = Callable[[str, Any], None]


class MethodGateway(Protocol):
    """Answers methods."""

    async def call(self, method: str, params: Json, *, within: float) -> Any: ...


class EventGateway(MethodGateway, Protocol):
    """Over a WebSocket: its events are JSON."""

    def subscribe(self, handler: GatewayEventHandler) -> Callable[[], None]:
        """Call `handler` with every event, with `hello` each time a lost connection is back, and with `gone` and the
        reason if it does not come back, until the returned function is called."""


class OrderGateway(MethodGateway, Protocol):
    """Answers methods as long as it is not lost."""

    @property
    def is_lost(self) -> bool:
        """Whether it was lost and did not come back."""


class LocalGateway(OrderGateway, Protocol):
    """In this process: attachments stay bytes, and the events of runs are typed."""

    @property
    def run_events(self) -> "Signal[RunEvent]": ...
