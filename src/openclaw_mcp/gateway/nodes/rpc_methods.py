"""`node.*`: the gateway's methods about nodes, and the one function that sends a node a command."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ...core.approvals import NO_ORIGIN, QuestionOrigin, origin_of
from ...core.fields import NonEmptyStr
from ...core.json_nesting import JsonTooDeep, decode_json
from ...core.model import Caller, Json
from ...core.rpc import (
    ADMIN,
    PAIRING,
    READ,
    SAFE_INTEGER,
    Publish,
    RpcCall,
    RpcError,
    RpcEvent,
    RpcMethod,
    has_scope,
    read_params,
    scope_error,
)
from ...core.sessions import now_ms
from . import permissions
from .calls import NodeCallError, NodeCalls, NodeInvocation, NodePayload, ProgressCallback, not_connected_error
from .idempotency import IdempotencyCache
from .pending import PendingNodeRequests
from .registry import NodeRegistry
from .reports import NodeReports
from .values import NodeConnection, NodePairRequest, NodePairResult, NodeRecord
from .views import node_view, pair_entry_view, pair_request_view

DEFAULT_SECONDS: Final = 30.0  # when the caller names no time
MAX_SECONDS: Final = 3600.0  # the longest a node's own commands may take
MAX_DUPLICATED_BYTES: Final = 1 << 20  # a larger payload is sent once, not also as `payloadJSON`: frames end at 25 MiB
NOT_READY_TRIES: Final = 4  # a node that has just woken may answer so for a moment
NOT_READY_PAUSE: Final = 0.25  # seconds, times the tries so far
MAX_NAME_LENGTH: Final = 64
APPROVAL_CLAIMS: Final = frozenset({"approved", "approvalDecision", "approvalSource"})
"""Parameters by which a gateway states that a command was approved. No caller may set them."""


class _NodeParams(Struct, frozen=True, rename="camel"):
    node_id: NonEmptyStr


class _RequestParams(Struct, frozen=True, rename="camel"):
    request_id: NonEmptyStr


class _RenameParams(Struct, frozen=True, rename="camel"):
    node_id: NonEmptyStr
    display_name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]


class _InvokeParams(Struct, frozen=True, rename="camel"):
    node_id: NonEmptyStr
    command: NonEmptyStr
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=256)]
    params: Any = None
    timeout_ms: Annotated[int, Meta(ge=0, le=SAFE_INTEGER)] | None = None


class _InvokeResult(Struct, frozen=True, kw_only=True):
    ok: bool = True
    node_id: str = msgspec.field(name="nodeId")
    command: str
    payload: msgspec.Raw
    payload_json: str | UnsetType = msgspec.field(name="payloadJSON")


class _NodeError(Struct, frozen=True):
    code: str = "FAILED"
    message: str = "the node gave no reason"


class _ResultParams(Struct, frozen=True, kw_only=True):
    id: NonEmptyStr
    node_id: str | None = msgspec.field(default=None, name="nodeId")
    ok: bool
    payload: Any | UnsetType = UNSET
    payload_json: str | None = msgspec.field(default=None, name="payloadJSON")
    error: _NodeError | None = None


class _ProgressParams(Struct, frozen=True, rename="camel"):
    invoke_id: NonEmptyStr
    seq: Annotated[int, Meta(ge=0, le=SAFE_INTEGER)]
    chunk: Annotated[str, Meta(max_length=16_384)]


class NodeService:
    """An `RpcModule`."""

    def __init__(
        self,
        registry: NodeRegistry,
        reports: NodeReports,
        publish: Publish,
        *,
        unpair: Callable[[str], Awaitable[None]],
        credentials: Callable[[str], tuple[str, ...]] = lambda _: (),
        find_active_run: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """`unpair` removes the pairing of a node's device, which ends its connections; `credentials` are those that a
        connection has shown; `find_active_run` is the id of the run active in a session."""
        self._credentials, self._find_active_run = credentials, find_active_run
        self.registry, self.reports = registry, reports
        self._publish, self._unpair = publish, unpair
        self._calls = NodeCalls()
        self.call_ended = self._calls.ended
        self._idempotency: IdempotencyCache[_InvokeResult] = IdempotencyCache()
        self._pending = PendingNodeRequests(registry)
        registry.pair_requested.connect(self._publish_pair_request)
        registry.pair_settled.connect(self._announce_pair_result)
        registry.pair_withdrawn.connect(self._publish_pair_result)

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("node.list", READ, self._list),
            RpcMethod("node.describe", READ, self._describe_one),
            RpcMethod("node.invoke", None, self._invoke),
            RpcMethod("node.rename", PAIRING, self._rename),
            RpcMethod("node.pair.list", PAIRING, self._list_pairs),
            RpcMethod("node.pair.approve", PAIRING, self._approve),
            RpcMethod("node.pair.reject", PAIRING, self._reject),
            RpcMethod("node.pair.remove", PAIRING, self._remove),
            RpcMethod("node.invoke.result", None, self._on_result, role="node"),
            RpcMethod("node.invoke.progress", None, self._on_progress, role="node"),
            *self._pending.methods(),
        )

    # ---- connections ----------------------------------------------------------------------------------------------

    def on_disconnect(self, node_id: str, connection_id: str) -> None:
        self._calls.on_disconnect(connection_id)
        self.registry.on_disconnect(node_id, connection_id)

    def callers(self, connection_id: str) -> frozenset[str]:
        """The credentials of the callers a node's connection works for."""
        return self._calls.callers(connection_id)

    def find_origin(self, connection_id: str, invocation: str) -> QuestionOrigin | None:
        """What caused a call that a node's connection works on; None: it works on no such call."""
        return self._calls.find_origin(connection_id, invocation)

    def origin_of(self, caller: Caller) -> QuestionOrigin:
        return origin_of(caller, None if caller.session is None else self._find_active_run(caller.session))

    def node_name(self, node_id: str) -> str:
        """The name that its tools begin with."""
        known = self.registry.find(node_id)
        return node_id[:12] if known is None else known.alias or node_id[:12]

    def forget_node(self, node_id: str) -> None:
        """Its device is no longer paired."""
        self._pending.forget(node_id)
        self.registry.forget(node_id)

    # ---- calling a node -------------------------------------------------------------------------------------------

    async def invoke(
        self, node_id: str, command: str, params: Any, *, seconds: float, progress: ProgressCallback | None = None,
        idempotency_key: str | None = None, caller_credentials: tuple[str, ...] = (),
        origin: QuestionOrigin = NO_ORIGIN,
    ) -> Any:  # fmt: skip
        """The payload of an approved command. Raises RpcError; nothing is sent unless it is approved and not denied."""
        connection = self._authorize(node_id, command)
        invocation = NodeInvocation(
            command=command,
            params=_strip_approval_claims(command, params),
            seconds=seconds,
            idempotency_key=idempotency_key,
            caller_credentials=caller_credentials,
            origin=origin,
        )
        for attempt in range(1, NOT_READY_TRIES):
            try:
                return await self._calls.invoke(connection, invocation, progress)
            except NodeCallError as fault:
                if fault.node_code != "NODE_NOT_READY":
                    raise
            await asyncio.sleep(NOT_READY_PAUSE * attempt)
            connection = self._authorize(node_id, command)
        return await self._calls.invoke(connection, invocation, progress)

    def _authorize(self, node_id: str, command: str) -> NodeConnection:
        known = self.registry.find(node_id)
        if known is None or known.approved_at_ms is None:
            reason = f"node {node_id[:12]} is unknown here or not approved yet; see node.pair.list"
            raise RpcError(reason, kind="UNAVAILABLE", retryable=True, details={"code": "PAIRING_CHANGED"})
        connection = self.registry.connection_of(node_id)
        if connection is None:
            raise not_connected_error(node_id)
        if not self.registry.may_invoke(node_id, command):
            details = {"reason": _denial_reason(command, connection, known.face.commands), "command": command}
            raise RpcError(f'node command not allowed: "{command}" {details["reason"]}', details=details)
        return connection

    async def _invoke(self, call: RpcCall) -> _InvokeResult:
        wanted = read_params(call.params, _InvokeParams, call.method)
        scope = permissions.scope_to_invoke(wanted.command)
        if not has_scope(call.caller.scopes, scope):
            raise scope_error(scope)
        if wanted.command in permissions.EXEC_APPROVALS_COMMANDS:
            reason = "node.invoke does not allow system.execApprovals.*; use exec.approvals.node.*"
            raise RpcError(reason, details={"command": wanted.command})
        seconds = min((wanted.timeout_ms or DEFAULT_SECONDS * 1000) / 1000, MAX_SECONDS)

        async def run() -> tuple[_InvokeResult, int]:
            payload = await self.invoke(
                wanted.node_id,
                wanted.command,
                wanted.params,
                seconds=seconds,
                idempotency_key=wanted.idempotency_key,
                caller_credentials=self._credentials(call.peer.id),
                origin=self.origin_of(call.caller),
            )
            size = len(payload.raw_json)
            text = payload.raw_json.decode() if size <= MAX_DUPLICATED_BYTES else UNSET
            answer = _InvokeResult(
                node_id=wanted.node_id, command=wanted.command, payload=msgspec.Raw(payload.raw_json), payload_json=text
            )
            return answer, size

        request = (wanted.command, wanted.params)
        return await self._idempotency.run_once(wanted.node_id, wanted.idempotency_key, request, run)

    # ---- messages of nodes-----------------------------------------------------------------------------------------

    async def _on_result(self, call: RpcCall) -> dict[str, bool]:
        result = read_params(call.params, _ResultParams, call.method)
        if result.node_id not in (None, call.caller.name):
            raise RpcError("nodeId mismatch: a node answers for itself alone")
        if not result.ok:
            error = result.error or _NodeError()
            taken = self._calls.fail(call.peer.id, result.id, error.code, error.message)
        else:
            try:
                taken = self._calls.resolve(call.peer.id, result.id, _payload(result))
            except msgspec.DecodeError as exc:
                reason = (
                    f"payloadJSON can't be passed on: {exc}"
                    if isinstance(exc, JsonTooDeep)
                    else "payloadJSON is no JSON"
                )
                taken = self._calls.fail(call.peer.id, result.id, "BAD_PAYLOAD", reason)
        return {"ok": True} if taken else {"ok": True, "ignored": True}

    async def _on_progress(self, call: RpcCall) -> dict[str, bool]:
        progress = read_params(call.params, _ProgressParams, call.method)
        taken = self._calls.report_progress(call.peer.id, progress.invoke_id, progress.seq, progress.chunk)
        return {"ok": True} if taken else {"ok": True, "ignored": True}

    # ---- what operators see and decide -----------------------------------------------------------------------------

    async def _list(self, call: RpcCall) -> Json:
        return {"ts": now_ms(), "nodes": [self._view(known) for known in self.registry.all()]}

    async def _describe_one(self, call: RpcCall) -> Json:
        node_id = read_params(call.params, _NodeParams, call.method).node_id
        known = self.registry.find(node_id)
        if known is None:
            raise RpcError("unknown nodeId")
        return {"ts": now_ms(), **self._view(known)}

    def _view(self, known: NodeRecord) -> Json:
        node_id = known.node_id
        return node_view(
            known,
            self.registry.connection_of(node_id),
            self.registry.pair_request_of(node_id),
            commands=self.registry.commands(node_id),
            last_contact=self.registry.last_contact(node_id),
            tools=self.reports.tools(node_id),
            stats=self.reports.stats(node_id),
        )

    async def _list_pairs(self, call: RpcCall) -> dict[str, list[Json]]:
        pending = [pair_request_view(request) for request in self.registry.pair_requests()]
        paired = [known for known in self.registry.all() if known.approved_at_ms is not None]
        contact = self.registry.last_contact
        return {"pending": pending, "paired": [pair_entry_view(known, contact(known.node_id)) for known in paired]}

    async def _approve(self, call: RpcCall) -> dict[str, str | Json]:
        request_id = read_params(call.params, _RequestParams, call.method).request_id
        known = await self.registry.approve(request_id, scopes=call.caller.scopes)
        return {"requestId": request_id, "node": pair_entry_view(known, self.registry.last_contact(known.node_id))}

    async def _reject(self, call: RpcCall) -> dict[str, str]:
        request = self.registry.reject(read_params(call.params, _RequestParams, call.method).request_id)
        return {"requestId": request.request_id, "nodeId": request.node_id}

    async def _remove(self, call: RpcCall) -> dict[str, str]:
        node_id = read_params(call.params, _NodeParams, call.method).node_id
        await self.registry.remove(node_id)
        self._pending.forget(node_id)
        await self._unpair(node_id)
        return {"nodeId": node_id}

    async def _rename(self, call: RpcCall) -> dict[str, str]:
        wanted = read_params(call.params, _RenameParams, call.method)
        name = wanted.display_name.strip()
        if not name or not name.isprintable():
            raise RpcError("displayName must be one line of visible characters")
        await self.registry.rename(wanted.node_id, name, rename_tools=has_scope(call.caller.scopes, ADMIN))
        return {"nodeId": wanted.node_id, "displayName": name}

    def _publish_pair_request(self, request: NodePairRequest) -> None:
        self._publish(RpcEvent(name="node.pair.requested", payload=pair_request_view(request), scope=PAIRING))

    def _announce_pair_result(self, result: NodePairResult) -> None:
        self._publish_pair_result(result)
        connection = self.registry.connection_of(result.node_id)
        if connection is not None:
            connection.send_event("node.pair.resolved", msgspec.to_builtins(result))

    def _publish_pair_result(self, result: NodePairResult) -> None:
        self._publish(RpcEvent(name="node.pair.resolved", payload=msgspec.to_builtins(result), scope=PAIRING))


def _payload(result: _ResultParams) -> NodePayload:
    """Raises msgspec.DecodeError: a payload that is passed on unchanged must be JSON."""
    if result.payload_json is not None:
        return NodePayload(decode_json(result.payload_json), result.payload_json.encode())
    value = None if result.payload is UNSET else result.payload
    return NodePayload(value, msgspec.json.encode(value))


def _strip_approval_claims(command: str, params: Any) -> Any:
    """A command's parameters as they are sent to the node: without a caller's claim that an operator approved it."""
    if command not in ("system.run", "system.run.prepare") or not isinstance(params, dict):
        return params
    kept = {key: value for key, value in params.items() if key not in APPROVAL_CLAIMS}
    return {"runId": str(uuid.uuid4()), **kept} if command == "system.run" else kept


def _denial_reason(command: str, connection: NodeConnection, approved: tuple[str, ...]) -> str:
    if command not in connection.description.commands:
        return "is not offered by the node now" if command in approved else "is not a command of this node"
    return (
        "is denied by gateway.nodes.commands.deny" if command in approved else "has not been approved: node.pair.list"
    )
