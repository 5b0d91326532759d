"""The `cron` tool, by which an agent makes and manages jobs. What it leaves open is filled in by `defaults`."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ...core.claw_methods import TOOLS_BY_ACTION
from ...core.errors import ToolArguments, ToolError
from ...core.json_values import content_text
from ...core.model import Json, ToolCall, ToolResult, ToolSpec, text_result
from ...core.repositories import SessionRepository
from ...core.rpc import RpcError
from ...core.signal import Signal
from .rpc_methods import CronCall, CronHandler, CronMethods

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
        self._sessions = sessions
        self._handlers: dict[str, CronHandler] = {
            "status": cron.status, "list": cron.list, "add": cron.add, "update": cron.update, "remove": cron.remove,
            "run": cron.run, "runs": cron.runs, "wake": cron.wake,
        }  # fmt: skip
        self.changed: Signal[None] = Signal()

    def specs(self) -> Sequence[ToolSpec]:
        return (
            ToolSpec(
                name="cron", title="Scheduled jobs", description=DESCRIPTION, input_schema=SCHEMA, effect="write",
                owner_only=True, actions=TOOLS_BY_ACTION["cron"],
            ),
        )  # fmt: skip

    async def call(self, call: ToolCall) -> ToolResult:
        handler = self._handlers.get(call.arguments.get("action", ""))
        if handler is None:
            raise ToolArguments(f"action must be one of {', '.join(_ACTIONS)}")
        params = await self._build_params(call)
        try:
            answer = await handler(CronCall(params=params, caller=call.caller, policy_caller=call.caller))
        except RpcError as exc:
            raise ToolError(str(exc)) from exc
        return ToolResult(content=text_result(msgspec.json.encode(answer).decode()).content, structured=answer)

    async def _build_params(self, call: ToolCall) -> Json:
        """The parameters of the method that carries the action out."""
        arguments, action = call.arguments, call.arguments["action"]
        if action == "status":
            return {}
        if action == "list":
            return _pick_fields(arguments, "includeDisabled", "query", "limit", "agentId")
        if action == "add":
            return await self._build_job(call)
        if action == "wake":
            if not arguments.get("text"):
                raise ToolArguments("wake needs text: what the agent is to read")
            session = {"sessionKey": call.caller.session} if call.caller.session else {}
            return {"mode": arguments.get("mode", "now"), "text": arguments["text"], **session}
        job_id = arguments.get("jobId") or arguments.get("id")
        if action == "runs":
            return ({"id": job_id} if job_id else {"scope": "all"}) | _pick_fields(arguments, "limit", "query")
        if not isinstance(job_id, str) or not job_id:
            raise ToolArguments(f"{action} needs jobId; action list names the jobs")
        return {"id": job_id, **_job_action_params(call)}

    async def _build_job(self, call: ToolCall) -> Json:
        """The job of an `add`, also when it was written without the wrapper `job`."""
        job, session = call.arguments.get("job"), call.caller.session
        job = dict(job) if isinstance(job, dict) and job else _flat_job(call)
        if not job:
            raise ToolArguments("add needs job: {schedule, payload}; see the tool's description")
        wanted = call.arguments.get("contextMessages", 0)
        payload = job.get("payload")
        if isinstance(wanted, int) and wanted > 0 and session and isinstance(payload, dict):
            name = "text" if "text" in payload else "message"
            lines = await self._recent_lines(session, min(wanted, MAX_CONTEXT))
            if lines and isinstance(payload.get(name), str):
                job["payload"] = {**payload, name: f"{payload[name]}\n\nRecent context:\n{lines}"}
        return job

    async def _recent_lines(self, session: str, most: int) -> str:
        page = await self._sessions.history(session, limit=most)
        lines, left = [], CONTEXT_LENGTH
        for message in reversed(page.messages):
            text = " ".join(content_text(message.body.get("content")).split())
            line = f"- {message.role}: {text[:CONTEXT_LINE]}"
            left -= len(line)
            if left < 0:
                break
            if message.role in ("user", "assistant"):
                lines.append(line)
        return "\n".join(reversed(lines))


def _pick_fields(arguments: Json, *names: str) -> Json:
    return {name: arguments[name] for name in names if arguments.get(name) is not None}


def _job_action_params(call: ToolCall) -> Json:
    """The parameters of an action on one job, beside its id."""
    arguments = call.arguments
    if arguments["action"] == "run":
        return {"mode": arguments.get("runMode", "force")}
    if arguments["action"] != "update":
        return {}
    patch = arguments.get("patch") or arguments.get("job") or _flat_job(call)
    if not patch:
        raise ToolArguments("update needs patch: what is to change")
    return {"patch": patch}


def _flat_job(call: ToolCall) -> Json:
    return {name: value for name, value in call.arguments.items() if name not in _NOT_JOB_FIELDS}
