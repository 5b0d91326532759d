"""A gateway as its callers see it, in this process or at the other end of a WebSocket: methods to call, events to receive."""

from collections.abc import Callable
from typing import Any, Protocol

from .model import Json

Hear = Callable[[str, Any], None]


class Gateway(Protocol):
    """Whoever answers methods and tells events."""

    @property
    def near(self) -> bool:
        """Whether it is in this process: attachments stay bytes then, and are not copied."""

    @property
    def gone(self) -> bool:
        """Whether it was lost and did not come back."""

    async def call(self, method: str, params: Json, *, within: float) -> Any: ...

    def listen(self, hear: Hear) -> Callable[[], None]:
        """Hear every event, `hello` each time a lost connection is back, `gone` with the reason if it does not come
        back, until the returned function is called."""
