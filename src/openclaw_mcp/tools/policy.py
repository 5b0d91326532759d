"""What a policy is, and the simplest: scopes. Pure: same question, same answer, no I/O."""

from typing import Protocol

from msgspec import Struct

from ..core.model import Caller, ToolSpec


class Decision(Struct, frozen=True):
    allowed: bool
    reason: str
    """The rule that decided, for the audit and for the refusal."""
    step: str = "scope"
    """Which step of the rules that was."""


class Policy(Protocol):
    def __call__(self, caller: Caller, source: str, spec: ToolSpec) -> Decision: ...


def by_scope(caller: Caller, source: str, spec: ToolSpec) -> Decision:
    """Deny unless a scope of the caller names the tool, its effect, its source, or everything of the house's own.

    Tools lent by an app are for those they were lent to: only a scope that names their source reaches them.
    """
    wanted = {f"source:{source}"}
    if not source.startswith("app/"):
        wanted |= {"*", f"tool:{spec.name}", f"effect:{spec.effect}"}
    granted = caller.scopes & wanted
    if granted:
        return Decision(True, min(granted))
    return Decision(False, f"{caller.kind} {caller.name!r} may not use {spec.name!r}")


def every(*policies: Policy) -> Policy:
    """Allowed is what each of `policies` allows; the first refusal decides, else the last to speak."""

    def decide(caller: Caller, source: str, spec: ToolSpec) -> Decision:
        decision = Decision(False, "no policy was given")
        for policy in policies:
            decision = policy(caller, source, spec)
            if not decision.allowed:
                break
        return decision

    return decide
