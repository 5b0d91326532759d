"""What the client needs from a pipe or an HTTP connection, and how the server's own messages come back."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from msgspec import Struct

from ...core.errors import ToolUnavailable
from ...core.model import Json
from ...protocol import jsonrpc, mcp
from ...protocol.jsonrpc import INTERNAL_ERROR, JsonRpcError, JsonRpcNotification, JsonRpcRequest, JsonRpcResponse


class OutgoingRequest(Struct, frozen=True):
    """A request of ours."""

    id: int
    method: str
    params: Json
    headers: dict[str, str] = {}
    """Only HTTP has any: those that mirror the body in the stateless era."""
    handshake: bool = False
    """Whether it belongs to the handshake era, which has sessions and `notifications/cancelled`."""


class SessionLost(ToolUnavailable):
    """The server does not know our session and has not begun the request: initialize again, and repeat it."""


class ServerMessageHandler(Protocol):
    """Gets what a server sends besides its answers."""

    def on_notification(self, notification: JsonRpcNotification) -> None:
        """A notification. Must not block."""

    async def on_request(self, request: JsonRpcRequest) -> Json:
        """A request of the server's (handshake era). Raises JsonRpcError."""


class McpTransport(Protocol):
    @property
    def close_reason(self) -> str | None:
        """Why nothing more can be sent; None while it can."""

    async def open(self, handler: ServerMessageHandler) -> None:
        """Raises ToolUnavailable. `handler` gets what belongs to no request."""

    async def request(self, request: OutgoingRequest, handler: ServerMessageHandler) -> JsonRpcResponse:
        """The answer. Raises ToolUnavailable. Being cancelled cancels it at the server."""

    async def notify(self, notification: JsonRpcNotification) -> None: ...

    async def set_protocol_version(self, version: str) -> None:
        """The handshake is done, in this version."""

    async def listen(self, handler: ServerMessageHandler, on_open: Callable[[], None]) -> bool:
        """Handle a handshake-era server's own messages until their stream ends; False when it has no such stream."""

    async def aclose(self) -> None: ...


def result_or_raise(response: JsonRpcResponse) -> Json:
    """Raises JsonRpcError with the server's own code and text."""
    if type(response.result) is dict:
        return response.result
    error: Any = response.error
    if type(error) is not dict:
        raise JsonRpcError(INTERNAL_ERROR, "the answer has neither a result nor an error")
    code, message = error.get("code"), error.get("message")
    raise JsonRpcError(
        code if type(code) is int else INTERNAL_ERROR,
        message if type(message) is str else "no reason given",
        error.get("data"),
    )


async def encode_answer(handler: ServerMessageHandler, request: JsonRpcRequest) -> bytes:
    """The answer to a request of the server's, as it is sent."""
    try:
        return jsonrpc.encode_result(request.id, await handler.on_request(request))
    except JsonRpcError as exc:
        return jsonrpc.encode_error(request.id, exc)


TOOLS_CHANGED: Final = mcp.LIST_CHANGE_NOTIFICATIONS["toolsListChanged"]
