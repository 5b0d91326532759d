"""Receives Matrix events: one sync after another, each acknowledged when all its messages are stored."""

import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from ....core.agent import Attachment
from ....core.channel import ChannelRefused, ChatAddress, InboundMessage, OnMessage
from ....core.model import Sender
from ....core.sessions import now_ms
from .api import Homeserver, MatrixRefused, Query, client_path
from .encryption_port import MatrixEncryption
from .events import MatrixEvent, MatrixFile
from .login import PositionFile, SyncPosition, UndecryptedEvent
from .responses import Acknowledgement, EventPage, InvitedRoom, SyncAnswer
from .rooms import MatrixRoom, MatrixRooms
from .settings import MatrixSettings

POLL_WAIT: Final = 30  # seconds a sync stays open without events
POLL_GRACE: Final = 30  # seconds more for a busy server to answer it
PAGE_SIZE: Final = 100  # events of a room in one sync; the rest is fetched
GAP_PAGES: Final = 50  # pages fetched to fill a gap: five thousand messages while we were offline
WAITING_LIMIT: Final = 500  # encrypted messages stored until their keys arrive
WAITING_SECONDS: Final = 3600  # a key that has not arrived in an hour does not arrive
MAX_SENDERS: Final = 2_000  # senders of answered messages, cached so that the server is asked once
# Redundant members: a new process does not know what the server sent to the one before.
STATE_FILTER: Final = {"lazy_load_members": True, "include_redundant_members": True}
ROOM_FILTER: Final = {"timeline": {"limit": PAGE_SIZE, "lazy_load_members": True}, "state": STATE_FILTER}
FILTER: Final = msgspec.json.encode({"room": ROOM_FILTER, "presence": {"types": []}}).decode()

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
            self.rooms.apply_account_data(sync.account_data)
            waiting = list(position.waiting) if position else []
            if has_new_keys or is_first:
                waiting = [each for each in waiting if not await self._retry_event(each, on_message)]
            async for room, event in self._new_events(sync, since):
                if not await self._deliver_event(room, event, on_message):
                    waiting.append(UndecryptedEvent(room=room.id, event=event, until=time.time() + WAITING_SECONDS))
            latest = tuple(waiting[-WAITING_LIMIT:])
            next_position = SyncPosition(user=self._user, since=sync.next_batch, waiting=latest)
            if next_position != position:
                await self._position.save(next_position)
            position, is_first, self.last_sync_at = next_position, False, now_ms()

    async def _sync(self, since: str | None, *, full_state: bool) -> SyncAnswer:
        params = {
            "since": since, "timeout": 0 if full_state else POLL_WAIT * 1000,
            "full_state": "true" if full_state else None, "filter": FILTER,
        }  # fmt: skip
        return await self._server.get(client_path("sync"), SyncAnswer, params=params, wait=POLL_WAIT + POLL_GRACE)

    async def _new_events(self, sync: SyncAnswer, since: str | None) -> AsyncIterator[tuple[MatrixRoom, MatrixEvent]]:
        """Each room's new events, in order, without gaps. None of an account's first sync: it is all history."""
        for id in sync.rooms.leave:
            self.rooms.remove(id)
        for id, joined in sync.rooms.join.items():
            room, members_changed = self.rooms.update(id, joined)
            if members_changed:
                self._encryption.rotate_room_key(id)
            timeline = joined.timeline.events
            start = self._join_index(timeline)
            if start is not None:
                timeline = timeline[start:]  # messages from before our invitation are not for us
            elif since is not None and joined.timeline.limited:
                timeline = await self._fetch_gap(id, joined.timeline.prev_batch, since) + timeline
            if since is not None:
                for event in timeline:
                    yield room, event
        for id, invited in sync.rooms.invite.items():
            await self._handle_invite(id, invited)

    def _is_our_membership(self, event: MatrixEvent) -> bool:
        return event.type == "m.room.member" and event.state_key == self._user

    def _join_index(self, events: list[MatrixEvent]) -> int | None:
        """The index of our invitation, or else of our joining, when these events have us joining."""
        own = [(i, event.content.membership) for i, event in enumerate(events) if self._is_our_membership(event)]
        if not any(membership == "join" for _, membership in own):
            return None
        return next((index for index, membership in own if membership in ("invite", "join")), None)

    async def _fetch_gap(self, room: str, prev_batch: str | None, since: str) -> list[MatrixEvent]:
        """The events between the last sync and this one's first event, oldest first."""
        found: list[MatrixEvent] = []
        token = prev_batch
        for _ in range(GAP_PAGES):
            if token is None:
                break
            params: Query = {"dir": "b", "limit": PAGE_SIZE, "from": token, "to": since}
            page = await self._server.get(client_path("rooms", room, "messages"), EventPage, params=params)
            found += page.chunk
            token = page.end
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

    async def _deliver_event(self, room: MatrixRoom, event: MatrixEvent, on_message: OnMessage) -> bool:
        """Deliver a message; False when it can't be decrypted yet."""
        if event.state_key is not None or not event.event_id or event.sender == self._user:
            return True
        if event.type == "m.room.encrypted":
            decrypted = self._encryption.decrypt(event, room.id)
            if decrypted is None:
                return not self._encryption.is_available
            event = decrypted
        # By convention programs send notices, and programs do not answer them.
        if event.is_message and event.content.msgtype != "m.notice":
            await on_message(await self._build_inbound(room, event))
        return True

    async def _build_inbound(self, room: MatrixRoom, event: MatrixEvent) -> InboundMessage:
        file = event.file_of(event.content)
        return InboundMessage(
            id=event.event_id,
            address=ChatAddress(channel="matrix", account=self._account, to=room.id, thread=event.thread),
            # No user name: without its server it is not unique, and an allow-list would admit all of that name.
            sender=Sender(id=event.sender or None, name=room.display_name(event.sender)),
            chat="direct" if room.is_direct else "group", text=event.text_of(event.content),
            at=event.origin_server_ts, files=() if file is None else (msgspec.to_builtins(file),),
            reply_to=event.reply_to, mentioned=await self._mentions_us(room, event), title=room.name or room.alias,
        )  # fmt: skip

    async def _mentions_us(self, room: MatrixRoom, event: MatrixEvent) -> bool:
        if event.content.mentions_user(self._user, room.display_name(self._user)):
            return True
        return event.reply_to is not None and await self._sender_of(room.id, event.reply_to) == self._user

    def remember_own_message(self, message_id: str) -> None:
        """A message of our own: an answer to it mentions us."""
        self._remember_sender(message_id, self._user)

    def _remember_sender(self, message_id: str, sender: str) -> None:
        self._senders[message_id] = sender
        while len(self._senders) > MAX_SENDERS:
            self._senders.popitem(last=False)

    async def _sender_of(self, room: str, message_id: str) -> str | None:
        if message_id not in self._senders:
            try:
                event = await self._server.get(client_path("rooms", room, "event", message_id), MatrixEvent)
            except MatrixRefused:
                return None
            self._remember_sender(message_id, event.sender)
        return self._senders[message_id]

    async def fetch_file(self, media: MatrixFile) -> Attachment:
        """The file, or its name alone when it is too large, gone, or can't be decrypted."""
        try:
            data = await self._server.download(media.uri, limit=self._settings.media_limit)
            data = data if media.sealed is None else self._encryption.decrypt_file(data, media.sealed)
        except ChannelRefused as exc:
            logger.warning("matrix %s: attachment not fetched (%s), its name is used alone", self._account, exc)
            return Attachment(mime_type=media.mime_type, name=media.name)
        return Attachment(mime_type=media.mime_type, name=media.name, data=data)

    async def _handle_invite(self, room_id: str, invite: InvitedRoom) -> None:
        """Accept an invitation if the settings say so. Any other stays open; a person may accept it."""
        state = invite.invite_state.events
        invitation = next(filter(self._is_our_membership, state), MatrixEvent())
        inviter = invitation.sender
        names = {room_id, inviter, *(event.content.alias for event in state if event.type == "m.room.canonical_alias")}
        policy = self._settings.auto_join
        if policy == "off" or (policy == "allowlist" and not names & set(self._settings.auto_join_allowlist)):
            text = "matrix %s: invitation to %s by %s not accepted (autoJoin %s)"
            logger.info(text, self._account, room_id, inviter, policy)
            return
        try:
            await self._server.post(client_path("join", room_id), {}, Acknowledgement)
        except MatrixRefused as exc:
            logger.warning("matrix %s: joining %s failed (%s)", self._account, room_id, exc)
            return
        if invitation.content.is_direct and inviter:
            await self.add_direct_room(inviter, room_id)

    async def add_direct_room(self, user: str, room: str) -> None:
        """Add a room to the account's list of direct chats."""
        lists = self.rooms.add_direct_room(user=user, room=room)
        await self._server.put(client_path("user", self._user, "account_data", "m.direct"), lists)
