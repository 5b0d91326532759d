"""Handlers of the cron tools: jobs that run later or repeatedly. For the owner."""

from typing import Any, Final

from msgspec import Struct

from ..core.errors import ToolArguments
from ..core.model import Json
from ..net.side_effects_file import CannotRecord
from .tool_context import ClawContext, OutcomeUnknown, bind_handlers, drop_empty, require_text


class CronArguments(Struct, frozen=True, kw_only=True, rename="camel"):
    """The arguments of all cron tools; which of them a tool has, its schema says."""

    filter: str = ""
    enabled: str = "all"
    limit: int | None = None
    offset: int | None = None
    job: Json = {}
    job_id: str = ""
    updates: Json = {}
    mode: str = "force"


async def _status(context: ClawContext, arguments: CronArguments) -> Any:
    return await context.call_repeatable("cron.status", {})


async def _list(context: ClawContext, arguments: CronArguments) -> Any:
    which = {"enabled": arguments.enabled, "includeDisabled": arguments.enabled != "enabled"}
    page = {"limit": arguments.limit, "offset": arguments.offset}
    return await context.call_repeatable("cron.list", {"query": arguments.filter, **which, **page})


async def _add(context: ClawContext, arguments: CronArguments) -> Any:
    job = arguments.job
    if "schedule" not in job or "payload" not in job:
        raise ToolArguments("`job` needs at least `schedule` and `payload`; see this tool's description")
    context.effects.ensure_open()
    try:
        made = await context.call_once("cron.add", _with_run_defaults(context, job))
    except OutcomeUnknown as exc:
        raise OutcomeUnknown(f"{exc}; look with cron_list before you add it again") from exc
    id = made.get("id") if isinstance(made, dict) else None
    try:
        context.effects.record_cron_job(id if isinstance(id, str) else None)
    except CannotRecord as exc:
        return {**made, "warning": f"the job is there, but not recorded: {exc}; do not add it again"}
    return made


def _with_run_defaults(context: ClawContext, job: Json) -> Json:
    """A job belongs to the run that adds it unless it names another; an explicit null is such a name."""
    job = dict(job)
    payload = job.get("payload")
    kind = payload.get("kind") if isinstance(payload, dict) else None
    job.setdefault("name", _job_name(payload))
    job.setdefault("sessionTarget", "main" if kind == "systemEvent" else "isolated")
    job.setdefault("wakeMode", "now")
    job.setdefault("sessionKey", context.settings.session_key)
    run = context.settings
    if job["sessionTarget"] != "main" and "delivery" not in job and run.channel and run.to:
        where = {"channel": run.channel, "to": run.to, "accountId": run.account, "threadId": run.thread}
        job["delivery"] = {"mode": "announce", **drop_empty(where)}
    return {name: value for name, value in job.items() if value is not None}


def _job_name(payload: Any) -> str:
    text = (payload.get("text") or payload.get("message") or "") if isinstance(payload, dict) else ""
    first = next((line.strip() for line in str(text).splitlines() if line.strip()), "job")
    return first[:60]


async def _update(context: ClawContext, arguments: CronArguments) -> Any:
    id = require_text("jobId", arguments.job_id)
    return await context.call_once("cron.update", {"id": id, "patch": arguments.updates})


async def _remove(context: ClawContext, arguments: CronArguments) -> Any:
    return await context.call_once("cron.remove", {"id": require_text("jobId", arguments.job_id)})


async def _run(context: ClawContext, arguments: CronArguments) -> Any:
    id = require_text("jobId", arguments.job_id)
    return await context.call_once("cron.run", {"id": id, "mode": arguments.mode})


async def _runs(context: ClawContext, arguments: CronArguments) -> Any:
    id = arguments.job_id.strip()
    params = {"id": id, "scope": "job" if id else "all", "limit": arguments.limit}
    return await context.call_repeatable("cron.runs", params)


HANDLERS: Final = bind_handlers(
    CronArguments,
    {
        "cron_status": _status,
        "cron_list": _list,
        "cron_add": _add,
        "cron_update": _update,
        "cron_remove": _remove,
        "cron_run": _run,
        "cron_runs": _runs,
    },
)
