"""What a policy is, and the simplest: scopes. Pure: same question, same answer, no I/O."""

from typing import Final, Protocol

from ..core.model import SOURCE_SCOPE_PREFIX, Caller, ToolSpec
from ..core.model import PolicyDecision as PolicyDecision  # noqa: PLC0414  exported again: part of a policy

APP_SOURCE_PREFIX: Final = "app/"
"""How the names of sources that apps lend begin."""


class Policy(Protocol):
    def __call__(self, caller: Caller, source: str, spec: ToolSpec) -> PolicyDecision: ...


def scope_policy(caller: Caller, source: str, spec: ToolSpec) -> PolicyDecision:
    """Deny unless a scope of the caller names the tool, its effect, its source, or everything of ours.

    Tools lent by an app are for those they were lent to: only a scope that names their source reaches them.
    """
    wanted = {SOURCE_SCOPE_PREFIX + source}
    if not source.startswith(APP_SOURCE_PREFIX):
        wanted |= {"*", f"tool:{spec.name}", f"effect:{spec.effect}"}
    granted = caller.scopes & wanted
    if granted:
        return PolicyDecision(True, min(granted))
    return PolicyDecision(False, f"{caller.kind} {caller.name!r} may not use {spec.name!r}")


def apps_for_caller(caller: Caller) -> list[str]:
    """The apps that lend this caller their tools."""
    return sorted(
        scope.removeprefix(SOURCE_SCOPE_PREFIX)
        for scope in caller.scopes
        if scope.startswith(SOURCE_SCOPE_PREFIX + APP_SOURCE_PREFIX)
    )


def combine_policies(*policies: Policy) -> Policy:
    """Allowed is what each of `policies` allows; the first refusal decides, else the last policy."""

    def decide(caller: Caller, source: str, spec: ToolSpec) -> PolicyDecision:
        decision = PolicyDecision(False, "no policy was given")
        for policy in policies:
            decision = policy(caller, source, spec)
            if not decision.allowed:
                break
        return decision

    return decide
