"""What is said on an errand: the briefing, the announcement, and a sub-agent as clients know it."""

from typing import Any, Final

from ....core.model import Json
from ....core.repositories import SessionRepository
from ....core.sessions import Subagent, now_ms

NO_REPLY: Final = "NO_REPLY"
ANNOUNCEMENT_PREFIX: Final = "announce:v1:"
"""How the ids of runs begin that tell a requester of a result."""
REPLY_SKIP: Final = "REPLY_SKIP"
ANNOUNCE_SKIP: Final = "ANNOUNCE_SKIP"
LOOK_BACK: Final = 20  # messages of a transcript in which an answer is looked for
MAX_RESULT_LENGTH: Final = 60_000  # characters of a result that reach the requester; the rest stays in the transcript
TITLE_LENGTH: Final = 120

TASK_STATUSES: Final = {"ok": "completed", "error": "failed", "timeout": "timed_out", "aborted": "cancelled"}
DELIVERY_STATUSES: Final = {"silent": "not_applicable", "killed": "dismissed", "steering": "pending"}
"""Ours to the wire's words for whether a result reached its requester."""
OUTCOME_PHRASES: Final = {
    "ok": "has finished",
    "error": "has failed",
    "timeout": "ran out of time",
    "aborted": "was stopped",
}


def subagent_prompt(child: Subagent, depth: int) -> str:
    return (
        "You are a sub-agent: another session sent you off with one task, and gets your last message as the result. "
        f"Your session is {child.child_key}, {depth} deep; the one that waits is {child.requester_key}. "
        "Do the task and nothing else, do not write to people yourself, and end with the whole result in plain words. "
        f"If there is nothing worth telling, answer {ANNOUNCE_SKIP}."
    )


def announcement_id(child: Subagent) -> str:
    return f"{ANNOUNCEMENT_PREFIX}{child.child_key}:{child.run_id}"


def announcement_prompt(child: Subagent, text: str) -> str:
    name = child.label or child.task[:TITLE_LENGTH]
    reason = f" ({child.error})" if child.error else ""
    cut = "" if len(text) <= MAX_RESULT_LENGTH else f"\n[cut; all of it is in session {child.child_key}]"
    return (
        f'[The sub-agent for "{name}" {OUTCOME_PHRASES.get(child.outcome or "", "has ended")}{reason}.]\n\n'
        f"{text[:MAX_RESULT_LENGTH] or '(it left no answer)'}{cut}\n\n"
        "[Tell the person you speak with what matters of this, in your own words; "
        f"if there is nothing to add, answer {NO_REPLY}.]"
    )


def exchange_prompt(requester: str, target: str, *, step: str) -> str:
    """What an agent is told about a message that comes from another session."""
    return (
        f"This is a conversation between agents: {requester} wrote to {target}. {step} "
        f"Answer {REPLY_SKIP} to end the exchange."
    )


def is_silent(text: str) -> bool:
    return text.strip() in (NO_REPLY, ANNOUNCE_SKIP)


async def read_last_answer(sessions: SessionRepository, child: Subagent) -> tuple[str, tuple[str, ...]]:
    """The last thing its agent said; else what its last tool answered. Never what it was told. And the runs that left
    what was looked at."""
    page = await sessions.history(child.child_key, limit=LOOK_BACK)
    runs = tuple(dict.fromkeys(message.run_id for message in page.messages if message.run_id))
    for role in ("assistant", "toolResult"):
        for message in reversed(page.messages):
            text = message_text(message.body) if message.role == role else ""
            if text:
                return text, runs
    return "", runs


def message_text(body: Json) -> str:
    content: Any = body.get("content")
    if isinstance(content, str):
        return content.strip()
    blocks = content if isinstance(content, list) else []
    return "\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text").strip()


def subagent_status(child: Subagent) -> str:
    if child.outcome == "killed":
        return "killed"
    return "running" if child.outcome is None else {"ok": "done"}.get(child.outcome, child.outcome)


def subagent_row(child: Subagent) -> Json:
    """A sub-agent as `sessions.subagents` tells it."""
    told: Json = {
        "runId": child.run_id,
        "childSessionKey": child.child_key,
        "requesterSessionKey": child.requester_key,
        "task": child.task,
        "label": child.label,
        "model": child.model,
        "status": subagent_status(child),
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


def task_view(child: Subagent) -> Json:
    """The same as the `task` event and `tasks.list` tell it. Its id stays, whatever run carries it out."""
    told: Json = {
        "id": child.child_key.rpartition(":")[2],
        "kind": "subagent",
        "runtime": "subagent",
        "status": "running" if child.outcome is None else TASK_STATUSES.get(child.outcome, "cancelled"),
        "sessionKey": child.requester_key,
        "childSessionKey": child.child_key,
        "runId": child.run_id,
        "agentId": child.child_key.split(":")[1],
        "ownerKey": child.requester_key,
        "title": (child.label or child.task)[:TITLE_LENGTH],
        "deliveryStatus": DELIVERY_STATUSES.get(child.delivery, child.delivery),
        "createdAt": child.created_at,
        "updatedAt": active_at(child),
        "startedAt": child.started_at,
        "endedAt": child.ended_at,
        "error": child.error,
    }
    return {name: value for name, value in told.items() if value is not None}
