"""Tool calls that never come to the desk, because a run's own program makes them by RPC: decided and put on record."""

import time
from typing import Final

from ..core.claw_methods import WAYS
from ..core.errors import ToolDenied
from ..core.model import Caller, Json, ToolSpec
from .audit import Audit, Record, digest, is_kept
from .config_policy import HouseRules
from .policy import Decision

SOURCE: Final = "openclaw"
UNKNOWN: Final = Decision(False, "it is behind no tool", "menu")
OUTCOMES: Final = frozenset({"ok", "internal", "cancelled"})
"""What is written as it is; whatever else went wrong, the tool failed."""


class Clerk:
    """Call it when such a call has ended."""

    def __init__(self, rules: HouseRules, audit: Audit, digest_key: bytes) -> None:
        self._rules = rules
        self._audit = audit
        self._digest_key = digest_key

    def __call__(self, caller: Caller, tool: str, arguments: Json, outcome: str, seconds: float) -> None:
        if not is_kept(self._audit):
            return
        decision = self._rules(caller, SOURCE, ToolSpec(name=tool)) if tool in WAYS else UNKNOWN
        if not decision.allowed:
            outcome = ToolDenied.code
        self._audit(
            Record(
                at=time.time() - seconds,
                caller=f"{caller.kind} {caller.name}",
                door=caller.door,
                session=caller.session,
                tool=tool,
                source=SOURCE,
                digest=digest(arguments, self._digest_key),
                step=decision.step,
                rule=decision.reason,
                outcome=outcome if outcome in OUTCOMES or outcome == ToolDenied.code else "failed",
                milliseconds=seconds * 1000,
            )
        )
