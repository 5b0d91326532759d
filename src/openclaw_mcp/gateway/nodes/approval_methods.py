"""The methods by which a question reaches an operator and the answer comes back: `exec.approval.*`, `approval.*`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from ...core.model import Json
from ...core.rpc import ADMIN, APPROVALS, Event, Fault, Method, Publish, RpcCall, covers, missing_scope, read_params
from ...core.visible_text import visible, visible_command, visible_line
from .approval_queue import DECISIONS, SHARED, Asker, Decision, Decisions, Matter, Outcome, Question, question
from .command_text import LONGEST_COMMAND, agreed, command_shown

DEFAULT_SECONDS: Final = 1800.0  # when the one who asks names no time
LONGEST_MS: Final = 86_400_000  # a day; who has not answered by then will not
MOST_HISTORY: Final = 100

Text = Annotated[str, Meta(min_length=1)]
Id = Annotated[str, Meta(min_length=1, max_length=200)]


class _Plan(Struct, frozen=True, rename="camel"):
    argv: tuple[str, ...]
    command_text: str
    cwd: str | None = None
    agent_id: str | None = None
    session_key: str | None = None


class _Ask(Struct, frozen=True, rename="camel"):
    id: Id | None = None
    raw_command: str | None = None
    command_text: str | None = None
    env: dict[str, str] | None = None
    command: Annotated[str, Meta(min_length=1, max_length=LONGEST_COMMAND)] | None = None
    command_argv: tuple[str, ...] | None = None
    system_run_plan: _Plan | None = None
    cwd: str | None = None
    node_id: Text | None = None
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
    approval_reviewer_device_ids: tuple[Text, ...] = ()
    require_delivery_route: bool = False
    timeout_ms: Annotated[int, Meta(ge=1, le=LONGEST_MS)] | None = None
    two_phase: bool = False


class _Id(Struct, frozen=True):
    id: Text


class _Resolve(Struct, frozen=True):
    id: Text
    decision: Text


class _History(Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=MOST_HISTORY)] = MOST_HISTORY


class Approvals:
    """A `Room`. Operators who hold the scope ask and answer; a node asks about itself alone.

    `listeners` counts the connections that would hear a question, the given one left out; `credentials` tells what a
    connection proved itself by, what it alone holds first; `silent`, whether its device was let in on the gateway's
    token alone; `callers`, the credentials of those a node's connection is at work for.
    """

    def __init__(
        self,
        publish: Publish,
        *,
        listeners: Callable[[str], int] = lambda _: 1,
        credentials: Callable[[str], tuple[str, ...]] = lambda connection: (connection,),
        silent: Callable[[str], bool] = lambda _: False,
        callers: Callable[[str], frozenset[str]] = lambda _: frozenset(),
    ) -> None:
        self._publish = publish
        self._silent = silent
        self._listeners = listeners
        self._credentials = credentials
        self._callers = callers
        self._decisions = Decisions()
        self._decisions.asked.listen(self._on_asked)
        self._decisions.settled.listen(self._on_settled)

    def methods(self) -> Sequence[Method]:
        return (
            Method("exec.approval.request", None, self._request, role="any"),
            Method("exec.approval.resolve", None, self._resolve, role="any"),
            Method("exec.approval.waitDecision", APPROVALS, self._wait),
            Method("exec.approval.get", APPROVALS, self._get),
            Method("exec.approval.list", APPROVALS, self._list),
            Method("approval.get", APPROVALS, self._get_any),
            Method("approval.resolve", APPROVALS, self._resolve_any),
            Method("approval.history", APPROVALS, self._history),
            # Kinds we have no questions of: clients that show all kinds ask for these too.
            Method("plugin.approval.list", APPROVALS, self._none),
            Method("openclaw.approval.list", APPROVALS, self._none),
            Method("exec.approval.grants.list", APPROVALS, self._no_grants),
        )

    def went(self, connection: str) -> None:
        self._decisions.left(connection)

    def close(self) -> None:
        self._decisions.close()

    # ---- asking ----------------------------------------------------------------------------------------------------

    async def _request(self, call: RpcCall) -> Json:
        asked = read_params(call.params, _Ask, call.method)
        node = call.caller.kind == "node"
        if not node:
            _check_operator(call)
        if node and asked.node_id not in (None, call.caller.name):
            raise Fault("nodeId mismatch: a node asks about itself alone")
        if not node and asked.host == "node":
            _check_plan(asked)
        matter = self._decisions.put(
            question(
                _shown(asked, node_id=call.caller.name if node else asked.node_id, host="node" if node else asked.host),
                asker=self._asker(call),
                behalf=self._callers(call.link.id) if node else frozenset(),
                seconds=(asked.timeout_ms or DEFAULT_SECONDS * 1000) / 1000,
                always="allow-always" not in asked.unavailable_decisions,
                id=asked.id,
                reviewers=asked.approval_reviewer_device_ids,
                lasting=asked.two_phase,
            )
        )
        if asked.require_delivery_route and not self._listeners(call.link.id):
            self._decisions.drop(matter, "no-route")
        elif asked.two_phase:
            return {"status": "accepted", "deliveryRoute": "approval-client", **_times(matter.question)}
        return _decided(matter.question, await matter.settled, reason=False)

    async def _wait(self, call: RpcCall) -> Json:
        matter = self._decisions.find(read_params(call.params, _Id, call.method).id)
        if matter is None:
            raise Fault("approval expired or not found")
        return _decided(matter.question, await matter.settled, reason=True)

    # ---- answering -------------------------------------------------------------------------------------------------

    async def _resolve(self, call: RpcCall) -> Json:
        wanted = read_params(call.params, _Resolve, call.method)
        decision = _decision(wanted.decision)
        matter = self._decisions.find(wanted.id)
        if call.caller.kind == "node":
            # A node may take back its own question, and that is all.
            if matter is None or decision != "deny" or not matter.question.asker.is_same(self._asker(call)):
                raise missing_scope(APPROVALS)
        else:
            _check_operator(call)
        if matter is None:
            raise _unknown()
        if matter.outcome is not None:
            raise Fault("approval already resolved", details={"reason": "APPROVAL_ALREADY_RESOLVED"})
        self._decide(matter, decision, call)
        return {"ok": True}

    async def _resolve_any(self, call: RpcCall) -> Json:
        _check_operator(call)
        wanted = read_params(call.params, _Resolve, call.method)
        decision = _decision(wanted.decision)
        matter = self._decisions.find(wanted.id)
        if matter is None:
            raise Fault("approval not found", details={"reason": "APPROVAL_NOT_FOUND"})
        applied = matter.outcome is None
        if applied:
            self._decide(matter, decision, call)
        return {"applied": applied, "approval": _snapshot(matter)}

    def _decide(self, matter: Matter, decision: Decision, call: RpcCall) -> None:
        by = self._asker(call)
        owner = by.credentials[:1] == (SHARED,) or covers(call.caller.scopes, ADMIN)
        self._decisions.decide(matter, decision, by, owner=owner)

    def _asker(self, call: RpcCall) -> Asker:
        link = call.link.id
        credentials, silent = self._credentials(link), self._silent(link)
        return Asker(connection=link, name=call.caller.name, credentials=credentials, silent=silent)

    # ---- looking ---------------------------------------------------------------------------------------------------

    async def _get(self, call: RpcCall) -> Json:
        matter = self._decisions.find(read_params(call.params, _Id, call.method).id)
        if matter is None or matter.outcome is not None:
            raise _unknown()
        view = {"id": matter.question.id, "expiresAtMs": matter.question.expires_at_ms}
        return view | {key: value for key, value in _presentation(matter.question).items() if key != "kind"}

    async def _list(self, call: RpcCall) -> list[Json]:
        return [_event(asked) for asked in self._decisions.open()]

    async def _get_any(self, call: RpcCall) -> Json:
        matter = self._decisions.find(read_params(call.params, _Id, call.method).id)
        if matter is None:
            raise Fault("approval not found", details={"reason": "APPROVAL_NOT_FOUND"})
        return {"approval": _snapshot(matter)}

    async def _history(self, call: RpcCall) -> Json:
        limit = read_params(call.params, _History, call.method).limit
        return {"items": [_snapshot(matter) for matter in self._decisions.history()[:limit]]}

    async def _none(self, call: RpcCall) -> list[Json]:
        return []

    async def _no_grants(self, call: RpcCall) -> Json:
        return {"grants": []}

    # ---- telling ---------------------------------------------------------------------------------------------------

    def _on_asked(self, asked: Question) -> None:
        self._publish(Event(name="exec.approval.requested", payload=_event(asked), scope=APPROVALS))

    def _on_settled(self, news: tuple[Question, Outcome]) -> None:
        asked, outcome = news
        payload = {
            "id": asked.id,
            "decision": outcome.decision or "deny",
            "resolvedBy": outcome.by,
            "reason": outcome.reason,
            "ts": outcome.at_ms,
            "request": asked.request,
        }
        self._publish(Event(name="exec.approval.resolved", payload=payload, scope=APPROVALS))


def _check_operator(call: RpcCall) -> None:
    """A run's program never asks or answers, whatever scopes its caller has: it is what the question is about."""
    caller = call.caller
    if caller.kind != "operator" or caller.bound or caller.grant is not None or not covers(caller.scopes, APPROVALS):
        raise missing_scope(APPROVALS)


def _check_plan(asked: _Ask) -> None:
    if asked.node_id is None:
        raise Fault("nodeId is required for host=node")
    if asked.system_run_plan is None:
        raise Fault("systemRunPlan is required for host=node")


def _decision(said: str) -> Decision:
    for decision in DECISIONS:
        if decision == said:
            return decision
    raise Fault("invalid decision")


def _unknown() -> Fault:
    how = "Re-request the action; pending approvals are cleared after expiry or restart."
    return Fault("unknown or expired approval id", details={"reason": "APPROVAL_NOT_FOUND", "remediation": how})


def _shown(asked: _Ask, *, node_id: str | None, host: str | None) -> Json:
    """The question as operators see it, made from what would run. Raises Fault when its parts say different things."""
    plan = asked.system_run_plan
    argv = agreed("commandArgv", plan.argv if plan else None, asked.command_argv)
    texts = (asked.command, asked.raw_command, asked.command_text, plan.command_text if plan else None)
    command = command_shown(argv, [text for text in texts if text is not None], asked.env or {})
    shown: Json = {
        "command": command,
        "commandArgv": None if argv is None else list(argv),
        "cwd": _path(agreed("cwd", plan.cwd if plan else None, asked.cwd)),
        "host": host,
        "nodeId": node_id,
        "security": asked.security,
        "ask": asked.ask,
        "warningText": None if asked.warning_text is None else visible(asked.warning_text),
        "agentId": _line(agreed("agentId", plan.agent_id if plan else None, asked.agent_id)),
        "resolvedPath": _path(asked.resolved_path),
        "sessionKey": agreed("sessionKey", plan.session_key if plan else None, asked.session_key),
        "runId": asked.run_id,
        "toolCallId": asked.tool_call_id,
    }
    return shown


def _line(text: str | None) -> str | None:
    return None if text is None else visible_line(text)


def _path(text: str | None) -> str | None:
    return None if text is None else visible_line(visible_command(text))


def _times(asked: Question) -> Json:
    return {"id": asked.id, "createdAtMs": asked.created_at_ms, "expiresAtMs": asked.expires_at_ms}


def _decided(asked: Question, outcome: Outcome, *, reason: bool) -> Json:
    return {**_times(asked), "decision": outcome.decision} | ({"terminalReason": outcome.reason} if reason else {})


def _event(asked: Question) -> Json:
    return {"approvalKind": "exec", **_times(asked), "request": asked.request}


def _presentation(asked: Question) -> Json:
    request = asked.request
    return {
        "kind": "exec",
        "commandText": request["command"],
        "commandPreview": None,
        "warningText": request["warningText"],
        "host": request["host"],
        "nodeId": request["nodeId"],
        "agentId": request["agentId"],
        "allowedDecisions": list(asked.allowed),
    }


def _snapshot(matter: Matter) -> Json:
    """In the shape of `approval.get`."""
    asked, outcome = matter.question, matter.outcome
    shot: Json = {
        **_times(asked),
        "status": "pending",
        "presentation": _presentation(asked),
        "urlPath": f"/approve/{asked.id}",
        "source": {},
    }
    if outcome is None:
        return shot
    shot |= {"status": _STATUS[outcome.reason], "resolvedAtMs": outcome.at_ms, "reason": outcome.reason}
    if outcome.reason == "user":
        shot |= {
            "status": "denied" if outcome.decision == "deny" else "allowed",
            "decision": outcome.decision,
            "resolver": {"kind": "device", "id": outcome.by},
        }
    return shot


_STATUS: Final = {"user": "denied", "timeout": "expired", "no-route": "denied", "run-aborted": "cancelled"}
