"""The audit: one record for each call made or refused. Never arguments, never results."""

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from ..core.model import Caller, CallRecord, Json, Traffic
from .policy import PolicyDecision

DIGEST_SIZE: Final = 16  # bytes: two calls with the same digest had the same arguments

logger = logging.getLogger(__name__)
_encode = msgspec.json.Encoder(order="deterministic").encode


AuditRecord = CallRecord
AuditSink = Callable[[AuditRecord], None]


def digest_arguments(arguments: Json, key: bytes) -> str:
    """The same for the same arguments under the same key, in any order of their fields.

    Keyed, because a short argument could be found by trying: keep the key apart from the records.
    """
    from hashlib import blake2b  # here for start-up: it loads OpenSSL, which is needed for an audit trail alone

    return blake2b(_encode(arguments), digest_size=DIGEST_SIZE, key=key).hexdigest()


def make_record(
    caller: Caller,
    tool: str,
    decision: PolicyDecision,
    outcome: str,
    seconds: float,
    *,
    source: str | None,
    digest: str | None,
    traffic: Traffic | None = None,
) -> AuditRecord:
    """The record of a call that has just ended, after so many seconds."""
    return AuditRecord(
        at=time.time() - seconds,
        caller=f"{caller.kind} {caller.name}",
        entry_point=caller.entry_point,
        session=caller.session,
        tool=tool,
        source=source,
        digest=digest,
        step=decision.step,
        rule=decision.reason,
        outcome=outcome,
        milliseconds=seconds * 1000,
        traffic=traffic,
    )


def is_audit_enabled(sink: AuditSink) -> bool:
    """Whether a record would be written anywhere. One that would not is not worth making."""
    return sink is not log_record or logger.isEnabledFor(logging.DEBUG)


def log_record(record: AuditRecord) -> None:
    """Audit to the process log, at debug level."""
    about = (record.tool, record.caller, record.outcome, record.rule, record.milliseconds)
    logger.debug("tool %s by %s: %s (%s) in %.1f ms", *about)
