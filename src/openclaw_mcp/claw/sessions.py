"""Session tools: look around, read, send, spawn, stop."""

import uuid
from typing import Any, Final

from ..core.effects import Sent
from ..core.errors import OpenClawError, ToolArguments, ToolError, ToolUnavailable
from ..core.model import Json
from ..core.rpc import Fault
from .tool_context import Nature, Seat, Unsure, also, flag, number, some, text, thing, tool, whole

DEFAULT_WAIT: Final = 30  # seconds sessions_send waits for the reply unless told otherwise
LONGEST_WAIT: Final = 3600
WAIT_SLACK: Final = 15.0  # seconds beyond the wait that the gateway has to say how it ended
REPLY_AMONG: Final = 5  # newest messages among which the reply is, when the end of the run does not carry it
CHILDREN: Final = 100  # sub-agents listed where the gateway has no method of its own for them


async def _list(seat: Seat, asked: Json) -> Any:
    return await seat.ask(
        "sessions.list",
        {
            "search": asked.get("filter"),
            "limit": number(asked, "limit"),
            "activeMinutes": number(asked, "activeMinutes"),
            "agentId": asked.get("agentId"),
            "includeDerivedTitles": True,
            "includeLastMessage": True,
        },
    )


async def _history(seat: Seat, asked: Json) -> Any:
    params = {"sessionKey": some(asked, "sessionKey"), "limit": number(asked, "limit")}
    history = await seat.ask("chat.history", params)
    if asked.get("includeTools", True) or not isinstance(history, dict):
        return history
    return {**history, "messages": [said for said in history.get("messages", ()) if not _is_tool(said)]}


def _is_tool(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") == "toolResult":
        return True
    blocks = message.get("content")
    return isinstance(blocks, list) and bool(blocks) and all(_kind(block) == "toolCall" for block in blocks)


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


# ---- sessions_send ---------------------------------------------------------------------------------------------------


async def _send(seat: Seat, asked: Json) -> Any:
    message = some(asked, "message")
    seat.effects.ready()
    key = await _target(seat, asked)
    wait = asked.get("timeout")
    seconds = DEFAULT_WAIT if wait is None else wait
    sent = Sent(tool="sessions_send", to=key, text=message)
    params = {
        "message": message,
        "sessionKey": key,
        "idempotencyKey": str(uuid.uuid4()),
        "deliver": False,
        "lane": "nested",
        "inputProvenance": {
            "kind": "inter_session",
            "sourceSessionKey": seat.run.session_key,
            "sourceTool": "sessions_send",
        },
    }
    try:
        accepted = await seat.ask("agent", params)
    except Unsure:
        seat.effects.unsure([sent])
        raise
    run = str(accepted.get("runId") or params["idempotencyKey"])
    answer = {"runId": run, "status": "accepted", "sessionKey": accepted.get("sessionKey") or key}
    noted = seat.note([sent], answer)
    if seconds <= 0:
        return noted
    try:
        return {**noted, **await _reply(seat, run, str(answer["sessionKey"]), seconds)}
    except OpenClawError as exc:  # the message has arrived: what failed is only the waiting
        return {**noted, "status": "error", "error": str(exc)}


async def _target(seat: Seat, asked: Json) -> str:
    key, label = (asked.get("sessionKey") or "").strip(), (asked.get("label") or "").strip()
    if bool(key) == bool(label):
        raise ToolArguments("say which session: either `sessionKey` or `label`, not both and not neither")
    if label:
        found = await seat.ask("sessions.resolve", {"label": label, "agentId": asked.get("agentId")})
        key = str(found["key"])
    elif not key.lower().startswith("agent:"):  # a short name: which session it is, the gateway knows
        found = await seat.ask("sessions.resolve", {"key": key, "agentId": asked.get("agentId"), "allowMissing": True})
        key = str(found.get("key") or key)
    if key.lower() == seat.run.session_key.lower():
        raise ToolArguments("that is this very session: it can't answer while it waits for itself; just say it")
    return key


async def _reply(seat: Seat, run: str, key: str, seconds: float) -> Json:
    waiting = {"runId": run, "timeoutMs": int(seconds * 1000)}
    end = await seat.ask("agent.wait", waiting, within=seconds + WAIT_SLACK)
    status = str(end.get("status") or "ok")
    if status == "timeout":
        return {"status": "timeout", "note": f"no reply within {seconds:g} s; the session goes on working"}
    if status != "ok":
        return {"status": status, "error": str(end.get("error") or "the run failed")}
    told = (end.get("terminalReply") or {}).get("text")
    return {"status": "ok", "reply": told if isinstance(told, str) else await _last_said(seat, key)}


async def _last_said(seat: Seat, key: str) -> str:
    """The newest text the agent of that session said."""
    history = await seat.ask("chat.history", {"sessionKey": key, "limit": REPLY_AMONG})
    for message in reversed(history.get("messages") or ()):
        if isinstance(message, dict) and message.get("role") == "assistant":
            content = message.get("content")
            if isinstance(content, str):
                return content
            texts = [str(block.get("text", "")) for block in content or () if _kind(block) == "text"]
            if texts:
                return "\n\n".join(texts)
    return ""


# ---- sub-agents ------------------------------------------------------------------------------------------------------


async def _spawn(seat: Seat, asked: Json) -> Any:
    task = some(asked, "prompt")
    if "sessions.spawn" in await seat.gateway.methods():
        wanted = ("agentId", "channel", "label", "model", "thinking", "cleanup")
        params = {"task": task, "sessionKey": seat.run.session_key, **{name: asked.get(name) for name in wanted}}
        params |= {"runTimeoutSeconds": number(asked, "timeoutSeconds"), "idempotencyKey": str(uuid.uuid4())}
        child = await seat.ask("sessions.spawn", params)
        if isinstance(child, dict) and child.get("status") in ("forbidden", "error"):
            raise ToolError(f"no sub-agent was started: {child.get('error') or child['status']}")
        return child
    return await _spawned_by_hand(seat, asked, task)


async def _spawned_by_hand(seat: Seat, asked: Json, task: str) -> Json:
    """A gateway without `sessions.spawn` has children all the same: sessions with a parent."""
    seconds = number(asked, "timeoutSeconds")
    made = await seat.tell(  # a real gateway takes no idempotency key here from a client without a device
        "sessions.create",
        {
            "parentSessionKey": seat.run.session_key,
            "agentId": asked.get("agentId"),
            "label": asked.get("label"),
            "model": asked.get("model"),
            "thinkingLevel": asked.get("thinking"),
            "timeoutMs": None if seconds is None else seconds * 1000,
            "message": task,
        },
    )
    note = "this gateway does not announce the result: read it with sessions_history"
    child = {"status": "accepted", "childSessionKey": made.get("key"), "runId": made.get("runId"), "mode": "run"}
    return {**child, "note": note}


async def _subagents(seat: Seat, asked: Json) -> Any:
    inner = asked.get("params")
    params = {**asked, **(inner if isinstance(inner, dict) else {})}
    params.pop("params", None)
    action = str(asked.get("action") or "list").strip().lower() or "list"
    if "sessions.subagents" in await seat.gateway.methods():
        # The run's own session last: no parameter can speak for another.
        return await seat.tell("sessions.subagents", {**params, "action": action, "sessionKey": seat.run.session_key})
    return await _children(seat, action, params)


async def _children(seat: Seat, action: str, params: Json) -> Json:
    """The same with the methods every gateway has."""
    mine = await seat.ask("sessions.list", {"spawnedBy": seat.run.session_key, "limit": CHILDREN})
    rows = [row for row in mine.get("sessions", ()) if isinstance(row, dict)]
    wanted = str(params.get("runId") or params.get("childSessionKey") or params.get("target") or "")
    chosen = [row for row in rows if wanted and wanted in _names(row)]
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
                await seat.ask("sessions.abort", {"key": row["key"]})
            return {"status": "ok", "action": action, "terminated": len(ended)}
        case "steer":
            if len(chosen) != 1:
                raise ToolArguments("say which sub-agent: `childSessionKey` or `runId` as `list` shows them")
            key = chosen[0]["key"]
            message = {"key": key, "message": some(params, "message"), "idempotencyKey": str(uuid.uuid4())}
            return {"status": "accepted", "action": action, **await seat.ask("sessions.steer", message)}
    raise ToolArguments(f"unsupported action: {action}; there are list, status, cancel and steer")


def _names(row: Json) -> set[str]:
    names = {row.get("key"), row.get("label"), row.get("lastRunId"), *(row.get("activeRunIds") or ())}
    return {name for name in names if isinstance(name, str)}


# ---- about sessions and agents ---------------------------------------------------------------------------------------


async def _status(seat: Seat, asked: Json) -> Any:
    key = (asked.get("sessionKey") or "").strip() or seat.run.session_key
    params = {"key": key, "includeDerivedTitles": True, "includeLastMessage": True}
    try:
        row = (await seat.ask("sessions.describe", params)).get("session")
    except Fault as fault:
        if "not found" not in str(fault).lower():
            raise
        row = None
    if not isinstance(row, dict):
        if key != seat.run.session_key:
            raise ToolUnavailable(f"there is no session {key!r}; sessions_list shows those there are")
        return {"sessionKey": key, "exists": False, "run": {"active": False, "runIds": []}}
    names = ("status", "lastRunId", "startedAt", "endedAt", "runtimeMs", "abortedLastRun")
    run = {"active": bool(row.get("hasActiveRun")), "runIds": row.get("activeRunIds") or []}
    run |= {name: row[name] for name in names if name in row}
    return {"sessionKey": row.get("key", key), "exists": True, "run": run, "session": row}


async def _agents(seat: Seat, asked: Json) -> Any:
    return await seat.ask("agents.list", {})


TOOLS = (
    tool(
        "sessions_list",
        "List the gateway's sessions, the latest first, each with its key, label, channel, last message and whether a "
        "run is going. Use a key from here with sessions_history or sessions_send.",
        _list,
        title="List sessions",
        parameters={
            "filter": text("Only sessions whose key, label or title contains this text."),
            "limit": whole("At most so many sessions.", most=1000),
            "activeMinutes": whole("Only sessions active within so many minutes."),
            "agentId": text("Only sessions of this agent."),
        },
        aliases=also(filter="search query", activeMinutes="active_minutes", agentId="agent_id"),
    ),
    tool(
        "sessions_history",
        "Read the messages of one session, oldest first. Unknown sessions have none.",
        _history,
        title="Read a session",
        parameters={
            "sessionKey": text("The session, as sessions_list names it; `main` is the main one."),
            "limit": whole("The newest so many messages; 200 unless given.", most=1000),
            "includeTools": flag("Whether tool calls and their results are shown; true unless given."),
        },
        required=("sessionKey",),
        aliases=also(sessionKey="session_key key", includeTools="include_tools"),
    ),
    tool(
        "sessions_send",
        "Send a message to another session's agent and wait for its reply. Name the session by `sessionKey` or by "
        "`label`. `timeout` 0 returns at once; status `timeout` means it still works on it: read its history later.",
        _send,
        title="Send to a session",
        parameters={
            "sessionKey": text("The session's key. Give this or `label`."),
            "label": text("The session's label. Give this or `sessionKey`."),
            "message": text("What to tell it."),
            "timeout": {
                "type": "number",
                "minimum": 0,
                "maximum": LONGEST_WAIT,
                "description": f"Seconds to wait for the reply; {DEFAULT_WAIT} unless given, 0 = do not wait.",
            },
            "agentId": text("Whose session the label names, when several agents have one of that label."),
        },
        required=("message",),
        aliases=also(
            timeout="timeoutSeconds timeout_seconds",
            sessionKey="session_key key",
            message="text prompt",
            agentId="agent_id",
        ),
        nature=Nature(effect="send", deadline=LONGEST_WAIT + 2 * WAIT_SLACK),
    ),
    tool(
        "sessions_spawn",
        "Start a sub-agent on a task of its own. It works in the background; its result is announced to this session. "
        "Returns the child's session key and run id at once: do not wait for it in a loop.",
        _spawn,
        title="Start a sub-agent",
        parameters={
            "prompt": text("The whole task: the sub-agent knows nothing of this conversation."),
            "agentId": text("Which agent does it; this one unless given. See agents_list."),
            "channel": text("Not needed: the result comes to this session, and so to its conversation."),
            "label": text("A short name for it."),
            "model": text("The model it uses, as provider/model."),
            "thinking": text("How hard it thinks."),
            "timeoutSeconds": whole("Stop it after so many seconds; 0 = never.", least=0),
            "cleanup": text("Whether its session is kept afterwards.", enum=["keep", "delete"]),
        },
        required=("prompt",),
        aliases=also(
            prompt="task message", agentId="agent agent_id", label="name", timeoutSeconds="runTimeoutSeconds timeout"
        ),
        nature=Nature(effect="run"),
    ),
    tool(
        "session_status",
        "How this session is: its row (model, tokens, label, times) and whether a run is going. Another session's when "
        "`sessionKey` is given and it may be seen.",
        _status,
        title="Session status",
        parameters={"sessionKey": text("The session; this one unless given.")},
        aliases=also(sessionKey="session_key key"),
    ),
    tool(
        "agents_list",
        "List the agents this gateway has, with their models. Their ids are what sessions_spawn takes.",
        _agents,
        title="List agents",
    ),
    tool(
        "subagents",
        "Look after the sub-agents this session started: `list` them, ask for the `status` of one, `cancel` one (it "
        "really stops), or `steer` one with a new message.",
        _subagents,
        title="Sub-agents",
        parameters={
            "action": text("What to do.", enum=["list", "status", "cancel", "kill", "steer"]),
            "runId": text("Which one, by run id."),
            "childSessionKey": text("Which one, by session key."),
            "target": text("Which one, by any name `list` shows; `all` with cancel means every one."),
            "message": text("With steer: what to tell it."),
            "reason": text("With cancel: why."),
            "params": thing("The same parameters, as an object."),
        },
        required=("action",),
        aliases=also(runId="run_id", childSessionKey="child_session_key"),
        nature=Nature(effect="run", destructive=True),
    ),
)
