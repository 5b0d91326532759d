"""Scheduled jobs: their definition, state and firings, and the repository that stores them.

Times are Unix milliseconds. On the wire and on disk names are camelCase, as OpenClaw writes them.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Protocol

from msgspec import Meta, Struct, structs

from .fields import NonEmptyStr
from .model import Json

UnixMs = Annotated[int, Meta(ge=0, le=8_640_000_000_000_000)]
DurationMs = Annotated[int, Meta(ge=1, le=8_640_000_000_000_000)]
Seconds = Annotated[float, Meta(ge=0)]

FiringStatus = Literal["ok", "error", "skipped"]
DeliveryStatus = Literal["delivered", "not-delivered", "unknown", "not-requested"]
WakeMode = Literal["now", "next-heartbeat"]


class _CamelStruct(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


# ---- schedule --------------------------------------------------------------------------------------------------------


class AtSchedule(_CamelStruct, frozen=True, kw_only=True, tag_field="kind", tag="at"):
    """Once. ISO 8601; without a zone it is UTC."""

    at: NonEmptyStr


class IntervalSchedule(_CamelStruct, frozen=True, kw_only=True, tag_field="kind", tag="every"):
    """Every so often, counted from `anchor_ms`."""

    every_ms: DurationMs
    anchor_ms: UnixMs | None = None


class CronSchedule(_CamelStruct, frozen=True, kw_only=True, tag_field="kind", tag="cron"):
    """5, 6 (seconds first) or 7 (year last) fields, in `tz` or the gateway's own zone."""

    expr: NonEmptyStr
    tz: str | None = None
    stagger_ms: UnixMs | None = None
    """The window within which this job has its own fixed delay; 0 = exactly on time."""


class OnExitSchedule(_CamelStruct, frozen=True, kw_only=True, tag_field="kind", tag="on-exit"):
    """Once, when this shell command has ended."""

    command: NonEmptyStr
    cwd: NonEmptyStr | None = None


class StreamSchedule(_CamelStruct, frozen=True, kw_only=True, tag_field="kind", tag="stream"):
    """Whenever this program, which is kept running, has printed something."""

    command: Annotated[list[NonEmptyStr], Meta(min_length=1)]
    cwd: NonEmptyStr | None = None
    mode: Literal["line"] | None = None
    batch_ms: int | None = None
    max_batch_bytes: int | None = None


Schedule = AtSchedule | IntervalSchedule | CronSchedule | OnExitSchedule | StreamSchedule


# ---- payload ---------------------------------------------------------------------------------------------------------


class SystemEventPayload(_CamelStruct, frozen=True, kw_only=True, tag_field="kind", tag="systemEvent"):
    """Given to the main session's agent with its next prompt, or in a run now."""

    text: NonEmptyStr
    tools_allow: list[str] | None = None


class AgentTurnPayload(_CamelStruct, frozen=True, kw_only=True, tag_field="kind", tag="agentTurn"):
    message: NonEmptyStr
    model: str | None = None
    fallbacks: list[str] | None = None
    thinking: str | None = None
    timeout_seconds: Seconds | None = None
    """0 = no limit but the longest a run may take at all."""
    allow_unsafe_external_content: bool | None = None
    light_context: bool | None = None
    tools_allow: list[str] | None = None
    tools_allow_is_default: bool | None = None


class CommandPayload(_CamelStruct, frozen=True, kw_only=True, tag_field="kind", tag="command"):
    """A program on the gateway's machine; no agent takes part."""

    argv: Annotated[list[NonEmptyStr], Meta(min_length=1)]
    cwd: NonEmptyStr | None = None
    env: dict[str, str] | None = None
    input: str | None = None
    timeout_seconds: Seconds | None = None
    no_output_timeout_seconds: Seconds | None = None
    output_max_bytes: Annotated[int, Meta(ge=1)] | None = None


JobPayload = SystemEventPayload | AgentTurnPayload | CommandPayload


# ---- delivery--------------------------------------------------------------------------------------------------------


class FailureDestination(_CamelStruct, frozen=True, kw_only=True):
    """Where failures are reported, if not where results go."""

    mode: Literal["announce", "webhook"] | None = None
    channel: NonEmptyStr | None = None
    to: NonEmptyStr | None = None
    account_id: NonEmptyStr | None = None


class WebhookDestination(_CamelStruct, frozen=True, kw_only=True):
    mode: Literal["webhook"]
    to: NonEmptyStr


class JobDelivery(_CamelStruct, frozen=True, kw_only=True):
    mode: Literal["none", "announce", "webhook"]
    channel: NonEmptyStr | None = None
    """A channel's name, or `last`: the conversation of the session's last message."""
    to: NonEmptyStr | None = None
    thread_id: str | int | None = None
    account_id: NonEmptyStr | None = None
    best_effort: bool | None = None
    failure_destination: FailureDestination | None = None
    completion_destination: WebhookDestination | None = None


class FailureAlert(_CamelStruct, frozen=True, kw_only=True):
    after: Annotated[int, Meta(ge=1)] | None = None
    channel: NonEmptyStr | None = None
    to: NonEmptyStr | None = None
    cooldown_ms: UnixMs | None = None
    include_skipped: bool | None = None
    mode: Literal["announce", "webhook"] | None = None
    account_id: NonEmptyStr | None = None


# ---- job -------------------------------------------------------------------------------------------------------------


class JobState(_CamelStruct, frozen=True, kw_only=True):
    next_run_at_ms: int | None = None
    schedule_activated_at_ms: int | None = None
    running_at_ms: int | None = None
    last_run_at_ms: int | None = None
    last_run_status: FiringStatus | None = None
    last_status: FiringStatus | None = None
    last_error: str | None = None
    last_duration_ms: int | None = None
    consecutive_errors: int | None = None
    consecutive_skipped: int | None = None
    last_delivered: bool | None = None
    last_delivery_status: DeliveryStatus | None = None
    last_delivery_error: str | None = None
    delivery_suppression_reason: str | None = None
    last_failure_notification_delivered: bool | None = None
    last_failure_notification_delivery_status: DeliveryStatus | None = None
    last_failure_notification_delivery_error: str | None = None
    last_failure_alert_at_ms: int | None = None
    auto_disabled: Json | None = None


class JobSpec(_CamelStruct, frozen=True, kw_only=True):
    """A job's definition: everything but its id and its history."""

    name: NonEmptyStr
    enabled: bool
    schedule: Schedule
    session_target: Annotated[str, Meta(pattern=r"^(main|isolated|current|session:.+)$")]
    wake_mode: WakeMode
    payload: JobPayload
    declaration_key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    display_name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    owner: Json | None = None
    agent_id: NonEmptyStr | None = None
    session_key: NonEmptyStr | None = None
    description: str | None = None
    delete_after_run: bool | None = None
    delivery: JobDelivery | None = None
    failure_alert: bool | FailureAlert | None = None


class CronJob(Struct, frozen=True, kw_only=True):
    id: str
    spec: JobSpec
    state: JobState
    created_at: int
    updated_at: int
    origin: str | None = None
    """The session whose agent made it (a run, or a client that acts there); None when an operator did."""
    running: str | None = None
    """The id of the firing under way."""


class JobFiring(Struct, frozen=True, kw_only=True):
    """A job that was due and that this process carries out; the job is as it was then."""

    run_id: str
    job: CronJob
    due_at: int
    at: int
    manual: bool = False
    begun: bool = False
    """A program may have been started already by a process that died since: it must not be started again."""
    note: str | None = None
    """For a job that waits for a program: what the program printed, how it ended."""


class JobQuery(Struct, frozen=True, kw_only=True):
    limit: int = 200
    offset: int = 0
    search: str | None = None
    enabled: bool | None = True
    """None = both."""
    kind: str | None = None
    last_status: str | None = None
    agent_id: str | None = None
    or_no_agent: bool = False
    """Also jobs that name no agent: those of the default agent."""
    session_key: str | None = None
    sort: Literal["next_at", "updated_at", "name"] = "next_at"
    descending: bool = False


class JobLogQuery(Struct, frozen=True, kw_only=True):
    limit: int = 50
    offset: int = 0
    job_id: str | None = None
    run_id: str | None = None
    agent_id: str | None = None
    or_no_agent: bool = False
    """Also firings of jobs that named no agent."""
    statuses: tuple[str, ...] = ()
    deliveries: tuple[str, ...] = ()
    search: str | None = None
    descending: bool = True


class QueuedEvent(Struct, frozen=True, kw_only=True):
    """A text that is put before a session's next prompt."""

    session: str
    text: str
    at: int
    key: str
    """The same key again is the same event."""
    owner: bool
    """Whether its text may be part of a prompt that is answered with the owner's rights. Its author decides."""


PlanNextRun = Callable[[CronJob, int], int | None]
"""When a job claimed at this moment is due next."""
ChangeJob = Callable[[CronJob], CronJob | None]
"""The changed job; None removes it. Runs inside the store's transaction: quick, no I/O."""


class FiringOutcome(Struct, frozen=True, kw_only=True):
    """What is stored when a firing is over: all of it or nothing."""

    entry: Json
    """The log entry."""
    change_job: ChangeJob
    event: QueuedEvent | None = None
    reap_at: int | None = None
    """When the session of its run may be deleted."""
    max_log_entries: int = 2000
    """Entries kept of the job's log."""


InstantOutcome = Callable[[JobFiring], FiringOutcome | None]
"""The outcome of a firing for which nothing has to run, only to be stored. None: something has to run."""


class ClaimedFiring(Struct, frozen=True, kw_only=True):
    """A due job that was claimed. With `outcome` it is over already: claimed and ended in one commit; `job` is the job
    after that."""

    firing: JobFiring
    outcome: FiringOutcome | None = None
    job: CronJob | None = None


class CronJobRepository(Protocol):
    """Jobs and their firings. A job that is due is claimed once, by one process, whichever dies when."""

    @property
    def instance(self) -> str: ...

    async def add(self, job: CronJob, *, max_jobs: int) -> CronJob | None:
        """Store it; a stored job with the same declaration key stays and is returned. None: there are too many."""

    async def get(self, job_id: str) -> CronJob | None: ...

    async def page(self, query: JobQuery) -> tuple[Sequence[CronJob], int]:
        """The jobs, and how many there are in all."""

    async def change(self, job_id: str, change: ChangeJob) -> CronJob | None:
        """None: there is no such job, or `change` removed it. An exception of `change` is raised here."""

    async def remove(self, job_id: str) -> bool: ...

    async def count(self) -> int: ...

    async def next_due(self) -> int | None:
        """When the next job is due that does not run already."""

    async def claim(
        self, now: int, *, limit: int, plan: PlanNextRun, instant_outcome: InstantOutcome | None = None
    ) -> Sequence[ClaimedFiring]:
        """Claim what is due, the longest due first. A firing with an instant outcome ends in the same commit."""

    async def reserve(self, job_id: str, run_id: str, now: int, *, manual: bool, note: str | None) -> JobFiring | None:
        """Claim a job now, due or not. None: it runs already, or was removed."""

    async def adopt(self) -> Sequence[JobFiring]:
        """Take over the firings of processes that died."""

    async def begin(self, run_id: str) -> bool:
        """A program is about to be started for this firing. False: it is no longer ours."""

    async def finish(self, firing: JobFiring, outcome: FiringOutcome) -> CronJob | None:
        """Write the log, update the job and queue the event, all or nothing. Raises FiringNotClaimed."""

    async def list_overdue(self, before: int) -> Sequence[tuple[str, int]]:
        """Ids and times of jobs that should have been claimed before then."""

    async def reschedule(self, times: Sequence[tuple[str, int, int | None]]) -> None:
        """Give jobs, as (id, the time it had, the new one), another next time unless theirs changed meanwhile."""

    async def read_log(self, query: JobLogQuery) -> tuple[Sequence[Json], int]: ...

    async def reap_sessions(self, now: int, *, limit: int) -> Sequence[str]:
        """Sessions of old runs that may be deleted now; each is named once."""

    async def queue_event(self, event: QueuedEvent) -> None: ...


class FiringNotClaimed(Exception):
    """Another process took this firing over because it took this process for dead."""


def replace_job(job: CronJob, *, enabled: bool | None = None, **state: Any) -> CronJob:
    """The job with other values in its state, and enabled or disabled unless that is None."""
    spec = job.spec if enabled is None else structs.replace(job.spec, enabled=enabled)
    return structs.replace(job, spec=spec, state=structs.replace(job.state, **state))
