"""A gateway as its callers see it: methods to call, events to receive; in this process or over a WebSocket."""

from collections.abc import Callable
from typing import Any, Protocol

from .model import Json

GatewayEventHandler = Callable[[str, Any], None]


class OrderGateway(Protocol):
    """Whoever answers methods and tells events."""

    @property
    def is_local(self) -> bool:
        """Whether it is in this process: attachments stay bytes then, and are not copied."""

    @property
    def is_lost(self) -> bool:
        """Whether it was lost and did not come back."""

    async def call(self, method: str, params: Json, *, within: float) -> Any: ...

    def subscribe(self, handler: GatewayEventHandler) -> Callable[[], None]:
        """Hear every event, `hello` each time a lost connection is back, `gone` with the reason if it does not come
        back, until the returned function is called."""
