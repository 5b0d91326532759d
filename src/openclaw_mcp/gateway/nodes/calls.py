"""Calls that wait for a node: sent, answered by the same connection, or ended with a reason."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from ...core.approvals import NO_ORIGIN, QuestionOrigin
from ...core.rpc import RpcError
from ...core.signal import Signal
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
    origin: QuestionOrigin = NO_ORIGIN


class NodePayload(Struct, frozen=True):
    """A node's answer, and its JSON: passing it on needs no second encoding."""

    value: Any
    raw_json: bytes


class NodeCallError(RpcError):
    """A call that failed on the node, or on the way to it or back."""

    def __init__(
        self,
        node_code: str,
        message: str,
        *,
        text: str | None = None,
        dispatched: bool = True,
        retryable: bool | None = None,
        **details: str,
    ) -> None:
        """`text` is read by people instead of code and message. `dispatched`: the node may have received the call."""
        error = {"code": node_code, "message": message}
        super().__init__(
            text or f"{node_code}: {message}",
            kind="UNAVAILABLE",
            retryable=retryable,
            details={**details, "nodeError": error, "nodeCommandDispatched": dispatched},
        )
        self.node_code, self.dispatched = node_code, dispatched


class _InvokeRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """The event `node.invoke.request`."""

    id: str
    node_id: str
    command: str
    params_json: str | UnsetType = field(name="paramsJSON")
    timeout_ms: int
    idempotency_key: str


class NodeCalls:
    """Every call belongs to one connection: messages of another one about it are ignored."""

    def __init__(self) -> None:
        self.ended: Signal[str] = Signal()
        """Emits the id of each call that nothing waits for any more."""
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
            raise NodeCallError("BUSY", message, text=message, retryable=True, dispatched=False)
        id = str(uuid.uuid4())
        pending = _PendingCall(connection, invocation, progress)
        self._pending[id] = pending
        answered = False
        try:
            connection.send_event("node.invoke.request", _request_payload(id, connection.node_id, invocation))
            async with asyncio.timeout(invocation.seconds):
                payload = await pending.answer
            answered = True
            return payload
        except TimeoutError:
            raise NodeCallError("TIMEOUT", "node invoke timed out") from None
        except RpcError:
            answered = True
            raise
        finally:
            del self._pending[id]
            self.ended.emit(id)
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
            answer.set_exception(NodeCallError(code, message[:MAX_ERROR_LENGTH]))
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

    def find_origin(self, connection_id: str, id: str) -> QuestionOrigin | None:
        """What caused a call; None: this connection works on no such call."""
        waiting = self._pending.get(id)
        return waiting.origin if waiting is not None and waiting.connection_id == connection_id else None

    def on_disconnect(self, connection_id: str) -> None:
        """The connection has ended: its calls get no answer any more."""
        for waiting in self._pending.values():
            if waiting.connection_id == connection_id and not waiting.answer.done():
                name = waiting.node_id[:12]
                message = f"node {name} left before it answered; whether it carried the command out is unknown"
                waiting.answer.set_exception(NodeCallError("DISCONNECTED", message, text=message))

    def _open_future(self, connection_id: str, id: str) -> "asyncio.Future[NodePayload] | None":
        waiting = self._pending.get(id)
        if waiting is None or waiting.connection_id != connection_id or waiting.answer.done():
            return None
        return waiting.answer


class _PendingCall:
    __slots__ = ("answer", "caller_credentials", "connection_id", "last_progress", "node_id", "origin", "progress")

    def __init__(
        self, connection: NodeConnection, invocation: NodeInvocation, progress: ProgressCallback | None
    ) -> None:
        self.caller_credentials, self.origin = invocation.caller_credentials, invocation.origin
        self.connection_id, self.node_id, self.progress = connection.connection_id, connection.node_id, progress
        self.last_progress = -1
        self.answer: asyncio.Future[NodePayload] = asyncio.get_running_loop().create_future()


def not_connected_error(node_id: str) -> NodeCallError:
    code, text = "NOT_CONNECTED", f"node not connected: {node_id[:12]}; start it, or see node.list for those that are"
    return NodeCallError(code, "node not connected", text=text, dispatched=False, code=code)


def _request_payload(id: str, node_id: str, invocation: NodeInvocation) -> _InvokeRequest:
    params = invocation.params
    return _InvokeRequest(
        id=id,
        node_id=node_id,
        command=invocation.command,
        params_json=UNSET if params is None else msgspec.json.encode(params).decode(),
        timeout_ms=int(invocation.seconds * 1000),
        idempotency_key=invocation.idempotency_key or id,
    )
