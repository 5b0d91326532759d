"""Questions about commands of one session, as a chat in that session shows and answers them."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from ..core.approvals import (
    ApprovalEndReason,
    CommandQuestion,
    ExecApprovalDecision,
    QuestionEnd,
    QuestionOrigin,
    describe_place,
    parse_decision_word,
)
from ..core.clock import now_ms
from ..core.errors import OpenClawError
from ..core.lenient import read_struct
from ..net.gateway_client.client import GatewayClient
from ..protocol.gateway_frames import EventFrame

REQUESTED: Final = "exec.approval.requested"
RESOLVED: Final = "exec.approval.resolved"
USAGE: Final = "Write /approve CODE once, /approve CODE always or /approve CODE deny; CODE is in the question."
_DECISIONS: Final[dict[str, ExecApprovalDecision]] = {
    "allow-once": "allow-once", "allow-always": "allow-always", "deny": "deny",
}  # fmt: skip

_REASONS: Final[dict[str, ApprovalEndReason]] = {"timeout": "timeout", "run-aborted": "run-aborted"}


class _Request(Struct, frozen=True, kw_only=True, rename="camel"):
    command: str = ""
    host: str | None = None
    node_id: str | None = None
    node_name: str | None = None
    warning_text: str | None = None
    agent_id: str | None = None
    session_key: str | None = None
    allowed_decisions: tuple[str, ...] = ("allow-once", "deny")


class _Approval(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str = ""
    request: _Request = _Request()
    expires_at_ms: int = 0
    decision: str | None = None
    reason: str | None = None


class SessionQuestions:
    """Each question has a short code of this chat's own: ids are long, and their askers choose them."""

    def __init__(self, client: GatewayClient) -> None:
        self._client = client
        self._open: dict[str, tuple[str, CommandQuestion]] = {}
        """By code: its id."""
        self._last_code = 0

    async def fetch(self, session_key: str) -> Sequence[str]:
        """Notices of the questions asked before. None where this client may not answer any."""
        try:
            listed = await self._client.call("exec.approval.list", {})
        except OpenClawError:
            return ()
        found = listed if isinstance(listed, list) else []
        return [text for each in found for text in self._add(read_struct(each, _Approval), session_key)]

    def read_event(self, event: EventFrame, session_key: str) -> Sequence[str]:
        """The notices that an event is shown as."""
        approval = read_struct(event.payload, _Approval)
        if event.event == REQUESTED:
            return self._add(approval, session_key)
        for code, (id, question) in list(self._open.items()):
            if event.event == RESOLVED and id == approval.id:
                del self._open[code]
                decision = _DECISIONS.get(approval.decision or "deny", "deny")
                reason = _REASONS.get(approval.reason or "", "user")
                return [QuestionEnd(question=question, decision=decision, reason=reason).describe()]
        return ()

    async def answer(self, arguments: str) -> str | None:
        """The reply to `/approve` and what follows it; None: an event will say it."""
        words = arguments.split()
        if not words:
            texts = [question.describe(now_ms()) for _, question in self._open.values()]
            return "\n\n".join(texts) or "No question waits for an answer."
        decision = parse_decision_word(words[-1])
        if len(words) != 2 or decision is None:
            return USAGE
        id, question = self._open.get(words[0].lower(), ("", None))
        if question is None:
            return f"No question {words[0][:20]!r} waits here."
        if question.is_too_long and decision != "deny":
            return question.describe_how_to_answer()
        if (refusal := question.refuse(decision)) is not None:
            return refusal
        try:
            await self._client.call("exec.approval.resolve", {"id": id, "decision": decision})
        except OpenClawError as exc:
            return f"Not answered: {exc}"
        return None

    def _add(self, approval: _Approval, session_key: str) -> Sequence[str]:
        request = approval.request
        if request.session_key != session_key or any(id == approval.id for id, _ in self._open.values()):
            return ()
        self._last_code += 1
        question = CommandQuestion(
            code=f"q{self._last_code}",
            origin=QuestionOrigin(agent_id=request.agent_id),
            place=describe_place(node_name=request.node_name, node_id=request.node_id, host=request.host),
            command=request.command,
            why=request.warning_text or "",
            decisions=tuple(_DECISIONS[name] for name in request.allowed_decisions if name in _DECISIONS) or ("deny",),
            expires_at_ms=approval.expires_at_ms,
        )
        self._open[question.code] = (approval.id, question)
        return [question.describe(now_ms())]
