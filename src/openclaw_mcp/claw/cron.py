"""Cron tools: jobs that run later or again and again. For the owner."""

from typing import Any, Final

from ..core.errors import ToolArguments
from ..core.model import Json
from ..net.side_effects_file import CannotRecord
from .tool_context import Nature, Seat, Unsure, also, number, some, text, thing, tool, whole

OWNERS_READ: Final = Nature(owner_only=True)
_JOB_ID: Final = text("The job, as cron_list shows its id.")
_ID_NAMES: Final = also(jobId="id job_id job")
_FLAT: Final = (
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


async def _status(seat: Seat, asked: Json) -> Any:
    return await seat.ask("cron.status", {})


async def _list(seat: Seat, asked: Json) -> Any:
    which = asked.get("enabled") or "all"
    params = {
        "query": asked.get("filter"),
        "enabled": which,
        "includeDisabled": which != "enabled",
        "limit": number(asked, "limit"),
        "offset": number(asked, "offset"),
    }
    return await seat.ask("cron.list", params)


async def _add(seat: Seat, asked: Json) -> Any:
    job = asked["job"]
    if "schedule" not in job or "payload" not in job:
        raise ToolArguments("`job` needs at least `schedule` and `payload`; see this tool's description")
    seat.effects.ready()
    try:
        made = await seat.tell("cron.add", _at_home(seat, job))
    except Unsure as exc:
        raise Unsure(f"{exc}; look with cron_list before you add it again") from exc
    id = made.get("id") if isinstance(made, dict) else None
    try:
        seat.effects.cron_added(id if isinstance(id, str) else None)
    except CannotRecord as exc:
        return {**made, "warning": f"the job is there, but not recorded: {exc}; do not add it again"}
    return made


def _gathered(asked: Json) -> Json:
    """Agents sometimes give a job's parts side by side instead of in `job`."""
    flat = {name: asked[name] for name in _FLAT if name in asked}
    return asked if "job" in asked or not flat else {"job": flat}


def _at_home(seat: Seat, job: Json) -> Json:
    """A job belongs to the run that adds it, unless it says otherwise; an explicit null says so too."""
    job = dict(job)
    payload = job.get("payload")
    kind = payload.get("kind") if isinstance(payload, dict) else None
    job.setdefault("name", _name(payload))
    job.setdefault("sessionTarget", "main" if kind == "systemEvent" else "isolated")
    job.setdefault("wakeMode", "now")
    job.setdefault("sessionKey", seat.run.session_key)
    run = seat.run
    if job["sessionTarget"] != "main" and "delivery" not in job and run.channel and run.to:
        where = {"channel": run.channel, "to": run.to, "accountId": run.account, "threadId": run.thread}
        job["delivery"] = {"mode": "announce", **{name: value for name, value in where.items() if value}}
    return {name: value for name, value in job.items() if value is not None}


def _name(payload: Any) -> str:
    words = (payload.get("text") or payload.get("message") or "") if isinstance(payload, dict) else ""
    first = next((line.strip() for line in str(words).splitlines() if line.strip()), "job")
    return first[:60]


async def _update(seat: Seat, asked: Json) -> Any:
    return await seat.tell("cron.update", {"id": some(asked, "jobId"), "patch": asked["updates"]})


async def _remove(seat: Seat, asked: Json) -> Any:
    return await seat.tell("cron.remove", {"id": some(asked, "jobId")})


async def _run(seat: Seat, asked: Json) -> Any:
    return await seat.tell("cron.run", {"id": some(asked, "jobId"), "mode": asked.get("mode") or "force"})


async def _runs(seat: Seat, asked: Json) -> Any:
    id = (asked.get("jobId") or "").strip()
    which = {"id": id, "scope": "job"} if id else {"scope": "all"}
    return await seat.ask("cron.runs", {**which, "limit": number(asked, "limit")})


TOOLS = (
    tool(
        "cron_status",
        "Whether the scheduler runs, how many jobs there are and when the next is due.",
        _status,
        title="Scheduler status",
        nature=OWNERS_READ,
    ),
    tool(
        "cron_list",
        "List scheduled jobs, disabled ones too, with their schedules and next run times.",
        _list,
        title="List jobs",
        parameters={
            "filter": text("Only jobs whose name, description or text contains this."),
            "enabled": text("Which jobs.", enum=["all", "enabled", "disabled"]),
            "limit": whole("At most so many jobs.", most=200),
            "offset": whole("Skip so many.", least=0),
        },
        aliases=also(filter="query search"),
        nature=OWNERS_READ,
    ),
    tool(
        "cron_add",
        "Schedule a job. `job` is {name, schedule, payload, …}. schedule: {kind:'at', at:'2030-01-01T09:00:00Z'}, "
        "{kind:'every', everyMs:3600000} or {kind:'cron', expr:'0 9 * * 1', tz:'Europe/Berlin'}. payload: "
        "{kind:'systemEvent', text} reminds the main session, {kind:'agentTurn', message} lets an agent work on it and "
        "announces the answer in this conversation. Only a job added here makes a promised reminder come true.",
        _add,
        title="Add a job",
        parameters={"job": thing("The job: name, schedule, payload; optional sessionTarget, wakeMode, delivery …")},
        required=("job",),
        aliases=also(job="spec task"),
        mend=_gathered,
        nature=Nature(effect="write", owner_only=True),
    ),
    tool(
        "cron_update",
        "Change a job: `updates` holds the fields that change, for instance {enabled:false} or a new schedule.",
        _update,
        title="Change a job",
        parameters={"jobId": _JOB_ID, "updates": thing("The fields that change.")},
        required=("jobId", "updates"),
        aliases=_ID_NAMES | also(updates="patch changes"),
        nature=Nature(effect="write", destructive=True, idempotent=True, owner_only=True),
    ),
    tool(
        "cron_remove",
        "Delete a job.",
        _remove,
        title="Remove a job",
        parameters={"jobId": _JOB_ID},
        required=("jobId",),
        aliases=_ID_NAMES,
        nature=Nature(effect="write", destructive=True, idempotent=True, owner_only=True),
    ),
    tool(
        "cron_run",
        "Run a job now. It is queued and this returns at once; cron_runs shows what came of it.",
        _run,
        title="Run a job now",
        parameters={
            "jobId": _JOB_ID,
            "mode": text(
                "`force` runs it now, `due` only if its time has come; force unless given.", enum=["force", "due"]
            ),
        },
        required=("jobId",),
        aliases=_ID_NAMES,
        nature=Nature(effect="run", owner_only=True),
    ),
    tool(
        "cron_runs",
        "What came of past runs of a job, or of all jobs when no `jobId` is given; the latest first.",
        _runs,
        title="Past runs",
        parameters={"jobId": text("Only runs of this job."), "limit": whole("At most so many runs.", most=200)},
        aliases=_ID_NAMES,
        nature=OWNERS_READ,
    ),
)
