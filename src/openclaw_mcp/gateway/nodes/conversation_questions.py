"""The questions of nodes, as conversations show and answer them."""

from collections.abc import Sequence

from ...core.approvals import (
    CommandQuestion,
    ConversationAnswerer,
    ExecApprovalDecision,
    QuestionEnd,
    describe_place,
)
from ...core.rpc import RpcError
from ...core.signal import Signal
from .approval_queue import ApprovalRequester, ExecApprovalOutcome, ExecApprovalQueue, ExecApprovalRequest


class ConversationQuestions:
    """An `OpenQuestions`. What operators ask on their own behalf is not among them: on the local channel, the asker
    itself could answer it."""

    def __init__(self, queue: ExecApprovalQueue) -> None:
        self.asked: Signal[CommandQuestion] = Signal()
        self.ended: Signal[QuestionEnd] = Signal()
        self._queue = queue
        queue.requested.connect(self._on_request)
        queue.settled.connect(self._on_end)

    def pending(self) -> Sequence[CommandQuestion]:
        return [self._question(asked) for asked in self._queue.open_requests() if asked.requester.is_node]

    def answer(self, code: str, decision: ExecApprovalDecision, by: ConversationAnswerer) -> QuestionEnd:
        record = self._queue.find_by_code(code.lower())
        if not by.is_owner or record is None or not record.request.requester.is_node:
            # The same for all that is not theirs to know.
            text = f"No question {code[:20]!r} waits here." if by.is_owner else "Only the owner can answer questions."
            raise RpcError(text)
        question = self._question(record.request)
        if record.outcome is not None:
            raise RpcError(f"It was settled before. {_end(question, record.outcome).describe()}")
        if question.is_too_long and decision != "deny":
            raise RpcError(question.describe_how_to_answer())
        sender = f"{by.channel}:{by.sender_id}"
        answerer = ApprovalRequester(
            connection_id=f"sender {sender}", name=sender, credentials=(f"sender {sender}",), is_owner=by.is_owner,
            in_conversation=True,
        )  # fmt: skip
        return _end(question, self._queue.decide(record, decision, answerer))

    def _on_request(self, asked: ExecApprovalRequest) -> None:
        if asked.requester.is_node:
            self.asked.emit(self._question(asked))

    def _on_end(self, settled: tuple[ExecApprovalRequest, ExecApprovalOutcome]) -> None:
        asked, outcome = settled
        if asked.requester.is_node:
            self.ended.emit(_end(self._question(asked), outcome))

    def _question(self, asked: ExecApprovalRequest) -> CommandQuestion:
        view = asked.view
        return CommandQuestion(
            code=asked.code,
            origin=asked.origin,
            place=describe_place(node_name=view.node_name or None, node_id=view.node_id, host=view.host),
            command=view.command,
            why=view.warning_text or "",
            decisions=view.allowed_decisions,
            expires_at_ms=asked.expires_at_ms,
        )


def _end(question: CommandQuestion, outcome: ExecApprovalOutcome) -> QuestionEnd:
    return QuestionEnd(question=question, decision=outcome.decision, reason=outcome.reason)
