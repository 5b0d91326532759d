"""The audit of tool calls that a run's own program makes by RPC, and that no dispatcher sees."""

import time
from typing import Final

from ..core.claw_methods import METHODS_BY_TOOL
from ..core.errors import ToolDenied
from ..core.model import Caller, Json, ToolSpec
from .audit import AuditRecord, AuditSink, digest_arguments, is_audit_enabled
from .config_policy import ConfigPolicy
from .policy import PolicyDecision

OWN_SOURCE: Final = "openclaw"
UNKNOWN_TOOL: Final = PolicyDecision(False, "no tool uses it", "tool list")
VERBATIM_OUTCOMES: Final = frozenset({"ok", "internal", "cancelled"})
"""Outcomes that are recorded as they are; every other error is recorded as the tool's failure."""


class GrantAudit:
    """Called when such a call has ended."""

    def __init__(self, rules: ConfigPolicy, audit: AuditSink, digest_key: bytes) -> None:
        self._rules = rules
        self._audit = audit
        self._digest_key = digest_key

    def __call__(self, caller: Caller, tool: str, arguments: Json, outcome: str, seconds: float) -> None:
        if not is_audit_enabled(self._audit):
            return
        decision = self._rules(caller, OWN_SOURCE, ToolSpec(name=tool)) if tool in METHODS_BY_TOOL else UNKNOWN_TOOL
        if not decision.allowed:
            outcome = ToolDenied.code
        self._audit(
            AuditRecord(
                at=time.time() - seconds,
                caller=f"{caller.kind} {caller.name}",
                entry_point=caller.entry_point,
                session=caller.session,
                tool=tool,
                source=OWN_SOURCE,
                digest=digest_arguments(arguments, self._digest_key),
                step=decision.step,
                rule=decision.reason,
                outcome=outcome if outcome in VERBATIM_OUTCOMES or outcome == ToolDenied.code else "failed",
                milliseconds=seconds * 1000,
            )
        )
