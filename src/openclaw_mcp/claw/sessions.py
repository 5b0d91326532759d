"""Handlers of the session tools: list, read, send, spawn, stop."""

import uuid
from typing import Any, Final

from ..core.claw_catalogue import DEFAULT_WAIT, WAIT_SLACK
from ..core.effects import SentMessage
from ..core.errors import OpenClawError, ToolArguments, ToolError, ToolUnavailable
from ..core.model import Json
from ..core.rpc import RpcError
from .tool_context import ClawContext, OutcomeUnknown, ToolHandler, optional_integer, require_text

REPLY_SEARCH_LIMIT: Final = 5  # newest messages among which the reply is, when the end of the run does not carry it
MOST_CHILDREN: Final = 100  # sub-agents listed where the gateway has no method of its own for them


async def _list(context: ClawContext, arguments: Json) -> Any:
    return await context.call_repeatable(
        "sessions.list",
        {
            "search": arguments.get("filter"),
            "limit": optional_integer(arguments, "limit"),
            "activeMinutes": optional_integer(arguments, "activeMinutes"),
            "agentId": arguments.get("agentId"),
            "includeDerivedTitles": True,
            "includeLastMessage": True,
        },
    )


async def _history(context: ClawContext, arguments: Json) -> Any:
    params = {"sessionKey": require_text(arguments, "sessionKey"), "limit": optional_integer(arguments, "limit")}
    history = await context.call_repeatable("chat.history", params)
    if arguments.get("includeTools", True) or not isinstance(history, dict):
        return history
    return {
        **history,
        "messages": [message for message in history.get("messages", ()) if not _is_tool_message(message)],
    }


def _is_tool_message(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") == "toolResult":
        return True
    blocks = message.get("content")
    return isinstance(blocks, list) and bool(blocks) and all(_block_type(block) == "toolCall" for block in blocks)


def _block_type(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


# ---- sessions_send ---------------------------------------------------------------------------------------------------


async def _send(context: ClawContext, arguments: Json) -> Any:
    message = require_text(arguments, "message")
    context.effects.ensure_open()
    key = await _resolve_target(context, arguments)
    wait = arguments.get("timeout")
    seconds = DEFAULT_WAIT if wait is None else wait
    sent = SentMessage(tool="sessions_send", to=key, text=message)
    params = {
        "message": message,
        "sessionKey": key,
        "idempotencyKey": str(uuid.uuid4()),
        "deliver": False,
        "lane": "nested",
        "inputProvenance": {
            "kind": "inter_session",
            "sourceSessionKey": context.settings.session_key,
            "sourceTool": "sessions_send",
        },
    }
    try:
        accepted = await context.call_repeatable("agent", params)
    except OutcomeUnknown:
        context.effects.record_uncertain([sent])
        raise
    run = str(accepted.get("runId") or params["idempotencyKey"])
    answer = {"runId": run, "status": "accepted", "sessionKey": accepted.get("sessionKey") or key}
    recorded = context.record_messages([sent], answer)
    if seconds <= 0:
        return recorded
    try:
        return {**recorded, **await _wait_for_reply(context, run, str(answer["sessionKey"]), seconds)}
    except OpenClawError as exc:  # the message has arrived: only waiting for the reply failed
        return {**recorded, "status": "error", "error": str(exc)}


async def _resolve_target(context: ClawContext, arguments: Json) -> str:
    key, label = (arguments.get("sessionKey") or "").strip(), (arguments.get("label") or "").strip()
    if bool(key) == bool(label):
        raise ToolArguments("say which session: either `sessionKey` or `label`, not both and not neither")
    if label:
        found = await context.call_repeatable("sessions.resolve", {"label": label, "agentId": arguments.get("agentId")})
        key = str(found["key"])
    elif not key.lower().startswith("agent:"):  # a short name: the gateway knows which session it means
        found = await context.call_repeatable(
            "sessions.resolve", {"key": key, "agentId": arguments.get("agentId"), "allowMissing": True}
        )
        key = str(found.get("key") or key)
    if key.lower() == context.settings.session_key.lower():
        raise ToolArguments("that is this very session: it can't answer while it waits for itself; just say it")
    return key


async def _wait_for_reply(context: ClawContext, run: str, key: str, seconds: float) -> Json:
    waiting = {"runId": run, "timeoutMs": int(seconds * 1000)}
    end = await context.call_repeatable("agent.wait", waiting, within=seconds + WAIT_SLACK)
    status = str(end.get("status") or "ok")
    if status == "timeout":
        return {"status": "timeout", "note": f"no reply within {seconds:g} s; the session goes on working"}
    if status != "ok":
        return {"status": status, "error": str(end.get("error") or "the run failed")}
    reply = (end.get("terminalReply") or {}).get("text")
    return {"status": "ok", "reply": reply if isinstance(reply, str) else await _last_reply_text(context, key)}


async def _last_reply_text(context: ClawContext, key: str) -> str:
    """The newest text of that session's agent."""
    history = await context.call_repeatable("chat.history", {"sessionKey": key, "limit": REPLY_SEARCH_LIMIT})
    for message in reversed(history.get("messages") or ()):
        if isinstance(message, dict) and message.get("role") == "assistant":
            content = message.get("content")
            if isinstance(content, str):
                return content
            texts = [str(block.get("text", "")) for block in content or () if _block_type(block) == "text"]
            if texts:
                return "\n\n".join(texts)
    return ""


# ---- sub-agents ------------------------------------------------------------------------------------------------------


async def _spawn(context: ClawContext, arguments: Json) -> Any:
    task = require_text(arguments, "prompt")
    if "sessions.spawn" in await context.gateway.methods():
        params = {
            "task": task,
            "sessionKey": context.settings.session_key,
            **{name: arguments.get(name) for name in ("agentId", "channel", "label", "model", "thinking", "cleanup")},
            "runTimeoutSeconds": optional_integer(arguments, "timeoutSeconds"),
            "idempotencyKey": str(uuid.uuid4()),
        }
        child = await context.call_repeatable("sessions.spawn", params)
        if isinstance(child, dict) and child.get("status") in ("forbidden", "error"):
            raise ToolError(f"no sub-agent was started: {child.get('error') or child['status']}")
        return child
    return await _create_child_session(context, arguments, task)


async def _create_child_session(context: ClawContext, arguments: Json, task: str) -> Json:
    """A gateway without `sessions.spawn` has children all the same: sessions with a parent."""
    seconds = optional_integer(arguments, "timeoutSeconds")
    made = await context.call_once(  # a real gateway takes no idempotency key here from a client without a device
        "sessions.create",
        {
            "parentSessionKey": context.settings.session_key,
            "agentId": arguments.get("agentId"),
            "label": arguments.get("label"),
            "model": arguments.get("model"),
            "thinkingLevel": arguments.get("thinking"),
            "timeoutMs": None if seconds is None else seconds * 1000,
            "message": task,
        },
    )
    note = "this gateway does not announce the result: read it with sessions_history"
    child = {"status": "accepted", "childSessionKey": made.get("key"), "runId": made.get("runId"), "mode": "run"}
    return {**child, "note": note}


async def _subagents(context: ClawContext, arguments: Json) -> Any:
    action = str(arguments.get("action") or "list").strip().lower() or "list"
    if "sessions.subagents" in await context.gateway.methods():
        # The run's own session last: no parameter can name another.
        own = {"action": action, "sessionKey": context.settings.session_key}
        return await context.call_once("sessions.subagents", {**arguments, **own})
    return await _manage_children(context, action, arguments)


async def _manage_children(context: ClawContext, action: str, params: Json) -> Json:
    """The same with the methods every gateway has."""
    mine = await context.call_repeatable(
        "sessions.list", {"spawnedBy": context.settings.session_key, "limit": MOST_CHILDREN}
    )
    rows = [row for row in mine.get("sessions", ()) if isinstance(row, dict)]
    wanted = str(params.get("runId") or params.get("childSessionKey") or params.get("target") or "")
    chosen = [row for row in rows if wanted and wanted in _session_names(row)]
    match action:
        case "list":
            return {"status": "ok", "action": action, "runs": rows}
        case "status":
            return {"status": "ok", "action": action} | (
                {"run": next(iter(chosen), None)} if wanted else {"runs": rows}
            )
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
            key = chosen[0]["key"]
            message = {"key": key, "message": require_text(params, "message"), "idempotencyKey": str(uuid.uuid4())}
            return {"status": "accepted", "action": action, **await context.call_repeatable("sessions.steer", message)}
    raise ToolArguments(f"unsupported action: {action}; there are list, status, cancel and steer")


def _session_names(row: Json) -> set[str]:
    names = {row.get("key"), row.get("label"), row.get("lastRunId"), *(row.get("activeRunIds") or ())}
    return {name for name in names if isinstance(name, str)}


# ---- about sessions and agents ---------------------------------------------------------------------------------------


async def _status(context: ClawContext, arguments: Json) -> Any:
    key = (arguments.get("sessionKey") or "").strip() or context.settings.session_key
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


async def _list_agents(context: ClawContext, arguments: Json) -> Any:
    return await context.call_repeatable("agents.list", {})


HANDLERS: Final[dict[str, ToolHandler]] = {
    "sessions_list": _list,
    "sessions_history": _history,
    "sessions_send": _send,
    "sessions_spawn": _spawn,
    "session_status": _status,
    "agents_list": _list_agents,
    "subagents": _subagents,
}
