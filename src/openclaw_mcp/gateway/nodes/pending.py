"""Small requests that a node fetches when it next asks: `node.pending.*`."""

import uuid
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from ...core.fields import NonEmptyStr
from ...core.rpc import WRITE, RpcCall, RpcError, RpcMethod, read_params
from ...core.sessions import now_ms
from .registry import NodeRegistry

MAX_PENDING: Final = 64  # for one node; a sleeping one must not collect them for ever
DEFAULT_EXPIRY_MS: Final = 86_400_000  # unless the operator gives another
MAX_DRAIN: Final = 10
BASELINE_ID: Final = "baseline-status"
"""The id of the request that every node gets whenever it fetches."""

_RequestType = Literal["status.request", "location.request"]


class _Enqueue(Struct, frozen=True, rename="camel"):
    node_id: NonEmptyStr
    type: _RequestType
    priority: Literal["normal", "high"] = "normal"
    expires_in_ms: Annotated[int, Meta(ge=1000, le=DEFAULT_EXPIRY_MS)] = DEFAULT_EXPIRY_MS


class _Drain(Struct, frozen=True, rename="camel"):
    max_items: Annotated[int, Meta(ge=1, le=MAX_DRAIN)] = MAX_DRAIN


class _Ack(Struct, frozen=True):
    ids: Annotated[tuple[NonEmptyStr, ...], Meta(min_length=1, max_length=MAX_PENDING)]


class _PendingRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    type: _RequestType
    priority: Literal["normal", "high", "default"]
    created_at_ms: int
    expires_at_ms: int | None


class PendingNodeRequests:
    """In memory: a request is a hint, and the node's next connect has the same effect."""

    def __init__(self, registry: NodeRegistry) -> None:
        self._registry = registry
        self._queues: dict[str, list[_PendingRequest]] = {}
        self._revision: dict[str, int] = {}

    def methods(self) -> tuple[RpcMethod, ...]:
        return (
            RpcMethod("node.pending.enqueue", WRITE, self._enqueue),
            RpcMethod("node.pending.pull", None, self._pull, role="node"),
            RpcMethod("node.pending.drain", None, self._drain, role="node"),
            RpcMethod("node.pending.ack", None, self._ack, role="node"),
        )

    def forget(self, node_id: str) -> None:
        self._queues.pop(node_id, None)
        self._revision.pop(node_id, None)

    async def _enqueue(self, call: RpcCall) -> dict[str, str | int | _PendingRequest]:
        wanted = read_params(call.params, _Enqueue, call.method)
        if self._registry.find(wanted.node_id) is None:
            raise RpcError("unknown nodeId", kind="UNAVAILABLE", retryable=True, details={"code": "PAIRING_CHANGED"})
        waiting = self._live_requests(wanted.node_id)
        queued = next((request for request in waiting if request.type == wanted.type), None)
        if queued is None:
            if len(waiting) >= MAX_PENDING:
                raise RpcError("too many requests wait for this node already", kind="UNAVAILABLE", retryable=True)
            queued = _new_request(str(uuid.uuid4()), wanted.type, wanted.priority, wanted.expires_in_ms)
            waiting.append(queued)
            self._revision[wanted.node_id] = self._revision.get(wanted.node_id, 0) + 1
        revision = self._revision.get(wanted.node_id, 0)
        return {"nodeId": wanted.node_id, "revision": revision, "queued": queued, "wakeTriggered": False}

    async def _pull(self, call: RpcCall) -> dict[str, str | list[str]]:
        return {"nodeId": call.caller.name, "actions": []}

    async def _drain(self, call: RpcCall) -> dict[str, str | int | list[_PendingRequest]]:
        most = read_params(call.params, _Drain, call.method).max_items
        node_id = call.caller.name
        waiting = self._live_requests(node_id)
        waiting.sort(key=lambda request: request.priority != "high")
        items, left = waiting[:most], waiting[most:]
        self._queues[node_id] = left
        if len(items) < most:
            items.append(_new_request(BASELINE_ID, "status.request", "default", None))
        revision = self._revision.get(node_id, 0)
        return {"nodeId": node_id, "revision": revision, "items": items, "hasMore": bool(left)}

    async def _ack(self, call: RpcCall) -> dict[str, str | int | tuple[str, ...]]:
        ids = read_params(call.params, _Ack, call.method).ids
        node_id = call.caller.name
        kept = [request for request in self._live_requests(node_id) if request.id not in ids]
        self._queues[node_id] = kept
        return {"nodeId": node_id, "ackedIds": ids, "remainingCount": len(kept)}

    def _live_requests(self, node_id: str) -> list[_PendingRequest]:
        now = now_ms()
        waiting = [each for each in self._queues.get(node_id, []) if (each.expires_at_ms or 0) > now]
        self._queues[node_id] = waiting
        return waiting


def _new_request(
    id: str, type: _RequestType, priority: Literal["normal", "high", "default"], expires_in_ms: int | None
) -> _PendingRequest:
    at = now_ms()
    until = None if expires_in_ms is None else at + expires_in_ms
    return _PendingRequest(id=id, type=type, priority=priority, created_at_ms=at, expires_at_ms=until)
