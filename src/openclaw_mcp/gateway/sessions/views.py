"""Sessions, messages and runs in the format of the gateway's clients. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NotRequired, TypedDict, cast

from ...core.agents import AgentRoster
from ...core.json_values import drop_none
from ...core.model import Json
from ...core.sessions import Run, Session, TranscriptMessage, now_ms

PREVIEW_LENGTH: Final = 120  # characters of a list's titles and last messages
NO_PLACEMENT: Final = {"cloudPlacementSupported": False, "devicePlacementSupported": False}
BACKGROUND_KINDS: Final = ("subagent", "cron", "hook")
OPTIONAL_FIELDS: Final = (
    ("status", "status"),
    ("startedAt", "run_started_at"),
    ("label", "label"),
    ("displayName", "display_name"),
    ("lastInteractionAt", "last_interaction_at"),
    ("lastRunId", "last_run_id"),
    ("modelProvider", "model_provider"),
    ("model", "model"),
    ("parentSessionKey", "parent_key"),
    ("spawnedBy", "spawned_by"),
)
"""Fields of a session's row, and where they come from, that are left out while they are None."""
INLINE_TYPES: Final = ("image", "audio", "video", "file")


class SessionRow(TypedDict):
    """A session in lists and answers. It also has the fields of the session's entry, and those of `agent_settings`."""

    key: str
    agentId: str
    kind: str
    classification: str
    updatedAt: int | None
    sessionId: NotRequired[str]
    status: NotRequired[str]
    derivedTitle: NotRequired[str]
    lastMessagePreview: NotRequired[str]


class SessionChanged(TypedDict):
    """The answer of methods that create, change or reset a session."""

    ok: bool
    key: str
    entry: SessionRow
    resolved: Json
    path: NotRequired[str]
    sessionId: NotRequired[str]
    runStarted: NotRequired[bool]


class RunReply(TypedDict):
    """The answer of methods that submit a message."""

    runId: str
    status: Literal["started", "in_flight", "ok", "error", "timeout"]
    interruptedActiveRun: NotRequired[bool]
    summary: NotRequired[str]
    stopReason: NotRequired[str | None]
    result: NotRequired[Json]


def session_rows(
    sessions: Iterable[Session],
    roster: AgentRoster,
    active: Mapping[str, Sequence[str]],
    *,
    include_titles: bool = False,
    include_last: bool = False,
) -> list[SessionRow]:
    """The rows of a list. `active` are the ids of open runs by session key."""
    at, settings = now_ms(), dict[str, Json]()
    rows = []
    for session in sessions:
        agent = settings.get(session.agent_id)
        if agent is None:
            agent = settings[session.agent_id] = agent_settings(session.agent_id, roster)
        row = _session_fields(session, agent, active.get(session.key, ()), at)
        if include_titles and (title := session.title or session.label) is not None:
            row["derivedTitle"] = title[:PREVIEW_LENGTH]
        if include_last and session.preview is not None:
            row["lastMessagePreview"] = session.preview[:PREVIEW_LENGTH]
        rows.append(cast(SessionRow, row))
    return rows


def session_row(session: Session, roster: AgentRoster, *, active: Sequence[str] = (), **include: bool) -> SessionRow:
    return session_rows((session,), roster, {session.key: active}, **include)[0]


def _session_fields(session: Session, agent: Json, active: Sequence[str], at: int) -> Json:
    """One dict, filled in one go: a list has hundreds of rows of sixty fields."""
    entry, kind = session.entry, session.classification
    chat = "group" if kind == "group" else "direct"
    row = {
        **entry, **agent,
        "key": session.key, "sessionId": session.session_id, "agentId": session.agent_id,
        "kind": chat, "chatType": chat, "classification": kind, "isMain": kind == "main",
        "isBackground": kind in BACKGROUND_KINDS, "visibility": "shared", "sharingRole": "admin",
        "archived": session.archived, "pinned": session.pinned, "unread": session.unread,
        "lifecycleRevision": session.revision, "abortedLastRun": session.status == "killed",
        "inputTokens": session.input_tokens, "outputTokens": session.output_tokens,
        "totalTokens": session.input_tokens + session.output_tokens, "totalTokensFresh": True,
        "createdAt": session.created_at, "updatedAt": session.updated_at, "snapshotAt": at,
        "hasActiveRun": bool(active), "activeRunIds": list(active),
        "effectiveQueueMode": "steer", "spawnDepth": session.spawn_depth or 0,
    }  # fmt: skip
    for name, field in OPTIONAL_FIELDS:
        value = getattr(session, field)
        if value is not None:
            row[name] = value
    if "displayName" not in row and session.label is not None:
        row["displayName"] = session.label
    if session.run_started_at is not None and session.run_ended_at is not None:
        row["endedAt"], row["runtimeMs"] = session.run_ended_at, session.run_ended_at - session.run_started_at
    if entry:
        row.pop("resume", None)
        if entry.get("model"):
            row["model"], row["modelOverrideSource"] = entry["model"], "user"
    return row


def agent_settings(agent_id: str, roster: AgentRoster) -> Json:
    """What a session of this agent uses unless its entry names something else."""
    card = next((card for card in roster.agents if card.id == agent_id), None)
    provider, _, model = ((card and card.model) or "demo/demo-echo").partition("/")
    return {
        "modelProvider": provider, "model": model, "modelOverrideSource": None,
        "agentRuntime": {"id": card.runtime if card else "demo", "source": "implicit", **NO_PLACEMENT},
        "runtimeSelectionLocked": False, "permissionModePending": False, "createdVia": "operator",
        "thinkingLevels": [{"id": "off", "label": "off"}], "thinkingOptions": ["off"], "thinkingDefault": "off",
        "effectiveFastMode": False, "effectiveFastModeSource": "default", "fastAutoOnSeconds": 60,
        "effectiveResponseUsage": "off",
    }  # fmt: skip


def placeholder_row(key: str, classification: str, roster: AgentRoster) -> SessionRow:
    """The row of a session that does not exist yet."""
    agent_id = key.split(":")[1]
    row = {
        **agent_settings(agent_id, roster), "key": key, "agentId": agent_id, "kind": "direct",
        "classification": classification, "isMain": classification == "main", "isBackground": False, "archived": False,
        "pinned": False, "unread": False, "updatedAt": None, "totalTokensFresh": False, "effectiveQueueMode": "steer",
        "hasActiveRun": False, "activeRunIds": [], "snapshotAt": now_ms(),
    }  # fmt: skip
    return cast(SessionRow, row)


def session_defaults(roster: AgentRoster) -> Json:
    """What a new session uses."""
    chosen = agent_settings(roster.default_id, roster)
    names = ("modelProvider", "model", "agentRuntime", "thinkingLevels", "thinkingOptions", "thinkingDefault")
    return {**{name: chosen[name] for name in names}, "contextTokens": None, "modelSelectionTarget": "session"}


def model_selection(agent_id: str, roster: AgentRoster) -> Json:
    chosen = agent_settings(agent_id, roster)
    return {name: chosen[name] for name in ("modelProvider", "model", "agentRuntime", "runtimeSelectionLocked")}


def format_message(message: TranscriptMessage, *, max_chars: int | None = None, inline: bool = False) -> Json:
    """A message of a transcript. `inline` keeps the bytes of pictures and sounds."""
    content = message.body.get("content")
    if isinstance(content, list):
        content = [_format_block(block, max_chars, inline=inline) for block in content]
    elif isinstance(content, str) and max_chars is not None:
        content = content[:max_chars]
    position = {
        "id": message.uid, "seq": message.seq, "recordTimestampMs": message.at, "runId": message.run_id,
        "transcriptPosition": {"source": str(message.epoch), "rawSeq": message.seq},
    }  # fmt: skip
    changed = {"content": content, "idempotencyKey": message.idempotency_key}
    return {**message.body, **drop_none(changed), "timestamp": message.at, "__openclaw": drop_none(position)}


def _format_block(block: Json, max_chars: int | None, *, inline: bool) -> Json:
    if block.get("type") in INLINE_TYPES and not inline and "data" in block:
        return {**{name: value for name, value in block.items() if name != "data"}, "omitted": True}
    if max_chars is not None and isinstance(block.get("text"), str):
        return {**block, "text": block["text"][:max_chars]}
    return block


def message_text(message: TranscriptMessage) -> str:
    content = message.body.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) for block in content or () if block.get("type") == "text")


# ---- runs --------------------------------------------------------------------------------------------------------


def terminal_fields(run: Run) -> Json:
    """The answer of a run that succeeded, and how it came about."""
    result = run.result
    model = {"provider": result.provider, "model": result.model}
    reply = {"disposition": "visible", "text": result.text} if result.text else {"disposition": "silent"}
    receipt = {
        "runId": run.run_id, "sessionId": run.session_id, "turnId": run.run_id, "requested": model,
        "effective": {**model, "responseModel": result.model}, "successfulToolNames": result.tools, "rerouted": False,
        "terminalDisposition": reply["disposition"],
    }  # fmt: skip
    return {"terminalReply": reply, "terminalReceipt": receipt}


def wait_result(run: Run) -> Json:
    """The answer of `agent.wait`."""
    ended = {"runId": run.run_id, "endedAt": run.ended_at, "stopReason": run.stop_reason}
    if run.started_at is not None:
        ended["startedAt"] = run.started_at
    if run.status != "ok":
        return {**ended, "status": "error", "error": run.error or "aborted"}
    return {**ended, "status": "ok", "livenessState": "working", **terminal_fields(run)}


def agent_result(run: Run) -> RunReply:
    """The second answer of `agent`."""
    result, usage = run.result, run.result.usage
    if run.status != "ok":
        failure = run.error or "aborted"
        return {"runId": run.run_id, "status": "error", "summary": failure, "stopReason": run.stop_reason}
    texts = [{"text": result.text, "mediaUrl": None}] if result.text else []
    media = [{"text": None, "mediaUrl": block.get("url"), "media": block} for block in result.media]
    meta = {
        "sessionId": run.session_id,
        "provider": result.provider,
        "model": result.model,
        "usage": {"input": usage.input, "output": usage.output, "total": usage.total_tokens},
    }
    took = (run.ended_at or 0) - (run.started_at or run.accepted_at)
    return {
        "runId": run.run_id,
        "status": "ok",
        "summary": "completed" if run.stop_reason != "steered" else "answered by a later run",
        "result": {"payloads": [*texts, *media], "meta": {"durationMs": took, "aborted": False, "agentMeta": meta}},
    }
