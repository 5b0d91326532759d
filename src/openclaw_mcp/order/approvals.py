"""Questions about commands of an order: the progress its client gets, and answers by the client's user."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import Struct

from ..core.agent import AgentEvent
from ..core.approvals import WHERE_TO_ANSWER, ExecApprovalDecision, describe_place, is_shown_whole, quote_command
from ..core.errors import OpenClawError
from ..core.gateway_events import RemoteApproval
from ..core.gateway_port import MethodGateway
from ..core.model import form_request
from ..core.ports import CallContext
from ..core.visible_text import escape_command, escape_line
from ..net.tasks import Tasks

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT: Final = 30.0  # seconds a gateway gets to take an answer
PROGRESS_COMMAND: Final = 200  # characters of the command in a message of progress
FORM: Final = {
    "type": "object",
    "properties": {"allow": {"type": "boolean", "title": "Allow this once", "default": False}},
    "required": ["allow"],
}

SendAnswer = Callable[[ExecApprovalDecision], Awaitable[None]]


class ApprovalAsked(Struct, frozen=True, kw_only=True):
    """The run waits for a person to allow a command."""

    id: str
    notice: str
    """For the client's progress."""
    question: str = ""
    """For the client's user; empty where this client may not answer."""
    send_answer: SendAnswer | None = None


class ApprovalEnded(Struct, frozen=True, kw_only=True):
    id: str
    notice: str


OrderEvent = AgentEvent | ApprovalAsked | ApprovalEnded


class RemoteApprovals:
    """Turns the questions of one run into events of an order."""

    def __init__(self, gateway: MethodGateway) -> None:
        self._gateway = gateway
        self._open_ids: set[str] = set()

    def read(self, approval: RemoteApproval) -> Sequence[OrderEvent]:
        if approval.decision is not None:
            self._open_ids.discard(approval.id)
            return [ApprovalEnded(id=approval.id, notice=_end_notice(approval))]
        self._open_ids.add(approval.id)
        request = approval.request
        place = escape_line(describe_place(node_name=request.node_name, node_id=request.node_id, host=request.host))
        shown = escape_line(escape_command(request.command))
        shown = shown if len(shown) <= PROGRESS_COMMAND else f"{shown[:PROGRESS_COMMAND]} …"
        notice = f"waiting until a person allows a command on {place}: {shown} — answer in {WHERE_TO_ANSWER}"
        if not is_shown_whole(request.command):
            return [ApprovalAsked(id=approval.id, notice=notice)]
        quoted = quote_command(request.command, request.warning_text or "")
        return [
            ApprovalAsked(
                id=approval.id,
                notice=notice,
                question=f"May this command run on {place}?\n{quoted}",
                send_answer=lambda decision: self._answer(approval.id, decision),
            )
        ]

    def read_phase(self, phase: str) -> Sequence[OrderEvent]:
        """Of the run, for a client that is not sent the questions themselves."""
        if phase != "waiting-approval" or self._open_ids:
            return []
        notice = f"waiting until a person allows a command — answer at the gateway, in {WHERE_TO_ANSWER}"
        return [ApprovalAsked(id="", notice=notice)]

    async def _answer(self, id: str, decision: ExecApprovalDecision) -> None:
        params = {"id": id, "decision": decision}
        await self._gateway.call("exec.approval.resolve", params, within=ANSWER_TIMEOUT)


def _end_notice(approval: RemoteApproval) -> str:
    if approval.reason == "run-aborted":
        return "the question is no longer asked; the agent goes on"
    verb = "not allowed" if approval.decision == "deny" else "allowed"
    return f"the command was {verb}; the agent goes on"


def may_ask(asked: ApprovalAsked, context: CallContext) -> bool:
    """Whether the client's user may answer, and this client can ask them."""
    return asked.send_answer is not None and context.can_ask("elicitation", "form")


async def ask_client(asked: ApprovalAsked, context: CallContext) -> ExecApprovalDecision | None:
    """What the client's user decides. Raises what `CallContext.ask` raises.

    Once or not at all: who orders a command may not change the rules about it. A dismissed form is no answer.
    """
    key = f"approve-{asked.id}"
    reply = (await context.ask({key: form_request(asked.question, FORM)})).get(key, {})
    content = reply.get("content")
    if reply.get("action") == "cancel":
        return None
    allowed = reply.get("action") == "accept" and type(content) is dict and content.get("allow") is True
    return "allow-once" if allowed else "deny"


async def send_answer(asked: ApprovalAsked, decision: ExecApprovalDecision | None) -> None:
    """Have the gateway take the client's answer, if there is one."""
    if decision is None or asked.send_answer is None:
        return
    try:
        await asked.send_answer(decision)
    except OpenClawError as exc:  # another person was faster, or the gateway is gone: the run goes on either way
        logger.info("order: the client's answer to question %s not taken (%s)", asked.id, exc)


class ClientApprovals:
    """Asks an order's client while the order goes on. `async with` it: what is asked at the end is taken back."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._tasks = Tasks("order approvals")
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> "ClientApprovals":
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._tasks.aclose()

    def ask(self, asked: ApprovalAsked) -> None:
        if asked.id not in self._asking and may_ask(asked, self._context):
            self._asking[asked.id] = self._tasks.spawn(self._ask(asked), name="question")

    def end(self, id: str) -> None:
        """It was settled: here or elsewhere."""
        task = self._asking.pop(id, None)
        if task is not None:
            task.cancel()

    async def _ask(self, asked: ApprovalAsked) -> None:
        try:
            decision = await ask_client(asked, self._context)
        except OpenClawError as exc:  # the run goes on: another person may answer
            logger.info("order: question %s not answered by the client (%s)", asked.id, exc)
            return
        await send_answer(asked, decision)
