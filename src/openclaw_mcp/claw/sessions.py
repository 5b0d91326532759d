"""Session tools: look around, read, send, spawn, stop."""

import uuid
from typing import Any, Final

from ..core.effects import SentMessage
from ..core.errors import OpenClawError, ToolArguments, ToolError, ToolUnavailable
from ..core.model import Json
from ..core.rpc import RpcError
from .tool_context import (
    ClawContext,
    OutcomeUnknown,
    ToolTraits,
    define_tool,
    flag_parameter,
    integer_parameter,
    object_parameter,
    optional_integer,
    parameter_aliases,
    require_text,
    text_parameter,
)

DEFAULT_WAIT: Final = 30  # seconds sessions_send waits for the reply unless told otherwise
MAX_WAIT: Final = 3600
WAIT_SLACK: Final = 15.0  # seconds beyond the wait that the gateway has to say how it ended
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
    return {**history, "messages": [said for said in history.get("messages", ()) if not _is_tool_message(said)]}


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
    noted = context.record_messages([sent], answer)
    if seconds <= 0:
        return noted
    try:
        return {**noted, **await _wait_for_reply(context, run, str(answer["sessionKey"]), seconds)}
    except OpenClawError as exc:  # the message has arrived: what failed is only the waiting
        return {**noted, "status": "error", "error": str(exc)}


async def _resolve_target(context: ClawContext, arguments: Json) -> str:
    key, label = (arguments.get("sessionKey") or "").strip(), (arguments.get("label") or "").strip()
    if bool(key) == bool(label):
        raise ToolArguments("say which session: either `sessionKey` or `label`, not both and not neither")
    if label:
        found = await context.call_repeatable("sessions.resolve", {"label": label, "agentId": arguments.get("agentId")})
        key = str(found["key"])
    elif not key.lower().startswith("agent:"):  # a short name: which session it is, the gateway knows
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
    told = (end.get("terminalReply") or {}).get("text")
    return {"status": "ok", "reply": told if isinstance(told, str) else await _last_reply_text(context, key)}


async def _last_reply_text(context: ClawContext, key: str) -> str:
    """The newest text the agent of that session said."""
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
        wanted = ("agentId", "channel", "label", "model", "thinking", "cleanup")
        params = {
            "task": task,
            "sessionKey": context.settings.session_key,
            **{name: arguments.get(name) for name in wanted},
        }
        params |= {
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
    inner = arguments.get("params")
    params = {**arguments, **(inner if isinstance(inner, dict) else {})}
    params.pop("params", None)
    action = str(arguments.get("action") or "list").strip().lower() or "list"
    if "sessions.subagents" in await context.gateway.methods():
        # The run's own session last: no parameter can speak for another.
        return await context.call_once(
            "sessions.subagents", {**params, "action": action, "sessionKey": context.settings.session_key}
        )
    return await _manage_children(context, action, params)


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
    except RpcError as fault:
        if "not found" not in str(fault).lower():
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


TOOLS = (
    define_tool(
        "sessions_list",
        "List the gateway's sessions, the latest first, each with its key, label, channel, last message and whether a "
        "run is going. Use a key from here with sessions_history or sessions_send.",
        _list,
        title="List sessions",
        parameters={
            "filter": text_parameter("Only sessions whose key, label or title contains this text."),
            "limit": integer_parameter("At most so many sessions.", most=1000),
            "activeMinutes": integer_parameter("Only sessions active within so many minutes."),
            "agentId": text_parameter("Only sessions of this agent."),
        },
        aliases=parameter_aliases(filter="search query", activeMinutes="active_minutes", agentId="agent_id"),
    ),
    define_tool(
        "sessions_history",
        "Read the messages of one session, oldest first. Unknown sessions have none.",
        _history,
        title="Read a session",
        parameters={
            "sessionKey": text_parameter("The session, as sessions_list names it; `main` is the main one."),
            "limit": integer_parameter("The newest so many messages; 200 unless given.", most=1000),
            "includeTools": flag_parameter("Whether tool calls and their results are shown; true unless given."),
        },
        required=("sessionKey",),
        aliases=parameter_aliases(sessionKey="session_key key", includeTools="include_tools"),
    ),
    define_tool(
        "sessions_send",
        "Send a message to another session's agent and wait for its reply. Name the session by `sessionKey` or by "
        "`label`. `timeout` 0 returns at once; status `timeout` means it still works on it: read its history later.",
        _send,
        title="Send to a session",
        parameters={
            "sessionKey": text_parameter("The session's key. Give this or `label`."),
            "label": text_parameter("The session's label. Give this or `sessionKey`."),
            "message": text_parameter("What to tell it."),
            "timeout": {
                "type": "number",
                "minimum": 0,
                "maximum": MAX_WAIT,
                "description": f"Seconds to wait for the reply; {DEFAULT_WAIT} unless given, 0 = do not wait.",
            },
            "agentId": text_parameter("Whose session the label names, when several agents have one of that label."),
        },
        required=("message",),
        aliases=parameter_aliases(
            timeout="timeoutSeconds timeout_seconds",
            sessionKey="session_key key",
            message="text prompt",
            agentId="agent_id",
        ),
        traits=ToolTraits(effect="send", deadline=MAX_WAIT + 2 * WAIT_SLACK),
    ),
    define_tool(
        "sessions_spawn",
        "Start a sub-agent on a task of its own. It works in the background; its result is announced to this session. "
        "Returns the child's session key and run id at once: do not wait for it in a loop.",
        _spawn,
        title="Start a sub-agent",
        parameters={
            "prompt": text_parameter("The whole task: the sub-agent knows nothing of this conversation."),
            "agentId": text_parameter("Which agent does it; this one unless given. See agents_list."),
            "channel": text_parameter("Not needed: the result comes to this session, and so to its conversation."),
            "label": text_parameter("A short name for it."),
            "model": text_parameter("The model it uses, as provider/model."),
            "thinking": text_parameter("How hard it thinks."),
            "timeoutSeconds": integer_parameter("Stop it after so many seconds; 0 = never.", least=0),
            "cleanup": text_parameter("Whether its session is kept afterwards.", enum=["keep", "delete"]),
        },
        required=("prompt",),
        aliases=parameter_aliases(
            prompt="task message", agentId="agent agent_id", label="name", timeoutSeconds="runTimeoutSeconds timeout"
        ),
        traits=ToolTraits(effect="run"),
    ),
    define_tool(
        "session_status",
        "How this session is: its row (model, tokens, label, times) and whether a run is going. Another session's when "
        "`sessionKey` is given and it may be seen.",
        _status,
        title="Session status",
        parameters={"sessionKey": text_parameter("The session; this one unless given.")},
        aliases=parameter_aliases(sessionKey="session_key key"),
    ),
    define_tool(
        "agents_list",
        "List the agents this gateway has, with their models. Their ids are what sessions_spawn takes.",
        _list_agents,
        title="List agents",
    ),
    define_tool(
        "subagents",
        "Look after the sub-agents this session started: `list` them, ask for the `status` of one, `cancel` one (it "
        "really stops), or `steer` one with a new message.",
        _subagents,
        title="Sub-agents",
        parameters={
            "action": text_parameter("What to do.", enum=["list", "status", "cancel", "kill", "steer"]),
            "runId": text_parameter("Which one, by run id."),
            "childSessionKey": text_parameter("Which one, by session key."),
            "target": text_parameter("Which one, by any name `list` shows; `all` with cancel means every one."),
            "message": text_parameter("With steer: what to tell it."),
            "reason": text_parameter("With cancel: why."),
            "params": object_parameter("The same parameters, as an object."),
        },
        required=("action",),
        aliases=parameter_aliases(runId="run_id", childSessionKey="child_session_key"),
        traits=ToolTraits(effect="run", destructive=True),
    ),
)
