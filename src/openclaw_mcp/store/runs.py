"""Stores runs: admitted once, at most one running per session, ended once, whichever process runs them."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, and_, bindparam, exists, insert, select, text, update

from ..core.agent import Attachment
from ..core.rpc import RpcError
from ..core.sessions import (
    FinishedRun,
    MessageDraft,
    RecordedRun,
    Run,
    RunAdmission,
    RunClaim,
    RunOutcome,
    RunRequest,
    RunResult,
    Session,
    StoredAttachment,
    TranscriptMessage,
    now_ms,
    shorten_error,
)
from ..core.transcript import COMMAND_MARK, RunStarter, is_multi_user, mark_visibility, run_starter
from .events import is_from_guest, take_events
from .prepared_statements import PreparedStatement
from .rows import (
    SELECT_RUN,
    append_to_transcript,
    ensure_session,
    find_run,
    find_session,
    from_json,
    message_from_row,
    run_from_row,
    select_runs,
    to_json,
    upsert,
)
from .store import SqlRepository
from .tables import blobs, messages, runs, sessions

QUEUE_CAP: Final = 20  # messages that may wait in one session; the reference gateway's own limit
CUT_SHORT: Final = "cut short: the process that carried out this run stopped before it ended"
MOST_RUN_MESSAGES: Final = 1000  # of one run that are read again; an agent may use 200 tools, two messages each
MERGEABLE_MODES: Final = ("steer", "collect", "interrupt")
"""Modes of waiting messages that are answered together, by the run of the last one."""
NO_RESULT: Final = RunResult()
NO_BLOBS: Final[Mapping[str, bytes]] = {}
NO_COLUMNS: Final[Mapping[str, Any]] = {}

# Built once: making a statement costs more than running it. The states are spelled out as in the index of open runs,
# or SQLite would not use the index.
_OPEN_RUNS = SELECT_RUN.where(runs.c.session == bindparam("wanted"), text("runs.status IN ('queued', 'running')"))
_SELECT_OPEN_IN_SESSION = PreparedStatement(_OPEN_RUNS.order_by(runs.c.id))
_SELECT_RUN_LOCKED = PreparedStatement(SELECT_RUN.where(runs.c.run_id == bindparam("wanted")).with_for_update(of=runs))
_INSERT_RUN = PreparedStatement(insert(runs))
_NEW_RUN_COLUMNS = ("run_id", "status", "mode", "message", "timeout_ms", "accepted_at", "owner", "started_at")
_UPDATE_RUN = PreparedStatement(update(runs).where(runs.c.run_id == bindparam("wanted")))


class SqlRunRepository(SqlRepository):
    """A `RunRepository` over the store."""

    async def admit(self, request: RunRequest) -> RunAdmission:
        def work(connection: Connection) -> RunAdmission:
            known = find_run(connection, request.run_id)
            if known is not None:
                return RunAdmission(run=known, is_new=False)
            session, made = ensure_session(connection, request.session)
            busy, waiting, cut = (None, [], []) if made else self._load_open_runs(connection, session)
            if len(waiting) >= QUEUE_CAP:
                text = f"{QUEUE_CAP} messages already wait in {session.key}; wait for an answer or abort the run"
                raise RpcError(text, kind="UNAVAILABLE", retryable=True)
            now = busy is None and not waiting
            run = self._insert(connection, session, request, start_now=now)
            if busy is not None:
                return RunAdmission(run=run, is_new=True, blocking_run=busy)  # and so no run was cut short
            files = zip(run.attachments, request.attachments, strict=True)
            given = {stored.sha256: attachment.data or b"" for stored, attachment in files}
            if now:
                claim = self._begin(connection, session, run, [run], given)
            else:
                claim = self._claim(connection, session, [*waiting, run], given)
                run = claim.run if claim.run.run_id == run.run_id else find_run(connection, run.run_id) or run
            return RunAdmission(run=run, is_new=True, claim=claim, ended_runs=tuple(cut))

        return await self._store.write(work)

    async def finish(self, run_id: str, outcome: RunOutcome, *, claim_next: bool = True) -> FinishedRun | None:
        def work(connection: Connection) -> FinishedRun | None:
            run = self._find_own_run(connection, run_id)
            if run is None:
                return None
            run, session, added = _end(connection, run, outcome)
            waiting = self._load_open_runs(connection, session)[1] if claim_next else ()
            following = self._claim(connection, session, waiting) if waiting else None
            return FinishedRun(run=run, session=session, messages=added, next=following)

        return await self._store.write(work)

    async def record(self, request: RunRequest, outcome: RunOutcome) -> RecordedRun:
        def work(connection: Connection) -> RecordedRun:
            known = find_run(connection, request.run_id)
            if known is not None:
                return RecordedRun(run=known)
            session, _ = ensure_session(connection, request.session)
            run = self._insert(connection, session, request, start_now=False)
            ended = {"status": outcome.status, "stop_reason": outcome.stop_reason, "ended_at": now_ms()}
            _UPDATE_RUN.run(connection, {"wanted": run.run_id, **ended, "result": to_json(outcome.result)})
            asked = _user_message(run, run_starter(run.options))
            asked = msgspec.structs.replace(asked, body={**asked.body, COMMAND_MARK: True})
            session, added = append_to_transcript(connection, session, [asked, *outcome.drafts])
            run = msgspec.structs.replace(run, **ended, result=outcome.result)
            return RecordedRun(run=run, session=session, messages=added)

        return await self._store.write(work)

    async def append_messages(self, run_id: str, drafts: Sequence[MessageDraft]) -> Sequence[TranscriptMessage]:
        def work(connection: Connection) -> Sequence[TranscriptMessage]:
            run = self._find_own_run(connection, run_id)
            if run is None:
                return ()
            session = find_session(connection, run.session_key, lock=True)
            assert session is not None
            return append_to_transcript(connection, session, drafts)[1]

        return await self._store.write(work)

    async def get(self, run_id: str) -> Run | None:
        return await self._store.read(lambda connection: find_run(connection, run_id))

    async def answer_messages(self, run: Run) -> Sequence[TranscriptMessage]:
        # The newest first: a run that just ended is at the end of the transcript, however long that is.
        newest = (
            select(messages)
            .join(sessions, sessions.c.id == messages.c.session)
            .where(sessions.c.key == run.session_key, messages.c.run_id == run.run_id, messages.c.role != "user")
            .order_by(messages.c.epoch.desc(), messages.c.seq.desc())
            .limit(MOST_RUN_MESSAGES)
        )
        rows = await self._store.fetch(newest)
        return [message_from_row(row, run.session_key) for row in reversed(rows)]

    async def drop(self, key: str, *, run_id: str | None = None, reason: str = "rpc") -> Sequence[Run]:
        def work(connection: Connection) -> Sequence[Run]:
            waiting = SELECT_RUN.where(sessions.c.key == key, runs.c.status == "queued")
            if run_id is not None:
                waiting = waiting.where(runs.c.run_id == run_id)
            names = [run.run_id for run in select_runs(connection, waiting)]
            values = {"status": "aborted", "stop_reason": reason, "error": "aborted", "ended_at": now_ms()}
            connection.execute(update(runs).where(runs.c.run_id.in_(names), runs.c.status == "queued").values(values))
            return select_runs(connection, SELECT_RUN.where(runs.c.run_id.in_(names)))

        return await self._store.write(work)

    async def request_stop(self, run_ids: Sequence[str]) -> None:
        statement = update(runs).where(runs.c.run_id.in_(run_ids), runs.c.status == "running").values(stop_asked=True)
        await self._store.execute(statement)

    async def has_open_runs(self) -> bool:
        statement = select(runs.c.id).where(runs.c.status.in_(("queued", "running"))).limit(1)
        return await self._store.fetch_first(statement) is not None

    async def list_active(self) -> Sequence[Run]:
        return await self._store.read(
            lambda connection: select_runs(connection, SELECT_RUN.where(runs.c.status == "running"))
        )

    async def sweep(self) -> tuple[Sequence[RunClaim], Sequence[Run]]:
        def work(connection: Connection) -> tuple[Sequence[RunClaim], Sequence[Run]]:
            self._store.process_lock.acquire()
            cut: list[Run] = []
            for run in select_runs(
                connection, SELECT_RUN.where(runs.c.status == "running", runs.c.owner != self.instance)
            ):
                session = find_session(connection, run.session_key, lock=True)
                if session is not None:
                    cut += self._load_open_runs(connection, session)[2]
            return [
                self._claim(connection, session, waiting)
                for session, waiting in self._find_claimable_sessions(connection)
            ], cut

        return await self._store.write(work)

    async def pending_signals(self) -> tuple[Sequence[str], Sequence[str]]:
        mine = and_(runs.c.status == "running", runs.c.owner == self.instance)
        behind = runs.alias()
        impatient = exists().where(
            behind.c.session == runs.c.session, behind.c.status == "queued", behind.c.mode.in_(("steer", "interrupt"))
        )

        def work(connection: Connection) -> tuple[Sequence[str], Sequence[str]]:
            stop = connection.execute(select(runs.c.run_id).where(mine, runs.c.stop_asked)).scalars().all()
            steer = connection.execute(select(runs.c.run_id).where(mine, impatient)).scalars().all()
            return stop, steer

        return await self._store.read(work)

    def _find_own_run(self, connection: Connection, run_id: str) -> Run | None:
        """The run, if it is running in this process: one that was ended as a dead process's must not end twice."""
        row = _SELECT_RUN_LOCKED.first(connection, {"wanted": run_id})
        return run_from_row(row) if row is not None and row.status == "running" and row.owner == self.instance else None

    def _load_open_runs(self, connection: Connection, session: Session) -> tuple[Run | None, list[Run], list[Run]]:
        """The running run of this session; those that wait; those ended here because their process is dead."""
        running: Run | None = None
        waiting, cut = [], []
        for run in [run_from_row(row) for row in _SELECT_OPEN_IN_SESSION.all(connection, {"wanted": session.position})]:
            if run.status == "queued":
                waiting.append(run)
            elif run.owner is not None and self._store.process_lock.is_alive(connection, run.owner):
                running = run
            else:
                cut.append(_end(connection, run, RunOutcome(status="error", stop_reason="restart", error=CUT_SHORT))[0])
        return running, waiting, cut

    def _find_claimable_sessions(self, connection: Connection) -> list[tuple[Session, list[Run]]]:
        """Sessions with waiting runs and no running one."""
        running = runs.alias()
        queued = select(sessions.c.key).join(runs).where(runs.c.status == "queued").distinct()
        free = queued.where(~exists().where(running.c.session == sessions.c.id, running.c.status == "running"))
        found = []
        for key in connection.execute(free).scalars().all():
            session = find_session(connection, key, lock=True)
            if session is not None:
                busy, waiting, _ = self._load_open_runs(connection, session)
                if busy is None and waiting:  # another process may have claimed it first
                    found.append((session, waiting))
        return found

    def _insert(self, connection: Connection, session: Session, request: RunRequest, *, start_now: bool) -> Run:
        """`start_now`: it is running from the first moment, since no run is before it."""
        at = now_ms()
        run = Run(
            run_id=request.run_id, session_key=session.key, session_id=session.session_id, agent_id=session.agent_id,
            status="running" if start_now else "queued", mode=request.mode, message=request.message.replace("\0", ""),
            accepted_at=at, options=request.options,
            attachments=tuple(_store_blob(connection, session, attachment) for attachment in request.attachments),
            timeout_ms=request.timeout_ms, owner=self.instance if start_now else None,
            started_at=at if start_now else None,
        )  # fmt: skip
        row = {name: getattr(run, name) for name in _NEW_RUN_COLUMNS}
        encoded = {"options": to_json(run.options), "attachments": to_json(run.attachments)}
        _INSERT_RUN.run(connection, {**row, "session": session.position, **encoded})
        return run

    def _claim(
        self,
        connection: Connection,
        session: Session,
        waiting: Sequence[Run],
        known_blobs: Mapping[str, bytes] = NO_BLOBS,
    ) -> RunClaim:
        """Claim what waits in a session without a running run: the first, and those that may be answered with it.

        `known_blobs` are attachments just stored, by digest, which need not be read again.
        """
        batch = _batch(waiting)
        at = now_ms()
        leader = msgspec.structs.replace(batch[-1], status="running", owner=self.instance, started_at=at)
        _UPDATE_RUN.run(
            connection, {"wanted": leader.run_id, "status": "running", "owner": self.instance, "started_at": at}
        )
        merged = {"status": "ok", "stop_reason": "steered", "merged_into": leader.run_id, "ended_at": at}
        for run in batch[:-1]:
            _UPDATE_RUN.run(connection, {"wanted": run.run_id, **merged})
        return self._begin(connection, session, leader, batch, known_blobs, merged)

    def _begin(
        self, connection: Connection, session: Session, leader: Run, batch: Sequence[Run],
        known_blobs: Mapping[str, bytes], merge_columns: Mapping[str, Any] = NO_COLUMNS,
    ) -> RunClaim:  # fmt: skip
        """The claim of a run that just started, for all messages of the batch; `merge_columns` ended the other runs."""
        starter = run_starter(leader.options)
        waiting = take_events(connection, session.key, is_owner=starter == "owner", multi_user=is_multi_user(session))
        events = [_event_message(event, starter) for event in waiting]
        session, added = append_to_transcript(
            connection, session, [*events, *(_user_message(run, starter) for run in batch)],
            status="running", last_run_id=leader.run_id, run_started_at=leader.started_at, run_ended_at=None,
            **_entry_columns(session, error=None),
        )  # fmt: skip
        stored = [reference for run in batch for reference in run.attachments]
        return RunClaim(
            run=leader,
            session=session,
            prompt="\n\n".join([*(event.text for event in events), *(run.message for run in batch if run.message)]),
            attachments=tuple(_load_attachment(connection, session, reference, known_blobs) for reference in stored),
            messages=added,
            merged=tuple(msgspec.structs.replace(run, **merge_columns) for run in batch[:-1]),
        )


def _batch(waiting: Sequence[Run]) -> list[Run]:
    batch = [waiting[0]]
    for run in waiting[1:]:
        if (
            batch[-1].mode not in MERGEABLE_MODES
            or run.mode not in MERGEABLE_MODES
            or _principal(run) != _principal(batch[0])
        ):
            break
        batch.append(run)
    return batch


def _principal(run: Run) -> Any:
    """Whom a message acts for. Messages of several people are not answered together: one run has one grant."""
    return run.options.grant, (run.options.origin or {}).get("sender")


def _end(connection: Connection, run: Run, outcome: RunOutcome) -> tuple[Run, Session, tuple[TranscriptMessage, ...]]:
    """The ended run, its session, and the messages it added to the transcript."""
    ended = {name: getattr(outcome, name) for name in ("status", "stop_reason", "error")} | {"ended_at": now_ms()}
    used = outcome.result
    _UPDATE_RUN.run(connection, {"wanted": run.run_id, **ended, "result": None if used == NO_RESULT else to_json(used)})
    session = find_session(connection, run.session_key, lock=True)
    assert session is not None
    status = {"ok": "done", "aborted": "killed"}.get(outcome.status, "failed")
    error = outcome.error if status == "failed" else None
    session, added = append_to_transcript(
        connection,
        session,
        outcome.drafts,
        status="timeout" if outcome.stop_reason == "timeout" else status,
        run_ended_at=ended["ended_at"],
        input_tokens=session.input_tokens + used.usage.input,
        output_tokens=session.output_tokens + used.usage.output,
        model_provider=used.provider or session.model_provider,
        model=used.model or session.model,
        **_entry_columns(session, error=error, resume=outcome.resume),
    )
    return msgspec.structs.replace(run, **ended, result=used), session, added


def _entry_columns(session: Session, *, error: str | None, resume: str | None = None) -> dict[str, str]:
    """The column of the session's entry, if a run's start or end changes it. Without `resume`, the stored one stays."""
    entry = {name: value for name, value in session.entry.items() if name != "lastRunError"}
    if brief := shorten_error(error or ""):
        entry["lastRunError"] = brief
    if resume is not None:
        entry["resume"] = resume
    return {} if entry == session.entry else {"entry": to_json(entry)}


def _store_blob(connection: Connection, session: Session, attachment: Attachment) -> StoredAttachment:
    data = attachment.data or b""
    digest = hashlib.sha256(data).hexdigest()
    statement = upsert(connection, blobs).values(session=session.position, sha256=digest, data=data)
    connection.execute(statement.on_conflict_do_nothing(index_elements=["session", "sha256"]))
    return StoredAttachment(
        sha256=digest, mime_type=attachment.mime_type, size_bytes=len(data), file_name=attachment.name
    )


def _load_attachment(
    connection: Connection, session: Session, stored: StoredAttachment, known_blobs: Mapping[str, bytes]
) -> Attachment:
    if stored.sha256 in known_blobs:
        return Attachment(mime_type=stored.mime_type, name=stored.file_name, data=known_blobs[stored.sha256])
    where = and_(blobs.c.session == session.position, blobs.c.sha256 == stored.sha256)
    data = connection.execute(select(blobs.c.data).where(where)).scalar()
    return Attachment(mime_type=stored.mime_type, name=stored.file_name, data=data)


def _user_message(run: Run, starter: RunStarter) -> MessageDraft:
    provenance = run.options.input_provenance
    # A job's message was not written in the conversation that gets the answer.
    written_there = run.options.answers_in_conversation and not provenance and starter != "operator"
    body = mark_visibility({"role": "user", "content": run.message}, starter, in_conversation=written_there)
    if provenance:
        body["provenance"] = provenance
    if run.attachments:
        body["attachments"] = from_json(to_json(run.attachments))
    return MessageDraft(
        role="user", body=body, text=run.message, run_id=run.run_id, idempotency_key=f"{run.run_id}:user"
    )


def _event_message(event: Row[Any], starter: RunStarter) -> MessageDraft:
    """`starter` started the run that gets the event. An event of the owner stays the owner's in any run."""
    at = datetime.fromtimestamp(event.at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    text = f"System: [{at}] {event.text}"
    marked: RunStarter = starter if is_from_guest(event) else "owner"
    body = mark_visibility({"role": "user", "content": text, "provenance": {"kind": "system_event"}}, marked)
    return MessageDraft(role="user", body=body, text=text, idempotency_key=f"event:{event.key}")
