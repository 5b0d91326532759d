"""Stores local conversations: messages of the built-in channel."""

from collections.abc import Callable, Sequence
from functools import cache

import msgspec
from sqlalchemy import Connection, and_, bindparam, delete, func, insert, select, update

from ..core.agent import Attachment, web_address
from ..core.channel import FileSummary, StoredMessage
from ..core.ids import new_id
from ..core.mail import NewLocalMessage
from ..core.model import Json
from ..core.sessions import now_ms
from .prepared_statements import PreparedStatement
from .rows import shorten_key, to_json, upsert_for
from .store import SqlRepository, SqlStore
from .tables import local_files, local_messages

_decode_stored_message = msgspec.json.Decoder(StoredMessage).decode

_COLUMNS = local_messages.c
_IN_CONVERSATION = and_(_COLUMNS.account == bindparam("of"), _COLUMNS.conversation == bindparam("within"))
# Built once: making a statement costs more than running it.
_BY_KEY = select(_COLUMNS.body).where(_IN_CONVERSATION, _COLUMNS.key == bindparam("named"))
_BY_UID = select(_COLUMNS.id, _COLUMNS.body).where(_IN_CONVERSATION, _COLUMNS.uid == bindparam("named"))


class SqlLocalMessageRepository(SqlRepository):
    """A `LocalMessageRepository` over the store."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store)
        self._add_batched = store.batch(_insert_messages)

    async def add(self, new: NewLocalMessage) -> tuple[StoredMessage, bool]:
        message = StoredMessage(
            id=new_id(), sender=new.sender, text=new.text.replace("\0", ""), at=now_ms(), mine=new.mine,
            thread=new.thread, reply_to=new.reply_to,
            attachments=tuple(_describe_attachment(attachment) for attachment in new.attachments),
            extra=new.extra,
        )  # fmt: skip
        return await self._add_batched((new, message, to_json(message)))

    async def get(self, account: str, conversation: str, id: str) -> StoredMessage | None:
        row = await self._store.fetch_first(_BY_UID, _lookup_params(account, conversation, id))
        return None if row is None else _read_body(row.body)

    async def change(
        self, account: str, conversation: str, id: str, edit: Callable[[StoredMessage], StoredMessage]
    ) -> StoredMessage | None:
        def work(connection: Connection) -> StoredMessage | None:
            row = connection.execute(_BY_UID.with_for_update(), _lookup_params(account, conversation, id)).first()
            if row is None:
                return None
            changed = edit(_read_body(row.body))
            connection.execute(update(local_messages).where(_COLUMNS.id == row.id).values(body=to_json(changed)))
            return changed

        return await self._store.write(work)

    async def remove(self, account: str, conversation: str, id: str) -> bool:
        statement = delete(local_messages).where(_IN_CONVERSATION, _COLUMNS.uid == bindparam("named"))
        place = _lookup_params(account, conversation, id)
        return await self._store.execute(statement, place) > 0

    async def read(
        self, account: str, conversation: str, *, limit: int, thread: str | None = None, before: str | None = None
    ) -> Sequence[StoredMessage]:
        statement = select(_COLUMNS.body).where(_COLUMNS.account == account, _COLUMNS.conversation == conversation)
        if thread is not None:
            statement = statement.where(_COLUMNS.thread == thread)
        if before is not None:
            mark = select(_COLUMNS.id).where(
                _COLUMNS.account == account, _COLUMNS.conversation == conversation, _COLUMNS.uid == before
            )
            statement = statement.where(_COLUMNS.id < mark.scalar_subquery())
        statement = statement.order_by(_COLUMNS.id.desc()).limit(limit)
        rows = await self._store.read(lambda connection: connection.execute(statement).scalars().all())
        return [_read_body(row) for row in reversed(rows)]

    async def list_recent(self, account: str, *, since: int, limit: int) -> Sequence[tuple[str, StoredMessage]]:
        wanted = select(_COLUMNS.conversation, _COLUMNS.body).where(_COLUMNS.account == account, _COLUMNS.at >= since)
        statement = wanted.order_by(_COLUMNS.id.desc()).limit(limit)
        rows = await self._store.fetch(statement)
        found = [(row.conversation, _read_body(row.body)) for row in reversed(rows)]
        return [(conversation, message) for conversation, message in found if not message.mine]

    async def files(self, account: str, conversation: str, id: str) -> Sequence[Attachment]:
        where = and_(_COLUMNS.account == account, _COLUMNS.conversation == conversation, _COLUMNS.uid == id)
        statement = select(local_files).join(local_messages).where(where).order_by(local_files.c.n)
        rows = await self._store.fetch(statement)
        return [
            Attachment(mime_type=row.mime_type, name=row.name, data=row.data, url=web_address(row.url)) for row in rows
        ]

    async def conversations(self, account: str, *, limit: int) -> Sequence[Json]:
        latest = func.max(_COLUMNS.at)
        statement = (
            select(_COLUMNS.conversation, func.count().label("messages"), latest.label("latest"))
            .where(_COLUMNS.account == account)
            .group_by(_COLUMNS.conversation)
            .order_by(latest.desc())
            .limit(limit)
        )
        rows = await self._store.fetch(statement)
        return [{"name": row.conversation, "messages": row.messages, "updatedAt": row.latest} for row in rows]


def _insert_messages(
    connection: Connection, items: Sequence[tuple[NewLocalMessage, StoredMessage, str]]
) -> list[tuple[StoredMessage, bool]]:
    rows = [
        {
            "account": new.account,
            "conversation": new.conversation,
            "uid": message.id,
            "key": shorten_key(new.key),
            "thread": new.thread,
            "at": message.at,
            "body": body,
        }
        for new, message, body in items
    ]
    results = []
    ids = _insert_statement(connection.dialect.name).scalar_each(connection, rows)
    for added, (new, message, _) in zip(ids, items, strict=True):
        if added is None:
            place = _lookup_params(new.account, new.conversation, shorten_key(new.key))
            known = connection.execute(_BY_KEY, place).scalar_one()
            results.append((_read_body(known), False))
            continue
        if new.attachments:
            files = [
                {
                    "message": added,
                    "n": n,
                    "mime_type": attachment.mime_type[:256],
                    "name": attachment.name and attachment.name[:512],
                    "url": attachment.web_address,
                    "data": attachment.data,
                }
                for n, attachment in enumerate(new.attachments)
            ]
            connection.execute(insert(local_files), files)
        results.append((message, True))
    return results


@cache
def _insert_statement(dialect: str) -> PreparedStatement:
    new = upsert_for(dialect, local_messages).on_conflict_do_nothing(index_elements=["account", "conversation", "key"])
    return PreparedStatement(new.returning(_COLUMNS.id))


def _lookup_params(account: str, conversation: str, key: str) -> dict[str, str]:
    return {"of": account, "within": conversation, "named": key}


def _read_body(body: str) -> StoredMessage:
    """A stored message. Older ones name paths of files on this machine, which are not to be shown."""
    message = _decode_stored_message(body)
    if all(file.url is None or web_address(file.url) for file in message.attachments):
        return message
    files = [msgspec.structs.replace(file, url=web_address(file.url)) for file in message.attachments]
    return msgspec.structs.replace(message, attachments=tuple(files))


def _describe_attachment(attachment: Attachment) -> FileSummary:
    return FileSummary(
        name=attachment.name, mime_type=attachment.mime_type, size=len(attachment.data or b""),
        url=attachment.web_address,
    )  # fmt: skip
