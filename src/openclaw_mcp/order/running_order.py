"""An order under way: its events collected into one answer, and its client told, and asked, what goes on.

A client of the stateless era is asked by ending its call; it calls again with the answer. Meanwhile the order is
suspended: its run goes on, and its events wait.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from ..core.agent import AnswerBlock, MediaAttached, PartialAnswer, ToolOutcome, ToolUse, TurnCompleted, TurnFailed
from ..core.approvals import ExecApprovalDecision
from ..core.chat_messages import ChatMessage
from ..core.errors import OpenClawError
from ..core.lenient import read_struct
from ..core.model import Caller, ToolCall, ToolResult, text_result
from ..core.ports import CallContext
from ..net.tasks import Tasks
from .answer import AnswerBuilder
from .approvals import ApprovalAsked, ApprovalEnded, ClientApprovals, OrderEvent, ask_client, may_ask, send_answer

logger = logging.getLogger(__name__)

PROGRESS_CHARACTERS: Final = 200  # characters of the text so far that go with each sign of progress
SUSPENDED_SECONDS: Final = 900.0  # a client that has not called again by then will not; questions end sooner
MAX_SUSPENDED: Final = 16  # orders of all clients of a server; the oldest is stopped first


class RunningOrder:
    """Reads the events of one order. A call that ends with InputRequired is followed by another one."""

    def __init__(self, events: AsyncGenerator[OrderEvent, None]) -> None:
        self._events = events
        self._answer = AnswerBuilder()
        self._question: ApprovalAsked | None = None
        """What the call before this one ended with."""
        self._decision: ExecApprovalDecision | None = None

    async def aclose(self) -> None:
        """Stop the order, if it has not ended."""
        await self._events.aclose()

    async def take_answer(self, context: CallContext) -> bool:
        """Whether this call brings the answer to what the one before it ended with; `collect` passes it on."""
        if self._question is None or context.asks_within_call or not may_ask(self._question, context):
            return False
        try:
            self._decision = await ask_client(self._question, context)
        except OpenClawError:
            return False
        return True

    async def collect(self, context: CallContext) -> ToolResult:
        """The order's result. Raises InputRequired when the client must call again with an answer."""
        steps = 0
        if self._question is not None:
            await send_answer(self._question, self._decision)
            self._question = self._decision = None
        async with ClientApprovals(context) as approvals:
            async for event in self._events:
                notice = _progress_text(event)
                if notice is not None:
                    steps += 1
                    await context.progress(steps, message=notice)
                match event:
                    case TurnFailed(message=reason):
                        return text_result(f"Error: {reason}", failed=True)
                    case ApprovalAsked() if context.asks_within_call:
                        approvals.ask(event)
                    case ApprovalAsked() if may_ask(event, context):
                        self._question = event
                        await send_answer(event, await ask_client(event, context))
                        self._question = None
                    case ApprovalEnded(id=id):
                        approvals.end(id)
                    case _:
                        self._add_to_answer(event)
        return self._answer.result()

    def _add_to_answer(self, event: OrderEvent) -> None:
        match event:
            case AnswerBlock(text=text):
                self._answer.add_text(text)
            case ToolOutcome(name=name, content=content):
                self._answer.add_tool_text(name, read_struct({"content": list(content)}, ChatMessage).text)
            case MediaAttached(attachment=item):
                self._answer.add_media(item)
            case TurnCompleted(text=text):
                self._answer.add_text(text or "")


class _SuspendedOrder:
    def __init__(self, key: tuple[Caller, str], running: RunningOrder) -> None:
        self.key, self.running = key, running
        self.timer: asyncio.Task[None] | None = None


class SuspendedOrders:
    """Orders whose client is to call again: from the same caller, with the same arguments and the answer."""

    def __init__(self) -> None:
        self._orders: list[_SuspendedOrder] = []
        """The oldest first. Several may have one key: clients that order the same."""
        self._tasks = Tasks("suspended orders")

    async def aclose(self) -> None:
        for order in self._orders:
            await order.running.aclose()
        self._orders.clear()
        await self._tasks.aclose()

    async def take(self, call: ToolCall) -> RunningOrder | None:
        """The order whose question this call answers."""
        key = _key(call)
        for order in [order for order in self._orders if order.key == key]:
            if await order.running.take_answer(call.context) and order in self._orders:
                self._remove(order)
                return order.running
        return None

    def add(self, call: ToolCall, running: RunningOrder) -> None:
        for oldest in self._orders[: max(0, len(self._orders) + 1 - MAX_SUSPENDED)]:
            self._remove(oldest)
            self._tasks.spawn(oldest.running.aclose(), name="replaced order")
        order = _SuspendedOrder(_key(call), running)
        order.timer = self._tasks.spawn(self._expire(order), name="timer")
        self._orders.append(order)

    def _remove(self, order: _SuspendedOrder) -> None:
        self._orders.remove(order)
        if order.timer is not None:
            order.timer.cancel()

    async def _expire(self, order: _SuspendedOrder) -> None:
        await asyncio.sleep(SUSPENDED_SECONDS)
        self._orders.remove(order)
        logger.info("order: its client did not call again within %g s, stopping it", SUSPENDED_SECONDS)
        await order.running.aclose()


def _key(call: ToolCall) -> tuple[Caller, str]:
    return call.caller, hashlib.sha256(msgspec.json.encode(call.arguments, order="sorted")).hexdigest()


def _progress_text(event: OrderEvent) -> str | None:
    match event:
        case PartialAnswer(text=text):
            return text[-PROGRESS_CHARACTERS:]
        case ToolUse(name=name):
            return f"using {name}"
        case ApprovalAsked(notice=notice) | ApprovalEnded(notice=notice):
            return notice
    return None
