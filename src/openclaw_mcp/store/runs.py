"""The book of runs: admitted once, at most one going per session, ended once, whichever process does it."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, exists, insert, select, update

from ..core.agent import Attachment
from ..core.records import (
    Admission,
    Claim,
    Draft,
    Finish,
    Message,
    Outcome,
    Run,
    RunRequest,
    Session,
    Stored,
    now_ms,
)
from ..core.rpc import Fault
from .events import drained
from .rows import (
    RUN,
    append,
    ensure_session,
    find_run,
    find_session,
    from_json,
    later,
    message_of,
    run_of,
    runs_where,
    set_session,
    to_json,
    upsert,
)
from .store import Store
from .tables import blobs, messages, runs, sessions

QUEUE_CAP: Final = 20  # messages that may wait in one session; the reference gateway's own limit
CUT_SHORT: Final = "cut short: the process that carried out this run stopped before it ended"
MOST_SAID: Final = 1000  # messages of one run that are told again; an agent may use 200 tools, two messages each
JOINING: Final = ("steer", "collect", "interrupt")
"""Messages that wait and are answered together, by the last one's run."""


class Runs:
    """A `RunBook` over the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def instance(self) -> str:
        return self._store.instance

    async def admit(self, request: RunRequest) -> Admission:
        def work(connection: Connection) -> Admission:
            known = find_run(connection, request.run_id)
            if known is not None:
                return Admission(run=known, fresh=False)
            session, _ = ensure_session(connection, request.session)
            at_hand = _put_run(connection, session, request)
            busy = self._going(connection, session)
            if busy is not None:
                return Admission(run=_must(connection, request.run_id), fresh=True, busy=busy)
            claim = self._claim(connection, session, at_hand)
            run = claim.run if claim and claim.run.run_id == request.run_id else _must(connection, request.run_id)
            return Admission(run=run, fresh=True, claim=claim)

        return await self._store.write(work)

    async def finish(self, run_id: str, outcome: Outcome, *, go_on: bool = True) -> Finish | None:
        def work(connection: Connection) -> Finish | None:
            if not self._ours(connection, run_id):
                return None
            session = _end(connection, run_id, outcome)
            session, added = append(connection, session, outcome.drafts)
            following = self._claim(connection, session) if go_on else None
            return Finish(run=_must(connection, run_id), session=session, messages=added, next=following)

        return await self._store.write(work)

    async def note(self, run_id: str, drafts: Sequence[Draft]) -> Sequence[Message]:
        def work(connection: Connection) -> Sequence[Message]:
            if not self._ours(connection, run_id):
                return ()
            session = find_session(connection, _must(connection, run_id).session_key, lock=True)
            assert session is not None
            return append(connection, session, drafts)[1]

        return await self._store.write(work)

    async def get(self, run_id: str) -> Run | None:
        return await self._store.read(lambda connection: find_run(connection, run_id))

    async def said(self, run: Run) -> Sequence[Message]:
        # From the newest back: a run that just ended is at the end, however long the transcript.
        newest = (
            select(messages)
            .join(sessions, sessions.c.id == messages.c.session)
            .where(sessions.c.key == run.session_key, messages.c.run_id == run.run_id, messages.c.role != "user")
            .order_by(messages.c.epoch.desc(), messages.c.seq.desc())
            .limit(MOST_SAID)
        )
        rows = await self._store.read(lambda connection: list(connection.execute(newest)))
        return [message_of(row, run.session_key) for row in reversed(rows)]

    async def drop(self, key: str, *, run_id: str | None = None) -> Sequence[Run]:
        def work(connection: Connection) -> Sequence[Run]:
            waiting = RUN.where(sessions.c.key == key, runs.c.status == "queued")
            if run_id is not None:
                waiting = waiting.where(runs.c.run_id == run_id)
            names = [run.run_id for run in runs_where(connection, waiting)]
            values = {"status": "aborted", "stop_reason": "rpc", "error": "aborted", "ended_at": now_ms()}
            connection.execute(update(runs).where(runs.c.run_id.in_(names), runs.c.status == "queued").values(values))
            return runs_where(connection, RUN.where(runs.c.run_id.in_(names)))

        return await self._store.write(work)

    async def ask_stop(self, run_ids: Sequence[str]) -> None:
        statement = update(runs).where(runs.c.run_id.in_(run_ids), runs.c.status == "running").values(stop_asked=True)
        await self._store.write(lambda connection: connection.execute(statement) and None)

    async def unsettled(self) -> bool:
        statement = select(runs.c.id).where(runs.c.status.in_(("queued", "running"))).limit(1)
        return await self._store.read(lambda connection: connection.execute(statement).first() is not None)

    async def working(self) -> Sequence[Run]:
        return await self._store.read(lambda connection: runs_where(connection, RUN.where(runs.c.status == "running")))

    async def sweep(self) -> tuple[Sequence[Claim], Sequence[Run]]:
        def work(connection: Connection) -> tuple[Sequence[Claim], Sequence[Run]]:
            self._store.pulse.beat()
            cut = []
            for run in runs_where(connection, RUN.where(runs.c.status == "running", runs.c.owner != self.instance)):
                session = find_session(connection, run.session_key, lock=True)
                if session is not None and self._going(connection, session) is None:
                    cut.append(_must(connection, run.run_id))
            claims = [self._claim(connection, session) for session in _waiting(connection)]
            return [claim for claim in claims if claim is not None], cut

        return await self._store.write(work)

    async def signals(self) -> tuple[Sequence[str], Sequence[str]]:
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

    def _ours(self, connection: Connection, run_id: str) -> bool:
        """Whether the run still goes and is this process's: one that was taken for dead must not answer twice."""
        row = connection.execute(
            select(runs.c.status, runs.c.owner).where(runs.c.run_id == run_id).with_for_update()
        ).first()
        return row is not None and row.status == "running" and row.owner == self.instance

    def _going(self, connection: Connection, session: Session) -> Run | None:
        """The run that goes in this session. One whose process is dead is ended here."""
        row = connection.execute(RUN.where(runs.c.session == session.position, runs.c.status == "running")).first()
        if row is None:
            return None
        if row.owner is not None and self._store.pulse.alive(connection, row.owner):
            return run_of(row)
        _end(connection, row.run_id, Outcome(status="error", stop_reason="restart", error=CUT_SHORT))
        return None

    def _claim(
        self, connection: Connection, session: Session, at_hand: Mapping[str, bytes] | None = None
    ) -> Claim | None:
        """Take up what waits in a session where nothing goes: the first, and those that may be answered with it.

        `at_hand` are attachments just stored, which need not be read again.
        """
        waiting = connection.execute(
            RUN.where(runs.c.session == session.position, runs.c.status == "queued").order_by(runs.c.id)
        ).all()
        if not waiting:
            return None
        batch = _batch(waiting)
        leader, others = batch[-1], batch[:-1]
        _take(connection, self.instance, leader, others)
        status = {"status": "running", "last_run_id": leader.run_id, "run_started_at": now_ms(), "run_ended_at": None}
        session = set_session(connection, session.position, **status, updated_at=later(session))
        asked = [run_of(row) for row in batch]
        events = [_event_message(event) for event in drained(connection, session.key)]
        session, added = append(connection, session, [*events, *(_user_message(run) for run in asked)])
        stored = [reference for run in asked for reference in run.attachments]
        return Claim(
            run=_must(connection, leader.run_id),
            session=session,
            prompt="\n\n".join([*(event.text for event in events), *(run.message for run in asked if run.message)]),
            attachments=tuple(_fetched(connection, session, reference, at_hand or {}) for reference in stored),
            messages=added,
            merged=tuple(_must(connection, row.run_id) for row in others),
        )


def _batch(waiting: Sequence[Row[Any]]) -> list[Row[Any]]:
    batch = [waiting[0]]
    for row in waiting[1:]:
        if batch[-1].mode not in JOINING or row.mode not in JOINING or _grant(row) != _grant(batch[0]):
            break
        batch.append(row)
    return batch


def _grant(row: Row[Any]) -> Any:
    """Whom a message acts for. What several people wrote is not answered together: one run has one standing."""
    options = from_json(row.options)
    return options.get("grant"), (options.get("origin") or {}).get("sender")


def _take(connection: Connection, owner: str, leader: Row[Any], others: Sequence[Row[Any]]) -> None:
    at = now_ms()
    connection.execute(update(runs).where(runs.c.id == leader.id).values(status="running", owner=owner, started_at=at))
    if others:
        ended = {"status": "ok", "stop_reason": "steered", "merged_into": leader.run_id, "ended_at": at}
        connection.execute(update(runs).where(runs.c.id.in_([row.id for row in others])).values(ended))


def _end(connection: Connection, run_id: str, outcome: Outcome) -> Session:
    at = now_ms()
    values = {"status": outcome.status, "stop_reason": outcome.stop_reason, "error": outcome.error, "ended_at": at}
    values["result"] = None if outcome.result is None else to_json(outcome.result)
    connection.execute(update(runs).where(runs.c.run_id == run_id).values(values))
    session = find_session(connection, _must(connection, run_id).session_key, lock=True)
    assert session is not None
    shown = {"ok": "done", "aborted": "killed"}.get(outcome.status, "failed")
    entry = dict(session.entry)
    if outcome.resume is not None:
        entry["resume"] = outcome.resume
    return set_session(
        connection,
        session.position,
        status="timeout" if outcome.stop_reason == "timeout" else shown,
        run_ended_at=at,
        updated_at=later(session),
        input_tokens=session.input_tokens + outcome.input_tokens,
        output_tokens=session.output_tokens + outcome.output_tokens,
        model_provider=outcome.provider or session.model_provider,
        model=outcome.model or session.model,
        entry=to_json(entry),
    )


def _waiting(connection: Connection) -> list[Session]:
    """Sessions where something waits and nothing goes."""
    going = runs.alias()
    queued = select(sessions.c.key).join(runs).where(runs.c.status == "queued").distinct()
    free = queued.where(~exists().where(going.c.session == sessions.c.id, going.c.status == "running"))
    found = [find_session(connection, key, lock=True) for key in connection.execute(free).scalars().all()]
    return [session for session in found if session is not None]


def _must(connection: Connection, run_id: str) -> Run:
    run = find_run(connection, run_id)
    assert run is not None
    return run


def _put_run(connection: Connection, session: Session, request: RunRequest) -> dict[str, bytes]:
    """Remember a request; its attachments by their digest."""
    waiting = select(runs.c.id).where(runs.c.session == session.position, runs.c.status == "queued").limit(QUEUE_CAP)
    if len(connection.execute(waiting).all()) >= QUEUE_CAP:
        raise Fault(
            f"{QUEUE_CAP} messages already wait in {session.key}; wait for an answer or abort the run",
            kind="UNAVAILABLE",
            retryable=True,
        )
    stored = [_put_blob(connection, session, attachment) for attachment in request.attachments]
    connection.execute(
        insert(runs).values(
            run_id=request.run_id,
            session=session.position,
            status="queued",
            mode=request.mode,
            message=request.message.replace("\0", ""),
            options=to_json(request.options),
            attachments=to_json(stored),
            timeout_ms=request.timeout_ms,
            accepted_at=now_ms(),
        )
    )
    return {one.sha256: given.data or b"" for one, given in zip(stored, request.attachments, strict=True)}


def _put_blob(connection: Connection, session: Session, attachment: Attachment) -> Stored:
    data = attachment.data or b""
    digest = hashlib.sha256(data).hexdigest()
    statement = upsert(connection, blobs).values(session=session.position, sha256=digest, data=data)
    connection.execute(statement.on_conflict_do_nothing(index_elements=["session", "sha256"]))
    return Stored(sha256=digest, mime_type=attachment.mime_type, size_bytes=len(data), file_name=attachment.name)


def _fetched(connection: Connection, session: Session, stored: Stored, at_hand: Mapping[str, bytes]) -> Attachment:
    if stored.sha256 in at_hand:
        return Attachment(mime_type=stored.mime_type, name=stored.file_name, data=at_hand[stored.sha256])
    where = and_(blobs.c.session == session.position, blobs.c.sha256 == stored.sha256)
    data = connection.execute(select(blobs.c.data).where(where)).scalar()
    return Attachment(mime_type=stored.mime_type, name=stored.file_name, data=data)


def _user_message(run: Run) -> Draft:
    body: dict[str, Any] = {"role": "user", "content": run.message}
    if run.attachments:
        body["attachments"] = from_json(to_json(run.attachments))
    return Draft(role="user", body=body, text=run.message, run_id=run.run_id, idempotency_key=f"{run.run_id}:user")


def _event_message(event: Row[Any]) -> Draft:
    at = datetime.fromtimestamp(event.at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    text = f"System: [{at}] {event.text}"
    body = {"role": "user", "content": text, "provenance": {"kind": "system_event"}}
    return Draft(role="user", body=body, text=text, idempotency_key=f"event:{event.key}")
