"""Handlers of the cron tools: jobs that run later or repeatedly. For the owner."""

from typing import Any, Final

from msgspec import Struct

from ..core.errors import ToolArguments
from ..core.model import Json
from ..net.side_effects_file import CannotRecord
from .tool_context import ClawContext, OutcomeUnknown, bind_handlers, drop_empty, require_text


class CronArguments(Struct, frozen=True, kw_only=True, rename="camel"):
    """The arguments of all cron tools; its schema names those that a tool has."""

    filter: str = ""
    enabled: str = "all"
    limit: int | None = None
    offset: int | None = None
    job: Json = {}
    job_id: str = ""
    updates: Json = {}
    mode: str = "force"

    def required_id(self) -> str:
        return require_text("jobId", self.job_id)


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


async def _runs(context: ClawContext, arguments: CronArguments) -> Any:
    id = arguments.job_id.strip()
    params = {"id": id, "scope": "job" if id else "all", "limit": arguments.limit}
    return await context.call_repeatable("cron.runs", params)


HANDLERS: Final = bind_handlers(
    CronArguments,
    {
        "cron_status": lambda context, _: context.call_repeatable("cron.status", {}),
        "cron_list": _list,
        "cron_add": _add,
        "cron_update": lambda context, asked: context.call_once(
            "cron.update", {"id": asked.required_id(), "patch": asked.updates}
        ),
        "cron_remove": lambda context, asked: context.call_once("cron.remove", {"id": asked.required_id()}),
        "cron_run": lambda context, asked: context.call_once(
            "cron.run", {"id": asked.required_id(), "mode": asked.mode}
        ),
        "cron_runs": _runs,
    },
)
