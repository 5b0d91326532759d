"""The book: one record for each call made or refused. Never arguments, never results."""

import logging
from collections.abc import Callable

from msgspec import Struct

from ..core.model import Traffic

logger = logging.getLogger(__name__)


class Record(Struct, frozen=True, kw_only=True):
    caller: str
    """Kind and name: `agent run-7`."""
    session: str | None
    tool: str
    source: str | None
    rule: str
    """What the policy said."""
    outcome: str
    """`ok`, `failed`, or the stable code of the error that ended the call."""
    milliseconds: float
    traffic: Traffic | None = None
    """Sizes, when the tool is far away and was asked."""


Audit = Callable[[Record], None]


def log(record: Record) -> None:
    """Audit to the process log, at debug level."""
    logger.debug(
        "tool %s by %s: %s (%s) in %.1f ms",
        record.tool,
        record.caller,
        record.outcome,
        record.rule,
        record.milliseconds,
    )
