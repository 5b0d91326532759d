"""The tool policy of the config, which can explain its decisions. Pure, but for compiled rules it caches."""

from collections.abc import Hashable
from typing import Final

from msgspec import Struct

from ..core.model import Caller, ToolSpec
from .policy import PolicyDecision
from .policy_pipeline import PolicyStep, StepVerdict, build_steps
from .policy_rules import PolicyRules
from .subject import PolicySubject, resolve_subject
from .tool_names import identify_tool

OWN_SOURCE: Final = "openclaw"
"""The source of our own tools where only their names are known."""
KEPT_CALLERS: Final = 256  # callers whose rules stay compiled; as many as the dispatcher keeps tool lists for


class Explanation(Struct, frozen=True, kw_only=True):
    """A decision with the verdict of every step, in order."""

    tool: str
    source: str
    decision: PolicyDecision
    subject: PolicySubject
    steps: tuple[StepVerdict, ...]


class ConfigPolicy:
    """A `Policy` that follows the config's rules. Compiled once for each caller, then asked for each tool.

    Scopes decide what a credential opens, so a gateway's dispatcher has both:
    `ToolDispatcher(registry, policy=combine_policies(scope_policy, ConfigPolicy(rules)))`.
    """

    def __init__(self, rules: PolicyRules) -> None:
        self._rules = rules
        self._compiled: dict[Caller, _CallerRules] = {}

    @property
    def rules(self) -> PolicyRules:
        return self._rules

    def replace_rules(self, rules: PolicyRules) -> None:
        """Follow these rules from now on. The dispatcher is to make its lists again: `dispatcher.refresh()`."""
        self._rules = rules
        self._compiled.clear()

    def __call__(self, caller: Caller, source: str, spec: ToolSpec) -> PolicyDecision:
        rules = self._compiled.get(caller)
        if rules is None:
            rules = self._compile(caller)
        return rules.decide(source, spec)

    def cache_key(self, caller: Caller) -> Hashable:
        """What this policy and `scope_policy` look at in a caller: callers with the same key get the same decisions."""
        return caller.kind, caller.name, caller.scopes, resolve_subject(caller, self._rules)

    def refusal_reason(self, caller: Caller, tool: str) -> str | None:
        """Why this caller may not use one of our own tools, known by name alone; None if it may."""
        decision = self.decide_own_tool(caller, tool)
        return None if decision.allowed else decision.reason

    def decide_own_tool(self, caller: Caller, tool: str) -> PolicyDecision:
        return self(caller, OWN_SOURCE, ToolSpec(name=tool))

    def explain(self, caller: Caller, source: str, spec: ToolSpec) -> Explanation:
        rules = self._compile(caller)
        tool = identify_tool(source, spec.name, spec.owner_only)
        return Explanation(
            tool=spec.name,
            source=source,
            decision=rules.decide(source, spec),
            subject=rules.subject,
            steps=tuple(step.evaluate(tool) for step in rules.steps),
        )

    def _compile(self, caller: Caller) -> "_CallerRules":
        if len(self._compiled) >= KEPT_CALLERS:
            self._compiled.clear()
        rules = self._compiled[caller] = _CallerRules(self._rules, resolve_subject(caller, self._rules))
        return rules


class _CallerRules:
    """The rules as they concern one caller."""

    __slots__ = ("_active_steps", "steps", "subject")

    def __init__(self, rules: PolicyRules, subject: PolicySubject) -> None:
        self.subject = subject
        self.steps = build_steps(rules, subject)
        self._active_steps: tuple[PolicyStep, ...] = tuple(step for step in self.steps if step.is_active)

    def decide(self, source: str, spec: ToolSpec) -> PolicyDecision:
        tool = identify_tool(source, spec.name, spec.owner_only)
        last: PolicyStep | None = None
        for step in self._active_steps:
            refusal = step.refusal_reason(tool)
            if refusal is not None:
                return PolicyDecision(False, f"{spec.name} {refusal}", step.name)
            if step.allow is not None:
                last = step
        if last is None:
            return PolicyDecision(True, "no rule refuses it", "default")
        return PolicyDecision(True, last.allow_reason(tool), last.name)
