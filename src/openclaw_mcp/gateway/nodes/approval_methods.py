"""`exec.approval.*`, `approval.*`: questions to operators, and their answers."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from ...core.fields import NonEmptyStr
from ...core.model import Json
from ...core.rpc import (
    ADMIN,
    APPROVALS,
    Publish,
    RpcCall,
    RpcError,
    RpcEvent,
    RpcMethod,
    has_scope,
    read_params,
    scope_error,
)
from ...core.visible_text import escape_command, escape_line, escape_unsafe
from .approval_queue import (
    DECISIONS,
    SHARED_TOKEN,
    ApprovalRequester,
    ExecApprovalDecision,
    ExecApprovalOutcome,
    ExecApprovalQueue,
    ExecApprovalRecord,
    ExecApprovalRequest,
    new_approval_request,
)
from .command_text import MAX_COMMAND_LENGTH, display_command, reconcile

DEFAULT_SECONDS: Final = 1800.0  # when the request names no time
MAX_TIMEOUT_MS: Final = 86_400_000  # a day; an operator who has not answered by then will not
MAX_HISTORY: Final = 100

_ApprovalId = Annotated[str, Meta(min_length=1, max_length=200)]


class _Plan(Struct, frozen=True, rename="camel"):
    argv: tuple[str, ...]
    command_text: str
    cwd: str | None = None
    agent_id: str | None = None
    session_key: str | None = None


class _RequestParams(Struct, frozen=True, rename="camel"):
    id: _ApprovalId | None = None
    raw_command: str | None = None
    command_text: str | None = None
    env: dict[str, str] | None = None
    command: Annotated[str, Meta(min_length=1, max_length=MAX_COMMAND_LENGTH)] | None = None
    command_argv: tuple[str, ...] | None = None
    system_run_plan: _Plan | None = None
    cwd: str | None = None
    node_id: NonEmptyStr | None = None
    host: str | None = None
    security: str | None = None
    ask: str | None = None
    warning_text: str | None = None
    agent_id: str | None = None
    resolved_path: str | None = None
    session_key: str | None = None
    run_id: str | None = None
    tool_call_id: str | None = None
    unavailable_decisions: tuple[Literal["allow-always"], ...] = ()
    approval_reviewer_device_ids: tuple[NonEmptyStr, ...] = ()
    require_delivery_route: bool = False
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)] | None = None
    two_phase: bool = False


class _IdParams(Struct, frozen=True):
    id: NonEmptyStr


class _ResolveParams(Struct, frozen=True):
    id: NonEmptyStr
    decision: NonEmptyStr


class _HistoryParams(Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=MAX_HISTORY)] = MAX_HISTORY


class ExecApprovals:
    """An `RpcModule`. Operators with the scope ask and answer; a node asks about itself alone."""

    def __init__(
        self,
        publish: Publish,
        *,
        count_reviewers: Callable[[str], int] = lambda _: 1,
        credentials: Callable[[str], tuple[str, ...]] = lambda connection: (connection,),
        is_silent: Callable[[str], bool] = lambda _: False,
        callers_of: Callable[[str], frozenset[str]] = lambda _: frozenset(),
    ) -> None:
        """All by connection id. `count_reviewers`: connections that would receive a question, this one left out.
        `credentials`: those it has shown, the one it alone has first. `is_silent`: its device was paired on the
        gateway's token alone. `callers_of`: credentials of the callers a node's connection works for.
        """
        self._publish = publish
        self._is_silent = is_silent
        self._count_reviewers = count_reviewers
        self._credentials = credentials
        self._callers_of = callers_of
        self._queue = ExecApprovalQueue()
        self._queue.requested.connect(self._publish_request)
        self._queue.settled.connect(self._publish_outcome)

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("exec.approval.request", None, self._request, role="any"),
            RpcMethod("exec.approval.resolve", None, self._resolve, role="any"),
            RpcMethod("exec.approval.waitDecision", APPROVALS, self._wait),
            RpcMethod("exec.approval.get", APPROVALS, self._get),
            RpcMethod("exec.approval.list", APPROVALS, self._list),
            RpcMethod("approval.get", APPROVALS, self._get_any),
            RpcMethod("approval.resolve", APPROVALS, self._resolve_any),
            RpcMethod("approval.history", APPROVALS, self._history),
            # Kinds that we never ask: clients that show all kinds ask for these too.
            RpcMethod("plugin.approval.list", APPROVALS, self._empty_list),
            RpcMethod("openclaw.approval.list", APPROVALS, self._empty_list),
            RpcMethod("exec.approval.grants.list", APPROVALS, self._empty_grants),
        )

    def on_disconnect(self, connection_id: str) -> None:
        self._queue.on_disconnect(connection_id)

    def close(self) -> None:
        self._queue.close()

    # ---- asking ----------------------------------------------------------------------------------------------------

    async def _request(self, call: RpcCall) -> Json:
        asked = read_params(call.params, _RequestParams, call.method)
        node = call.caller.kind == "node"
        if not node:
            _check_operator(call)
        if node and asked.node_id not in (None, call.caller.name):
            raise RpcError("nodeId mismatch: a node asks about itself alone")
        if not node and asked.host == "node":
            _check_plan(asked)
        record = self._queue.put(
            new_approval_request(
                _request_view(
                    asked, node_id=call.caller.name if node else asked.node_id, host="node" if node else asked.host
                ),
                requester=self._requester(call),
                on_behalf_of=self._callers_of(call.peer.id) if node else frozenset(),
                seconds=(asked.timeout_ms or DEFAULT_SECONDS * 1000) / 1000,
                allow_always="allow-always" not in asked.unavailable_decisions,
                id=asked.id,
                reviewers=asked.approval_reviewer_device_ids,
                outlives_connection=asked.two_phase,
            )
        )
        if asked.require_delivery_route and not self._count_reviewers(call.peer.id):
            self._queue.drop(record, "no-route")
        elif asked.two_phase:
            return {"status": "accepted", "deliveryRoute": "approval-client", **_times(record.request)}
        return _decision_result(record.request, await record.outcome_future, reason=False)

    async def _wait(self, call: RpcCall) -> Json:
        record = self._queue.find(read_params(call.params, _IdParams, call.method).id)
        if record is None:
            raise RpcError("approval expired or not found")
        return _decision_result(record.request, await record.outcome_future, reason=True)

    # ---- answering -------------------------------------------------------------------------------------------------

    async def _resolve(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _ResolveParams, call.method)
        decision = _parse_decision(wanted.decision)
        record = self._queue.find(wanted.id)
        if call.caller.kind == "node":
            # A node may only withdraw its own question.
            if record is None or decision != "deny" or not record.request.requester.is_same(self._requester(call)):
                raise scope_error(APPROVALS)
        else:
            _check_operator(call)
        if record is None:
            raise _unknown_approval_error()
        if record.outcome is not None:
            raise RpcError("approval already resolved", details={"reason": "APPROVAL_ALREADY_RESOLVED"})
        self._decide(record, decision, call)
        return {"ok": True}

    async def _resolve_any(self, call: RpcCall) -> Json:
        _check_operator(call)
        wanted = read_params(call.params, _ResolveParams, call.method)
        decision = _parse_decision(wanted.decision)
        record = self._queue.find(wanted.id)
        if record is None:
            raise RpcError("approval not found", details={"reason": "APPROVAL_NOT_FOUND"})
        applied = record.outcome is None
        if applied:
            self._decide(record, decision, call)
        return {"applied": applied, "approval": _snapshot(record)}

    def _decide(self, record: ExecApprovalRecord, decision: ExecApprovalDecision, call: RpcCall) -> None:
        by = self._requester(call)
        owner = by.credentials[:1] == (SHARED_TOKEN,) or has_scope(call.caller.scopes, ADMIN)
        self._queue.decide(record, decision, by, owner=owner)

    def _requester(self, call: RpcCall) -> ApprovalRequester:
        link = call.peer.id
        credentials, silent = self._credentials(link), self._is_silent(link)
        return ApprovalRequester(connection_id=link, name=call.caller.name, credentials=credentials, is_silent=silent)

    # ---- reading ---------------------------------------------------------------------------------------------------

    async def _get(self, call: RpcCall) -> Json:
        record = self._queue.find(read_params(call.params, _IdParams, call.method).id)
        if record is None or record.outcome is not None:
            raise _unknown_approval_error()
        view = {"id": record.request.id, "expiresAtMs": record.request.expires_at_ms}
        return view | {key: value for key, value in _presentation(record.request).items() if key != "kind"}

    async def _list(self, call: RpcCall) -> list[Json]:
        return [_event_payload(asked) for asked in self._queue.open_requests()]

    async def _get_any(self, call: RpcCall) -> Json:
        record = self._queue.find(read_params(call.params, _IdParams, call.method).id)
        if record is None:
            raise RpcError("approval not found", details={"reason": "APPROVAL_NOT_FOUND"})
        return {"approval": _snapshot(record)}

    async def _history(self, call: RpcCall) -> Json:
        limit = read_params(call.params, _HistoryParams, call.method).limit
        return {"items": [_snapshot(record) for record in self._queue.history()[:limit]]}

    async def _empty_list(self, call: RpcCall) -> list[Json]:
        return []

    async def _empty_grants(self, call: RpcCall) -> Json:
        return {"grants": []}

    # ---- publishing ------------------------------------------------------------------------------------------------

    def _publish_request(self, request: ExecApprovalRequest) -> None:
        self._publish(RpcEvent(name="exec.approval.requested", payload=_event_payload(request), scope=APPROVALS))

    def _publish_outcome(self, settled: tuple[ExecApprovalRequest, ExecApprovalOutcome]) -> None:
        asked, outcome = settled
        payload = {
            "id": asked.id,
            "decision": outcome.decision or "deny",
            "resolvedBy": outcome.by,
            "reason": outcome.reason,
            "ts": outcome.at_ms,
            "request": asked.view,
        }
        self._publish(RpcEvent(name="exec.approval.resolved", payload=payload, scope=APPROVALS))


def _check_operator(call: RpcCall) -> None:
    """A run's program never asks or answers, whatever scopes its caller has: the question is about such programs."""
    caller = call.caller
    if (
        caller.kind != "operator"
        or caller.acts_in_session
        or caller.grant is not None
        or not has_scope(caller.scopes, APPROVALS)
    ):
        raise scope_error(APPROVALS)


def _check_plan(params: _RequestParams) -> None:
    if params.node_id is None:
        raise RpcError("nodeId is required for host=node")
    if params.system_run_plan is None:
        raise RpcError("systemRunPlan is required for host=node")


def _parse_decision(text: str) -> ExecApprovalDecision:
    for decision in DECISIONS:
        if decision == text:
            return decision
    raise RpcError("invalid decision")


def _unknown_approval_error() -> RpcError:
    remedy = "Re-request the action; pending approvals are cleared after expiry or restart."
    return RpcError("unknown or expired approval id", details={"reason": "APPROVAL_NOT_FOUND", "remediation": remedy})


def _request_view(params: _RequestParams, *, node_id: str | None, host: str | None) -> Json:
    """The question as operators see it, made from what would run. Raises RpcError when its parts contradict."""
    plan = params.system_run_plan
    argv = reconcile("commandArgv", plan.argv if plan else None, params.command_argv)
    texts = (params.command, params.raw_command, params.command_text, plan.command_text if plan else None)
    command = display_command(argv, [text for text in texts if text is not None], params.env or {})
    shown: Json = {
        "command": command,
        "commandArgv": None if argv is None else list(argv),
        "cwd": _optional_path(reconcile("cwd", plan.cwd if plan else None, params.cwd)),
        "host": host,
        "nodeId": node_id,
        "security": params.security,
        "ask": params.ask,
        "warningText": None if params.warning_text is None else escape_unsafe(params.warning_text),
        "agentId": _optional_line(reconcile("agentId", plan.agent_id if plan else None, params.agent_id)),
        "resolvedPath": _optional_path(params.resolved_path),
        "sessionKey": reconcile("sessionKey", plan.session_key if plan else None, params.session_key),
        "runId": params.run_id,
        "toolCallId": params.tool_call_id,
    }
    return shown


def _optional_line(text: str | None) -> str | None:
    return None if text is None else escape_line(text)


def _optional_path(text: str | None) -> str | None:
    return None if text is None else escape_line(escape_command(text))


def _times(approval: ExecApprovalRequest) -> Json:
    return {"id": approval.id, "createdAtMs": approval.created_at_ms, "expiresAtMs": approval.expires_at_ms}


def _decision_result(approval: ExecApprovalRequest, outcome: ExecApprovalOutcome, *, reason: bool) -> Json:
    return {**_times(approval), "decision": outcome.decision} | ({"terminalReason": outcome.reason} if reason else {})


def _event_payload(approval: ExecApprovalRequest) -> Json:
    return {"approvalKind": "exec", **_times(approval), "request": approval.view}


def _presentation(approval: ExecApprovalRequest) -> Json:
    request = approval.view
    return {
        "kind": "exec",
        "commandText": request["command"],
        "commandPreview": None,
        "warningText": request["warningText"],
        "host": request["host"],
        "nodeId": request["nodeId"],
        "agentId": request["agentId"],
        "allowedDecisions": list(approval.allowed),
    }


def _snapshot(record: ExecApprovalRecord) -> Json:
    """In the shape of `approval.get`."""
    asked, outcome = record.request, record.outcome
    snapshot: Json = {
        **_times(asked),
        "status": "pending",
        "presentation": _presentation(asked),
        "urlPath": f"/approve/{asked.id}",
        "source": {},
    }
    if outcome is None:
        return snapshot
    snapshot |= {"status": _STATUS[outcome.reason], "resolvedAtMs": outcome.at_ms, "reason": outcome.reason}
    if outcome.reason == "user":
        snapshot |= {
            "status": "denied" if outcome.decision == "deny" else "allowed",
            "decision": outcome.decision,
            "resolver": {"kind": "device", "id": outcome.by},
        }
    return snapshot


_STATUS: Final = {"user": "denied", "timeout": "expired", "no-route": "denied", "run-aborted": "cancelled"}
