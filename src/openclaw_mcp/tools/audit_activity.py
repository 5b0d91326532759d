"""Audit records as `audit.activity.list` shows them: who did what, when, and how it ended. Pure.

They hold less than `audit.list`: no rule, no digest, no entry point. So they need no more than the right to read.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from ..core.errors import ToolDenied, ToolTimeout
from ..core.fields import NonEmptyStr
from ..core.model import Json
from ..core.numbers import parse_whole_number
from ..core.rpc import SAFE_INTEGER, RpcError
from ..core.sessions import AuditQuery

TOOL_ACTION: Final = "tool_action"
MAX_PAGE: Final = 500

ActivityStatus = Literal["started", "succeeded", "failed", "cancelled", "timed_out", "blocked", "unknown"]
STATUS_BY_OUTCOME: Final[Mapping[str, ActivityStatus]] = {
    "ok": "succeeded",
    "cancelled": "cancelled",
    ToolTimeout.code: "timed_out",
    ToolDenied.code: "blocked",
}
"""Every other outcome is a failure."""
Milliseconds = Annotated[int, Meta(ge=0, le=SAFE_INTEGER)]


class ActivityParams(Struct, frozen=True, kw_only=True, rename="camel"):
    agent_id: NonEmptyStr | None = None
    session_key: NonEmptyStr | None = None
    run_id: NonEmptyStr | None = None
    kind: Literal["agent_run", "tool_action", "message"] | None = None
    status: ActivityStatus | None = None
    direction: Literal["inbound", "outbound"] | None = None
    channel: NonEmptyStr | None = None
    after: Milliseconds | None = None
    before: Milliseconds | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    cursor: NonEmptyStr | None = None


class Actor(Struct, frozen=True):
    type: Literal["agent", "system"]
    id: str


class Activity(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A call of a tool that has ended."""

    event_type: str
    schema_version: int
    event_id: str
    sequence: int
    source_sequence: int
    occurred_at: int
    redaction: str
    actor: Actor
    agent_id: str | None = None
    session_key: str | None = None
    kind: str
    tool_name: str
    action: str
    status: ActivityStatus
    error_code: str | None = None


class ActivityPage(Struct, frozen=True, rename="camel", omit_defaults=True):
    events: list[Activity]
    next_cursor: str | None = None


def activity_query(asked: ActivityParams) -> AuditQuery | None:
    """Which records are asked for; None when none can be: calls of tools are kept, without the run they belong to."""
    of_others = asked.run_id or asked.direction or asked.channel
    if asked.kind not in (None, TOOL_ACTION) or of_others or asked.status in ("started", "unknown"):
        return None
    before = None if asked.cursor is None else parse_whole_number(asked.cursor)
    if asked.cursor is not None and before is None:
        raise RpcError("invalid audit.activity.list range or cursor")
    outcomes, others = None, False
    if asked.status == "failed":
        outcomes, others = tuple(STATUS_BY_OUTCOME), True
    elif asked.status is not None:
        outcomes = tuple(outcome for outcome, status in STATUS_BY_OUTCOME.items() if status == asked.status)
    return AuditQuery(
        session=asked.session_key, agent=asked.agent_id, since=asked.after, until=asked.before, before=before,
        outcomes=outcomes, other_outcomes=others, limit=asked.limit,
    )  # fmt: skip


def make_activity(record: Json) -> Activity:
    kind, _, name = str(record["caller"]).partition(" ")
    session = record["sessionKey"]
    status = STATUS_BY_OUTCOME.get(record["outcome"], "failed")
    return Activity(
        event_type=TOOL_ACTION,
        schema_version=1,
        event_id=str(record["id"]),
        sequence=record["id"],
        source_sequence=record["id"],
        occurred_at=record["at"],
        redaction="metadata_only",
        actor=Actor("agent" if kind == "agent" else "system", name or kind),
        agent_id=session.split(":")[1] if session and session.startswith("agent:") else None,
        session_key=session or None,
        kind=TOOL_ACTION,
        tool_name=record["tool"],
        action="tool.action.finished",
        status=status,
        error_code=None if status == "succeeded" else f"tool_{status}",
    )
