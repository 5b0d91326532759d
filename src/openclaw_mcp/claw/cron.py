"""Cron tools: jobs that run later or again and again. For the owner."""

from typing import Any, Final

from ..core.errors import ToolArguments
from ..core.model import Json
from ..net.side_effects_file import CannotRecord
from .tool_context import (
    ClawContext,
    OutcomeUnknown,
    ToolTraits,
    define_tool,
    integer_parameter,
    object_parameter,
    optional_integer,
    parameter_aliases,
    require_text,
    text_parameter,
)

OWNER_READ_TRAITS: Final = ToolTraits(owner_only=True)
_JOB_ID_PARAMETER: Final = text_parameter("The job, as cron_list shows its id.")
_JOB_ID_ALIASES: Final = parameter_aliases(jobId="id job_id job")
_JOB_FIELDS: Final = (
    "name",
    "schedule",
    "payload",
    "sessionTarget",
    "wakeMode",
    "delivery",
    "enabled",
    "description",
    "agentId",
    "sessionKey",
    "deleteAfterRun",
    "failureAlert",
)


async def _status(context: ClawContext, arguments: Json) -> Any:
    return await context.call_repeatable("cron.status", {})


async def _list(context: ClawContext, arguments: Json) -> Any:
    which = arguments.get("enabled") or "all"
    params = {
        "query": arguments.get("filter"),
        "enabled": which,
        "includeDisabled": which != "enabled",
        "limit": optional_integer(arguments, "limit"),
        "offset": optional_integer(arguments, "offset"),
    }
    return await context.call_repeatable("cron.list", params)


async def _add(context: ClawContext, arguments: Json) -> Any:
    job = arguments["job"]
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


def _collect_job(arguments: Json) -> Json:
    """Agents sometimes give a job's parts side by side instead of in `job`."""
    flat = {name: arguments[name] for name in _JOB_FIELDS if name in arguments}
    return arguments if "job" in arguments or not flat else {"job": flat}


def _with_run_defaults(context: ClawContext, job: Json) -> Json:
    """A job belongs to the run that adds it, unless it says otherwise; an explicit null says so too."""
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
        job["delivery"] = {"mode": "announce", **{name: value for name, value in where.items() if value}}
    return {name: value for name, value in job.items() if value is not None}


def _job_name(payload: Any) -> str:
    words = (payload.get("text") or payload.get("message") or "") if isinstance(payload, dict) else ""
    first = next((line.strip() for line in str(words).splitlines() if line.strip()), "job")
    return first[:60]


async def _update(context: ClawContext, arguments: Json) -> Any:
    return await context.call_once(
        "cron.update", {"id": require_text(arguments, "jobId"), "patch": arguments["updates"]}
    )


async def _remove(context: ClawContext, arguments: Json) -> Any:
    return await context.call_once("cron.remove", {"id": require_text(arguments, "jobId")})


async def _run(context: ClawContext, arguments: Json) -> Any:
    return await context.call_once(
        "cron.run", {"id": require_text(arguments, "jobId"), "mode": arguments.get("mode") or "force"}
    )


async def _runs(context: ClawContext, arguments: Json) -> Any:
    id = (arguments.get("jobId") or "").strip()
    which = {"id": id, "scope": "job"} if id else {"scope": "all"}
    return await context.call_repeatable("cron.runs", {**which, "limit": optional_integer(arguments, "limit")})


TOOLS = (
    define_tool(
        "cron_status",
        "Whether the scheduler runs, how many jobs there are and when the next is due.",
        _status,
        title="Scheduler status",
        traits=OWNER_READ_TRAITS,
    ),
    define_tool(
        "cron_list",
        "List scheduled jobs, disabled ones too, with their schedules and next run times.",
        _list,
        title="List jobs",
        parameters={
            "filter": text_parameter("Only jobs whose name, description or text contains this."),
            "enabled": text_parameter("Which jobs.", enum=["all", "enabled", "disabled"]),
            "limit": integer_parameter("At most so many jobs.", most=200),
            "offset": integer_parameter("Skip so many.", least=0),
        },
        aliases=parameter_aliases(filter="query search"),
        traits=OWNER_READ_TRAITS,
    ),
    define_tool(
        "cron_add",
        "Schedule a job. `job` is {name, schedule, payload, …}. schedule: {kind:'at', at:'2030-01-01T09:00:00Z'}, "
        "{kind:'every', everyMs:3600000} or {kind:'cron', expr:'0 9 * * 1', tz:'Europe/Berlin'}. payload: "
        "{kind:'systemEvent', text} reminds the main session, {kind:'agentTurn', message} lets an agent work on it and "
        "announces the answer in this conversation. Only a job added here makes a promised reminder come true.",
        _add,
        title="Add a job",
        parameters={
            "job": object_parameter("The job: name, schedule, payload; optional sessionTarget, wakeMode, delivery …")
        },
        required=("job",),
        aliases=parameter_aliases(job="spec task"),
        repair_arguments=_collect_job,
        traits=ToolTraits(effect="write", owner_only=True),
    ),
    define_tool(
        "cron_update",
        "Change a job: `updates` holds the fields that change, for instance {enabled:false} or a new schedule.",
        _update,
        title="Change a job",
        parameters={"jobId": _JOB_ID_PARAMETER, "updates": object_parameter("The fields that change.")},
        required=("jobId", "updates"),
        aliases=_JOB_ID_ALIASES | parameter_aliases(updates="patch changes"),
        traits=ToolTraits(effect="write", destructive=True, idempotent=True, owner_only=True),
    ),
    define_tool(
        "cron_remove",
        "Delete a job.",
        _remove,
        title="Remove a job",
        parameters={"jobId": _JOB_ID_PARAMETER},
        required=("jobId",),
        aliases=_JOB_ID_ALIASES,
        traits=ToolTraits(effect="write", destructive=True, idempotent=True, owner_only=True),
    ),
    define_tool(
        "cron_run",
        "Run a job now. It is queued and this returns at once; cron_runs shows what came of it.",
        _run,
        title="Run a job now",
        parameters={
            "jobId": _JOB_ID_PARAMETER,
            "mode": text_parameter(
                "`force` runs it now, `due` only if its time has come; force unless given.", enum=["force", "due"]
            ),
        },
        required=("jobId",),
        aliases=_JOB_ID_ALIASES,
        traits=ToolTraits(effect="run", owner_only=True),
    ),
    define_tool(
        "cron_runs",
        "What came of past runs of a job, or of all jobs when no `jobId` is given; the latest first.",
        _runs,
        title="Past runs",
        parameters={
            "jobId": text_parameter("Only runs of this job."),
            "limit": integer_parameter("At most so many runs.", most=200),
        },
        aliases=_JOB_ID_ALIASES,
        traits=OWNER_READ_TRAITS,
    ),
)
