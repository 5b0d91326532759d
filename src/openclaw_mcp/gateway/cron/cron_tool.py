"""The `cron` tool: an agent's own way to the clock. It fills in who asks and where; see `origin`."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ...core.claw_methods import TOOLS_BY_ACTION
from ...core.errors import ToolArguments, ToolError
from ...core.model import Caller, Json, ToolCall, ToolResult, ToolSpec, text_result
from ...core.repositories import SessionRepository
from ...core.rpc import RpcError
from ...core.signal import Signal
from .rpc_methods import CronMethods

MAX_CONTEXT: Final = 10  # lines of the conversation that may go with a reminder
CONTEXT_LINE: Final = 220  # characters of each
CONTEXT_LENGTH: Final = 700
_ACTIONS: Final = ("status", "list", "add", "update", "remove", "run", "runs", "wake")
_NOT_JOB_FIELDS: Final = frozenset(
    {"action", "job", "jobId", "id", "patch", "contextMessages", "runMode", "mode", "limit", "includeDisabled", "query"}
)

DESCRIPTION: Final = """\
Schedule jobs for later: reminders, checks, reports.
action: status | list | add | update | remove | run | runs | wake.
add takes `job`: {name?, schedule, payload, sessionTarget?, delivery?, enabled?}.
schedule: {kind:"at", at:"2027-01-31T09:00:00+01:00"} | {kind:"every", everyMs} | \
{kind:"cron", expr:"0 9 * * 1-5", tz:"Europe/Vienna"}.
payload: {kind:"systemEvent", text} tells the main session (sessionTarget "main"); {kind:"agentTurn", message} has an \
agent work in a session of its own (sessionTarget "isolated", "current" or "session:<name>") and delivers its answer.
Without delivery the answer goes to the conversation this was asked in; {mode:"none"} keeps it inside.
update takes jobId and `patch`; remove, run and runs take jobId; wake takes `text` and mode now | next-heartbeat.
contextMessages (0-10) adds the last lines of this conversation to a reminder."""

SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": list(_ACTIONS)},
        "job": {"type": "object", "description": "with add: the job", "additionalProperties": True},
        "jobId": {"type": "string"},
        "id": {"type": "string", "description": "the same as jobId"},
        "patch": {"type": "object", "description": "with update: what changes", "additionalProperties": True},
        "text": {"type": "string", "description": "with wake: what to tell"},
        "mode": {"type": "string", "enum": ["now", "next-heartbeat"], "description": "with wake: when"},
        "runMode": {"type": "string", "enum": ["due", "force"], "description": "with run: only if due, or anyway"},
        "includeDisabled": {"type": "boolean"},
        "query": {"type": "string", "description": "with list: words to look for"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 200},
        "contextMessages": {"type": "integer", "minimum": 0, "maximum": MAX_CONTEXT},
    },
    "required": ["action"],
    "additionalProperties": True,
}


class CronTool:
    """A `ToolSource`."""

    def __init__(self, cron: CronMethods, sessions: SessionRepository) -> None:
        self._cron, self._sessions = cron, sessions
        self.changed: Signal[None] = Signal()

    def specs(self) -> Sequence[ToolSpec]:
        return (
            ToolSpec(
                name="cron", title="Scheduled jobs", description=DESCRIPTION, input_schema=SCHEMA, effect="write",
                owner_only=True, actions=TOOLS_BY_ACTION["cron"],
            ),
        )  # fmt: skip

    async def call(self, call: ToolCall) -> ToolResult:
        try:
            told = await self._dispatch(call.arguments, call.caller)
        except RpcError as fault:
            raise ToolError(str(fault)) from fault
        return ToolResult(content=text_result(msgspec.json.encode(told).decode()).content, structured=told)

    async def _dispatch(self, arguments: Json, caller: Caller) -> Any:
        action, room = arguments.get("action"), self._cron
        if action == "status":
            return await room.status({}, caller)
        if action == "list":
            return await room.list(_pick_fields(arguments, "includeDisabled", "query", "limit", "agentId"), caller)
        if action == "add":
            return await room.add(await self._build_job(arguments, caller), caller, policy_caller=caller)
        if action == "wake":
            if not arguments.get("text"):
                raise ToolArguments("wake needs text: what the agent is to hear")
            session = {"sessionKey": caller.session} if caller.session else {}
            return await room.wake({"mode": arguments.get("mode", "now"), "text": arguments["text"], **session}, caller)
        job_id = arguments.get("jobId") or arguments.get("id")
        if action == "runs":
            scope = {"id": job_id} if job_id else {"scope": "all"}
            return await room.runs(scope | _pick_fields(arguments, "limit", "query"), caller)
        if not isinstance(job_id, str) or not job_id:
            raise ToolArguments(f"{action} needs jobId; action list names the jobs")
        return await self._run_job_action(str(action), job_id, arguments, caller)

    async def _run_job_action(self, action: str, job_id: str, arguments: Json, caller: Caller) -> Any:
        room = self._cron
        if action == "update":
            patch = arguments.get("patch") or arguments.get("job") or _flat_job(arguments)
            if not patch:
                raise ToolArguments("update needs patch: what is to change")
            return await room.update({"id": job_id, "patch": patch}, caller, policy_caller=caller)
        if action == "remove":
            return await room.remove({"id": job_id}, caller)
        if action == "run":
            return await room.run({"id": job_id, "mode": arguments.get("runMode", "force")}, caller)
        raise ToolArguments(f"action must be one of {', '.join(_ACTIONS)}")

    async def _build_job(self, arguments: Json, caller: Caller) -> Json:
        """The job of an `add`, also when it was written without its wrapper."""
        job = arguments.get("job")
        job = dict(job) if isinstance(job, dict) and job else _flat_job(arguments)
        if not job:
            raise ToolArguments("add needs job: {schedule, payload}; see the tool's description")
        wanted = arguments.get("contextMessages", 0)
        payload = job.get("payload")
        if isinstance(wanted, int) and wanted > 0 and caller.session and isinstance(payload, dict):
            name = "text" if "text" in payload else "message"
            lines = await self._recent_lines(caller.session, min(wanted, MAX_CONTEXT))
            if lines and isinstance(payload.get(name), str):
                job["payload"] = {**payload, name: f"{payload[name]}\n\nRecent context:\n{lines}"}
        return job

    async def _recent_lines(self, session: str, most: int) -> str:
        page = await self._sessions.history(session, limit=most)
        lines, room = [], CONTEXT_LENGTH
        for message in reversed(page.messages):
            line = f"- {message.role}: {_message_text(message.body)[:CONTEXT_LINE]}"
            room -= len(line)
            if room < 0:
                break
            if message.role in ("user", "assistant"):
                lines.append(line)
        return "\n".join(reversed(lines))


def _pick_fields(arguments: Json, *names: str) -> Json:
    return {name: arguments[name] for name in names if arguments.get(name) is not None}


def _flat_job(arguments: Json) -> Json:
    return {name: value for name, value in arguments.items() if name not in _NOT_JOB_FIELDS}


def _message_text(body: Json) -> str:
    content = body.get("content")
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return " ".join(str(content or "").split())
