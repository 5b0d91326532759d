"""What a policy is, and the simplest: scopes. Pure: same question, same answer, no I/O."""

from typing import Final, Protocol

from msgspec import Struct

from ..core.model import Caller, ToolSpec

OF_SOURCE: Final = "source:"
APPS: Final = "app/"
"""How the names of sources begin that apps lend."""


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
    wanted = {OF_SOURCE + source}
    if not source.startswith(APPS):
        wanted |= {"*", f"tool:{spec.name}", f"effect:{spec.effect}"}
    granted = caller.scopes & wanted
    if granted:
        return Decision(True, min(granted))
    return Decision(False, f"{caller.kind} {caller.name!r} may not use {spec.name!r}")


def apps_of(caller: Caller) -> list[str]:
    """The apps that lend this caller their tools."""
    return sorted(scope.removeprefix(OF_SOURCE) for scope in caller.scopes if scope.startswith(OF_SOURCE + APPS))


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
