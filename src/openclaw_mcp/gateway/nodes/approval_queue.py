"""Questions put to operators and what became of them: asked, decided once, expired, withdrawn."""

import asyncio
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Final, Literal

from msgspec import Struct

from ...core.model import Json
from ...core.rpc import RpcError
from ...core.sessions import now_ms
from ...core.signal import Signal

ExecApprovalDecision = Literal["allow-once", "allow-always", "deny"]
ApprovalEndReason = Literal["user", "timeout", "no-route", "run-aborted"]
DECISIONS: Final[tuple[ExecApprovalDecision, ...]] = ("allow-once", "allow-always", "deny")

MAX_OPEN: Final = 256  # questions at once; nobody answers more
MAX_OPEN_PER_REQUESTER: Final = 16  # of one asker: a runaway node must not crowd the others out
MAX_SETTLED: Final = 512  # remembered, so that a late answer hears what was decided

_DEVICE_ID: Final = re.compile(r"[0-9a-f]{64}")


SHARED_TOKEN: Final = "token"
"""The gateway's own token among credentials: whoever holds it is the owner, or a program of the owner's."""


def device_credential(id: str) -> str:
    """The key of a device among credentials."""
    return f"device {id}"


class ApprovalRequester(Struct, frozen=True, kw_only=True):
    """Whoever put the question: it can't be the one who answers it."""

    connection_id: str
    name: str
    credentials: tuple[str, ...] = ()
    """What it proved itself by; what it alone holds comes first."""
    is_silent: bool = False
    """Whether its key was let in on the gateway's token alone: who holds that can make as many keys as it likes."""

    def may_be(self, other: "ApprovalRequester") -> bool:
        """Whether `other` can't show that it is somebody else: the same, or nothing but a credential this one holds."""
        shown = SHARED_TOKEN if other.is_silent else next(iter(other.credentials), "")
        # Whoever made a silent key held the gateway's token, whatever it comes back with.
        held = (*self.credentials, SHARED_TOKEN) if self.is_silent else self.credentials
        return self.is_same(other) or not shown or shown in held

    def is_same(self, other: "ApprovalRequester") -> bool:
        """The same connection, or the same device over another one."""
        return self.connection_id == other.connection_id or (
            self.name == other.name and bool(_DEVICE_ID.fullmatch(self.name))
        )


class ExecApprovalRequest(Struct, frozen=True, kw_only=True):
    id: str
    view: Json
    """As it is shown, in the shape of `exec.approval.requested`."""
    created_at_ms: int
    expires_at_ms: int
    allowed: tuple[ExecApprovalDecision, ...]
    requester: ApprovalRequester
    on_behalf_of: frozenset[str] = frozenset()
    """Credentials of those a node was at work for when it asked."""
    reviewers: frozenset[str] = frozenset()
    """Devices that alone may answer; empty = whoever holds the scope."""
    outlives_connection: bool = False
    """Whether it outlives the connection it came by."""


class ExecApprovalOutcome(Struct, frozen=True, kw_only=True):
    """`decision` None: nobody decided in time, which means no."""

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
    """Each question is settled exactly once; the first answer stands."""

    def __init__(self) -> None:
        self.requested: Signal[ExecApprovalRequest] = Signal()
        self.settled: Signal[tuple[ExecApprovalRequest, ExecApprovalOutcome]] = Signal()
        self._records: dict[str, ExecApprovalRecord] = {}

    def put(self, request: ExecApprovalRequest) -> ExecApprovalRecord:
        """Raises Fault when its id is taken or too many wait."""
        if request.id in self._records:
            raise RpcError("approval id already pending" if self._is_open(request.id) else "approval id already used")
        waiting = self.open_requests()
        own = sum(asked.requester.is_same(request.requester) for asked in waiting)
        if len(waiting) >= MAX_OPEN or own >= MAX_OPEN_PER_REQUESTER:
            words = f"too many approvals wait already ({own} of yours, {len(waiting)} in all); answer some"
            raise RpcError(words, kind="UNAVAILABLE", retryable=True)
        self._trim_history()
        loop = asyncio.get_running_loop()
        matter = self._records[request.id] = ExecApprovalRecord(request=request, outcome_future=loop.create_future())
        seconds = max(0.0, (request.expires_at_ms - now_ms()) / 1000)
        matter.timer = loop.call_later(seconds, lambda: self._settle(matter, None, "timeout", None))
        self.requested.emit(request)
        return matter

    def find(self, id: str) -> ExecApprovalRecord | None:
        return self._records.get(id)

    def open_requests(self) -> Sequence[ExecApprovalRequest]:
        return [matter.request for matter in self._records.values() if not matter.outcome_future.done()]

    def history(self) -> Sequence[ExecApprovalRecord]:
        """The settled ones, the latest first."""
        done = [matter for matter in self._records.values() if matter.outcome_future.done()]
        return sorted(done, key=lambda matter: -matter.outcome_future.result().at_ms)

    def decide(
        self, record: ExecApprovalRecord, decision: ExecApprovalDecision, by: ApprovalRequester, *, owner: bool = False
    ) -> ExecApprovalOutcome:
        """Raises Fault: not allowed here, or not by this one. Settled already: the outcome that stands.

        `owner`: `by` may do anything here, so it may also allow what it had a node begin.
        """
        question = record.request
        if question.requester.may_be(by) and decision != "deny":
            words = "whoever asked can't allow it; another operator must, with an approved device or a token of its own"
            raise RpcError(words, kind="FORBIDDEN")
        if not owner and decision != "deny" and not question.on_behalf_of.isdisjoint(by.credentials):
            raise RpcError("whoever began the command can't allow it; another operator must", kind="FORBIDDEN")
        if question.reviewers and by.name not in question.reviewers and decision != "deny":
            raise RpcError("this approval is for other reviewers", kind="FORBIDDEN")
        if decision not in question.allowed:
            allowed = ", ".join(question.allowed)
            raise RpcError(f"{decision} can't be chosen here; allowed: {allowed}")
        withdrawn = question.requester.is_same(by)
        self._settle(record, None if withdrawn else decision, "run-aborted" if withdrawn else "user", by.name)
        return record.outcome_future.result()

    def drop(self, record: ExecApprovalRecord, reason: ApprovalEndReason) -> None:
        """Settle it without an answer."""
        self._settle(record, None, reason, None)

    def on_disconnect(self, connection_id: str) -> None:
        """A connection has ended: what it waited for needs no answer any more."""
        for matter in list(self._records.values()):
            if matter.request.requester.connection_id == connection_id and not matter.request.outlives_connection:
                self.drop(matter, "run-aborted")

    def close(self) -> None:
        for matter in self._records.values():
            self.drop(matter, "run-aborted")

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
        done = [id for id, matter in self._records.items() if matter.outcome_future.done()]
        for id in done[: max(0, len(done) - MAX_SETTLED)]:
            del self._records[id]


def new_approval_request(
    view: Json,
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
    allowed = DECISIONS if allow_always else tuple(word for word in DECISIONS if word != "allow-always")
    refused = {} if allow_always else {"unavailableDecisions": ["allow-always"]}
    return ExecApprovalRequest(
        id=id or str(uuid.uuid4()),
        view=view | {"allowedDecisions": list(allowed)} | refused,
        created_at_ms=at,
        expires_at_ms=at + int(seconds * 1000),
        allowed=allowed,
        requester=requester,
        on_behalf_of=on_behalf_of,
        reviewers=frozenset(reviewers),
        outlives_connection=outlives_connection,
    )
