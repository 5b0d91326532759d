"""Operators of the gateway this node is connected to: one more way to reach a person. Knows the words, not the wire."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from ..core.errors import OpenClawError
from ..core.model import Json
from .questions import Answer, Question

WITHDRAW_WITHIN: Final = 2.0  # seconds: somebody else has answered, and the caller waits for nothing but this
_ANSWERS: Final[dict[str, Answer]] = {"allow-once": "once", "allow-always": "once", "deny": "deny"}
"""Once at most: the rules of this machine are loosened at this machine."""

Tell = Callable[[str, Json], Awaitable[Any]]
"""Call a method of the gateway."""


class OnGateway:
    """An `Asker`. Present while a connection is attached and the setting is on."""

    def __init__(self, *, on: Callable[[], bool], seconds: Callable[[], float]) -> None:
        self._on = on
        self._seconds = seconds
        self._ways: list[Tell] = []

    @contextlib.contextmanager
    def attached(self, tell: Tell) -> Iterator[None]:
        """Ask by way of `tell` while the block runs."""
        self._ways.append(tell)
        try:
            yield
        finally:
            self._ways.remove(tell)

    def present(self) -> bool:
        return bool(self._ways) and self._on()

    async def ask(self, question: Question) -> Answer | None:
        if not self._ways:
            return None
        tell, id = self._ways[-1], str(uuid.uuid4())
        asked: Json = {
            "id": id,
            "command": question.detail,
            "warningText": f"{question.title} {question.why}; asked by {question.asker}",
            "timeoutMs": int(self._seconds() * 1000),
            "unavailableDecisions": ["allow-always"],
            "requireDeliveryRoute": True,  # with no operator there, the answer is no at once, not after minutes
        }
        try:
            said = await tell("exec.approval.request", asked)
        except OpenClawError:
            return None  # an older gateway, or one that has gone: nobody could be reached this way
        except asyncio.CancelledError:
            await asyncio.shield(_withdraw(tell, id))
            raise
        decision = said.get("decision") if isinstance(said, dict) else None
        return _ANSWERS.get(decision) if isinstance(decision, str) else None


async def _withdraw(tell: Tell, id: str) -> None:
    """Somebody answered elsewhere: an operator need not look at it any more."""
    with contextlib.suppress(OpenClawError, TimeoutError):
        async with asyncio.timeout(WITHDRAW_WITHIN):
            await tell("exec.approval.resolve", {"id": id, "decision": "deny"})
