"""What is said on an errand: the briefing, the announcement, and a sub-agent as clients know it."""

from typing import Any, Final

import msgspec

from ....core.model import Grant, Json
from ....core.owner import lesser
from ....core.repositories import SessionBook
from ....core.sessions import Subagent, now_ms

NO_REPLY: Final = "NO_REPLY"
ANNOUNCEMENT: Final = "announce:v1:"
"""How the ids of runs begin that tell a requester of a result."""
REPLY_SKIP: Final = "REPLY_SKIP"
ANNOUNCE_SKIP: Final = "ANNOUNCE_SKIP"
LOOK_BACK: Final = 20  # messages of a transcript in which an answer is looked for
LONGEST_RESULT: Final = 60_000  # characters of a result that reach the requester; the rest stays in the transcript
TITLE: Final = 120

STATUS: Final = {"ok": "completed", "error": "failed", "timeout": "timed_out", "aborted": "cancelled"}
DELIVERY: Final = {"silent": "not_applicable", "killed": "dismissed", "steering": "pending"}
"""Ours to the wire's words for whether a result reached its requester."""
ENDED: Final = {
    "ok": "has finished",
    "error": "has failed",
    "timeout": "ran out of time",
    "aborted": "was stopped",
}


def briefing(child: Subagent, depth: int) -> str:
    return (
        "You are a sub-agent: another session sent you off with one task, and gets your last message as the result. "
        f"Your session is {child.child_key}, {depth} deep; the one that waits is {child.requester_key}. "
        "Do the task and nothing else, do not write to people yourself, and end with the whole result in plain words. "
        f"If there is nothing worth telling, answer {ANNOUNCE_SKIP}."
    )


def announcement_id(child: Subagent) -> str:
    return f"{ANNOUNCEMENT}{child.child_key}:{child.run_id}"


def announcement(child: Subagent, text: str) -> str:
    name = child.label or child.task[:TITLE]
    reason = f" ({child.error})" if child.error else ""
    cut = "" if len(text) <= LONGEST_RESULT else f"\n[cut; all of it is in session {child.child_key}]"
    return (
        f'[The sub-agent for "{name}" {ENDED.get(child.outcome or "", "has ended")}{reason}.]\n\n'
        f"{text[:LONGEST_RESULT] or '(it left no answer)'}{cut}\n\n"
        "[Tell the person you speak with what matters of this, in your own words; "
        f"if there is nothing to add, answer {NO_REPLY}.]"
    )


def between(requester: str, target: str, *, step: str) -> str:
    """What an agent is told about a message that comes from another session."""
    return (
        f"This is a conversation between agents: {requester} wrote to {target}. {step} "
        f"Answer {REPLY_SKIP} to end the exchange."
    )


def is_silent(text: str) -> bool:
    return text.strip() in (NO_REPLY, ANNOUNCE_SKIP)


async def last_words(sessions: SessionBook, child: Subagent) -> tuple[str, tuple[str, ...]]:
    """The last thing its agent said; else what its last tool answered. Never what it was told. And the runs that left
    what was looked at."""
    page = await sessions.history(child.child_key, limit=LOOK_BACK)
    runs = tuple(dict.fromkeys(message.run_id for message in page.messages if message.run_id))
    for role in ("assistant", "toolResult"):
        for message in reversed(page.messages):
            text = text_of(message.body) if message.role == role else ""
            if text:
                return text, runs
    return "", runs


def lesser_of(held: Json, speaks: Grant) -> Json:
    """What is left of a grant on the books when somebody else gives the orders."""
    left: Json = msgspec.to_builtins(lesser(msgspec.convert(held, Grant), speaks))
    return left


def text_of(body: Json) -> str:
    content: Any = body.get("content")
    if isinstance(content, str):
        return content.strip()
    blocks = content if isinstance(content, list) else []
    return "\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text").strip()


def status(child: Subagent) -> str:
    if child.outcome == "killed":
        return "killed"
    return "running" if child.outcome is None else {"ok": "done"}.get(child.outcome, child.outcome)


def row(child: Subagent) -> Json:
    """A sub-agent as `sessions.subagents` tells it."""
    told: Json = {
        "runId": child.run_id,
        "childSessionKey": child.child_key,
        "requesterSessionKey": child.requester_key,
        "task": child.task,
        "label": child.label,
        "model": child.model,
        "status": status(child),
        "mode": child.mode,
        "cleanup": child.cleanup,
        "createdAt": child.created_at,
        "startedAt": child.started_at,
        "endedAt": child.ended_at,
        "runtimeMs": (child.ended_at or now_ms()) - child.started_at,
        "deliveryStatus": child.delivery,
        "error": child.error,
    }
    return {name: value for name, value in told.items() if value is not None}


def active_at(child: Subagent) -> int:
    return child.started_at if child.ended_at is None else child.ended_at


def task(child: Subagent) -> Json:
    """The same as the `task` event and `tasks.list` tell it. Its id stays, whatever run carries it out."""
    told: Json = {
        "id": child.child_key.rpartition(":")[2],
        "kind": "subagent",
        "runtime": "subagent",
        "status": "running" if child.outcome is None else STATUS.get(child.outcome, "cancelled"),
        "sessionKey": child.requester_key,
        "childSessionKey": child.child_key,
        "runId": child.run_id,
        "agentId": child.child_key.split(":")[1],
        "ownerKey": child.requester_key,
        "title": (child.label or child.task)[:TITLE],
        "deliveryStatus": DELIVERY.get(child.delivery, child.delivery),
        "createdAt": child.created_at,
        "updatedAt": active_at(child),
        "startedAt": child.started_at,
        "endedAt": child.ended_at,
        "error": child.error,
    }
    return {name: value for name, value in told.items() if value is not None}
