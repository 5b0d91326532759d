"""Stores messages of channels: the outbox, the inbox, and the senders who wait for approval."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import structs
from sqlalchemy import Connection, Row, and_, bindparam, delete, func, insert, or_, select, update

from ..core.channel import ChatAddress, DeliveryReceipt, InboundMessage, OutboundMessage, Poll
from ..core.ids import new_id
from ..core.mail import InboxEntry, NewOutboxMessage, OutboxMessage, OutboxStatus, SenderApproval
from ..core.sessions import now_ms
from .prepared_statements import PreparedStatement
from .rows import shorten_key, to_json, upsert_for
from .store import SqlRepository, SqlStore
from .tables import acquaintances, inbox, outbox

_decode_messages = msgspec.json.Decoder(tuple[OutboundMessage, ...]).decode
_decode_receipts = msgspec.json.Decoder(tuple[DeliveryReceipt, ...]).decode
_decode_poll = msgspec.json.Decoder(Poll).decode
_decode_inbound = msgspec.json.Decoder(InboundMessage).decode

MAX_CLAIMED: Final = 1000  # messages read at once; the rest follows

_BY_KEY = select(outbox).where(outbox.c.key == bindparam("wanted"))
_BY_UID = select(outbox).where(outbox.c.uid == bindparam("wanted"))
_MARK_DONE = update(inbox).where(inbox.c.id == bindparam("one")).values(status="done", heard=None)
_UPDATE_BY_UID = update(outbox).where(outbox.c.uid == bindparam("wanted"))


class SqlOutbox(SqlRepository):
    """An `Outbox` over the store."""

    async def put(self, new: NewOutboxMessage) -> tuple[OutboxMessage, bool]:
        uid, at = new_id(), now_ms()
        row = {
            **structs.asdict(new.address), "uid": uid, "key": shorten_key(new.key), "letters": to_json(new.parts),
            "origin": new.origin, "poll": None if new.poll is None else to_json(new.poll), "session": new.session,
            "owner": self._store.instance, "status": "queued", "tries": 0, "due_at": at, "created_at": at,
            "updated_at": at, "receipts": "[]",
        }  # fmt: skip

        def work(connection: Connection) -> tuple[OutboxMessage, bool]:
            added = connection.execute(_outbox_insert(connection.dialect.name), row).scalar()
            if added is None:
                return _outbox_message_from_row(connection.execute(_BY_KEY, {"wanted": row["key"]}).one()), False
            mail = OutboxMessage(
                id=added, uid=uid, key=new.key, address=new.address, parts=new.parts, origin=new.origin,
                status="queued", created_at=at, due_at=at, session=new.session, poll=new.poll,
            )  # fmt: skip
            return mail, True

        return await self._store.write(work)

    async def get(self, uid: str) -> OutboxMessage | None:
        row = await self._store.fetch_first(_BY_UID, {"wanted": uid})
        return None if row is None else _outbox_message_from_row(row)

    async def update(self, message: OutboxMessage) -> None:
        statement = _UPDATE_BY_UID.values(
            status=message.status, tries=message.tries, due_at=message.due_at, error=message.error,
            receipts=to_json(message.receipts), updated_at=now_ms(),
        )  # fmt: skip
        if message.status == "sent":  # its text is kept for a while, the bytes of its files are not
            statement = statement.values(letters=to_json(_strip_attachment_data(message.parts)))
        await self._store.execute(statement, {"wanted": message.uid})

    async def adopt(self, *, after: int = 0) -> Sequence[OutboxMessage]:
        mine = self._store.instance

        def work(connection: Connection) -> Sequence[OutboxMessage]:
            waiting = outbox.c.status == "queued"
            owners = connection.execute(select(outbox.c.owner).where(waiting).distinct()).scalars().all()
            dead = [owner for owner in owners if not self._store.process_lock.is_alive(connection, owner)]
            if dead:
                connection.execute(update(outbox).where(waiting, outbox.c.owner.in_(dead)).values(owner=mine))
            statement = select(outbox).where(waiting, outbox.c.owner == mine, outbox.c.id > after).order_by(outbox.c.id)
            return [_outbox_message_from_row(row) for row in connection.execute(statement.limit(MAX_CLAIMED))]

        return await self._store.write(work)

    async def page(self, *, status: OutboxStatus | None, limit: int) -> Sequence[OutboxMessage]:
        statement = select(outbox).order_by(outbox.c.id.desc()).limit(limit)
        if status is not None:
            statement = statement.where(outbox.c.status == status)
        rows = await self._store.fetch(statement)
        return [
            structs.replace(mail, parts=_strip_attachment_data(mail.parts))
            for mail in map(_outbox_message_from_row, rows)
        ]

    async def drop(self, uid: str) -> bool:
        statement = delete(outbox).where(outbox.c.uid == uid, outbox.c.status != "sent")
        return await self._store.execute(statement) > 0

    async def list_direct_sends(self, session: str, *, since: int) -> Sequence[OutboxMessage]:
        statement = (
            select(outbox)
            .where(
                outbox.c.session == session,
                outbox.c.created_at >= since,
                outbox.c.origin.in_(("tool", "rpc", "client")),
            )
            .order_by(outbox.c.id)
        )
        rows = await self._store.fetch(statement)
        return [_outbox_message_from_row(row) for row in rows]

    async def prune(self, *, before: int) -> int:
        statement = delete(outbox).where(outbox.c.status != "queued", outbox.c.updated_at < before)
        return await self._store.execute(statement)


class SqlInbox(SqlRepository):
    """An `Inbox` over the store."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store)
        self._insert_batched = store.batch(_insert_inbound)

    async def add(self, message: InboundMessage) -> InboxEntry | None:
        return await self._insert_batched((message, to_json(message)))

    async def link_run(self, id: int, *, run_id: str, session: str) -> None:
        statement = update(inbox).where(inbox.c.id == id).values(status="asked", run_id=run_id, session=session)
        await self._store.execute(statement)

    async def merge(self, id: int, message: InboundMessage, *, others: Sequence[int]) -> None:
        whole = update(inbox).where(inbox.c.id == id).values(heard=to_json(message))

        def work(connection: Connection) -> None:
            connection.execute(whole)
            connection.execute(_MARK_DONE, [{"one": other} for other in others])

        await self._store.write(work)

    async def mark_complete(self, ids: Sequence[int]) -> None:
        rows = [{"one": id} for id in ids]
        await self._store.execute(_MARK_DONE, rows)

    async def pending(self, *, after: int) -> Sequence[InboxEntry]:
        owed = select(inbox).where(inbox.c.status != "done", inbox.c.id > after)
        statement = owed.order_by(inbox.c.id).limit(MAX_CLAIMED)
        rows = await self._store.fetch(statement)
        return [
            InboxEntry(
                id=row.id, message=_decode_inbound(row.heard), status=row.status, run_id=row.run_id, session=row.session
            )
            for row in rows
        ]

    async def last_id(self) -> int:
        row = await self._store.fetch_first(select(func.max(inbox.c.id)))
        return 0 if row is None or row[0] is None else int(row[0])

    async def prune(self, *, before: int) -> int:
        statement = delete(inbox).where(inbox.c.status == "done", inbox.c.at < before)
        return await self._store.execute(statement)


_APPROVALS = acquaintances.c


class SqlSenderApprovalRepository(SqlRepository):
    """A `SenderApprovalRepository` over the store."""

    async def request(
        self, approval: SenderApproval, *, max_pending: int, since: int
    ) -> tuple[SenderApproval | None, bool]:
        def work(connection: Connection) -> tuple[SenderApproval | None, bool]:
            connection.execute(delete(acquaintances).where(~_APPROVALS.approved, _APPROVALS.at < since))
            same = and_(
                _APPROVALS.channel == approval.channel,
                _APPROVALS.account == approval.account,
                _APPROVALS.sender == approval.sender,
            )
            row = connection.execute(select(acquaintances).where(same)).first()
            if row is not None:
                return _approval_from_row(row), False
            waiting = select(func.count()).where(
                _APPROVALS.channel == approval.channel, _APPROVALS.account == approval.account
            )
            if connection.execute(waiting.where(~_APPROVALS.approved)).scalar_one() >= max_pending:
                return None, False
            connection.execute(insert(acquaintances).values(structs.asdict(approval)))
            return approval, True

        return await self._store.write(work)

    async def approve(self, channel: str, code: str, *, since: int) -> SenderApproval | None:
        def work(connection: Connection) -> SenderApproval | None:
            matches = and_(
                _APPROVALS.channel == channel, _APPROVALS.code == code, or_(_APPROVALS.approved, _APPROVALS.at >= since)
            )
            row = connection.execute(select(acquaintances).where(matches)).first()
            if row is None:
                return None
            connection.execute(update(acquaintances).where(matches).values(approved=True))
            return structs.replace(_approval_from_row(row), approved=True)

        return await self._store.write(work)

    async def remove(self, channel: str, sender: str) -> bool:
        statement = delete(acquaintances).where(_APPROVALS.channel == channel, _APPROVALS.sender == sender)
        return await self._store.execute(statement) > 0

    async def all(self) -> Sequence[SenderApproval]:
        statement = select(acquaintances).order_by(_APPROVALS.at)
        rows = await self._store.fetch(statement)
        return [_approval_from_row(row) for row in rows]


@cache
def _outbox_insert(dialect: str) -> Any:
    """Built once for a database: making a statement costs more than running it."""
    return upsert_for(dialect, outbox).on_conflict_do_nothing(index_elements=["key"]).returning(outbox.c.id)


@cache
def _inbox_insert(dialect: str) -> PreparedStatement:
    statement = upsert_for(dialect, inbox).on_conflict_do_nothing(index_elements=["channel", "account", "message"])
    return PreparedStatement(statement.returning(inbox.c.id))


def _insert_inbound(connection: Connection, items: Sequence[tuple[InboundMessage, str]]) -> list[InboxEntry | None]:
    at = now_ms()
    rows = [
        {
            "channel": message.address.channel,
            "account": message.address.account,
            "message": shorten_key(message.id),
            "status": "new",
            "at": at,
            "heard": encoded,
        }
        for message, encoded in items
    ]
    added = _inbox_insert(connection.dialect.name).scalar_each(connection, rows)
    return [
        None if id is None else InboxEntry(id=id, message=message, status="new")
        for id, (message, _) in zip(added, items, strict=True)
    ]


_SAME_OUTBOX_COLUMNS = ("id", "uid", "key", "origin", "status", "created_at", "tries", "due_at", "error", "session")


def _outbox_message_from_row(row: Row[Any]) -> OutboxMessage:
    return OutboxMessage(
        **{name: getattr(row, name) for name in _SAME_OUTBOX_COLUMNS},
        address=ChatAddress(channel=row.channel, account=row.account, to=row.to, thread=row.thread),
        parts=_decode_messages(row.letters),
        receipts=_decode_receipts(row.receipts),
        poll=None if row.poll is None else _decode_poll(row.poll),
    )


def _strip_attachment_data(messages: tuple[OutboundMessage, ...]) -> tuple[OutboundMessage, ...]:
    return tuple(
        structs.replace(message, attachments=tuple(structs.replace(a, data=None) for a in message.attachments))
        for message in messages
    )


def _approval_from_row(row: Row[Any]) -> SenderApproval:
    return SenderApproval(**{name: getattr(row, name) for name in SenderApproval.__struct_fields__})
