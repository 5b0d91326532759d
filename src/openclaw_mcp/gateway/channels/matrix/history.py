"""Reads a Matrix room: its newest messages with their edits, reactions and pins."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from ....core.channel import ChatAddress, FileSummary, Reaction, StoredMessage
from ....core.model import Sender
from .api import Homeserver, MatrixRefused, Query, client_path
from .encryption_port import MatrixEncryption
from .events import MESSAGE_TYPES, EventContent, MatrixEvent
from .responses import EventNeighbourhood, EventPage
from .rooms import MatrixRoom

PAGE_SIZE: Final = 100  # events asked for at once
MAX_PAGES: Final = 20  # pages fetched for one read: enough to find the last messages in a room full of reactions
EVENT_TYPES: Final = (*sorted(MESSAGE_TYPES), "m.room.encrypted", "m.reaction")
EVENT_FILTER: Final = msgspec.json.encode({"types": EVENT_TYPES}).decode()


class RoomHistory(Struct, kw_only=True):
    """One read of a room. Reactions are those between the oldest message found and where the read began."""

    server: Homeserver
    encryption: MatrixEncryption
    room: MatrixRoom
    user: str
    events: list[MatrixEvent] = []
    reactions: dict[str, list[Reaction]] = {}
    edits: dict[str, MatrixEvent] = {}

    async def read(self, address: ChatAddress, *, limit: int, before: str | None) -> Sequence[StoredMessage]:
        pinned = set(await read_pins(self.server, self.room.id))
        token = None if before is None else await self._token_before(before)
        for _ in range(MAX_PAGES):
            page = await self._page(address, token)
            for event in page.chunk:
                self._classify(event)
            token = page.next_batch or (page.end if address.thread is None else None)
            if len(self.events) >= limit or token is None:
                break
        if address.thread is not None and len(self.events) < limit and before != address.thread:
            await self._add_thread_root(address.thread)
        return [self._build_message(event, pinned) for event in self.events[:limit]][::-1]

    async def _page(self, address: ChatAddress, token: str | None) -> EventPage:
        params: Query = {"dir": "b", "limit": PAGE_SIZE, "from": token}
        if address.thread is not None:
            path = client_path("rooms", self.room.id, "relations", address.thread, "m.thread", version="v1")
            return await self.server.get(path, EventPage, params=params)
        path = client_path("rooms", self.room.id, "messages")
        return await self.server.get(path, EventPage, params={**params, "filter": EVENT_FILTER})

    async def _token_before(self, message_id: str) -> str:
        path = client_path("rooms", self.room.id, "context", message_id)
        return (await self.server.get(path, EventNeighbourhood, params={"limit": 0})).start

    async def _add_thread_root(self, id: str) -> None:
        self._classify(await self.server.get(client_path("rooms", self.room.id, "event", id), MatrixEvent))

    def _classify(self, event: MatrixEvent) -> None:
        """Events are read newest first: an edit before what it replaces."""
        if event.type == "m.room.encrypted":
            event = self.encryption.decrypt(event, self.room.id) or event
        relation = event.content.relation
        target = relation.event_id or ""
        if event.type == "m.reaction":
            reaction = Reaction(emoji=relation.key or "", sender=event.sender)
            self.reactions.setdefault(target, []).append(reaction)
        elif event.is_edit:
            self.edits.setdefault(target, event)
        elif event.is_message:
            self.events.append(event)

    def _build_message(self, event: MatrixEvent, pinned: set[str]) -> StoredMessage:
        id, user = event.event_id, event.sender
        content, edited = event.latest_content()
        edit = self.edits.get(id)
        if edit is not None and edit.sender == user:  # only the author can edit a message
            content, edited = edit.content.new_content or content, True
        file, poll = event.file_of(content), content.find_poll()
        files = () if file is None else (FileSummary(name=file.name, mime_type=file.mime_type, size=file.size),)
        return StoredMessage(
            id=id, sender=Sender(id=user, name=self.room.display_name(user)), text=event.text_of(content),
            at=event.origin_server_ts, mine=user == self.user, thread=event.thread, reply_to=event.reply_to,
            attachments=files, reactions=tuple(reversed(self.reactions.get(id, ()))), pinned=id in pinned,
            edited=edited,
            extra={} if poll is None else {"poll": {"question": poll.question, "options": list(poll.options)}},
        )  # fmt: skip


async def read_pins(server: Homeserver, room: str) -> list[str]:
    try:
        path = client_path("rooms", room, "state", "m.room.pinned_events", "")
        return (await server.get(path, EventContent)).pinned or []
    except MatrixRefused as exc:
        if exc.errcode == "M_NOT_FOUND":
            return []
        raise
