"""Questions to operators and their outcome: decided once, expired or withdrawn."""

import asyncio
import re
import secrets
import uuid
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from ...core.approvals import DECISIONS, NO_ORIGIN, ApprovalEndReason, ExecApprovalDecision, QuestionOrigin
from ...core.rpc import APPROVALS, RpcError, scope_error
from ...core.sessions import now_ms
from ...core.signal import Signal

MAX_OPEN: Final = 256  # questions at once; operators do not answer more
MAX_OPEN_PER_REQUESTER: Final = 16  # of one requester: a runaway node must not crowd the others out
CODE_ALPHABET: Final = "abcdefghjkmnpqrstuvwxyz23456789"  # none that look like another
CODE_LENGTH: Final = 6  # one in a billion: no two open questions share one, and no asker guesses one
MAX_SETTLED: Final = 512  # kept, so that a late answer gets the decision

_DEVICE_ID: Final = re.compile(r"[0-9a-f]{64}")


SHARED_TOKEN: Final = "token"
"""The gateway's own token among credentials: its holder is the owner, or a program of the owner's."""


def device_credential(id: str) -> str:
    """The key of a device among credentials."""
    return f"device {id}"


class ApprovalRequester(Struct, frozen=True, kw_only=True):
    """Who asked the question: the same can't answer it."""

    connection_id: str
    name: str
    credentials: tuple[str, ...] = ()
    """Those it has shown; the one it alone has comes first."""
    is_silent: bool = False
    """Whether its key was paired on the gateway's token alone: a holder of that can make any number of keys."""
    is_node: bool = False
    is_owner: bool = False
    """Whether it may do anything here."""
    in_conversation: bool = False
    """Whether it is a sender on a channel rather than a connection."""

    def may_be(self, other: "ApprovalRequester") -> bool:
        """Whether `other` can't show that it is another one: the same, or with no credential but one this one has."""
        shown = SHARED_TOKEN if other.is_silent else next(iter(other.credentials), "")
        # The maker of a silent key had the gateway's token, even if it shows another credential later.
        held = (*self.credentials, SHARED_TOKEN) if self.is_silent else self.credentials
        return self.is_same(other) or not shown or shown in held

    def is_same(self, other: "ApprovalRequester") -> bool:
        """The same connection, or the same device over another one."""
        return self.connection_id == other.connection_id or (
            self.name == other.name and bool(_DEVICE_ID.fullmatch(self.name))
        )


class ExecApprovalContext(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a command is to run, for whom, and under which rules: as it is asked, and as it is shown."""

    command_argv: tuple[str, ...] | None = None
    cwd: str | None = None
    host: str | None = None
    node_id: str | None = None
    security: str | None = None
    ask: str | None = None
    warning_text: str | None = None
    agent_id: str | None = None
    resolved_path: str | None = None
    session_key: str | None = None
    run_id: str | None = None
    tool_call_id: str | None = None


class ExecApprovalView(ExecApprovalContext, frozen=True, kw_only=True):
    """The question as operators see it, in the shape of `exec.approval.requested`."""

    command: str
    node_name: str | UnsetType = UNSET
    """The name that the tools of the node begin with; the gateway's knowledge, not the node's word."""
    allowed_decisions: tuple[ExecApprovalDecision, ...] = DECISIONS
    unavailable_decisions: tuple[ExecApprovalDecision, ...] | UnsetType = UNSET


class ExecApprovalRequest(Struct, frozen=True, kw_only=True):
    id: str
    """The requester may have chosen it."""
    code: str
    """Its name in conversations, chosen by us."""
    view: ExecApprovalView
    created_at_ms: int
    expires_at_ms: int
    requester: ApprovalRequester
    on_behalf_of: frozenset[str] = frozenset()
    """Credentials of the callers a node worked for when it asked."""
    reviewers: frozenset[str] = frozenset()
    """Devices that alone may answer; empty = every operator with the scope."""
    outlives_connection: bool = False
    """Whether it outlives the connection it came by."""
    origin: QuestionOrigin = NO_ORIGIN
    invocation: str | None = None
    """The call of a node that it is about: it ends with that."""


class ExecApprovalOutcome(Struct, frozen=True, kw_only=True):
    """`decision` None: no operator decided in time, which means no."""

    decision: ExecApprovalDecision | None
    reason: ApprovalEndReason
    by: str | None
    at_ms: int


class ExecApprovalRecord(Struct, kw_only=True):
    """A question and, once settled, its outcome."""

    request: ExecApprovalRequest
    outcome_future: asyncio.Future[ExecApprovalOutcome]
    timer: asyncio.TimerHandle | None = None

    @property
    def outcome(self) -> ExecApprovalOutcome | None:
        return self.outcome_future.result() if self.outcome_future.done() else None


class ExecApprovalQueue:
    """Each question is settled exactly once; the first answer counts."""

    def __init__(self) -> None:
        self.requested: Signal[ExecApprovalRequest] = Signal()
        self.settled: Signal[tuple[ExecApprovalRequest, ExecApprovalOutcome]] = Signal()
        self._records: dict[str, ExecApprovalRecord] = {}

    def put(self, request: ExecApprovalRequest) -> ExecApprovalRecord:
        """Raises RpcError when its id is taken or too many wait."""
        if request.id in self._records:
            raise RpcError("approval id already pending" if self._is_open(request.id) else "approval id already used")
        waiting = self.open_requests()
        own = sum(asked.requester.is_same(request.requester) for asked in waiting)
        if len(waiting) >= MAX_OPEN or own >= MAX_OPEN_PER_REQUESTER:
            reason = f"too many approvals wait already ({own} of yours, {len(waiting)} in all); answer some"
            raise RpcError(reason, kind="UNAVAILABLE", retryable=True)
        self._trim_history()
        loop = asyncio.get_running_loop()
        record = self._records[request.id] = ExecApprovalRecord(request=request, outcome_future=loop.create_future())
        seconds = max(0.0, (request.expires_at_ms - now_ms()) / 1000)
        record.timer = loop.call_later(seconds, lambda: self._settle(record, None, "timeout", None))
        self.requested.emit(request)
        return record

    def find(self, id: str) -> ExecApprovalRecord | None:
        return self._records.get(id)

    def find_by_code(self, code: str) -> ExecApprovalRecord | None:
        return next((record for record in self._records.values() if record.request.code == code), None)

    def open_requests(self) -> Sequence[ExecApprovalRequest]:
        return [record.request for record in self._records.values() if not record.outcome_future.done()]

    def history(self) -> Sequence[ExecApprovalRecord]:
        """The settled ones, the latest first."""
        done = [record for record in self._records.values() if record.outcome_future.done()]
        return sorted(done, key=lambda record: -record.outcome_future.result().at_ms)

    def decide(
        self, record: ExecApprovalRecord, decision: ExecApprovalDecision, by: ApprovalRequester
    ) -> ExecApprovalOutcome:
        """Raises RpcError: not allowed here, or not by this one. Settled already: the outcome that counts."""
        question = record.request
        refusal = refuse_answer(question, decision, by)
        if refusal is not None:
            raise refusal
        withdrawn = by.is_node  # a node's own question is all that it may settle
        self._settle(record, None if withdrawn else decision, "run-aborted" if withdrawn else "user", by.name)
        return record.outcome_future.result()

    def drop(self, record: ExecApprovalRecord, reason: ApprovalEndReason) -> None:
        """Settle it without an answer."""
        self._settle(record, None, reason, None)

    def on_invocation_end(self, id: str) -> None:
        """A node's call has ended: what it asked needs no answer any more."""
        for record in list(self._records.values()):
            if record.request.invocation == id:
                self.drop(record, "run-aborted")

    def on_disconnect(self, connection_id: str) -> None:
        """A connection has ended: its questions need no answer any more."""
        for record in list(self._records.values()):
            if record.request.requester.connection_id == connection_id and not record.request.outlives_connection:
                self.drop(record, "run-aborted")

    def close(self) -> None:
        for record in self._records.values():
            self.drop(record, "run-aborted")

    def _is_open(self, id: str) -> bool:
        return not self._records[id].outcome_future.done()

    def _settle(
        self,
        record: ExecApprovalRecord,
        decision: ExecApprovalDecision | None,
        reason: ApprovalEndReason,
        by: str | None,
    ) -> None:
        if record.outcome_future.done():
            return
        if record.timer is not None:
            record.timer.cancel()
        outcome = ExecApprovalOutcome(decision=decision, reason=reason, by=by, at_ms=now_ms())
        record.outcome_future.set_result(outcome)
        self.settled.emit((record.request, outcome))

    def _trim_history(self) -> None:
        done = [id for id, record in self._records.items() if record.outcome_future.done()]
        for id in done[: max(0, len(done) - MAX_SETTLED)]:
            del self._records[id]


def refuse_answer(
    question: ExecApprovalRequest, decision: ExecApprovalDecision, by: ApprovalRequester
) -> RpcError | None:
    """Why `by` may not answer so; None if it may. Every way to answer asks this."""
    if by.in_conversation and not by.is_owner:
        return RpcError("only the owner can answer this", kind="FORBIDDEN")
    if by.is_node and not (decision == "deny" and question.requester.is_same(by)):
        return scope_error(APPROVALS)
    if decision == "deny":
        return None
    if question.requester.may_be(by):
        reason = "the requester can't allow it; another operator must, with an approved device or a token of its own"
        return RpcError(reason, kind="FORBIDDEN")
    if not by.is_owner and not question.on_behalf_of.isdisjoint(by.credentials):
        return RpcError("who began the command can't allow it; another operator must", kind="FORBIDDEN")
    if question.reviewers and by.name not in question.reviewers:
        return RpcError("this approval is for other reviewers", kind="FORBIDDEN")
    allowed = question.view.allowed_decisions
    if decision not in allowed:
        details = {"reason": "APPROVAL_ALLOW_ALWAYS_UNAVAILABLE"}
        return RpcError(f"{decision} can't be chosen here; allowed: {', '.join(allowed)}", details=details)
    return None


def new_approval_request(
    view: ExecApprovalView,
    *,
    requester: ApprovalRequester,
    seconds: float,
    allow_always: bool,
    id: str | None = None,
    on_behalf_of: frozenset[str] = frozenset(),
    reviewers: Sequence[str] = (),
    outlives_connection: bool = False,
    clock: Callable[[], int] = now_ms,
) -> ExecApprovalRequest:
    at = clock()
    if not allow_always:
        view = replace(view, allowed_decisions=("allow-once", "deny"), unavailable_decisions=("allow-always",))
    return ExecApprovalRequest(
        id=id or str(uuid.uuid4()),
        code="".join(secrets.choice(CODE_ALPHABET) for _ in range(CODE_LENGTH)),
        view=view,
        created_at_ms=at,
        expires_at_ms=at + int(seconds * 1000),
        requester=requester,
        on_behalf_of=on_behalf_of,
        reviewers=frozenset(reviewers),
        outlives_connection=outlives_connection,
    )
