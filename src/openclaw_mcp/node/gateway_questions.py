"""Operators of the gateway this node is connected to, as a way to reach a person. Knows the messages, not the wire."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Final

from ..core.errors import OpenClawError
from ..net.tasks import finish
from .invocations import CallGateway
from .questions import PromptAnswer, UserQuestion

WITHDRAW_TIMEOUT: Final = 2.0  # seconds: another person has answered, and the caller waits for nothing but this
EXPIRY_TOLERANCE: Final = 0.5  # seconds: the gateway's clock for a question starts a little after ours
_ANSWERS: Final[dict[str, PromptAnswer]] = {"allow-once": "once", "allow-always": "once", "deny": "deny"}
"""Once at most: the rules of this machine are loosened at this machine."""


class GatewayPrompter:
    """A `UserPrompter`, available while a connection is attached and the setting is on."""

    keeps_questions = False

    def __init__(self, *, ask_on_gateway: Callable[[], bool], seconds: Callable[[], float]) -> None:
        self._ask_on_gateway, self._seconds = ask_on_gateway, seconds
        self._connections: list[CallGateway] = []

    @contextlib.contextmanager
    def attach(self, call_gateway: CallGateway) -> Iterator[None]:
        """Ask by `call_gateway` while the block runs."""
        self._connections.append(call_gateway)
        try:
            yield
        finally:
            self._connections.remove(call_gateway)

    def is_available(self) -> bool:
        return bool(self._connections) and self._ask_on_gateway()

    async def ask(self, question: UserQuestion) -> PromptAnswer | None:
        if not self._connections:
            return None
        call_gateway, id = self._connections[-1], str(uuid.uuid4())
        loop, seconds = asyncio.get_running_loop(), self._seconds()
        expiry = loop.time() + seconds
        request = {
            "id": id,
            "command": question.detail,
            "warningText": _reason(question),
            "timeoutMs": int(seconds * 1000),
            "unavailableDecisions": ["allow-always"],
            "requireDeliveryRoute": True,  # with no operator there, the answer is no at once, not after minutes
        }
        if question.invocation:  # by it the gateway knows whose run waits, and asks where its conversation is
            request["toolCallId"] = question.invocation
        try:
            reply = await call_gateway("exec.approval.request", request)
        except OpenClawError:
            return None  # an older gateway, or one that has gone: no person could be reached this way
        except asyncio.CancelledError:
            if loop.time() < expiry - EXPIRY_TOLERANCE:  # else it expires there too, and is reported as that
                await finish(_withdraw(call_gateway, id))
            raise
        decision = reply.get("decision") if isinstance(reply, dict) else None
        return _ANSWERS.get(decision) if isinstance(decision, str) else None


def _reason(question: UserQuestion) -> str:
    """What the gateway does not know: that it is no command, why it is asked, and by whom if not by the gateway."""
    title = f"{question.title} " if question.kind != "exec" else ""
    asker = "" if question.invocation else f"; asked by {question.asker}"
    return f"{title}{question.why}{asker}"


async def _withdraw(call_gateway: CallGateway, id: str) -> None:
    """It was answered elsewhere: an operator need not look at it any more."""
    with contextlib.suppress(OpenClawError, TimeoutError):
        async with asyncio.timeout(WITHDRAW_TIMEOUT):
            await call_gateway("exec.approval.resolve", {"id": id, "decision": "deny"})
