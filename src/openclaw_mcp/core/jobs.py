"""Words of the clock: jobs, when they are due, what came of each firing; and the book that remembers them.

Times are Unix milliseconds. On the wire and on disk names are camelCase, as OpenClaw writes them.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Protocol

from msgspec import Meta, Struct, structs

from .model import Json

Text = Annotated[str, Meta(min_length=1)]
Moment = Annotated[int, Meta(ge=0, le=8_640_000_000_000_000)]
Span = Annotated[int, Meta(ge=1, le=8_640_000_000_000_000)]
Seconds = Annotated[float, Meta(ge=0)]

Status = Literal["ok", "error", "skipped"]
DeliveryStatus = Literal["delivered", "not-delivered", "unknown", "not-requested"]
WakeMode = Literal["now", "next-heartbeat"]


class _Word(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


# ---- when ------------------------------------------------------------------------------------------------------------


class At(_Word, frozen=True, kw_only=True, tag_field="kind", tag="at"):
    """Once. ISO 8601; without a zone it is UTC."""

    at: Text


class Every(_Word, frozen=True, kw_only=True, tag_field="kind", tag="every"):
    """Every so often, counted from `anchor_ms`."""

    every_ms: Span
    anchor_ms: Moment | None = None


class Cron(_Word, frozen=True, kw_only=True, tag_field="kind", tag="cron"):
    """5, 6 (seconds first) or 7 (year last) fields, in `tz` or the gateway's own zone."""

    expr: Text
    tz: str | None = None
    stagger_ms: Moment | None = None
    """The window within which this job has its own fixed delay; 0 = exactly on time."""


class OnExit(_Word, frozen=True, kw_only=True, tag_field="kind", tag="on-exit"):
    """Once, when this shell command has ended."""

    command: Text
    cwd: Text | None = None


class Stream(_Word, frozen=True, kw_only=True, tag_field="kind", tag="stream"):
    """Whenever this program, which is kept running, has said something."""

    command: Annotated[list[Text], Meta(min_length=1)]
    cwd: Text | None = None
    mode: Literal["line"] | None = None
    batch_ms: int | None = None
    max_batch_bytes: int | None = None


Schedule = At | Every | Cron | OnExit | Stream


# ---- what ------------------------------------------------------------------------------------------------------------


class SystemEvent(_Word, frozen=True, kw_only=True, tag_field="kind", tag="systemEvent"):
    """Told to the main session's agent with its next prompt, or at once."""

    text: Text
    tools_allow: list[str] | None = None


class AgentTurn(_Word, frozen=True, kw_only=True, tag_field="kind", tag="agentTurn"):
    message: Text
    model: str | None = None
    fallbacks: list[str] | None = None
    thinking: str | None = None
    timeout_seconds: Seconds | None = None
    """0 = no limit but the longest a run may take at all."""
    allow_unsafe_external_content: bool | None = None
    light_context: bool | None = None
    tools_allow: list[str] | None = None
    tools_allow_is_default: bool | None = None


class Command(_Word, frozen=True, kw_only=True, tag_field="kind", tag="command"):
    """A program on the gateway's machine; no agent is asked."""

    argv: Annotated[list[Text], Meta(min_length=1)]
    cwd: Text | None = None
    env: dict[str, str] | None = None
    input: str | None = None
    timeout_seconds: Seconds | None = None
    no_output_timeout_seconds: Seconds | None = None
    output_max_bytes: Annotated[int, Meta(ge=1)] | None = None


Payload = SystemEvent | AgentTurn | Command


# ---- to whom ---------------------------------------------------------------------------------------------------------


class Destination(_Word, frozen=True, kw_only=True):
    """Where a failure is told when it is not where results go."""

    mode: Literal["announce", "webhook"] | None = None
    channel: Text | None = None
    to: Text | None = None
    account_id: Text | None = None


class Hook(_Word, frozen=True, kw_only=True):
    mode: Literal["webhook"]
    to: Text


class Delivery(_Word, frozen=True, kw_only=True):
    mode: Literal["none", "announce", "webhook"]
    channel: Text | None = None
    """A channel's name, or `last`: wherever the person was last heard from."""
    to: Text | None = None
    thread_id: str | int | None = None
    account_id: Text | None = None
    best_effort: bool | None = None
    failure_destination: Destination | None = None
    completion_destination: Hook | None = None


class Alert(_Word, frozen=True, kw_only=True):
    after: Annotated[int, Meta(ge=1)] | None = None
    channel: Text | None = None
    to: Text | None = None
    cooldown_ms: Moment | None = None
    include_skipped: bool | None = None
    mode: Literal["announce", "webhook"] | None = None
    account_id: Text | None = None


# ---- the job ---------------------------------------------------------------------------------------------------------


class JobState(_Word, frozen=True, kw_only=True):
    next_run_at_ms: int | None = None
    schedule_activated_at_ms: int | None = None
    running_at_ms: int | None = None
    last_run_at_ms: int | None = None
    last_run_status: Status | None = None
    last_status: Status | None = None
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


class Spec(_Word, frozen=True, kw_only=True):
    """What a person says a job is; everything but its name in the store and its history."""

    name: Text
    enabled: bool
    schedule: Schedule
    session_target: Annotated[str, Meta(pattern=r"^(main|isolated|current|session:.+)$")]
    wake_mode: WakeMode
    payload: Payload
    declaration_key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    display_name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    owner: Json | None = None
    agent_id: Text | None = None
    session_key: Text | None = None
    description: str | None = None
    delete_after_run: bool | None = None
    delivery: Delivery | None = None
    failure_alert: bool | Alert | None = None


class Job(Struct, frozen=True, kw_only=True):
    id: str
    spec: Spec
    state: JobState
    created_at: int
    updated_at: int
    origin: str | None = None
    """The session whose agent made it, a run or a client that acts there; None when a person did."""
    running: str | None = None
    """The firing that goes now."""


class Firing(Struct, frozen=True, kw_only=True):
    """A job that was due and is this process's to carry out; the job is as it was then."""

    run_id: str
    job: Job
    due_at: int
    at: int
    manual: bool = False
    begun: bool = False
    """A program may have been started already, by a process that died since: it is not to be started again."""
    note: str | None = None
    """What happened, for a job that waits for something to happen."""


class JobQuery(Struct, frozen=True, kw_only=True):
    limit: int = 200
    offset: int = 0
    words: str | None = None
    enabled: bool | None = True
    """None = both."""
    kind: str | None = None
    last_status: str | None = None
    agent_id: str | None = None
    session_key: str | None = None
    sort: Literal["next_at", "updated_at", "name"] = "next_at"
    descending: bool = False


class LogQuery(Struct, frozen=True, kw_only=True):
    limit: int = 50
    offset: int = 0
    job_id: str | None = None
    run_id: str | None = None
    agent_id: str | None = None
    statuses: tuple[str, ...] = ()
    deliveries: tuple[str, ...] = ()
    words: str | None = None
    descending: bool = True


class Queued(Struct, frozen=True, kw_only=True):
    """Something a session's agent is to hear with its next prompt."""

    session: str
    text: str
    at: int
    key: str
    """The same key again is the same event."""
    owner: bool
    """Whether its words may be part of a prompt that is answered with the owner's rights. Whoever queues it says so."""


Plan = Callable[[Job, int], int | None]
"""When a job claimed at this moment is due next."""
Change = Callable[[Job], Job | None]
"""The job as it is to be; None = it is to go. Runs inside the store's transaction: quick, no I/O."""


class Ending(Struct, frozen=True, kw_only=True):
    """What is written down when a firing is over: all of it or nothing."""

    entry: Json
    """The line of the log."""
    settle: Change
    event: Queued | None = None
    reap_at: int | None = None
    """When the session of its run may be forgotten."""
    keep: int = 2000
    """Entries of the job's log that stay."""


AtOnce = Callable[[Firing], Ending | None]
"""How a firing ends that needs nobody: nothing happens but what is written down. None: somebody must do something."""


class Claimed(Struct, frozen=True, kw_only=True):
    """A due job taken. With `ending`, it is over already: claimed and ended in one commit, `job` is what is left."""

    firing: Firing
    ending: Ending | None = None
    job: Job | None = None


class CronBook(Protocol):
    """Jobs and their firings. A job that is due is claimed once, by one process, whichever dies when."""

    @property
    def instance(self) -> str: ...

    async def add(self, job: Job, *, most: int) -> Job | None:
        """Remember it. A job of the same declaration key stays as it is and is returned. None: there are too many."""

    async def get(self, job_id: str) -> Job | None: ...

    async def declared(self, key: str) -> Job | None: ...

    async def page(self, query: JobQuery) -> tuple[Sequence[Job], int]:
        """The jobs, and how many there are in all."""

    async def change(self, job_id: str, change: Change) -> Job | None:
        """None: there is no such job, or `change` let it go. Whatever `change` raises comes back."""

    async def remove(self, job_id: str) -> bool: ...

    async def count(self) -> int: ...

    async def added_since(self, origin: str, since: int) -> int: ...

    async def next_due(self) -> int | None:
        """When the next job is due that does not run already."""

    async def claim(self, now: int, *, most: int, plan: Plan, at_once: AtOnce | None = None) -> Sequence[Claimed]:
        """Take what is due, the longest due first. What `at_once` knows the ending of ends in the same commit."""

    async def reserve(self, job_id: str, run_id: str, now: int, *, manual: bool, note: str | None) -> Firing | None:
        """Take a job now, due or not. None: it runs already, or is gone."""

    async def adopt(self) -> Sequence[Firing]:
        """Take over what processes that died had claimed."""

    async def begin(self, run_id: str) -> bool:
        """A program is about to be started for this firing. False: it is no longer ours."""

    async def finish(self, firing: Firing, ending: Ending) -> Job | None:
        """Write the log, settle the job and queue the event, all or nothing. Raises Unclaimed when it is not ours."""

    async def overdue(self, before: int) -> Sequence[tuple[str, int]]:
        """Ids and times of jobs that should have been claimed before then."""

    async def put_off(self, times: Sequence[tuple[str, int, int | None]]) -> None:
        """Give jobs, as (id, the time it had, the new one), another next time unless theirs changed meanwhile."""

    async def log(self, query: LogQuery) -> tuple[Sequence[Json], int]: ...

    async def reap(self, now: int, *, most: int) -> Sequence[str]:
        """Sessions of old runs that may be forgotten now; each is named once."""

    async def queue(self, event: Queued) -> None: ...


class Unclaimed(Exception):
    """Another process took this firing over while we were thought dead."""


def replaced(job: Job, spec: dict[str, Any] | None = None, **state: Any) -> Job:
    """The job with other values in its spec and state."""
    new_spec = job.spec if spec is None else structs.replace(job.spec, **spec)
    return structs.replace(job, spec=new_spec, state=structs.replace(job.state, **state))
