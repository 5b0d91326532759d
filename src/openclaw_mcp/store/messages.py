"""The mailroom's books: letters on their way out, arrivals, and people who asked to be let in."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, and_, bindparam, delete, func, insert, or_, select, update

from ..core.channel import Address, Heard, Letter, Receipt
from ..core.ids import new_id
from ..core.mail import Acquaintance, Arrival, Mail, MailStatus, NewMail
from ..core.sessions import now_ms
from .batched_write import Gathered
from .bulk_statements import poured
from .rows import from_json, short, to_json, upsert_for
from .store import Store
from .tables import acquaintances, inbox, outbox

_letters = msgspec.json.Decoder(tuple[Letter, ...]).decode
_receipts = msgspec.json.Decoder(tuple[Receipt, ...]).decode
_heard = msgspec.json.Decoder(Heard).decode

MOST_TAKEN_UP: Final = 1000  # letters or arrivals read at once when work is taken up; the rest follows

_BY_KEY = select(outbox).where(outbox.c.key == bindparam("wanted"))
_BY_UID = select(outbox).where(outbox.c.uid == bindparam("wanted"))
_DONE = update(inbox).where(inbox.c.id == bindparam("one")).values(status="done", heard=None)
_NOTE = update(outbox).where(outbox.c.uid == bindparam("wanted"))


class Letters:
    """An `Outbox` over the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, new: NewMail) -> tuple[Mail, bool]:
        uid, at = new_id(), now_ms()
        row = {
            **_placed(new.address), "uid": uid, "key": short(new.key), "letters": to_json(new.letters),
            "origin": new.origin, "poll": None if new.poll is None else to_json(new.poll), "session": new.session,
            "owner": self._store.instance, "status": "queued", "tries": 0, "due_at": at, "created_at": at,
            "updated_at": at, "receipts": "[]",
        }  # fmt: skip

        def work(connection: Connection) -> tuple[Mail, bool]:
            added = connection.execute(_putting(connection.dialect.name), row).scalar()
            if added is None:
                return _mail(connection.execute(_BY_KEY, {"wanted": row["key"]}).one()), False
            mail = Mail(
                id=added, uid=uid, key=new.key, address=new.address, letters=new.letters, origin=new.origin,
                status="queued", created_at=at, due_at=at, session=new.session, poll=new.poll,
            )  # fmt: skip
            return mail, True

        return await self._store.write(work)

    async def get(self, uid: str) -> Mail | None:
        row = await self._store.read(lambda connection: connection.execute(_BY_UID, {"wanted": uid}).first())
        return None if row is None else _mail(row)

    async def note(self, mail: Mail) -> None:
        values: dict[str, Any] = {
            "status": mail.status, "tries": mail.tries, "due_at": mail.due_at, "error": mail.error,
            "receipts": to_json(mail.receipts), "updated_at": now_ms(),
        }  # fmt: skip
        if mail.status == "sent":  # what it said is kept for a while, the bytes of its files are not
            values["letters"] = to_json(_without_bytes(mail.letters))
        statement = _NOTE.values(values)
        await self._store.write(lambda connection: connection.execute(statement, {"wanted": mail.uid}) and None)

    async def adopt(self, *, after: int = 0) -> Sequence[Mail]:
        mine = self._store.instance

        def work(connection: Connection) -> Sequence[Mail]:
            waiting = outbox.c.status == "queued"
            owners = connection.execute(select(outbox.c.owner).where(waiting).distinct()).scalars().all()
            dead = [owner for owner in owners if not self._store.pulse.alive(connection, owner)]
            if dead:
                connection.execute(update(outbox).where(waiting, outbox.c.owner.in_(dead)).values(owner=mine))
            statement = select(outbox).where(waiting, outbox.c.owner == mine, outbox.c.id > after).order_by(outbox.c.id)
            return [_mail(row) for row in connection.execute(statement.limit(MOST_TAKEN_UP))]

        return await self._store.write(work)

    async def page(self, *, status: MailStatus | None, limit: int) -> Sequence[Mail]:
        statement = select(outbox).order_by(outbox.c.id.desc()).limit(limit)
        if status is not None:
            statement = statement.where(outbox.c.status == status)
        rows = await self._store.read(lambda connection: connection.execute(statement).all())
        return [msgspec.structs.replace(mail, letters=_without_bytes(mail.letters)) for mail in map(_mail, rows)]

    async def drop(self, uid: str) -> bool:
        statement = delete(outbox).where(outbox.c.uid == uid, outbox.c.status != "sent")
        return await self._store.write(lambda connection: connection.execute(statement).rowcount > 0)

    async def said(self, session: str, *, since: int) -> Sequence[Mail]:
        statement = (
            select(outbox)
            .where(
                outbox.c.session == session,
                outbox.c.created_at >= since,
                outbox.c.origin.in_(("tool", "rpc", "client")),
            )
            .order_by(outbox.c.id)
        )
        rows = await self._store.read(lambda connection: connection.execute(statement).all())
        return [_mail(row) for row in rows]

    async def forget(self, *, before: int) -> int:
        statement = delete(outbox).where(outbox.c.status != "queued", outbox.c.updated_at < before)
        return await self._store.write(lambda connection: connection.execute(statement).rowcount)


class Arrivals:
    """An `Inbox` over the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hear = Gathered(store, _taken)

    async def hear(self, heard: Heard) -> Arrival | None:
        return await self._hear((heard, to_json(heard)))

    async def asked(self, id: int, *, run_id: str, session: str) -> None:
        statement = update(inbox).where(inbox.c.id == id).values(status="asked", run_id=run_id, session=session)
        await self._store.write(lambda connection: connection.execute(statement) and None)

    async def join(self, id: int, heard: Heard, *, others: Sequence[int]) -> None:
        whole = update(inbox).where(inbox.c.id == id).values(heard=to_json(heard))

        def work(connection: Connection) -> None:
            connection.execute(whole)
            connection.execute(_DONE, [{"one": other} for other in others])

        await self._store.write(work)

    async def done(self, ids: Sequence[int]) -> None:
        rows = [{"one": id} for id in ids]
        await self._store.write(lambda connection: connection.execute(_DONE, rows) and None)

    async def pending(self, *, after: int) -> Sequence[Arrival]:
        owed = select(inbox).where(inbox.c.status != "done", inbox.c.id > after)
        statement = owed.order_by(inbox.c.id).limit(MOST_TAKEN_UP)
        rows = await self._store.read(lambda connection: connection.execute(statement).all())
        return [
            Arrival(id=row.id, heard=_heard(row.heard), status=row.status, run_id=row.run_id, session=row.session)
            for row in rows
        ]

    async def forget(self, *, before: int) -> int:
        statement = delete(inbox).where(inbox.c.status == "done", inbox.c.at < before)
        return await self._store.write(lambda connection: connection.execute(statement).rowcount)


_WHO = acquaintances.c


class Acquaintances:
    """A `People` over the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def ask(self, who: Acquaintance, *, most: int, since: int) -> tuple[Acquaintance | None, bool]:
        def work(connection: Connection) -> tuple[Acquaintance | None, bool]:
            connection.execute(delete(acquaintances).where(~_WHO.approved, _WHO.at < since))
            same = and_(_WHO.channel == who.channel, _WHO.account == who.account, _WHO.sender == who.sender)
            row = connection.execute(select(acquaintances).where(same)).first()
            if row is not None:
                return _person(row), False
            waiting = select(func.count()).where(_WHO.channel == who.channel, _WHO.account == who.account)
            if connection.execute(waiting.where(~_WHO.approved)).scalar_one() >= most:
                return None, False
            connection.execute(insert(acquaintances).values(msgspec.structs.asdict(who)))
            return who, True

        return await self._store.write(work)

    async def approve(self, channel: str, code: str, *, since: int) -> Acquaintance | None:
        def work(connection: Connection) -> Acquaintance | None:
            bears = and_(_WHO.channel == channel, _WHO.code == code, or_(_WHO.approved, _WHO.at >= since))
            row = connection.execute(select(acquaintances).where(bears)).first()
            if row is None:
                return None
            connection.execute(update(acquaintances).where(bears).values(approved=True))
            return msgspec.structs.replace(_person(row), approved=True)

        return await self._store.write(work)

    async def remove(self, channel: str, sender: str) -> bool:
        statement = delete(acquaintances).where(_WHO.channel == channel, _WHO.sender == sender)
        return await self._store.write(lambda connection: connection.execute(statement).rowcount > 0)

    async def all(self) -> Sequence[Acquaintance]:
        statement = select(acquaintances).order_by(_WHO.at)
        rows = await self._store.read(lambda connection: connection.execute(statement).all())
        return [_person(row) for row in rows]


@cache
def _putting(dialect: str) -> Any:
    """Built once for a database: making a statement costs more than running it."""
    return upsert_for(dialect, outbox).on_conflict_do_nothing(index_elements=["key"]).returning(outbox.c.id)


@cache
def _taking(dialect: str) -> Any:
    statement = upsert_for(dialect, inbox).on_conflict_do_nothing(index_elements=["channel", "account", "message"])
    return statement.returning(inbox.c.id)


def _taken(connection: Connection, items: Sequence[tuple[Heard, str]]) -> list[Arrival | None]:
    at = now_ms()
    rows = [
        {
            "channel": heard.address.channel,
            "account": heard.address.account,
            "message": short(heard.id),
            "status": "new",
            "at": at,
            "heard": told,
        }
        for heard, told in items
    ]
    added = poured(connection, _taking(connection.dialect.name), rows)
    return [
        None if id is None else Arrival(id=id, heard=heard, status="new")
        for id, (heard, _) in zip(added, items, strict=True)
    ]


def _placed(address: Address) -> dict[str, Any]:
    return {"channel": address.channel, "account": address.account, "to": address.to, "thread": address.thread}


def _mail(row: Row[Any]) -> Mail:
    return Mail(
        id=row.id,
        uid=row.uid,
        key=row.key,
        address=Address(channel=row.channel, account=row.account, to=row.to, thread=row.thread),
        letters=_letters(row.letters),
        origin=row.origin,
        status=row.status,
        created_at=row.created_at,
        tries=row.tries,
        due_at=row.due_at,
        receipts=_receipts(row.receipts),
        error=row.error,
        session=row.session,
        poll=None if row.poll is None else from_json(row.poll),
    )


def _without_bytes(letters: tuple[Letter, ...]) -> tuple[Letter, ...]:
    return tuple(
        msgspec.structs.replace(
            letter, attachments=tuple(msgspec.structs.replace(a, data=None) for a in letter.attachments)
        )
        if letter.attachments
        else letter
        for letter in letters
    )


def _person(row: Row[Any]) -> Acquaintance:
    return Acquaintance(**{name: getattr(row, name) for name in Acquaintance.__struct_fields__})
