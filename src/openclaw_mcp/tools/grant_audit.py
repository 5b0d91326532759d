"""The audit of tool calls that a run's own program makes by RPC, and that no dispatcher sees."""

import time
from typing import Final

from ..core.claw_methods import GrantedCall
from ..core.errors import ToolDenied
from .audit import AuditRecord, AuditSink, digest_arguments, is_audit_enabled
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
        self._audit(
            AuditRecord(
                at=time.time() - seconds,
                caller=f"{caller.kind} {caller.name}",
                entry_point=caller.entry_point,
                session=caller.session,
                tool=call.tool,
                source=OWN_SOURCE,
                digest=digest_arguments(call.params, self._digest_key),
                step=decision.step,
                rule=decision.reason,
                outcome=outcome if outcome in VERBATIM_OUTCOMES else "failed",
                milliseconds=seconds * 1000,
            )
        )
