"""Calls that wait for a node: sent, answered by the same connection, or ended with a reason."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from ...core.model import Json
from ...core.rpc import RpcError
from .values import NodeConnection

MAX_PENDING_CALLS: Final = 64  # calls one node works on at once; our own takes eight and refuses more
MAX_ERROR_LENGTH: Final = 4000  # characters of a node's error that are passed on

ProgressCallback = Callable[[int, str], None]
"""Called with the number and the text of a progress message."""


class NodeInvocation(Struct, frozen=True, kw_only=True):
    """One command for a node."""

    command: str
    params: Any
    seconds: float
    idempotency_key: str | None = None
    """The caller's idempotency key, for the node to see."""
    caller_credentials: tuple[str, ...] = ()
    """The credentials the caller has shown; empty for the gateway's own agents."""


class NodePayload(Struct, frozen=True):
    """A node's answer, and its JSON: passing it on needs no second encoding."""

    value: Any
    raw_json: bytes


class NodeDisconnected(RpcError):
    def __init__(self, node_id: str) -> None:
        message = f"node {node_id[:12]} left before it answered; whether it carried the command out is unknown"
        super().__init__(message, kind="UNAVAILABLE", details=_error_details("DISCONNECTED", message))


class NodeCalls:
    """Every call belongs to one connection: messages of another one about it are ignored."""

    def __init__(self) -> None:
        self._pending: dict[str, _PendingCall] = {}

    async def invoke(
        self, connection: NodeConnection, invocation: NodeInvocation, progress: ProgressCallback | None = None
    ) -> NodePayload:
        """The node's payload. Raises RpcError: its own error, a timeout, disconnected, or too busy."""
        if (
            sum(waiting.connection_id == connection.connection_id for waiting in self._pending.values())
            >= MAX_PENDING_CALLS
        ):
            message = f"the node is at work on {MAX_PENDING_CALLS} calls already; try again when some have ended"
            raise RpcError(
                message, kind="UNAVAILABLE", retryable=True, details=_error_details("BUSY", message, dispatched=False)
            )
        id = str(uuid.uuid4())
        pending = _PendingCall(connection.connection_id, connection.node_id, progress, invocation.caller_credentials)
        self._pending[id] = pending
        answered = False
        try:
            connection.send_event("node.invoke.request", _request_payload(id, connection.node_id, invocation))
            async with asyncio.timeout(invocation.seconds):
                payload = await pending.answer
            answered = True
            return payload
        except TimeoutError:
            message = "node invoke timed out"
            raise RpcError(
                f"TIMEOUT: {message}", kind="UNAVAILABLE", details=_error_details("TIMEOUT", message)
            ) from None
        except RpcError:
            answered = True
            raise
        finally:
            del self._pending[id]
            if not answered:  # timed out, or the caller was cancelled
                connection.send_event("node.invoke.cancel", {"invokeId": id, "nodeId": connection.node_id})

    def resolve(self, connection_id: str, id: str, payload: NodePayload) -> bool:
        """Take a result; False: no call waits for it, or it belongs to another connection."""
        answer = self._open_future(connection_id, id)
        if answer is not None:
            answer.set_result(payload)
        return answer is not None

    def fail(self, connection_id: str, id: str, code: str, message: str) -> bool:
        answer = self._open_future(connection_id, id)
        if answer is not None:
            message = message[:MAX_ERROR_LENGTH]
            answer.set_exception(
                RpcError(f"{code}: {message}", kind="UNAVAILABLE", details=_error_details(code, message))
            )
        return answer is not None

    def report_progress(self, connection_id: str, id: str, number: int, text: str) -> bool:
        """Pass progress on; False: no caller wants it. What comes twice or late is dropped."""
        waiting = self._pending.get(id)
        if waiting is None or waiting.connection_id != connection_id or waiting.progress is None:
            return False
        if number > waiting.last_progress:
            waiting.last_progress = number
            waiting.progress(number, text)
        return True

    def callers(self, connection_id: str) -> frozenset[str]:
        """The credentials of the callers this connection works for."""
        waiting = (waiting for waiting in self._pending.values() if waiting.connection_id == connection_id)
        return frozenset(credential for one in waiting for credential in one.caller_credentials)

    def on_disconnect(self, connection_id: str) -> None:
        """The connection has ended: its calls get no answer any more."""
        for waiting in self._pending.values():
            if waiting.connection_id == connection_id and not waiting.answer.done():
                waiting.answer.set_exception(NodeDisconnected(waiting.node_id))

    def _open_future(self, connection_id: str, id: str) -> "asyncio.Future[NodePayload] | None":
        waiting = self._pending.get(id)
        if waiting is None or waiting.connection_id != connection_id or waiting.answer.done():
            return None
        return waiting.answer


class _PendingCall:
    __slots__ = ("answer", "caller_credentials", "connection_id", "last_progress", "node_id", "progress")

    def __init__(
        self, connection_id: str, node_id: str, progress: ProgressCallback | None, caller_credentials: tuple[str, ...]
    ) -> None:
        self.caller_credentials = caller_credentials
        self.connection_id = connection_id
        self.node_id = node_id
        self.progress = progress
        self.last_progress = -1
        self.answer: asyncio.Future[NodePayload] = asyncio.get_running_loop().create_future()


def not_connected_error(node_id: str) -> RpcError:
    message = f"node not connected: {node_id[:12]}; start it, or see node.list for those that are"
    return RpcError(
        message,
        kind="UNAVAILABLE",
        details={"code": "NOT_CONNECTED", **_error_details("NOT_CONNECTED", "node not connected", dispatched=False)},
    )


def _request_payload(id: str, node_id: str, invocation: NodeInvocation) -> Json:
    params = None if invocation.params is None else msgspec.json.encode(invocation.params).decode()
    request: Json = {
        "id": id,
        "nodeId": node_id,
        "command": invocation.command,
        "paramsJSON": params,
        "timeoutMs": int(invocation.seconds * 1000),
        "idempotencyKey": invocation.idempotency_key or id,
    }
    return request if params is not None else {key: value for key, value in request.items() if key != "paramsJSON"}


def _error_details(code: str, message: str, *, dispatched: bool = True) -> Json:
    return {"nodeError": {"code": code, "message": message}, "nodeCommandDispatched": dispatched}
