"""What the store holds: sessions, their messages, the runs that answer them. Times are Unix milliseconds."""

from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType, field

from .agent import AgentEvent, Attachment
from .clock import now_ms as now_ms  # noqa: PLC0414  exported again: many modules import it from here
from .effects import RunEffects
from .model import Grant, Json

QueueMode = Literal["steer", "followup", "collect", "interrupt"]
RunStatus = Literal["queued", "running", "ok", "error", "aborted"]


class Session(Struct, frozen=True):
    """A conversation. `session_id` names it for good; a reset starts a new `epoch` of its transcript.

    Its fields are in the order of the table's columns: the store makes hundreds at once, which is twice as fast without
    names. Name them everywhere else.
    """

    key: str
    agent_id: str
    session_id: str
    epoch: int
    revision: str
    classification: str
    created_at: int
    updated_at: int
    last_interaction_at: int | None = None
    label: str | None = None
    display_name: str | None = None
    title: str | None = None
    """The beginning of its first message."""
    preview: str | None = None
    """The beginning of its last message."""
    archived: bool = False
    pinned: bool = False
    unread: bool = False
    status: str | None = None
    last_run_id: str | None = None
    run_started_at: int | None = None
    run_ended_at: int | None = None
    parent_key: str | None = None
    spawned_by: str | None = None
    spawn_depth: int | None = None
    message_count: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    model_provider: str | None = None
    model: str | None = None
    entry: Json = {}
    """Fields that `sessions.patch` sets, the runtime's `resume`, and the `lastRunError` of a run that failed."""
    position: int = 0
    """Its id in the store; with `updated_at`, the place where a page ends."""


INTERNAL_RUN_PREFIXES: Final = frozenset({"announce", "cron", "manual", "wake", "local", "matrix", "telegram"})
"""What the ids of the gateway's own runs begin with, before a colon; the last three are its channels."""


def is_internal_run(run_id: str) -> bool:
    """Whether an id is one of the gateway's own: no client may use it, else it could take the place of another run."""
    kind, colon, _ = run_id.strip().lower().partition(":")
    return bool(colon) and kind in INTERNAL_RUN_PREFIXES


class NewSession(Struct, frozen=True, kw_only=True):
    key: str
    agent_id: str
    classification: str
    label: str | None = None
    display_name: str | None = None
    parent_key: str | None = None
    spawned_by: str | None = None
    spawn_depth: int | None = None
    entry: Json = {}
    session_id: str | None = None
    """The id it gets; a new one unless it is named."""


class MessageDraft(Struct, frozen=True, kw_only=True):
    """A message to be added to a transcript."""

    role: Literal["user", "assistant", "toolResult"]
    body: Json
    """The message in the format of clients, without its position in the transcript."""
    text: str = ""
    """The text that full-text search finds it by."""
    run_id: str | None = None
    idempotency_key: str | None = None


class TranscriptMessage(Struct, frozen=True, kw_only=True):
    uid: str
    session_key: str
    epoch: int
    seq: int
    """1 for the first of its epoch, without gaps: a page is found by arithmetic."""
    role: str
    body: Json
    at: int
    run_id: str | None = None
    idempotency_key: str | None = None


class SessionQuery(Struct, frozen=True, kw_only=True):
    limit: int = 100
    offset: int = 0
    after: tuple[int, int] | None = None
    """(sort value, position) of the last row of the page before: costs the same for every page."""
    sort: Literal["updated_at", "last_interaction_at"] = "updated_at"
    agent_id: str | None = None
    label: str | None = None
    spawned_by: str | None = None
    archived: bool | None = False
    """None: both."""
    pinned: bool | None = None
    active_since: int | None = None
    active_only: bool = False
    exclude: tuple[str, ...] = ()
    """Classifications to leave out."""
    search: str | None = None


class SessionPage(Struct, frozen=True, kw_only=True):
    sessions: tuple[Session, ...]
    total: int
    active: dict[str, tuple[str, ...]]
    """Run ids that are queued or running, by session key."""


class HistoryPage(Struct, frozen=True, kw_only=True):
    session: Session | None
    messages: tuple[TranscriptMessage, ...]
    """Oldest first."""
    total: int
    has_more: bool


class SearchHit(Struct, frozen=True, kw_only=True, rename="camel"):
    """A message that was found, in the format of `sessions.search`."""

    session_key: str
    session_id: str
    message_id: str
    role: str
    timestamp: int
    snippet: str
    score: float


class StoredAttachment(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An attachment whose bytes are in the store."""

    sha256: str
    mime_type: str
    size_bytes: int
    file_name: str | None = None


class RunOptions(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a run is asked with beside its message. Stored as JSON under the camelCase names."""

    grant: Grant = Grant()
    """What the run acts under: set by the gateway from the caller's credential, never from the caller's text."""
    sender: str | None = None
    """The caller's name, for people."""
    origin: Json | None = None
    """Where a channel's message came from: `{channel, accountId, to, chatType, sender: {id, ...}}`."""
    answers_in_conversation: bool = field(default=False, name="answersThere")
    """Whether the answer is sent to the session's conversation."""
    is_task: bool = False
    """Whether the method `agent` began it: clients see such a run as a task."""
    lane: str | None = None
    cwd: str | None = None
    model: str | None = None
    provider: str | None = None
    fallbacks: list[str] | None = None
    thinking: str | None = None
    light_context: bool | None = None
    tools_allow: list[str] | None = None
    extra_system_prompt: str | None = None
    input_provenance: Json | None = None
    cron: dict[str, str] | None = None
    """`{jobId, runId}` of the job that started the run."""


class RunUsage(Struct, frozen=True, kw_only=True, rename="camel"):
    """Tokens. `cost` is `{total}` in dollars, where it is known."""

    input: int = 0
    output: int = 0
    total_tokens: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost: dict[str, float] | UnsetType = UNSET


class DayUsage(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the runs that ended on a day used. `total_cost` is in dollars, of those runs whose cost is known."""

    date: str
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0
    total_cost: float = 0.0
    missing_cost_entries: int = 0
    """Runs that used tokens and whose cost is not known."""


class RunFailure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: str = "unknown"
    detail: Json | None = None


class RunResult(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a run that ended by itself left. Stored as JSON."""

    text: str | None = None
    """None: there is no answer, another run answers in its place."""
    media: list[Json] = []
    usage: RunUsage = RunUsage()
    tools: list[str] = []
    """Those that succeeded, one for each call."""
    provider: str | None = None
    model: str | None = None
    effects: RunEffects = RunEffects()
    failure: RunFailure | None = None


class RunRequest(Struct, frozen=True, kw_only=True):
    """A message to be answered. `run_id` is the caller's idempotency key."""

    run_id: str
    session: NewSession
    message: str
    attachments: tuple[Attachment, ...] = ()
    mode: QueueMode = "steer"
    timeout_ms: int | None = None
    options: RunOptions = RunOptions()


class Run(Struct, frozen=True, kw_only=True):
    run_id: str
    session_key: str
    session_id: str
    agent_id: str
    status: RunStatus
    mode: QueueMode
    message: str
    accepted_at: int
    options: RunOptions = RunOptions()
    attachments: tuple[StoredAttachment, ...] = ()
    timeout_ms: int | None = None
    owner: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    stop_reason: str | None = None
    error: str | None = None
    result: RunResult = RunResult()
    merged_into: str | None = None
    """The run that answers in this one's place."""

    @property
    def is_over(self) -> bool:
        return self.status not in ("queued", "running")


class RecordedRun(Struct, frozen=True, kw_only=True):
    """A run that was over when it was stored."""

    run: Run
    session: Session | None = None
    """None: it was stored before."""
    messages: tuple[TranscriptMessage, ...] = ()


class RunClaim(Struct, frozen=True, kw_only=True):
    """A run that this process has to execute now, and the messages added to the transcript with it."""

    run: Run
    session: Session
    prompt: str
    attachments: tuple[Attachment, ...]
    messages: tuple[TranscriptMessage, ...]
    merged: tuple[Run, ...] = ()
    """Runs that ended because this one answers their messages too."""


class RunAdmission(Struct, frozen=True, kw_only=True):
    """The run of a request: one that existed already, one that waits, or one to execute now (`claim`)."""

    run: Run
    is_new: bool
    claim: RunClaim | None = None
    blocking_run: Run | None = None
    """The run that it waits for."""
    ended_runs: tuple[Run, ...] = ()
    """Runs of dead processes in the same session, which are ended now."""


BRIEF_ERROR: Final = 160  # characters of an error in a session's row
ERROR_HEAD: Final = 51  # of those, from its beginning; the end of a long error mostly says what happened
ELLIPSIS: Final = " ... "


def shorten_error(error: str) -> str:
    """The error of a run in one line, as a session's row has it."""
    line = " ".join(error.split())
    if len(line) <= BRIEF_ERROR:
        return line
    tail = BRIEF_ERROR - ERROR_HEAD - len(ELLIPSIS)
    return f"{line[:ERROR_HEAD].rstrip()}{ELLIPSIS}{line[-tail:].lstrip()}"


class RunOutcome(Struct, frozen=True, kw_only=True):
    """How a run ended, and the messages it adds to the transcript."""

    status: RunStatus
    stop_reason: str
    error: str | None = None
    result: RunResult = RunResult()
    drafts: tuple[MessageDraft, ...] = ()
    resume: str | None = None
    """The runtime's id of the conversation. None keeps the stored one; an empty text drops it."""


class FinishedRun(Struct, frozen=True, kw_only=True):
    run: Run
    session: Session
    messages: tuple[TranscriptMessage, ...]
    next: RunClaim | None


class ConfigChange(Struct, frozen=True, kw_only=True):
    at: int
    hash: str
    actor: str
    method: str
    raw: str
    note: str | None = None
    paths: tuple[str, ...] = ()


class Subagent(Struct, frozen=True, kw_only=True):
    """A session that another one started to have a task done, and the state of the task."""

    child_key: str
    run_id: str
    """The run that does the task; another one after it was steered."""
    requester_key: str
    grant: Grant
    """Under which the requester acted; its answer to the result is given under it again."""
    task: str
    created_at: int
    started_at: int
    label: str | None = None
    model: str | None = None
    mode: str = "run"
    cleanup: str = "keep"
    timeout_ms: int = 0
    """0: as long as a run may take at all."""
    ended_at: int | None = None
    outcome: str | None = None
    """`ok`, `error`, `timeout`, `aborted` or `killed`."""
    error: str | None = None
    delivery: str = "pending"
    """Of the result to the requester: `pending`, `delivered`, `silent` (the result is empty), `killed`, `steering`
    (another run takes over), `failed`."""
    tries: int = 0
    archived: bool = False


class SubagentQuery(Struct, frozen=True, kw_only=True):
    """Sub-agents, the latest active first."""

    outcomes: tuple[str | None, ...] | None = None
    """Only with one of these; None among them: still running."""
    agent_id: str | None = None
    session_key: str | None = None
    """The requester's session, or the sub-agent's own."""
    after: tuple[int, int] | None = None
    """When the last of the page before was active, and its position."""
    limit: int = 100


class AuditQuery(Struct, frozen=True, kw_only=True):
    session: str | None = None
    tool: str | None = None
    outcome: str | None = None
    agent: str | None = None
    since: int | None = None
    """Unix milliseconds."""
    until: int | None = None
    """Unix milliseconds."""
    outcomes: tuple[str, ...] | None = None
    other_outcomes: bool = False
    """Whether every outcome but `outcomes` is meant."""
    before: int | None = None
    """The id of the last record of the page before."""
    limit: int = 100


# ---- events of runs ------------------------------------------------------------------------------------------


class RunStarted(Struct, frozen=True, kw_only=True):
    claim: RunClaim


class RunOutput(Struct, frozen=True, kw_only=True):
    run: Run
    event: AgentEvent


class MessagesAdded(Struct, frozen=True, kw_only=True):
    """`messages` were added to the transcript and are on disk."""

    run: Run
    messages: tuple[TranscriptMessage, ...]


class RunEnded(Struct, frozen=True, kw_only=True):
    """The run has ended and its result is on disk, with the `messages` it added to the transcript."""

    run: Run
    session: Session | None = None
    messages: tuple[TranscriptMessage, ...] = ()


class RunRecorded(Struct, frozen=True, kw_only=True):
    """The gateway itself has answered a message: the run was over when it was stored, with its `messages`."""

    run: Run
    session: Session
    messages: tuple[TranscriptMessage, ...] = ()


RunEvent = RunStarted | RunOutput | MessagesAdded | RunEnded | RunRecorded
