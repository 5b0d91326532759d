"""`exec.approval.*`, `approval.*`: questions to operators, and their answers."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal, Self

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from ...core.approvals import DECISIONS, NO_ORIGIN, ApprovalEndReason, ExecApprovalDecision, QuestionOrigin
from ...core.fields import NonEmptyStr
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
    SHARED_TOKEN,
    ApprovalRequester,
    ExecApprovalContext,
    ExecApprovalOutcome,
    ExecApprovalQueue,
    ExecApprovalRecord,
    ExecApprovalRequest,
    ExecApprovalView,
    new_approval_request,
)
from .command_text import MAX_COMMAND_LENGTH, display_command, reconcile

DEFAULT_SECONDS: Final = 1800.0  # when the request names no time
MAX_TIMEOUT_MS: Final = 86_400_000  # a day; an operator who has not answered by then will not
MAX_HISTORY: Final = 100
MAX_ASKED: Final = 120  # questions of one asker a minute; no person answers more, and each is a message to the owner

_ApprovalId = Annotated[str, Meta(min_length=1, max_length=200)]


class _Plan(Struct, frozen=True, rename="camel"):
    argv: tuple[str, ...]
    command_text: str
    cwd: str | None = None
    agent_id: str | None = None
    session_key: str | None = None


class _RequestParams(ExecApprovalContext, frozen=True, kw_only=True):
    id: _ApprovalId | None = None
    raw_command: str | None = None
    command_text: str | None = None
    env: dict[str, str] | None = None
    command: Annotated[str, Meta(min_length=1, max_length=MAX_COMMAND_LENGTH)] | None = None
    system_run_plan: _Plan | None = None
    node_id: NonEmptyStr | None = None
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


# ---- answers and events ----------------------------------------------------------------------------------------------


class _Timed(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    created_at_ms: int
    expires_at_ms: int

    @classmethod
    def of(cls, asked: ExecApprovalRequest, **fields: Any) -> Self:
        times = {"created_at_ms": asked.created_at_ms, "expires_at_ms": asked.expires_at_ms}
        return cls(id=asked.id, **times, **fields)


class _Accepted(_Timed, frozen=True, kw_only=True):
    status: Literal["accepted"] = "accepted"
    delivery_route: Literal["approval-client"] = "approval-client"


class _Decision(_Timed, frozen=True, kw_only=True):
    decision: ExecApprovalDecision | None
    terminal_reason: ApprovalEndReason | UnsetType = UNSET


class _Requested(_Timed, frozen=True, kw_only=True):
    """The event `exec.approval.requested`."""

    approval_kind: Literal["exec"] = "exec"
    request: ExecApprovalView


class _Presentation(Struct, frozen=True, kw_only=True, rename="camel"):
    kind: Literal["exec"] | UnsetType
    command_text: str
    command_preview: None = None
    warning_text: str | None
    host: str | None
    node_id: str | None
    agent_id: str | None
    allowed_decisions: tuple[ExecApprovalDecision, ...]
    id: str | UnsetType = UNSET
    expires_at_ms: int | UnsetType = UNSET


class _Snapshot(_Timed, frozen=True, kw_only=True):
    """An approval as `approval.get` shows it; what is set only once it is settled is left out before."""

    status: Literal["pending", "allowed", "denied", "expired", "cancelled"]
    presentation: _Presentation
    url_path: str
    source: dict[str, str] = {}
    resolved_at_ms: int | UnsetType = UNSET
    reason: ApprovalEndReason | UnsetType = UNSET
    decision: ExecApprovalDecision | UnsetType | None = UNSET
    resolver: dict[str, str | None] | UnsetType = UNSET


class ExecApprovals:
    """An `RpcModule`. Operators with the scope ask and answer; a node asks about itself alone."""

    def __init__(
        self,
        publish: Publish,
        *,
        queue: ExecApprovalQueue | None = None,
        count_reviewers: Callable[[str], int] = lambda _: 1,
        is_reachable: Callable[[QuestionOrigin], bool] = lambda _: False,
        credentials: Callable[[str], tuple[str, ...]] = lambda connection: (connection,),
        is_silent: Callable[[str], bool] = lambda _: False,
        callers_of: Callable[[str], frozenset[str]] = lambda _: frozenset(),
        find_origin: Callable[[str, str], QuestionOrigin | None] = lambda connection, invocation: None,
        node_name: Callable[[str], str] = lambda node_id: node_id[:12],
    ) -> None:
        """By connection id: `count_reviewers`: connections that would receive a question, this one left out.
        `credentials`: those it has shown, the one it alone has first. `is_silent`: its device was paired on the
        gateway's token alone. `callers_of`: credentials of the callers a node's connection works for. `find_origin`:
        what caused a call that a node's connection works on, by the call's id. `node_name`: that of a node, by its id.

        `is_reachable`: whether the owner is asked in the conversation that a question comes from.
        """
        self._publish, self._is_silent, self._count_reviewers = publish, is_silent, count_reviewers
        self._credentials, self._callers_of = credentials, callers_of
        self._find_origin, self._is_reachable, self._node_name = find_origin, is_reachable, node_name
        self._queue = ExecApprovalQueue() if queue is None else queue
        self._queue.requested.connect(self._publish_request)
        self._queue.settled.connect(self._publish_outcome)

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("exec.approval.request", None, self._request, role="any", per_minute=MAX_ASKED),
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

    async def _request(self, call: RpcCall) -> _Decision:
        """Answers once; with `twoPhase` twice, the first time when the question is put."""
        asked = read_params(call.params, _RequestParams, call.method)
        node = call.caller.kind == "node"
        if not node:
            _check_operator(call)
        if node and asked.node_id not in (None, call.caller.name):
            raise RpcError("nodeId mismatch: a node asks about itself alone")
        if not node and asked.host == "node":
            _check_plan(asked)
        origin, invocation = self._node_origin(call.peer.id, asked) if node else (NO_ORIGIN, None)
        question = new_approval_request(
            _node_view(asked, call.caller.name, self._node_name(call.caller.name), origin)
            if node
            else _request_view(asked),
            requester=self._requester(call),
            on_behalf_of=self._callers_of(call.peer.id) if node else frozenset(),
            seconds=(asked.timeout_ms or DEFAULT_SECONDS * 1000) / 1000,
            allow_always="allow-always" not in asked.unavailable_decisions,
            id=asked.id,
            reviewers=asked.approval_reviewer_device_ids,
            outlives_connection=asked.two_phase,
        )
        record = self._queue.put(replace(question, origin=origin, invocation=invocation))
        is_delivered = self._count_reviewers(call.peer.id) > 0 or self._is_reachable(origin)
        if asked.require_delivery_route and not is_delivered:
            self._queue.drop(record, "no-route")
        elif asked.two_phase:
            await call.peer.acknowledge(_Accepted.of(record.request))
        return _Decision.of(record.request, decision=(await record.outcome_future).decision)

    def _node_origin(self, connection_id: str, asked: _RequestParams) -> tuple[QuestionOrigin, str | None]:
        """What caused a node's question, by the call it is at work on; what else it says about that does not count."""
        origin = self._find_origin(connection_id, asked.tool_call_id) if asked.tool_call_id else None
        return (NO_ORIGIN, None) if origin is None else (origin, asked.tool_call_id)

    async def _wait(self, call: RpcCall) -> _Decision:
        record = self._queue.find(read_params(call.params, _IdParams, call.method).id)
        if record is None:
            raise RpcError("approval expired or not found")
        outcome = await record.outcome_future
        return _Decision.of(record.request, decision=outcome.decision, terminal_reason=outcome.reason)

    # ---- answering -------------------------------------------------------------------------------------------------

    async def _resolve(self, call: RpcCall) -> dict[str, bool]:
        wanted = read_params(call.params, _ResolveParams, call.method)
        decision = _parse_decision(wanted.decision)
        record = self._queue.find(wanted.id)
        if call.caller.kind != "node":
            _check_operator(call)
        elif record is None:  # a node learns of no question but its own
            raise scope_error(APPROVALS)
        if record is None:
            raise _unknown_approval_error()
        if record.outcome is not None:
            raise RpcError("approval already resolved", details={"reason": "APPROVAL_ALREADY_RESOLVED"})
        self._queue.decide(record, decision, self._requester(call))
        return {"ok": True}

    async def _resolve_any(self, call: RpcCall) -> dict[str, bool | _Snapshot]:
        _check_operator(call)
        wanted = read_params(call.params, _ResolveParams, call.method)
        decision = _parse_decision(wanted.decision)
        record = self._queue.find(wanted.id)
        if record is None:
            raise RpcError("approval not found", details={"reason": "APPROVAL_NOT_FOUND"})
        applied = record.outcome is None
        if applied:
            self._queue.decide(record, decision, self._requester(call))
        return {"applied": applied, "approval": _snapshot(record)}

    def _requester(self, call: RpcCall) -> ApprovalRequester:
        link, is_node = call.peer.id, call.caller.kind == "node"
        credentials = self._credentials(link)
        owns = not is_node and (credentials[:1] == (SHARED_TOKEN,) or has_scope(call.caller.scopes, ADMIN))
        return ApprovalRequester(
            connection_id=link,
            name=call.caller.name,
            credentials=credentials,
            is_silent=self._is_silent(link),
            is_node=is_node,
            is_owner=owns,
        )

    # ---- reading ---------------------------------------------------------------------------------------------------

    async def _get(self, call: RpcCall) -> _Presentation:
        record = self._queue.find(read_params(call.params, _IdParams, call.method).id)
        if record is None or record.outcome is not None:
            raise _unknown_approval_error()
        asked = record.request
        return replace(_presentation(asked), kind=UNSET, id=asked.id, expires_at_ms=asked.expires_at_ms)

    async def _list(self, call: RpcCall) -> list[_Requested]:
        return [_Requested.of(asked, request=asked.view) for asked in self._queue.open_requests()]

    async def _get_any(self, call: RpcCall) -> dict[str, _Snapshot]:
        record = self._queue.find(read_params(call.params, _IdParams, call.method).id)
        if record is None:
            raise RpcError("approval not found", details={"reason": "APPROVAL_NOT_FOUND"})
        return {"approval": _snapshot(record)}

    async def _history(self, call: RpcCall) -> dict[str, list[_Snapshot]]:
        limit = read_params(call.params, _HistoryParams, call.method).limit
        return {"items": [_snapshot(record) for record in self._queue.history()[:limit]]}

    async def _empty_list(self, call: RpcCall) -> list[str]:
        return []

    async def _empty_grants(self, call: RpcCall) -> dict[str, list[str]]:
        return {"grants": []}

    # ---- publishing ------------------------------------------------------------------------------------------------

    def _publish_request(self, request: ExecApprovalRequest) -> None:
        payload = _Requested.of(request, request=request.view)
        asker = request.requester.connection_id
        self._publish(RpcEvent(name="exec.approval.requested", payload=payload, scope=APPROVALS, except_for=asker))

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
    """A run's program never asks or answers, with any scope: the question is about such programs."""
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


def _request_view(params: _RequestParams) -> ExecApprovalView:
    """The question as operators see it, made from what would run. Raises RpcError when its parts contradict."""
    plan = params.system_run_plan
    argv = reconcile("commandArgv", plan.argv if plan else None, params.command_argv)
    texts = (params.command, params.raw_command, params.command_text, plan.command_text if plan else None)
    command = display_command(argv, [text for text in texts if text is not None], params.env or {})
    agent_id = reconcile("agentId", plan.agent_id if plan else None, params.agent_id)
    return ExecApprovalView(
        command=command,
        command_argv=argv,
        cwd=_optional_path(reconcile("cwd", plan.cwd if plan else None, params.cwd)),
        host=params.host,
        node_id=params.node_id,
        security=params.security,
        ask=params.ask,
        warning_text=None if params.warning_text is None else escape_unsafe(params.warning_text),
        agent_id=None if agent_id is None else escape_line(agent_id),
        resolved_path=_optional_path(params.resolved_path),
        session_key=reconcile("sessionKey", plan.session_key if plan else None, params.session_key),
        run_id=params.run_id,
        tool_call_id=params.tool_call_id,
    )


def _node_view(params: _RequestParams, node_id: str, node_name: str, origin: QuestionOrigin) -> ExecApprovalView:
    """A node's question: for which run it asks is the gateway's knowledge, not the node's."""
    return replace(
        _request_view(params),
        host="node",
        node_id=node_id,
        node_name=node_name,
        agent_id=origin.agent_id,
        session_key=origin.session_key,
        run_id=origin.run_id,
        tool_call_id=None,
    )


def _optional_path(text: str | None) -> str | None:
    return None if text is None else escape_line(escape_command(text))


def _presentation(approval: ExecApprovalRequest) -> _Presentation:
    view = approval.view
    return _Presentation(
        kind="exec",
        command_text=view.command,
        warning_text=view.warning_text,
        host=view.host,
        node_id=view.node_id,
        agent_id=view.agent_id,
        allowed_decisions=view.allowed_decisions,
    )


def _snapshot(record: ExecApprovalRecord) -> _Snapshot:
    asked, outcome = record.request, record.outcome
    snapshot = _Snapshot.of(asked, status="pending", presentation=_presentation(asked), url_path=f"/approve/{asked.id}")
    if outcome is None:
        return snapshot
    ended = replace(snapshot, status=_STATUS[outcome.reason], resolved_at_ms=outcome.at_ms, reason=outcome.reason)
    if outcome.reason != "user":
        return ended
    status = "denied" if outcome.decision == "deny" else "allowed"
    return replace(ended, status=status, decision=outcome.decision, resolver={"kind": "device", "id": outcome.by})


_STATUS: Final = {"user": "denied", "timeout": "expired", "no-route": "denied", "run-aborted": "cancelled"}
