"""Calls a node is at work on: sent, answered by the connection that was asked, given up in words."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from ...core.model import Json
from ...core.rpc import Fault
from .values import Arrival

MOST_WAITING: Final = 64  # calls one node is at work on; our own takes eight at once and refuses more
LONGEST_MESSAGE: Final = 4000  # characters of a node's complaint that are passed on

Progress = Callable[[int, str], None]
"""Hears a piece of progress and its number."""


class Order(Struct, frozen=True, kw_only=True):
    """One command for a node."""

    command: str
    params: Any
    seconds: float
    key: str | None = None
    """The caller's idempotency key, for the node to see."""
    by: tuple[str, ...] = ()
    """What the caller proved itself by; empty: the gateway's own agents."""


class Payload(Struct, frozen=True):
    """What a node answered, and the JSON it stood in: whoever passes it on need not write it anew."""

    value: Any
    text: bytes


class NodeGone(Fault):
    def __init__(self, node_id: str) -> None:
        words = f"node {node_id[:12]} left before it answered; whether it carried the command out is unknown"
        super().__init__(words, kind="UNAVAILABLE", details=_details("DISCONNECTED", words))


class Calls:
    """Every call has one connection: what another one says about it is passed over."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}

    async def make(self, arrival: Arrival, order: Order, progress: Progress | None = None) -> Payload:
        """The node's payload. Raises Fault: its own error, out of time, gone, or too busy."""
        if sum(waiting.connection == arrival.connection for waiting in self._waiting.values()) >= MOST_WAITING:
            words = f"the node is at work on {MOST_WAITING} calls already; try again when some have ended"
            raise Fault(words, kind="UNAVAILABLE", retryable=True, details=_details("BUSY", words, dispatched=False))
        id = str(uuid.uuid4())
        waiting = _Waiting(arrival.connection, arrival.node_id, progress, order.by)
        self._waiting[id] = waiting
        answered = False
        try:
            arrival.tell("node.invoke.request", _request(id, arrival.node_id, order))
            async with asyncio.timeout(order.seconds):
                payload = await waiting.answer
            answered = True
            return payload
        except TimeoutError:
            words = "node invoke timed out"
            raise Fault(f"TIMEOUT: {words}", kind="UNAVAILABLE", details=_details("TIMEOUT", words)) from None
        except Fault:
            answered = True
            raise
        finally:
            del self._waiting[id]
            if not answered:  # out of time, or nobody wants the answer any more
                arrival.tell("node.invoke.cancel", {"invokeId": id, "nodeId": arrival.node_id})

    def answered(self, connection: str, id: str, payload: Payload) -> bool:
        """Take a result; False: nobody waits for it, or it is not this connection's to give."""
        answer = self._open(connection, id)
        if answer is not None:
            answer.set_result(payload)
        return answer is not None

    def failed(self, connection: str, id: str, code: str, message: str) -> bool:
        answer = self._open(connection, id)
        if answer is not None:
            message = message[:LONGEST_MESSAGE]
            answer.set_exception(Fault(f"{code}: {message}", kind="UNAVAILABLE", details=_details(code, message)))
        return answer is not None

    def progressed(self, connection: str, id: str, number: int, text: str) -> bool:
        """Pass progress on; False: nobody listens. What comes twice or late is dropped."""
        waiting = self._waiting.get(id)
        if waiting is None or waiting.connection != connection or waiting.progress is None:
            return False
        if number > waiting.heard:
            waiting.heard = number
            waiting.progress(number, text)
        return True

    def callers(self, connection: str) -> frozenset[str]:
        """The credentials of those this connection is at work for."""
        waiting = (waiting for waiting in self._waiting.values() if waiting.connection == connection)
        return frozenset(credential for one in waiting for credential in one.by)

    def left(self, connection: str) -> None:
        """The connection has ended, and with it the hope of an answer."""
        for waiting in self._waiting.values():
            if waiting.connection == connection and not waiting.answer.done():
                waiting.answer.set_exception(NodeGone(waiting.node_id))

    def _open(self, connection: str, id: str) -> "asyncio.Future[Payload] | None":
        waiting = self._waiting.get(id)
        if waiting is None or waiting.connection != connection or waiting.answer.done():
            return None
        return waiting.answer


class _Waiting:
    __slots__ = ("answer", "by", "connection", "heard", "node_id", "progress")

    def __init__(self, connection: str, node_id: str, progress: Progress | None, by: tuple[str, ...]) -> None:
        self.by = by
        self.connection = connection
        self.node_id = node_id
        self.progress = progress
        self.heard = -1
        self.answer: asyncio.Future[Payload] = asyncio.get_running_loop().create_future()


def not_connected(node_id: str) -> Fault:
    words = f"node not connected: {node_id[:12]}; start it, or see node.list for those that are"
    return Fault(
        words,
        kind="UNAVAILABLE",
        details={"code": "NOT_CONNECTED", **_details("NOT_CONNECTED", "node not connected", dispatched=False)},
    )


def _request(id: str, node_id: str, order: Order) -> Json:
    params = None if order.params is None else msgspec.json.encode(order.params).decode()
    request: Json = {
        "id": id,
        "nodeId": node_id,
        "command": order.command,
        "paramsJSON": params,
        "timeoutMs": int(order.seconds * 1000),
        "idempotencyKey": order.key or id,
    }
    return request if params is not None else {key: value for key, value in request.items() if key != "paramsJSON"}


def _details(code: str, message: str, *, dispatched: bool = True) -> Json:
    return {"nodeError": {"code": code, "message": message}, "nodeCommandDispatched": dispatched}
