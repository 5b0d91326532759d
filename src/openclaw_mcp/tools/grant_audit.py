"""The audit of tool calls that a run's own program makes by RPC, and that no dispatcher sees."""

from typing import Final

from ..core.claw_methods import GrantedCall
from ..core.errors import ToolDenied
from .audit import AuditSink, digest_arguments, is_audit_enabled, make_record
from .config_policy import OWN_SOURCE

VERBATIM_OUTCOMES: Final = frozenset({"ok", "internal", "cancelled", ToolDenied.code})
"""Outcomes that are recorded as they are; every other error is recorded as the tool's failure."""


class GrantAudit:
    """Called when such a call has ended."""

    def __init__(self, audit: AuditSink, digest_key: bytes) -> None:
        self._audit = audit
        self._digest_key = digest_key

    def __call__(self, call: GrantedCall, outcome: str, seconds: float) -> None:
        if not is_audit_enabled(self._audit):
            return
        caller, decision = call.caller, call.decision
        if not decision.allowed:
            outcome = ToolDenied.code
        elif outcome not in VERBATIM_OUTCOMES:
            outcome = "failed"
        digest = digest_arguments(call.params, self._digest_key)
        self._audit(make_record(caller, call.tool, decision, outcome, seconds, source=OWN_SOURCE, digest=digest))
