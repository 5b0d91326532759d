"""Handlers of the session tools: list, read, send, spawn, stop."""

import uuid
from typing import Any, Final

from msgspec import Struct

from ..core.chat_messages import ChatHistoryReply, ChatMessage
from ..core.claw_catalogue import DEFAULT_WAIT, WAIT_SLACK
from ..core.effects import SentMessage
from ..core.errors import OpenClawError, ToolArguments, ToolError, ToolUnavailable
from ..core.gateway_events import RunWaitReply
from ..core.lenient import read_struct
from ..core.model import Json
from ..core.rpc import RpcError
from .tool_context import ClawContext, OutcomeUnknown, bind_handlers, require_text

REPLY_SEARCH_LIMIT: Final = 5  # newest messages among which the reply is, when the end of the run does not carry it
MOST_CHILDREN: Final = 100  # sub-agents listed where the gateway has no method of its own for them


class SessionArguments(Struct, frozen=True, kw_only=True, rename="camel"):
    """The arguments of the session tools but `subagents`; its schema names those that a tool has."""

    filter: str = ""
    limit: int | None = None
    active_minutes: int | None = None
    agent_id: str = ""
    session_key: str = ""
    include_tools: bool = True
    label: str = ""
    message: str = ""
    timeout: float = DEFAULT_WAIT
    prompt: str = ""
    channel: str = ""
    model: str = ""
    thinking: str = ""
    timeout_seconds: int | None = None
    cleanup: str = ""


async def _list(context: ClawContext, arguments: SessionArguments) -> Any:
    return await context.call_repeatable(
        "sessions.list",
        {
            "search": arguments.filter,
            "limit": arguments.limit,
            "activeMinutes": arguments.active_minutes,
            "agentId": arguments.agent_id,
            "includeDerivedTitles": True,
            "includeLastMessage": True,
        },
    )


async def _history(context: ClawContext, arguments: SessionArguments) -> Any:
    params = {"sessionKey": require_text("sessionKey", arguments.session_key), "limit": arguments.limit}
    history = await context.call_repeatable("chat.history", params)
    if arguments.include_tools or not isinstance(history, dict):
        return history
    shown = [message for message in history.get("messages", ()) if not _is_tool_message(message)]
    return {**history, "messages": shown}


def _is_tool_message(message: Any) -> bool:
    if not isinstance(message, dict):
        return True
    read = read_struct(message, ChatMessage)
    return read.role == "toolResult" or (bool(read.blocks) and all(block.type == "toolCall" for block in read.blocks))


# ---- sessions_send ---------------------------------------------------------------------------------------------------


async def _send(context: ClawContext, arguments: SessionArguments) -> Any:
    message = require_text("message", arguments.message)
    context.effects.ensure_open()
    key = await _resolve_target(context, arguments)
    sent = SentMessage(tool="sessions_send", to=key, text=message)
    source = {"kind": "inter_session", "sourceSessionKey": context.settings.session_key, "sourceTool": "sessions_send"}
    params = {
        "message": message,
        "sessionKey": key,
        "idempotencyKey": str(uuid.uuid4()),
        "deliver": False,
        "lane": "nested",
        "inputProvenance": source,
    }
    try:
        accepted = await context.call_repeatable("agent", params)
    except OutcomeUnknown:
        context.effects.record_uncertain([sent])
        raise
    run, key = str(accepted.get("runId") or params["idempotencyKey"]), str(accepted.get("sessionKey") or key)
    recorded = context.record_messages([sent], {"runId": run, "status": "accepted", "sessionKey": key})
    if arguments.timeout <= 0:
        return recorded
    try:
        return {**recorded, **await _wait_for_reply(context, run, key, arguments.timeout)}
    except OpenClawError as exc:  # the message has arrived: only waiting for the reply failed
        return {**recorded, "status": "error", "error": str(exc)}


async def _resolve_target(context: ClawContext, arguments: SessionArguments) -> str:
    key, label = arguments.session_key.strip(), arguments.label.strip()
    if bool(key) == bool(label):
        raise ToolArguments("say which session: either `sessionKey` or `label`, not both and not neither")
    if label:
        found = await context.call_repeatable("sessions.resolve", {"label": label, "agentId": arguments.agent_id})
        key = str(found["key"])
    elif not key.lower().startswith("agent:"):  # a short name: the gateway knows which session it means
        params = {"key": key, "agentId": arguments.agent_id, "allowMissing": True}
        found = await context.call_repeatable("sessions.resolve", params)
        key = str(found.get("key") or key)
    if key.lower() == context.settings.session_key.lower():
        raise ToolArguments("that is this very session: it can't answer while it waits for itself; just say it")
    return key


async def _wait_for_reply(context: ClawContext, run: str, key: str, seconds: float) -> dict[str, str]:
    waiting = {"runId": run, "timeoutMs": int(seconds * 1000)}
    answer = await context.call_repeatable("agent.wait", waiting, within=seconds + WAIT_SLACK)
    end = read_struct(answer, RunWaitReply)
    if end.status == "timeout":
        return {"status": "timeout", "note": f"no reply within {seconds:g} s; the session goes on working"}
    if end.status not in ("ok", "", None):
        return {"status": end.status, "error": end.error or "the run failed"}
    return {"status": "ok", "reply": await _last_reply_text(context, key) if end.text is None else end.text}


async def _last_reply_text(context: ClawContext, key: str) -> str:
    """The newest text of that session's agent."""
    answer = await context.call_repeatable("chat.history", {"sessionKey": key, "limit": REPLY_SEARCH_LIMIT})
    for message in reversed(read_struct(answer, ChatHistoryReply).messages):
        texts = [block.text or "" for block in message.blocks if block.type == "text"]
        if message.role == "assistant" and texts:
            return "\n\n".join(texts)
    return ""


# ---- sub-agents ------------------------------------------------------------------------------------------------------


async def _spawn(context: ClawContext, arguments: SessionArguments) -> Any:
    task = require_text("prompt", arguments.prompt)
    _check_result_channel(context, arguments.channel)
    if "sessions.spawn" not in await context.gateway.methods():
        return await _create_child_session(context, arguments, task)
    params = {
        "task": task,
        "sessionKey": context.settings.session_key,
        "agentId": arguments.agent_id,
        "label": arguments.label,
        "model": arguments.model,
        "thinking": arguments.thinking,
        "cleanup": arguments.cleanup,
        "runTimeoutSeconds": arguments.timeout_seconds,
        "idempotencyKey": str(uuid.uuid4()),
    }
    child = await context.call_repeatable("sessions.spawn", params)
    if isinstance(child, dict) and child.get("status") in ("forbidden", "error"):
        raise ToolError(f"no sub-agent was started: {child.get('error') or child['status']}")
    return child


def _check_result_channel(context: ClawContext, channel: str) -> None:
    """Raises ToolArguments for another channel than this conversation's: there is nowhere else a result would go."""
    own = context.settings.channel
    if channel.strip().lower() not in ("", own.lower()):
        here = f"this conversation is on {own}" if own else "this run has no channel"
        raise ToolArguments(
            f"a sub-agent's result comes to this session, and {here}; leave `channel` out, and send the result on with "
            "message_send"
        )


async def _create_child_session(context: ClawContext, arguments: SessionArguments, task: str) -> Any:
    """A gateway without `sessions.spawn` has children all the same: sessions with a parent."""
    seconds = arguments.timeout_seconds
    made = await context.call_once(  # a real gateway takes no idempotency key here from a client without a device
        "sessions.create",
        {
            "parentSessionKey": context.settings.session_key,
            "agentId": arguments.agent_id,
            "label": arguments.label,
            "model": arguments.model,
            "thinkingLevel": arguments.thinking,
            "timeoutMs": None if seconds is None else seconds * 1000,
            "message": task,
        },
    )
    note = "this gateway does not announce the result: read it with sessions_history"
    child = {"status": "accepted", "childSessionKey": made.get("key"), "runId": made.get("runId"), "mode": "run"}
    return {**child, "note": note}


class SubagentArguments(Struct, frozen=True, kw_only=True, rename="camel"):
    action: str = ""
    run_id: str = ""
    child_session_key: str = ""
    target: str = ""
    message: str = ""


async def _subagents(context: ClawContext, arguments: Json) -> Any:
    asked = read_struct(arguments, SubagentArguments)
    action = asked.action.strip().lower() or "list"
    if "sessions.subagents" in await context.gateway.methods():
        # The run's own session last: no parameter can name another.
        own = {"action": action, "sessionKey": context.settings.session_key}
        return await context.call_once("sessions.subagents", {**arguments, **own})
    return await _manage_children(context, action, asked)


async def _manage_children(context: ClawContext, action: str, asked: SubagentArguments) -> Any:
    """The same with the methods every gateway has."""
    own = {"spawnedBy": context.settings.session_key, "limit": MOST_CHILDREN}
    mine = await context.call_repeatable("sessions.list", own)
    rows = [row for row in mine.get("sessions", ()) if isinstance(row, dict)]
    wanted = asked.run_id or asked.child_session_key or asked.target
    chosen = [row for row in rows if wanted and wanted in read_struct(row, _SessionNames).all]
    match action:
        case "list":
            return {"status": "ok", "action": action, "runs": rows}
        case "status":
            shown = {"run": next(iter(chosen), None)} if wanted else {"runs": rows}
            return {"status": "ok", "action": action, **shown}
        case "cancel" | "kill":
            ended = rows if wanted in ("all", "*") else chosen
            if not ended:
                raise ToolArguments("no sub-agent of this session is called that; see what `list` shows")
            for row in ended:
                await context.call_repeatable("sessions.abort", {"key": row["key"]})
            return {"status": "ok", "action": action, "terminated": len(ended)}
        case "steer":
            if len(chosen) != 1:
                raise ToolArguments("say which sub-agent: `childSessionKey` or `runId` as `list` shows them")
            message = require_text("message", asked.message)
            params = {"key": chosen[0]["key"], "message": message, "idempotencyKey": str(uuid.uuid4())}
            return {"status": "accepted", "action": action, **await context.call_repeatable("sessions.steer", params)}
    raise ToolArguments(f"unsupported action: {action}; there are list, status, cancel and steer")


class _SessionNames(Struct, frozen=True, rename="camel"):
    """The names by which an agent may mean a session, in the session's row."""

    key: str | None = None
    label: str | None = None
    last_run_id: str | None = None
    active_run_ids: tuple[str, ...] = ()

    @property
    def all(self) -> set[str | None]:
        return {self.key, self.label, self.last_run_id, *self.active_run_ids}


# ---- about sessions and agents ---------------------------------------------------------------------------------------


async def _status(context: ClawContext, arguments: SessionArguments) -> Any:
    key = arguments.session_key.strip() or context.settings.session_key
    params = {"key": key, "includeDerivedTitles": True, "includeLastMessage": True}
    try:
        row = (await context.call_repeatable("sessions.describe", params)).get("session")
    except RpcError as error:
        if "not found" not in str(error).lower():
            raise
        row = None
    if not isinstance(row, dict):
        if key != context.settings.session_key:
            raise ToolUnavailable(f"there is no session {key!r}; sessions_list shows those there are")
        return {"sessionKey": key, "exists": False, "run": {"active": False, "runIds": []}}
    names = ("status", "lastRunId", "startedAt", "endedAt", "runtimeMs", "abortedLastRun")
    run = {"active": bool(row.get("hasActiveRun")), "runIds": row.get("activeRunIds") or []}
    run |= {name: row[name] for name in names if name in row}
    return {"sessionKey": row.get("key", key), "exists": True, "run": run, "session": row}


HANDLERS: Final = bind_handlers(
    SessionArguments,
    {
        "sessions_list": _list,
        "sessions_history": _history,
        "sessions_send": _send,
        "sessions_spawn": _spawn,
        "session_status": _status,
        "agents_list": lambda context, _: context.call_repeatable("agents.list", {}),
    },
) | {"subagents": _subagents}
