"""The book of local conversations: messages of the built-in channel."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, and_, bindparam, delete, func, insert, select, update

from ..core.agent import Attachment, web_address
from ..core.channel import Seen
from ..core.ids import new_id
from ..core.mail import LocalNote
from ..core.model import Json
from ..core.sessions import now_ms
from .batched_write import Gathered
from .bulk_statements import poured
from .rows import short, to_json, upsert_for
from .store import Store
from .tables import local_files, local_messages

_decode = msgspec.json.Decoder(Seen).decode

_TABLE = local_messages.c
_PLACE = and_(_TABLE.account == bindparam("of"), _TABLE.conversation == bindparam("within"))
# Built once: making a statement costs more than running it.
_BY_KEY = select(_TABLE.body).where(_PLACE, _TABLE.key == bindparam("named"))
_BY_UID = select(_TABLE.id, _TABLE.body).where(_PLACE, _TABLE.uid == bindparam("named"))


class LocalConversations:
    """A `LocalBook` over the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._add = Gathered(store, _added)

    async def add(self, note: LocalNote) -> tuple[Seen, bool]:
        seen = Seen(
            id=new_id(), sender=note.sender, text=note.text.replace("\0", ""), at=now_ms(), mine=note.mine,
            thread=note.thread, reply_to=note.reply_to,
            attachments=tuple(_shown(attachment) for attachment in note.attachments),
            extra=note.extra,
        )  # fmt: skip
        return await self._add((note, seen, to_json(seen)))

    async def get(self, account: str, conversation: str, id: str) -> Seen | None:
        row = await self._store.read(lambda c: c.execute(_BY_UID, _place(account, conversation, id)).first())
        return None if row is None else _seen(row.body)

    async def change(self, account: str, conversation: str, id: str, edit: Callable[[Seen], Seen]) -> Seen | None:
        def work(connection: Connection) -> Seen | None:
            row = connection.execute(_BY_UID.with_for_update(), _place(account, conversation, id)).first()
            if row is None:
                return None
            changed = edit(_seen(row.body))
            connection.execute(update(local_messages).where(_TABLE.id == row.id).values(body=to_json(changed)))
            return changed

        return await self._store.write(work)

    async def remove(self, account: str, conversation: str, id: str) -> bool:
        statement = delete(local_messages).where(_PLACE, _TABLE.uid == bindparam("named"))
        place = _place(account, conversation, id)
        return await self._store.write(lambda connection: connection.execute(statement, place).rowcount > 0)

    async def read(
        self, account: str, conversation: str, *, limit: int, thread: str | None = None, before: str | None = None
    ) -> Sequence[Seen]:
        statement = select(_TABLE.body).where(_TABLE.account == account, _TABLE.conversation == conversation)
        if thread is not None:
            statement = statement.where(_TABLE.thread == thread)
        if before is not None:
            mark = select(_TABLE.id).where(
                _TABLE.account == account, _TABLE.conversation == conversation, _TABLE.uid == before
            )
            statement = statement.where(_TABLE.id < mark.scalar_subquery())
        statement = statement.order_by(_TABLE.id.desc()).limit(limit)
        rows = await self._store.read(lambda connection: connection.execute(statement).scalars().all())
        return [_seen(row) for row in reversed(rows)]

    async def lately(self, account: str, *, since: int, limit: int) -> Sequence[tuple[str, Seen]]:
        wanted = select(_TABLE.conversation, _TABLE.body).where(_TABLE.account == account, _TABLE.at >= since)
        statement = wanted.order_by(_TABLE.id.desc()).limit(limit)
        rows = await self._store.read(lambda connection: connection.execute(statement).all())
        found = [(row.conversation, _seen(row.body)) for row in reversed(rows)]
        return [(conversation, seen) for conversation, seen in found if not seen.mine]

    async def files(self, account: str, conversation: str, id: str) -> Sequence[Attachment]:
        where = and_(_TABLE.account == account, _TABLE.conversation == conversation, _TABLE.uid == id)
        statement = select(local_files).join(local_messages).where(where).order_by(local_files.c.n)
        rows = await self._store.read(lambda connection: connection.execute(statement).all())
        return [
            Attachment(mime_type=row.mime_type, name=row.name, data=row.data, url=web_address(row.url)) for row in rows
        ]

    async def conversations(self, account: str, *, limit: int) -> Sequence[Json]:
        latest = func.max(_TABLE.at)
        statement = (
            select(_TABLE.conversation, func.count().label("messages"), latest.label("latest"))
            .where(_TABLE.account == account)
            .group_by(_TABLE.conversation)
            .order_by(latest.desc())
            .limit(limit)
        )
        rows = await self._store.read(lambda connection: connection.execute(statement).all())
        return [{"name": row.conversation, "messages": row.messages, "updatedAt": row.latest} for row in rows]


def _added(connection: Connection, items: Sequence[tuple[LocalNote, Seen, str]]) -> list[tuple[Seen, bool]]:
    rows = [
        {
            "account": note.account,
            "conversation": note.conversation,
            "uid": seen.id,
            "key": short(note.key),
            "thread": note.thread,
            "at": seen.at,
            "body": body,
        }
        for note, seen, body in items
    ]
    results = []
    for added, (note, seen, _) in zip(poured(connection, _adding(connection.dialect.name), rows), items, strict=True):
        if added is None:
            place = _place(note.account, note.conversation, short(note.key))
            known = connection.execute(_BY_KEY, place).scalar_one()
            results.append((_seen(known), False))
            continue
        if note.attachments:
            connection.execute(insert(local_files), [_file(added, n, a) for n, a in enumerate(note.attachments)])
        results.append((seen, True))
    return results


@cache
def _adding(dialect: str) -> Any:
    """Built once for a database: making a statement costs more than running it."""
    return (
        upsert_for(dialect, local_messages)
        .on_conflict_do_nothing(index_elements=["account", "conversation", "key"])
        .returning(_TABLE.id)
    )


def _place(account: str, conversation: str, named: str) -> Json:
    return {"of": account, "within": conversation, "named": named}


def _seen(body: str) -> Seen:
    """A message of the book. Older ones name the places of files on this machine, which are nobody's to know."""
    seen = _decode(body)
    if all("url" not in file or web_address(file["url"]) for file in seen.attachments):
        return seen
    files = [
        {name: value for name, value in file.items() if name != "url" or web_address(value)}
        for file in seen.attachments
    ]
    return msgspec.structs.replace(seen, attachments=tuple(files))


def _shown(attachment: Attachment) -> Json:
    shown: Json = {"name": attachment.name, "mimeType": attachment.mime_type, "size": len(attachment.data or b"")}
    return shown | ({"url": attachment.web_address} if attachment.web_address else {})


def _file(message: int, n: int, attachment: Attachment) -> dict[str, Any]:
    return {
        "message": message,
        "n": n,
        "mime_type": attachment.mime_type[:256],
        "name": attachment.name and attachment.name[:512],
        "url": attachment.web_address,
        "data": attachment.data,
    }
