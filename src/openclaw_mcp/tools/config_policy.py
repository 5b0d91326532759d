"""House rules: a policy that follows a rule book, and can say why. Pure, but for what it remembers of its callers."""

from collections.abc import Hashable
from typing import Final

from msgspec import Struct

from ..core.model import Caller, ToolSpec
from .policy import Decision
from .policy_pipeline import Step, Verdict, steps
from .policy_rules import RuleBook
from .subject import Standing, standing
from .tool_names import identify

KEPT_CALLERS: Final = 256  # callers whose rules stay compiled; as many as the desk keeps menus for


class Explanation(Struct, frozen=True, kw_only=True):
    """A decision with what every step said, in order."""

    tool: str
    source: str
    decision: Decision
    who: Standing
    steps: tuple[Verdict, ...]


class HouseRules:
    """A `Policy` that follows a rule book. Compiled once for each caller, then asked for each tool.

    What a credential opens is the scopes' to say, so a gateway's desk has both:
    `Desk(registry, policy=every(by_scope, HouseRules(book)))`.
    """

    def __init__(self, book: RuleBook) -> None:
        self._book = book
        self._compiled: dict[Caller, _Rules] = {}

    @property
    def book(self) -> RuleBook:
        return self._book

    def adopt(self, book: RuleBook) -> None:
        """Follow `book` from now on. The desk is to be told: `desk.refresh()`."""
        self._book = book
        self._compiled.clear()

    def __call__(self, caller: Caller, source: str, spec: ToolSpec) -> Decision:
        rules = self._compiled.get(caller)
        if rules is None:
            rules = self._compile(caller)
        return rules.decide(source, spec)

    def alike(self, caller: Caller) -> Hashable:
        """What this policy and `by_scope` look at in a caller: who has the same gets the same decisions."""
        return caller.kind, caller.name, caller.scopes, standing(caller, self._book)

    def refusal(self, caller: Caller, tool: str) -> str | None:
        """Why this caller may not use one of the house's own tools, known by name alone; None: it may."""
        decision = self(caller, "openclaw", ToolSpec(name=tool))
        return None if decision.allowed else decision.reason

    def explain(self, caller: Caller, source: str, spec: ToolSpec) -> Explanation:
        rules = self._compile(caller)
        tool = identify(source, spec.name, spec.owner_only)
        return Explanation(
            tool=spec.name,
            source=source,
            decision=rules.decide(source, spec),
            who=rules.who,
            steps=tuple(step.judge(tool) for step in rules.steps),
        )

    def _compile(self, caller: Caller) -> "_Rules":
        if len(self._compiled) >= KEPT_CALLERS:
            self._compiled.clear()
        rules = self._compiled[caller] = _Rules(self._book, standing(caller, self._book))
        return rules


class _Rules:
    """A rule book as it concerns one caller."""

    __slots__ = ("_speaking", "steps", "who")

    def __init__(self, book: RuleBook, who: Standing) -> None:
        self.who = who
        self.steps = steps(book, who)
        self._speaking: tuple[Step, ...] = tuple(step for step in self.steps if step.speaks)

    def decide(self, source: str, spec: ToolSpec) -> Decision:
        tool = identify(source, spec.name, spec.owner_only)
        last: Step | None = None
        for step in self._speaking:
            refusal = step.refuses(tool)
            if refusal is not None:
                return Decision(False, f"{spec.name} {refusal}", step.name)
            if step.allow is not None:
                last = step
        if last is None:
            return Decision(True, "no rule refuses it", "default")
        return Decision(True, last.consent(tool), last.name)
