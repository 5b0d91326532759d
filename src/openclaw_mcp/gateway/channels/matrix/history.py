"""Reads a Matrix room: its newest messages with their edits, reactions and pins."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from ....core.channel import ChatAddress, StoredMessage
from ....core.model import Json, Sender
from . import events
from .api import CLIENT, Homeserver, MatrixRefused, quote_segment
from .encryption_port import MatrixEncryption
from .rooms import MatrixRoom

PAGE_SIZE: Final = 100  # events asked for at once
MAX_PAGES: Final = 20  # pages fetched for one read: enough to find the last messages in a room full of reactions
EVENT_FILTER: Final = msgspec.json.encode({"types": [*events.MESSAGE_TYPES, "m.room.encrypted", "m.reaction"]}).decode()


class RoomHistory(Struct, kw_only=True):
    """One read of a room. Reactions are those between the oldest message found and where the read began."""

    server: Homeserver
    encryption: MatrixEncryption
    room: MatrixRoom
    user: str
    events: list[Json] = []
    reactions: dict[str, list[Json]] = {}
    edits: dict[str, Json] = {}

    async def read(self, address: ChatAddress, *, limit: int, before: str | None) -> Sequence[StoredMessage]:
        pinned = set(await read_pins(self.server, self.room.id))
        token = None if before is None else await self._token_before(before)
        for _ in range(MAX_PAGES):
            page = await self._page(address, token)
            for event in page.get("chunk") or []:
                self._classify(event)
            token = page.get("next_batch") or (page.get("end") if address.thread is None else None)
            if len(self.events) >= limit or token is None:
                break
        if address.thread is not None and len(self.events) < limit and before != address.thread:
            await self._add_thread_root(address.thread)
        return [self._build_message(event, pinned) for event in self.events[:limit]][::-1]

    async def _page(self, address: ChatAddress, token: str | None) -> Json:
        room = f"/rooms/{quote_segment(self.room.id)}"
        if address.thread is not None:
            path = f"/_matrix/client/v1{room}/relations/{quote_segment(address.thread)}/m.thread"
            return await self.server.get(path, {"dir": "b", "limit": PAGE_SIZE, "from": token})
        params = {"dir": "b", "limit": PAGE_SIZE, "filter": EVENT_FILTER, "from": token}
        return await self.server.get(f"{CLIENT}{room}/messages", params)

    async def _token_before(self, message_id: str) -> str | None:
        path = f"{CLIENT}/rooms/{quote_segment(self.room.id)}/context/{quote_segment(message_id)}"
        return str((await self.server.get(path, {"limit": 0}))["start"])

    async def _add_thread_root(self, id: str) -> None:
        path = f"{CLIENT}/rooms/{quote_segment(self.room.id)}/event/{quote_segment(id)}"
        self._classify(await self.server.get(path))

    def _classify(self, event: Json) -> None:
        """Events are read newest first: an edit before what it replaces."""
        if event.get("type") == "m.room.encrypted":
            event = self.encryption.decrypt(event, self.room.id) or event
        relation = events.relation(event)
        target = str(relation.get("event_id"))
        if event.get("type") == "m.reaction":
            reaction = {"emoji": str(relation.get("key")), "sender": str(event.get("sender"))}
            self.reactions.setdefault(target, []).append(reaction)
        elif events.is_edit(event):
            self.edits.setdefault(target, event)
        elif event.get("type") in events.MESSAGE_TYPES and events.content_of(event):
            self.events.append(event)

    def _build_message(self, event: Json, pinned: set[str]) -> StoredMessage:
        id, user = str(event["event_id"]), str(event.get("sender"))
        content, edited = events.latest_content(event)
        edit = self.edits.get(id)
        if edit is not None and edit.get("sender") == user:  # only the author can edit a message
            content, edited = events.content_of(edit).get("m.new_content") or content, True
        media, poll = events.media_of(event, content), events.poll_of(content)
        return StoredMessage(
            id=id, sender=Sender(id=user, name=self.room.display_name(user)), text=events.text_of(event, content),
            at=events.timestamp_ms(event), mine=user == self.user, thread=events.thread_of(event),
            reply_to=events.reply_of(event), attachments=() if media is None else (media.summary,),
            reactions=tuple(reversed(self.reactions.get(id, ()))), pinned=id in pinned, edited=edited,
            extra={} if poll is None else {"poll": {"question": poll.question, "options": list(poll.options)}},
        )  # fmt: skip


async def read_pins(server: Homeserver, room: str) -> list[str]:
    try:
        content = await server.get(f"{CLIENT}/rooms/{quote_segment(room)}/state/m.room.pinned_events/")
    except MatrixRefused as exc:
        if exc.errcode == "M_NOT_FOUND":
            return []
        raise
    ids = content.get("pinned")
    return [id for id in ids if isinstance(id, str)] if isinstance(ids, list) else []
