"""Receives Matrix events: one sync after another, each acknowledged when all its messages are stored."""

import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from ....core.agent import Attachment
from ....core.channel import ChannelRefused, ChatAddress, InboundMessage, OnMessage
from ....core.model import Json, Sender
from ....core.sessions import now_ms
from . import events
from .api import CLIENT, Homeserver, MatrixRefused, quote_segment
from .encryption_port import MatrixEncryption
from .login import PositionFile, SyncPosition, UndecryptedEvent
from .rooms import MatrixRoom, MatrixRooms, timeline_events
from .settings import MatrixSettings

POLL_WAIT: Final = 30  # seconds a sync stays open without events
POLL_GRACE: Final = 30  # seconds more for a busy server to answer it
PAGE_SIZE: Final = 100  # events of a room in one sync; the rest is fetched
GAP_PAGES: Final = 50  # pages fetched to fill a gap: five thousand messages while we were offline
WAITING_LIMIT: Final = 500  # encrypted messages stored until their keys arrive
WAITING_SECONDS: Final = 3600  # a key that has not arrived in an hour does not arrive
MAX_SENDERS: Final = 2_000  # senders of answered messages, cached so that the server is asked once
FILTER: Final = msgspec.json.encode(
    {
        # Redundant members: a new process does not know what the server sent to the one before.
        "room": {
            "timeline": {"limit": PAGE_SIZE, "lazy_load_members": True},
            "state": {"lazy_load_members": True, "include_redundant_members": True},
        },
        "presence": {"types": []},
    }
).decode()

logger = logging.getLogger(__name__)


class MatrixReceiver:
    """Receives for one account. `last_sync_at` is when the server last answered, Unix milliseconds."""

    def __init__(
        self, settings: MatrixSettings, server: Homeserver, encryption: MatrixEncryption, position: PositionFile, *,
        user: str, account: str,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._server = server
        self._encryption = encryption
        self._position = position
        self._user = user
        self._account = account
        self._senders: OrderedDict[str, str] = OrderedDict()
        self.rooms = MatrixRooms(user)
        self.last_sync_at = 0

    async def run(self, on_message: OnMessage) -> None:
        """Until cancelled, or the server fails."""
        position = await self._position.load()
        is_first = True  # the first sync asks for the full state: a new process has none
        while True:
            since = position.since if position else None
            sync = await self._sync(since, full_state=is_first)
            has_new_keys = await self._encryption.process_sync(sync)
            self.rooms.apply_account_data(sync.get("account_data"))
            waiting = list(position.waiting) if position else []
            if has_new_keys or is_first:
                waiting = [each for each in waiting if not await self._retry_event(each, on_message)]
            async for room, event in self._new_events(sync, since):
                if not await self._deliver_event(room, event, on_message):
                    waiting.append(UndecryptedEvent(room=room.id, event=event, until=time.time() + WAITING_SECONDS))
            next_position = SyncPosition(
                user=self._user, since=str(sync["next_batch"]), waiting=tuple(waiting[-WAITING_LIMIT:])
            )
            if next_position != position:
                await self._position.save(next_position)
            position, is_first, self.last_sync_at = next_position, False, now_ms()

    async def _sync(self, since: str | None, *, full_state: bool) -> Json:
        params = {
            "since": since,
            "timeout": 0 if full_state else POLL_WAIT * 1000,
            "full_state": "true" if full_state else None,
            "filter": FILTER,
        }
        return await self._server.get(f"{CLIENT}/sync", params, wait=POLL_WAIT + POLL_GRACE)

    async def _new_events(self, sync: Json, since: str | None) -> AsyncIterator[tuple[MatrixRoom, Json]]:
        """Each room's new events, in order, without gaps. None of an account's first sync: it is all history."""
        rooms = sync.get("rooms") or {}
        for id in rooms.get("leave") or {}:
            self.rooms.remove(id)
        for id, joined in (rooms.get("join") or {}).items():
            room, members_changed = self.rooms.update(id, joined)
            if members_changed:
                self._encryption.rotate_room_key(id)
            timeline = timeline_events(joined)
            start = self._join_index(timeline)
            if start is not None:
                timeline = timeline[start:]  # messages from before our invitation are not for us
            elif since is not None and joined.get("timeline", {}).get("limited"):
                timeline = await self._fetch_gap(id, joined["timeline"].get("prev_batch"), since) + timeline
            if since is not None:
                for event in timeline:
                    yield room, event
        for id, invited in (rooms.get("invite") or {}).items():
            await self._handle_invite(id, invited)

    def _join_index(self, room_events: list[Json]) -> int | None:
        """The index of our invitation, or else of our joining, when these events have us joining."""
        own = [
            (index, events.content_of(event).get("membership"))
            for index, event in enumerate(room_events)
            if event.get("type") == "m.room.member" and event.get("state_key") == self._user
        ]
        if not any(membership == "join" for _, membership in own):
            return None
        return next((index for index, membership in own if membership in ("invite", "join")), None)

    async def _fetch_gap(self, room: str, prev_batch: str | None, since: str) -> list[Json]:
        """The events between the last sync and this one's first event, oldest first."""
        found: list[Json] = []
        token = prev_batch
        for _ in range(GAP_PAGES):
            if token is None:
                break
            params = {"dir": "b", "limit": PAGE_SIZE, "from": token, "to": since}
            page = await self._server.get(f"{CLIENT}/rooms/{quote_segment(room)}/messages", params)
            found += page.get("chunk") or []
            token = page.get("end")
        else:
            logger.warning(
                "matrix %s: gap of a room not filled, events before the last %d skipped", self._account, len(found)
            )
        return found[::-1]

    async def _retry_event(self, waiting: UndecryptedEvent, on_message: OnMessage) -> bool:
        room = self.rooms.get(waiting.room)
        if room is None or waiting.until < time.time():
            return True
        return await self._deliver_event(room, waiting.event, on_message)

    async def _deliver_event(self, room: MatrixRoom, event: Json, on_message: OnMessage) -> bool:
        """Deliver a message; False when it can't be decrypted yet."""
        if "state_key" in event or not event.get("event_id") or event.get("sender") == self._user:
            return True
        if event.get("type") == "m.room.encrypted":
            decrypted = self._encryption.decrypt(event, room.id)
            if decrypted is None:
                return not self._encryption.is_available
            event = decrypted
        message = await self._parse_event(room, event)
        if message is not None:
            await on_message(message)
        return True

    async def _parse_event(self, room: MatrixRoom, event: Json) -> InboundMessage | None:
        content = events.content_of(event)
        if event.get("type") not in events.MESSAGE_TYPES or not content or events.is_edit(event):
            return None
        if content.get("msgtype") == "m.notice":
            return None  # by convention programs send notices, and programs do not answer them
        media = events.media_of(event, content)
        reply_to = events.reply_of(event)
        user = str(event.get("sender"))
        thread = events.thread_of(event)
        return InboundMessage(
            id=str(event["event_id"]),
            address=ChatAddress(channel="matrix", account=self._account, to=room.id, thread=thread),
            # No user name: without its server it is not unique, and an allow-list would admit all of that name.
            sender=Sender(id=user, name=room.display_name(user)),
            chat="direct" if room.is_direct else "group", text=events.text_of(event, content),
            at=events.timestamp_ms(event), files=() if media is None else (msgspec.to_builtins(media),),
            reply_to=reply_to, mentioned=await self._mentions_us(room, content, reply_to),
            title=room.name or room.alias,
        )  # fmt: skip

    async def _mentions_us(self, room: MatrixRoom, content: Json, reply_to: str | None) -> bool:
        if events.mentions_user(content, self._user, room.display_name(self._user)):
            return True
        return reply_to is not None and await self._sender_of(room.id, reply_to) == self._user

    def remember_own_message(self, message_id: str) -> None:
        """A message of our own: an answer to it mentions us."""
        self._remember_sender(message_id, self._user)

    def _remember_sender(self, message_id: str, sender: str) -> None:
        self._senders[message_id] = sender
        while len(self._senders) > MAX_SENDERS:
            self._senders.popitem(last=False)

    async def _sender_of(self, room: str, message_id: str) -> str | None:
        if message_id not in self._senders:
            path = f"{CLIENT}/rooms/{quote_segment(room)}/event/{quote_segment(message_id)}"
            try:
                event = await self._server.get(path)
            except MatrixRefused:
                return None
            self._remember_sender(message_id, str(event.get("sender")))
        return self._senders[message_id]

    async def fetch_file(self, media: events.MatrixFile) -> Attachment:
        """The file, or its name alone when it is too large, gone, or can't be decrypted."""
        try:
            data = await self._server.download(media.uri, limit=self._settings.media_limit)
            data = data if media.sealed is None else self._encryption.decrypt_file(data, media.sealed)
        except ChannelRefused as exc:
            logger.warning("matrix %s: attachment not fetched (%s), its name is used alone", self._account, exc)
            return Attachment(mime_type=media.mime_type, name=media.name)
        return Attachment(mime_type=media.mime_type, name=media.name, data=data)

    async def _handle_invite(self, room_id: str, invite: Json) -> None:
        """Accept an invitation if the settings say so. Any other stays open; a person may accept it."""
        state = events.event_list(invite.get("invite_state"))
        is_own = [e for e in state if e.get("type") == "m.room.member" and e.get("state_key") == self._user]
        invitation: Json = next(iter(is_own), {})
        inviter = str(invitation.get("sender", ""))
        aliases = [events.content_of(e).get("alias") for e in state if e.get("type") == "m.room.canonical_alias"]
        names = {room_id, inviter, *map(str, aliases)}
        policy = self._settings.auto_join
        if policy == "off" or (policy == "allowlist" and not names & set(self._settings.auto_join_allowlist)):
            text = "matrix %s: invitation to %s by %s not accepted (autoJoin %s)"
            logger.info(text, self._account, room_id, inviter, policy)
            return
        try:
            await self._server.post(f"{CLIENT}/join/{quote_segment(room_id)}", {})
        except MatrixRefused as exc:
            logger.warning("matrix %s: joining %s failed (%s)", self._account, room_id, exc)
            return
        if events.content_of(invitation).get("is_direct") is True:
            await self.add_direct_room(inviter, room_id)

    async def add_direct_room(self, user: str, room: str) -> None:
        """Add a room to the account's list of direct chats."""
        lists = self.rooms.add_direct_room(user=user, room=room)
        await self._server.put(f"{CLIENT}/user/{quote_segment(self._user)}/account_data/m.direct", lists)
