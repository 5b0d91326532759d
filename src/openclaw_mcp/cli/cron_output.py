"""Jobs and runs of a gateway as `openclaw cron` prints them, with the next times of each job."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from ..core.errors import BadRequest
from ..core.jobs import AtSchedule, CronSchedule, IntervalSchedule, JobState, Schedule
from ..core.model import Json
from ..gateway.cron.parsing import format_duration
from ..gateway.cron.schedule import iterate_due
from .gateway_connection import read_reply
from .report import as_row, count_of

NEXT_TIMES_SHOWN: Final = 5  # of each job
MAX_RESULT_CHARS: Final = 160  # characters of a result or an error in a line


class DeliveryPreview(Struct, frozen=True):
    label: str | None = None


class JobRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """A job as `cron.list` has it."""

    id: str
    name: str
    display_name: str | None = None
    enabled: bool = True
    schedule: Json = {}
    state: JobState = JobState()
    delivery_preview: DeliveryPreview = DeliveryPreview()

    @property
    def known_schedule(self) -> Schedule | None:
        """None for a kind of schedule of another gateway."""
        try:
            return msgspec.convert(self.schedule, Schedule)  # type: ignore[no-any-return]  # a union
        except msgspec.ValidationError:
            return None


class JobPage(Struct, frozen=True, kw_only=True, rename="camel"):
    jobs: tuple[JobRow, ...]
    delivery_previews: dict[str, DeliveryPreview] = {}
    total: int = 0
    has_more: bool = False
    next_offset: int | None = None


class RunRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """A run of a job as `cron.runs` has it."""

    job_id: str
    ts: int
    job_name: str | None = None
    status: str = "?"
    completion_status: str | None = None
    run_at_ms: int | None = None
    duration_ms: int = 0
    error: str | None = None
    summary: str | None = None
    delivery_status: str = "not-requested"
    delivery_error: str | None = None


class RunPage(Struct, frozen=True):
    entries: tuple[RunRow, ...]


class SchedulerStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """What `cron.status` answers."""

    enabled: bool = True
    jobs: int = 0
    next_wake_at_ms: int | None = None


def format_answer(verb: str, answer: Any, *, zone: str | None = None) -> str:
    """`zone`: the zone in which a job that has none of its own was given."""
    if verb == "rm":
        return "removed"
    if verb == "status":
        status = read_reply(answer, SchedulerStatus)
        due = status.next_wake_at_ms
        next_due = "none is due" if due is None else f"the next is due {_format_time(due, None)}"
        return f"{'on' if status.enabled else 'switched off'}; {count_of(status.jobs, 'job')}; {next_due}"
    if verb == "runs":
        return "\n".join(map(format_run, read_reply(answer, RunPage).entries)) or "no job has run yet"
    if verb == "list":
        page = read_reply(answer, JobPage)
        listed = (
            msgspec.structs.replace(job, delivery_preview=page.delivery_previews.get(job.id, job.delivery_preview))
            for job in page.jobs
        )
        jobs = "\n".join(_format_job(job) for job in listed) or "there are no jobs; add one with openclaw cron add"
        more = page.total - len(page.jobs)
        return f"{jobs}\n… and {more} more; narrow them with --query" if more else jobs
    return _format_job(read_reply(answer, JobRow), zone)


def _format_job(job: JobRow, zone: str | None = None) -> str:
    zone = job.schedule.get("tz") or zone
    state = job.state
    notes = [] if job.enabled else ["disabled"]
    if state.running_at_ms:
        notes.append("running")
    if state.last_run_status:
        notes.append(f"last {state.last_run_status}" + (f": {state.last_error}" if state.last_error else ""))
    preview = job.delivery_preview.label
    notes += [preview] if preview and preview != "not requested" else []
    head = f"{job.id}  {job.display_name or job.name}  ({_format_schedule(job, zone)})"
    return "\n".join([as_row(head + (f"  [{'; '.join(notes)}]" if notes else "")), *next_times(job, zone)])


def _format_schedule(job: JobRow, zone: str | None) -> str:
    match job.known_schedule:
        case AtSchedule(at=at):
            return f"at {_format_at(at, zone)}"
        case IntervalSchedule(every_ms=span):
            return f"every {format_duration(span)}"
        case CronSchedule(expr=expr, tz=tz):
            return f"cron {expr}" + (f" {tz}" if tz else "")
    return f"{job.schedule.get('kind')} {job.schedule.get('command', '')}".strip()


def _format_at(at: str, zone: str | None) -> str:
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:  # another gateway's way to write it
        return at
    return _format_time(round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000), zone)


def next_times(job: JobRow, zone: str | None = None) -> Iterable[str]:
    """The next times, in the job's own zone, else in `zone`, else in this machine's: the first as the gateway has it,
    the others from the schedule, unless that means other times here than in the gateway's zone."""
    first, schedule = job.state.next_run_at_ms, job.known_schedule
    if first is None or not job.enabled:
        return
    times = [first]
    if schedule is not None:
        with suppress(BadRequest):
            if not _depends_on_gateway_zone(schedule) or next(iterate_due(schedule, first - 1, job_id=job.id)) == first:
                times += islice(iterate_due(schedule, first, job_id=job.id), NEXT_TIMES_SHOWN - 1)
    for due in times:
        yield f"    {_format_time(due, job.schedule.get('tz') or zone)}"


def _depends_on_gateway_zone(schedule: Schedule) -> bool:
    return isinstance(schedule, CronSchedule) and not schedule.tz


def _format_time(ms: int, tz: str | None) -> str:
    from ..gateway.cron.expression import find_zone  # here for start-up: `cron add --json` needs no zones

    try:
        moment = datetime.fromtimestamp(ms / 1000, find_zone(tz))
    except BadRequest:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%a %Y-%m-%d %H:%M:%S %Z")


def format_run(run: RunRow) -> str:
    head = f"{_format_time(run.run_at_ms or run.ts, None)}  {run.status:7}  {run.job_name or run.job_id}"
    delivery = "" if run.delivery_status == "not-requested" else f"; {run.delivery_status}"
    texts = dict.fromkeys((run.error, run.summary, run.delivery_error))
    lines = [" ".join(text.split())[:MAX_RESULT_CHARS] for text in texts if text]
    return "\n    ".join(map(as_row, [f"{head}  ({format_duration(run.duration_ms)}{delivery})", *lines]))
