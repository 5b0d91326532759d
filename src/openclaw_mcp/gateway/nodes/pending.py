"""Small requests that a node fetches when it next asks: `node.pending.*`."""

import uuid
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from ...core.fields import NonEmptyStr
from ...core.model import Json
from ...core.rpc import WRITE, RpcCall, RpcError, RpcMethod, read_params
from ...core.sessions import now_ms
from .registry import NodeRegistry

MAX_PENDING: Final = 64  # for one node; a sleeping one must not collect them for ever
DEFAULT_EXPIRY_MS: Final = 86_400_000  # unless the operator gives another
MAX_DRAIN: Final = 10
BASELINE_REQUEST: Final[Json] = {"id": "baseline-status", "type": "status.request", "priority": "default"}
"""Sent to every node whenever it fetches."""


class _Enqueue(Struct, frozen=True, rename="camel"):
    node_id: NonEmptyStr
    type: Literal["status.request", "location.request"]
    priority: Literal["normal", "high"] = "normal"
    expires_in_ms: Annotated[int, Meta(ge=1000, le=DEFAULT_EXPIRY_MS)] = DEFAULT_EXPIRY_MS


class _Drain(Struct, frozen=True, rename="camel"):
    max_items: Annotated[int, Meta(ge=1, le=MAX_DRAIN)] = MAX_DRAIN


class _Ack(Struct, frozen=True):
    ids: Annotated[tuple[NonEmptyStr, ...], Meta(min_length=1, max_length=MAX_PENDING)]


class PendingNodeRequests:
    """In memory: a request is a hint, and the node's next connect has the same effect."""

    def __init__(self, registry: NodeRegistry) -> None:
        self._registry = registry
        self._queues: dict[str, list[Json]] = {}
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

    async def _enqueue(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _Enqueue, call.method)
        if self._registry.find(wanted.node_id) is None:
            raise RpcError("unknown nodeId", kind="UNAVAILABLE")
        waiting = self._live_requests(wanted.node_id)
        queued = next((request for request in waiting if request["type"] == wanted.type), None)
        if queued is None:
            if len(waiting) >= MAX_PENDING:
                raise RpcError("too many requests wait for this node already", kind="UNAVAILABLE", retryable=True)
            at = now_ms()
            queued = {
                "id": str(uuid.uuid4()),
                "type": wanted.type,
                "priority": wanted.priority,
                "createdAtMs": at,
                "expiresAtMs": at + wanted.expires_in_ms,
            }
            waiting.append(queued)
            self._revision[wanted.node_id] = self._revision.get(wanted.node_id, 0) + 1
        revision = self._revision.get(wanted.node_id, 0)
        return {"nodeId": wanted.node_id, "revision": revision, "queued": queued, "wakeTriggered": False}

    async def _pull(self, call: RpcCall) -> Json:
        return {"nodeId": call.caller.name, "actions": []}

    async def _drain(self, call: RpcCall) -> Json:
        most = read_params(call.params, _Drain, call.method).max_items
        node_id = call.caller.name
        waiting = self._live_requests(node_id)
        waiting.sort(key=lambda request: request["priority"] != "high")
        taken, self._queues[node_id] = waiting[:most], waiting[most:]
        items: list[Any] = [*taken]
        if len(items) < most:
            items.append({**BASELINE_REQUEST, "createdAtMs": now_ms(), "expiresAtMs": None})
        left = len(self._queues[node_id])
        return {"nodeId": node_id, "revision": self._revision.get(node_id, 0), "items": items, "hasMore": left > 0}

    async def _ack(self, call: RpcCall) -> Json:
        ids = read_params(call.params, _Ack, call.method).ids
        node_id = call.caller.name
        kept = [request for request in self._live_requests(node_id) if request["id"] not in ids]
        self._queues[node_id] = kept
        return {"nodeId": node_id, "ackedIds": ids, "remainingCount": len(kept)}

    def _live_requests(self, node_id: str) -> list[Json]:
        now = now_ms()
        waiting = [request for request in self._queues.get(node_id, []) if request["expiresAtMs"] > now]
        self._queues[node_id] = waiting
        return waiting
