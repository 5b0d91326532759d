"""Texts that sub-agents and requesters are given, and sub-agents as clients see them."""

from typing import Final

from ....core.json_values import content_text, drop_none
from ....core.model import Json
from ....core.repositories import SessionRepository
from ....core.session_keys import split_key
from ....core.sessions import Run, Subagent, now_ms

NO_REPLY: Final = "NO_REPLY"
ANNOUNCEMENT_PREFIX: Final = "announce:v1:"
"""How the ids of runs begin that announce a result to its requester."""
REPLY_SKIP: Final = "REPLY_SKIP"
ANNOUNCE_SKIP: Final = "ANNOUNCE_SKIP"
LOOK_BACK: Final = 20  # messages of a transcript searched for an answer
MAX_RESULT_LENGTH: Final = 60_000  # characters of a result that reach the requester; the rest stays in the transcript
TITLE_LENGTH: Final = 120

TASK_STATUSES: Final = {"ok": "completed", "error": "failed", "timeout": "timed_out", "aborted": "cancelled"}
DELIVERY_STATUSES: Final = {"silent": "not_applicable", "killed": "dismissed", "steering": "pending"}
"""Our delivery status to the wire's, where they differ."""
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
    """The extra system prompt for a message that comes from another session."""
    return (
        f"This is a conversation between agents: {requester} wrote to {target}. {step} "
        f"Answer {REPLY_SKIP} to end the exchange."
    )


def is_silent(text: str) -> bool:
    return text.strip() in (NO_REPLY, ANNOUNCE_SKIP)


async def read_last_answer(sessions: SessionRepository, child: Subagent) -> tuple[str, tuple[str, ...]]:
    """Its agent's last text, else its last tool's result; never a prompt. And the ids of the runs searched."""
    page = await sessions.history(child.child_key, limit=LOOK_BACK)
    runs = tuple(dict.fromkeys(message.run_id for message in page.messages if message.run_id))
    for role in ("assistant", "toolResult"):
        for message in reversed(page.messages):
            text = content_text(message.body.get("content")).strip() if message.role == role else ""
            if text:
                return text, runs
    return "", runs


def reply_text(run: Run) -> str:
    return (run.result.text or "").strip()


def subagent_status(child: Subagent) -> str:
    return {None: "running", "ok": "done"}.get(child.outcome) or str(child.outcome)


def subagent_row(child: Subagent) -> Json:
    """A sub-agent as `sessions.subagents` lists it."""
    return drop_none(
        {
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
    )


def active_at(child: Subagent) -> int:
    return child.started_at if child.ended_at is None else child.ended_at


def task_view(child: Subagent) -> Json:
    """A sub-agent as the `task` event and `tasks.list` show it. Its id stays when another run takes over."""
    return drop_none(
        {
            "id": child.child_key.rpartition(":")[2],
            "kind": "subagent",
            "runtime": "subagent",
            "status": "running" if child.outcome is None else TASK_STATUSES.get(child.outcome, "cancelled"),
            "sessionKey": child.requester_key,
            "childSessionKey": child.child_key,
            "runId": child.run_id,
            "agentId": split_key(child.child_key)[0],
            "ownerKey": child.requester_key,
            "title": (child.label or child.task)[:TITLE_LENGTH],
            "deliveryStatus": DELIVERY_STATUSES.get(child.delivery, child.delivery),
            "createdAt": child.created_at,
            "updatedAt": active_at(child),
            "startedAt": child.started_at,
            "endedAt": child.ended_at,
            "error": child.error,
        }
    )
