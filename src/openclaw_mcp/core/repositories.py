"""The store's interfaces. What a method returns from is on disk."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .model import CallRecord, Json
from .sessions import (
    AuditQuery,
    ConfigChange,
    DayUsage,
    FinishedRun,
    HistoryPage,
    MessageDraft,
    NewSession,
    RecordedRun,
    Run,
    RunAdmission,
    RunClaim,
    RunOutcome,
    RunRequest,
    SearchHit,
    Session,
    SessionPage,
    SessionQuery,
    Subagent,
    SubagentQuery,
    TranscriptMessage,
)


class SessionRepository(Protocol):
    """Sessions and their transcripts."""

    async def get(self, key: str) -> Session | None: ...

    async def find(
        self, *, session_id: str | None = None, label: str | None = None, agent_id: str | None = None
    ) -> Sequence[Session]:
        """Sessions with that id or label, the latest first, a few at most."""

    async def page(self, query: SessionQuery) -> SessionPage: ...

    async def create(self, new: NewSession) -> tuple[Session, bool]:
        """The session of that key, and whether it is new. Raises RpcError when the label is taken."""

    async def patch(self, key: str, columns: Mapping[str, Any], entry: Mapping[str, Any]) -> Session | None:
        """Set columns and entry fields; None clears an entry field. Raises RpcError when the label is taken."""

    async def reset(self, key: str) -> Session | None:
        """Begin a new epoch: the transcript is empty again; the messages before stay stored, unread."""

    async def delete(self, key: str, *, transcript: bool) -> bool:
        """Delete the session. `transcript` False keeps its messages under another key, archived."""

    async def append(
        self, key: str, drafts: Sequence[MessageDraft]
    ) -> tuple[Session, Sequence[TranscriptMessage]] | None: ...

    async def history(
        self, key: str, *, limit: int, offset: int = 0, after: tuple[int, int] | None = None
    ) -> HistoryPage:
        """The newest messages but `offset`; or, with `after` = (epoch, seq), those that came later, oldest first."""

    async def message_bodies(self, key: str, *, limit: int, offset: int) -> tuple[Json, ...]:
        """The bodies of the newest messages but `offset`, oldest first."""

    async def message(self, key: str, uid: str) -> TranscriptMessage | None: ...

    async def search(
        self, text: str, *, keys: Sequence[str] | None, agent_id: str | None, limit: int
    ) -> Sequence[SearchHit]: ...

    async def active_runs(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Ids of queued and running runs, by session key."""

    async def pending_runs(self, key: str) -> Sequence[Run]:
        """Runs that wait, the oldest first."""

    async def blob(self, key: str, sha256: str) -> bytes | None: ...


class RunRepository(Protocol):
    """Runs: at most one is running per session, in all processes together."""

    @property
    def instance(self) -> str:
        """This process, as the owner of runs."""

    async def admit(self, request: RunRequest) -> RunAdmission:
        """Store the request, once; claim it at once when its session is free."""

    async def finish(self, run_id: str, outcome: RunOutcome, *, claim_next: bool = True) -> FinishedRun | None:
        """Store how it ended and, with `claim_next`, claim what waits. None: the run is not this process's any
        more, and nothing was written."""

    async def append_messages(self, run_id: str, drafts: Sequence[MessageDraft]) -> Sequence[TranscriptMessage]:
        """Add to the transcript while the run is running in this process."""

    async def get(self, run_id: str) -> Run | None: ...

    async def answer_messages(self, run: Run) -> Sequence[TranscriptMessage]:
        """The messages a run added to the transcript, oldest first: its answer, and the tools it used."""

    async def record(self, request: RunRequest, outcome: RunOutcome) -> RecordedRun:
        """Store a run that is over, beside what else goes on in its session; the messages are the request's and the
        outcome's. A run that has the id already stays as it is."""

    async def drop(self, key: str, *, run_id: str | None = None, reason: str = "rpc") -> Sequence[Run]:
        """End runs that wait in this session, as aborted."""

    async def request_stop(self, run_ids: Sequence[str]) -> None:
        """Request the stop of these runs from the processes that execute them."""

    async def has_open_runs(self) -> bool:
        """Whether any run waits or is running, in any process. Cheap: called every second."""

    async def sweep(self) -> tuple[Sequence[RunClaim], Sequence[Run]]:
        """Claim what waits in free sessions; and the runs whose process died, ended as cut short."""

    async def pending_signals(self) -> tuple[Sequence[str], Sequence[str]]:
        """Of this process's runs: those whose stop is requested, and those with a steering message behind them."""

    async def list_active(self) -> Sequence[Run]:
        """Runs that are running now, in any process."""


class ConfigHistory(Protocol):
    async def add(self, change: ConfigChange) -> None: ...

    async def last(self, limit: int = 20) -> Sequence[ConfigChange]:
        """The newest first."""


class AuditTrail(Protocol):
    async def add(self, records: Sequence[CallRecord]) -> None:
        """Store the records of these tool calls; old records are deleted."""

    async def find(self, query: AuditQuery) -> Sequence[Json]:
        """Tool calls, the newest first, in the format of `audit.list`."""


class UsageRepository(Protocol):
    async def by_day(self, since: int, until: int, *, agent_id: str | None) -> dict[str, DayUsage]:
        """The days on which runs of this agent, or of any, ended between these times (Unix milliseconds), by date."""


class SubagentRepository(Protocol):
    """Sub-agents and their tasks."""

    async def put(self, subagent: Subagent) -> None: ...

    async def change(self, child_key: str, **columns: Any) -> Subagent | None:
        """Set columns; the changed row."""

    async def drop(self, child_key: str) -> None: ...

    async def get(self, child_key: str) -> Subagent | None: ...

    async def children(self, requester_key: str) -> Sequence[Subagent]:
        """The oldest first."""

    async def find(self, id: str) -> Subagent | None:
        """By the last part of its session's key, the whole key, or its run."""

    async def page(self, query: SubagentQuery) -> Sequence[tuple[int, Subagent]]:
        """Each with its position."""

    async def list_awaiting_delivery(self) -> Sequence[Subagent]:
        """Those whose result has yet to be delivered."""

    async def list_idle(self, before: int) -> Sequence[Subagent]:
        """Some of those settled before that time and not yet archived."""

    async def list_announced_since(self, since: int) -> Sequence[Subagent]:
        """Those that ended since that time and whose result was delivered."""

    async def prune(self, before: int) -> None:
        """Delete those settled before that time. Their sessions stay."""


class IdempotencyRepository(Protocol):
    """Answers already given, by idempotency key."""

    async def get(self, scope: str, key: str) -> Json | None: ...

    async def put_if_absent(self, scope: str, key: str, answer: Json) -> Json:
        """Store `answer` unless one is stored already; the stored one."""


class PairingRepository(Protocol):
    """Devices, or nodes, by id. The caller decides on the fields of a record."""

    async def all(self) -> dict[str, Json]: ...

    async def put(self, id: str, record: Json, /) -> None: ...

    async def remove(self, id: str, /) -> bool: ...
