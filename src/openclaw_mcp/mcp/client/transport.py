"""What the client needs from a pipe or an HTTP connection, and the way news comes back."""

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from ...core.errors import ToolUnavailable
from ...core.model import Json
from ...protocol import mcp
from ...protocol.jsonrpc import INTERNAL_ERROR, Response, RpcError


class Outgoing(Struct, frozen=True):
    """A request of ours."""

    id: int
    method: str
    params: Json
    headers: dict[str, str] = {}
    """Only HTTP has any: those that mirror the body in the stateless era."""
    handshake: bool = False
    """Whether it belongs to the handshake era, which has sessions and `notifications/cancelled`."""


class SessionLost(ToolUnavailable):
    """The server has forgotten us and has not begun the request: introduce ourselves again, and repeat it."""


class Ear(Protocol):
    """Who hears what a server says besides its answers."""

    def hear(self, method: str, params: Json) -> None:
        """A notification. Must not block."""

    async def answer(self, method: str, params: Json) -> Json:
        """A request of the server's (handshake era). Raises RpcError."""


class Transport(Protocol):
    @property
    def gone(self) -> str | None:
        """Why nothing more can be sent; None while it can."""

    async def open(self, ear: Ear) -> None:
        """Raises ToolUnavailable. `ear` hears what belongs to no request."""

    async def request(self, out: Outgoing, ear: Ear) -> Json:
        """The result. Raises RpcError, ToolUnavailable. Being cancelled tells the server so."""

    async def notify(self, method: str, params: Json) -> None: ...

    async def introduced(self, version: str) -> None:
        """The handshake is done, in this version."""

    async def listen(self, ear: Ear, opened: Callable[[], None]) -> bool:
        """Hear a handshake-era server's news until the stream ends; False when it has no such stream."""

    async def aclose(self) -> None: ...


def result_of(response: Response) -> Json:
    """Raises RpcError with the server's own code and words."""
    if type(response.result) is dict:
        return response.result
    error: Any = response.error
    if type(error) is not dict:
        raise RpcError(INTERNAL_ERROR, "the answer has neither a result nor an error")
    code, message = error.get("code"), error.get("message")
    raise RpcError(
        code if type(code) is int else INTERNAL_ERROR,
        message if type(message) is str else "no reason given",
        error.get("data"),
    )


def is_news_of_tools(method: str) -> bool:
    return method == mcp.LIST_CHANGES["toolsListChanged"]
