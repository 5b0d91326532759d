"""The store as the rooms see it: what each may ask to be remembered. All that returns is on disk."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .model import CallRecord, Json
from .sessions import (
    AuditQuery,
    ConfigChange,
    FinishedRun,
    HistoryPage,
    MessageDraft,
    NewSession,
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
        """The session of that key, and whether it is new. Raises Fault when the label is taken."""

    async def patch(self, key: str, columns: Mapping[str, Any], entry: Mapping[str, Any]) -> Session | None:
        """Set columns and entry fields; None clears an entry field. Raises Fault when the label is taken."""

    async def reset(self, key: str) -> Session | None:
        """Begin a new epoch: the transcript is empty again, the old one is kept out of sight."""

    async def delete(self, key: str, *, transcript: bool) -> bool:
        """Forget the session. `transcript` False keeps its messages under a new key, archived."""

    async def append(
        self, key: str, drafts: Sequence[MessageDraft]
    ) -> tuple[Session, Sequence[TranscriptMessage]] | None: ...

    async def history(
        self, key: str, *, limit: int, offset: int = 0, after: tuple[int, int] | None = None
    ) -> HistoryPage:
        """The newest messages but `offset`; or, with `after` = (epoch, seq), those that came later, oldest first."""

    async def message_bodies(self, key: str, *, limit: int, offset: int) -> tuple[Json, ...]:
        """What the newest messages but `offset` say, oldest first."""

    async def message(self, key: str, uid: str) -> TranscriptMessage | None: ...

    async def search(
        self, text: str, *, keys: Sequence[str] | None, agent_id: str | None, limit: int
    ) -> Sequence[SearchHit]: ...

    async def active_runs(self, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Run ids queued or running, by session key."""

    async def pending_runs(self, key: str) -> Sequence[Run]:
        """Runs that wait, first in first."""

    async def blob(self, key: str, sha256: str) -> bytes | None: ...


class RunRepository(Protocol):
    """Runs: at most one goes per session, whichever process carries it out."""

    @property
    def instance(self) -> str:
        """This process, as the owner of runs."""

    async def admit(self, request: RunRequest) -> RunAdmission:
        """Remember the request, once; take it up at once when its session is free."""

    async def finish(self, run_id: str, outcome: RunOutcome, *, claim_next: bool = True) -> FinishedRun | None:
        """Remember how it ended and, to `go_on`, take up what waits. None: no longer ours, nothing was written."""

    async def append_messages(self, run_id: str, drafts: Sequence[MessageDraft]) -> Sequence[TranscriptMessage]:
        """Add to the transcript of a run of ours while it goes."""

    async def get(self, run_id: str) -> Run | None: ...

    async def answer_messages(self, run: Run) -> Sequence[TranscriptMessage]:
        """What a run left in the transcript, oldest first: its answer, and the tools it used."""

    async def drop(self, key: str, *, run_id: str | None = None) -> Sequence[Run]:
        """End runs that wait in this session, as aborted."""

    async def request_stop(self, run_ids: Sequence[str]) -> None:
        """Ask whichever process carries these out to stop."""

    async def has_open_runs(self) -> bool:
        """Whether any run waits or goes, ours or not. Cheap: asked every second."""

    async def sweep(self) -> tuple[Sequence[RunClaim], Sequence[Run]]:
        """Take up what waits in free sessions; and runs whose process died, now ended as cut short."""

    async def pending_signals(self) -> tuple[Sequence[str], Sequence[str]]:
        """Of our running runs: those asked to stop, and those with an impatient message waiting behind them."""

    async def list_active(self) -> Sequence[Run]:
        """Runs that go now, in any process."""


class ConfigHistory(Protocol):
    async def add(self, change: ConfigChange) -> None: ...

    async def last(self, limit: int = 20) -> Sequence[ConfigChange]:
        """The newest first."""


class AuditTrail(Protocol):
    async def record(
        self, *, actor: str, action: str, target: str | None, outcome: str, detail: Json | None = None
    ) -> None: ...

    async def add(self, records: Sequence[CallRecord]) -> None:
        """Keep what became of these tool calls; old records go."""

    async def find(self, query: AuditQuery) -> Sequence[Json]:
        """Tool calls, the newest first, as `audit.list` tells them."""


class SubagentRepository(Protocol):
    """Who was sent off with which task."""

    async def put(self, subagent: Subagent) -> None: ...

    async def change(self, child_key: str, **columns: Any) -> Subagent | None:
        """Set columns; the row as it is then."""

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
        """Settled before that time and not yet archived, some of them."""

    async def list_announced_since(self, since: int) -> Sequence[Subagent]:
        """Ended since that time, and their requesters told."""

    async def prune(self, before: int) -> None:
        """Drop those settled before that time. Their sessions stay."""


class IdempotencyRepository(Protocol):
    """Answers already given to an idempotency key."""

    async def get(self, scope: str, key: str) -> Json | None: ...

    async def put_if_absent(self, scope: str, key: str, answer: Json) -> Json:
        """Keep `answer` unless one is kept already; the one that stands."""


class PairingRepository(Protocol):
    """Devices, or nodes, by id. `record` is the shape of the room that keeps it."""

    async def all(self) -> dict[str, Json]: ...

    async def put(self, id: str, record: Json, /) -> None: ...

    async def remove(self, id: str, /) -> bool: ...
