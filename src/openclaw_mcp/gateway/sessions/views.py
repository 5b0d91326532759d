"""Sessions, messages and runs in the format of the gateway's clients. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NotRequired, TypedDict, cast

from ...core.agents import AgentRoster
from ...core.json_values import drop_none
from ...core.model import Json
from ...core.sessions import Run, Session, TranscriptMessage, now_ms
from .titles import derive_title

PREVIEW_LENGTH: Final = 120  # characters of a list's last messages
FIRST_MESSAGE_LAG: Final = 1  # milliseconds between a session's creation and the message that created it
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
STOP_REASONS: Final = {"reset": "restart", "deleted": "aborted"}
"""Why a run was stopped, where clients of the protocol know another word for it."""
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


class StopReply(TypedDict):
    """The answer to the message `/stop`: that of `chat.abort`."""

    ok: bool
    aborted: bool
    runIds: list[str]


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
        if include_titles and (title := _title(session)) is not None:
            row["derivedTitle"] = title
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
        "archived": session.archived, "pinned": session.pinned, "unread": _is_unread(session),
        "messageCount": session.message_count,
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


def _title(session: Session) -> str | None:
    """The name it was given, or one made of its first message."""
    return session.label or session.display_name or (derive_title(session.title) if session.title else None)


def _is_unread(session: Session) -> bool:
    """Whether it was marked as unread, or someone has written in it since it was read or created."""
    read_at = session.entry.get("lastReadAt")
    seen = read_at if isinstance(read_at, int) else session.created_at + FIRST_MESSAGE_LAG
    return session.unread or (session.last_interaction_at or 0) > seen


def agent_settings(agent_id: str, roster: AgentRoster) -> Json:
    """What a session of this agent uses unless its entry names something else."""
    card = next((card for card in roster.agents if card.id == agent_id), None)
    runtime = card.runtime if card else "demo"
    own_choice = (
        "demo/demo-echo" if runtime == "demo" else f"{runtime}/default"
    )  # a CLI without a model chooses its own
    provider, _, model = ((card and card.model) or own_choice).partition("/")
    return {
        "modelProvider": provider, "model": model, "modelOverrideSource": None,
        "agentRuntime": {"id": runtime, "source": "implicit", **NO_PLACEMENT},
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
    return {
        **{name: chosen[name] for name in names},
        "contextTokens": _context_tokens(roster),
        "modelSelectionTarget": "session",
    }


def _context_tokens(roster: AgentRoster) -> int | None:
    return next((card.context_tokens for card in roster.agents if card.id == roster.default_id), None)


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


def stop_reason(run: Run) -> str | None:
    return STOP_REASONS.get(run.stop_reason or "", run.stop_reason)


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
    ended = {"runId": run.run_id, "endedAt": run.ended_at, "stopReason": stop_reason(run)}
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
        return {"runId": run.run_id, "status": "error", "summary": failure, "stopReason": stop_reason(run)}
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
