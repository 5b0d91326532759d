"""Questions put to operators and what became of them: asked, decided once, expired, withdrawn."""

import asyncio
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Final, Literal

from msgspec import Struct

from ...core.model import Json
from ...core.rpc import Fault
from ...core.sessions import now_ms
from ...core.signal import Bell

Decision = Literal["allow-once", "allow-always", "deny"]
Reason = Literal["user", "timeout", "no-route", "run-aborted"]
DECISIONS: Final[tuple[Decision, ...]] = ("allow-once", "allow-always", "deny")

MOST_OPEN: Final = 256  # questions at once; nobody answers more
MOST_EACH: Final = 16  # of one asker: a runaway node must not crowd the others out
MOST_SETTLED: Final = 512  # remembered, so that a late answer hears what was decided

_DEVICE: Final = re.compile(r"[0-9a-f]{64}")


SHARED: Final = "token"
"""The gateway's own token among credentials: whoever holds it is the owner, or a program of the owner's."""


def device_credential(id: str) -> str:
    """The key of a device among credentials."""
    return f"device {id}"


class Asker(Struct, frozen=True, kw_only=True):
    """Whoever put the question: it can't be the one who answers it."""

    connection: str
    name: str
    credentials: tuple[str, ...] = ()
    """What it proved itself by; what it alone holds comes first."""
    silent: bool = False
    """Whether its key was let in on the gateway's token alone: who holds that can make as many keys as it likes."""

    def may_be(self, other: "Asker") -> bool:
        """Whether `other` can't show that it is somebody else: the same, or nothing but a credential this one holds."""
        shown = SHARED if other.silent else next(iter(other.credentials), "")
        # Whoever made a silent key held the gateway's token, whatever it comes back with.
        held = (*self.credentials, SHARED) if self.silent else self.credentials
        return self.is_same(other) or not shown or shown in held

    def is_same(self, other: "Asker") -> bool:
        """The same connection, or the same device over another one."""
        return self.connection == other.connection or (self.name == other.name and bool(_DEVICE.fullmatch(self.name)))


class Question(Struct, frozen=True, kw_only=True):
    id: str
    request: Json
    """As it is shown, in the shape of `exec.approval.requested`."""
    created_at_ms: int
    expires_at_ms: int
    allowed: tuple[Decision, ...]
    asker: Asker
    behalf: frozenset[str] = frozenset()
    """Credentials of those a node was at work for when it asked."""
    reviewers: frozenset[str] = frozenset()
    """Devices that alone may answer; empty = whoever holds the scope."""
    lasting: bool = False
    """Whether it outlives the connection it came by."""


class Outcome(Struct, frozen=True, kw_only=True):
    """`decision` None: nobody decided in time, which means no."""

    decision: Decision | None
    reason: Reason
    by: str | None
    at_ms: int


class Matter(Struct, kw_only=True):
    """A question and, once settled, its outcome."""

    question: Question
    settled: asyncio.Future[Outcome]
    timer: asyncio.TimerHandle | None = None

    @property
    def outcome(self) -> Outcome | None:
        return self.settled.result() if self.settled.done() else None


class Decisions:
    """Each question is settled exactly once; the first answer stands."""

    def __init__(self) -> None:
        self.asked: Bell[Question] = Bell()
        self.settled: Bell[tuple[Question, Outcome]] = Bell()
        self._matters: dict[str, Matter] = {}

    def put(self, question: Question) -> Matter:
        """Raises Fault when its id is taken or too many wait."""
        if question.id in self._matters:
            raise Fault("approval id already pending" if self._is_open(question.id) else "approval id already used")
        waiting = self.open()
        own = sum(asked.asker.is_same(question.asker) for asked in waiting)
        if len(waiting) >= MOST_OPEN or own >= MOST_EACH:
            words = f"too many approvals wait already ({own} of yours, {len(waiting)} in all); answer some"
            raise Fault(words, kind="UNAVAILABLE", retryable=True)
        self._forget()
        loop = asyncio.get_running_loop()
        matter = self._matters[question.id] = Matter(question=question, settled=loop.create_future())
        seconds = max(0.0, (question.expires_at_ms - now_ms()) / 1000)
        matter.timer = loop.call_later(seconds, lambda: self._end(matter, None, "timeout", None))
        self.asked.ring(question)
        return matter

    def find(self, id: str) -> Matter | None:
        return self._matters.get(id)

    def open(self) -> Sequence[Question]:
        return [matter.question for matter in self._matters.values() if not matter.settled.done()]

    def history(self) -> Sequence[Matter]:
        """The settled ones, the latest first."""
        done = [matter for matter in self._matters.values() if matter.settled.done()]
        return sorted(done, key=lambda matter: -matter.settled.result().at_ms)

    def decide(self, matter: Matter, decision: Decision, by: Asker, *, owner: bool = False) -> Outcome:
        """Raises Fault: not allowed here, or not by this one. Settled already: the outcome that stands.

        `owner`: `by` may do anything here, so it may also allow what it had a node begin.
        """
        question = matter.question
        if question.asker.may_be(by) and decision != "deny":
            words = "whoever asked can't allow it; another operator must, with an approved device or a token of its own"
            raise Fault(words, kind="FORBIDDEN")
        if not owner and decision != "deny" and not question.behalf.isdisjoint(by.credentials):
            raise Fault("whoever began the command can't allow it; another operator must", kind="FORBIDDEN")
        if question.reviewers and by.name not in question.reviewers and decision != "deny":
            raise Fault("this approval is for other reviewers", kind="FORBIDDEN")
        if decision not in question.allowed:
            allowed = ", ".join(question.allowed)
            raise Fault(f"{decision} can't be chosen here; allowed: {allowed}")
        withdrawn = question.asker.is_same(by)
        self._end(matter, None if withdrawn else decision, "run-aborted" if withdrawn else "user", by.name)
        return matter.settled.result()

    def drop(self, matter: Matter, reason: Reason) -> None:
        """Settle it without an answer."""
        self._end(matter, None, reason, None)

    def left(self, connection: str) -> None:
        """A connection has ended: what it waited for needs no answer any more."""
        for matter in list(self._matters.values()):
            if matter.question.asker.connection == connection and not matter.question.lasting:
                self.drop(matter, "run-aborted")

    def close(self) -> None:
        for matter in self._matters.values():
            self.drop(matter, "run-aborted")

    def _is_open(self, id: str) -> bool:
        return not self._matters[id].settled.done()

    def _end(self, matter: Matter, decision: Decision | None, reason: Reason, by: str | None) -> None:
        if matter.settled.done():
            return
        if matter.timer is not None:
            matter.timer.cancel()
        outcome = Outcome(decision=decision, reason=reason, by=by, at_ms=now_ms())
        matter.settled.set_result(outcome)
        self.settled.ring((matter.question, outcome))

    def _forget(self) -> None:
        done = [id for id, matter in self._matters.items() if matter.settled.done()]
        for id in done[: max(0, len(done) - MOST_SETTLED)]:
            del self._matters[id]


def question(
    request: Json,
    *,
    asker: Asker,
    seconds: float,
    always: bool,
    id: str | None = None,
    behalf: frozenset[str] = frozenset(),
    reviewers: Sequence[str] = (),
    lasting: bool = False,
    clock: Callable[[], int] = now_ms,
) -> Question:
    at = clock()
    allowed = DECISIONS if always else tuple(word for word in DECISIONS if word != "allow-always")
    refused = {} if always else {"unavailableDecisions": ["allow-always"]}
    return Question(
        id=id or str(uuid.uuid4()),
        request=request | {"allowedDecisions": list(allowed)} | refused,
        created_at_ms=at,
        expires_at_ms=at + int(seconds * 1000),
        allowed=allowed,
        asker=asker,
        behalf=behalf,
        reviewers=frozenset(reviewers),
        lasting=lasting,
    )
