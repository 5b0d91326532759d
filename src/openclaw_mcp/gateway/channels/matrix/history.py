"""Reading a Matrix room: its newest messages with their edits, reactions and pins."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ....core.channel import Address, Seen
from ....core.model import Json, Sender
from . import events
from .api import CLIENT, Homeserver, MatrixRefused, part
from .encryption_port import Sealer
from .rooms import Room

PAGE: Final = 100  # events asked for at once
PAGES: Final = 20  # pages walked for one read: a room full of reactions still gives its last messages
TYPES: Final = msgspec.json.encode({"types": [*events.MESSAGES, "m.room.encrypted", "m.reaction"]}).decode()


class History:
    """One look at a room. Reactions are those given since the oldest message found, and the place it looked from."""

    def __init__(self, server: Homeserver, sealer: Sealer, room: Room, me: str) -> None:
        self._server = server
        self._sealer = sealer
        self._room = room
        self._me = me
        self._found: list[Json] = []
        self._reactions: dict[str, list[Json]] = {}
        self._edits: dict[str, Json] = {}

    async def read(self, address: Address, *, limit: int, before: str | None) -> Sequence[Seen]:
        pinned = set(await pins(self._server, self._room.id))
        token = None if before is None else await self._before(before)
        for _ in range(PAGES):
            page = await self._page(address, token)
            for event in page.get("chunk") or []:
                self._sort(event)
            token = page.get("next_batch") or (page.get("end") if address.thread is None else None)
            if len(self._found) >= limit or token is None:
                break
        if address.thread is not None and len(self._found) < limit and before != address.thread:
            await self._root(address.thread)
        return [self._seen(event, pinned) for event in self._found[:limit]][::-1]

    async def _page(self, address: Address, token: str | None) -> Json:
        room = f"/rooms/{part(self._room.id)}"
        if address.thread is not None:
            path = f"/_matrix/client/v1{room}/relations/{part(address.thread)}/m.thread"
            return await self._server.get(path, {"dir": "b", "limit": PAGE, "from": token})
        params = {"dir": "b", "limit": PAGE, "filter": TYPES, "from": token}
        return await self._server.get(f"{CLIENT}{room}/messages", params)

    async def _before(self, message_id: str) -> str | None:
        path = f"{CLIENT}/rooms/{part(self._room.id)}/context/{part(message_id)}"
        return str((await self._server.get(path, {"limit": 0}))["start"])

    async def _root(self, id: str) -> None:
        self._sort(await self._server.get(f"{CLIENT}/rooms/{part(self._room.id)}/event/{part(id)}"))

    def _sort(self, event: Json) -> None:
        """Newest first: an edit is met before what it replaces."""
        if event.get("type") == "m.room.encrypted":
            event = self._sealer.open(event, self._room.id) or event
        place = events.relation(event)
        target = str(place.get("event_id"))
        if event.get("type") == "m.reaction":
            mark = {"emoji": str(place.get("key")), "sender": str(event.get("sender"))}
            self._reactions.setdefault(target, []).append(mark)
        elif events.is_edit(event):
            self._edits.setdefault(target, event)
        elif event.get("type") in events.MESSAGES and events.content_of(event):
            self._found.append(event)

    def _seen(self, event: Json, pinned: set[str]) -> Seen:
        id, user = str(event["event_id"]), str(event.get("sender"))
        content, edited = events.newest(event)
        edit = self._edits.get(id)
        if edit is not None and edit.get("sender") == user:  # nobody edits for another
            content, edited = events.content_of(edit).get("m.new_content") or content, True
        media, poll = events.media_of(event, content), events.poll_of(content)
        return Seen(
            id=id,
            sender=Sender(id=user, name=self._room.display(user)),
            text=events.text_of(event, content),
            at=events.moment(event),
            mine=user == self._me,
            thread=events.thread_of(event),
            reply_to=events.reply_of(event),
            attachments=() if media is None else (media.seen,),
            reactions=tuple(reversed(self._reactions.get(id, ()))),
            pinned=id in pinned,
            edited=edited,
            extra={} if poll is None else {"poll": poll},
        )


async def pins(server: Homeserver, room: str) -> list[str]:
    try:
        content = await server.get(f"{CLIENT}/rooms/{part(room)}/state/m.room.pinned_events/")
    except MatrixRefused as exc:
        if exc.errcode == "M_NOT_FOUND":
            return []
        raise
    listed = content.get("pinned")
    return [id for id in listed if isinstance(id, str)] if isinstance(listed, list) else []
