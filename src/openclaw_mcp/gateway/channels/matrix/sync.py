"""What arrives on Matrix: one sync after another, each acknowledged when all it brought has been handed over."""

import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from ....core.agent import Attachment
from ....core.channel import ChannelRefused, ChatAddress, InboundMessage, OnMessage
from ....core.model import Json, Sender
from . import events
from .account import MatrixLogin, SyncPosition
from .api import CLIENT, Homeserver, MatrixRefused, quote_segment
from .encryption_port import MatrixEncryption
from .rooms import MatrixRoom, MatrixRooms, timeline_events
from .settings import MatrixSettings

POLL_WAIT: Final = 30  # seconds a sync stays open while nothing happens
POLL_GRACE: Final = 30  # seconds more for a busy server to answer it
PAGE_SIZE: Final = 100  # events of a room a sync brings at once; the rest is fetched
GAP_PAGES: Final = 50  # pages fetched to close a gap: five thousand messages while we were away
WAITING_LIMIT: Final = 500  # encrypted messages kept until their keys come
WAITING_SECONDS: Final = 3600  # a key that has not come in an hour does not come
MAX_SENDERS: Final = 2_000  # whose message an answered one was, remembered so that the server is asked once
FILTER: Final = msgspec.json.encode(
    {
        # Redundant members: a process that starts again does not know what the server told the one before.
        "room": {
            "timeline": {"limit": PAGE_SIZE, "lazy_load_members": True},
            "state": {"lazy_load_members": True, "include_redundant_members": True},
        },
        "presence": {"types": []},
    }
).decode()

logger = logging.getLogger(__name__)


class MatrixReceiver:
    """The ear of one account. `rooms` is what it knows; `beat` is when the server last answered, Unix milliseconds."""

    def __init__(
        self, settings: MatrixSettings, server: Homeserver, login: MatrixLogin, rooms: MatrixRooms, account_id: str
    ) -> None:
        self._settings = settings
        self._server = server
        self._login = login
        self._account_id = account_id
        self._senders: OrderedDict[str, str] = OrderedDict()
        self.rooms = rooms
        self.last_sync_at = 0

    async def run(self, on_message: OnMessage, encryption: MatrixEncryption) -> None:
        """Until cancelled, or the server fails."""
        position = await self._login.load_position()
        whole = True  # the first sync tells all state again: a process that starts knows nothing
        while True:
            since = position.since if position else None
            sync = await self._sync(since, full_state=whole)
            fresh = await encryption.process_sync(sync)
            self.rooms.apply_account_data(sync.get("account_data"))
            waiting = list(position.waiting) if position else []
            if fresh or whole:
                waiting = [held for held in waiting if not await self._retry_event(held, on_message, encryption)]
            async for room, event in self._new_events(sync, since, encryption):
                if not await self._deliver_event(room, event, on_message, encryption):
                    waiting.append({"room": room.id, "event": event, "until": time.time() + WAITING_SECONDS})
            after = SyncPosition(
                user=self._login.identity.user, since=str(sync["next_batch"]), waiting=_limit_waiting_events(waiting)
            )
            if after != position:
                await self._login.save_position(after)
            position, whole, self.last_sync_at = after, False, int(time.time() * 1000)

    async def _sync(self, since: str | None, *, full_state: bool) -> Json:
        params = {
            "since": since,
            "timeout": 0 if full_state else POLL_WAIT * 1000,
            "full_state": "true" if full_state else None,
            "filter": FILTER,
        }
        return await self._server.get(f"{CLIENT}/sync", params, wait=POLL_WAIT + POLL_GRACE)

    async def _new_events(
        self, sync: Json, since: str | None, encryption: MatrixEncryption
    ) -> AsyncIterator[tuple[MatrixRoom, Json]]:
        """Each room's new events, in order, none left out. Of an account's first sync: none, it is all history."""
        rooms = sync.get("rooms") or {}
        for id in rooms.get("leave") or {}:
            self.rooms.remove(id)
        for id, joined in (rooms.get("join") or {}).items():
            if self.rooms.update(id, joined):
                encryption.rotate_room_key(id)
            room, line = self.rooms.get(id), timeline_events(joined)
            assert room is not None
            start = self._join_index(line)
            if start is not None:
                line = line[start:]  # what was said before we were asked in is not for us
            elif since is not None and joined.get("timeline", {}).get("limited"):
                line = await self._fetch_gap(id, joined["timeline"].get("prev_batch"), since) + line
            if since is not None:
                for event in line:
                    yield room, event
        for id, invited in (rooms.get("invite") or {}).items():
            await self._handle_invite(id, invited)

    def _join_index(self, room_events: list[Json]) -> int | None:
        """Where we were asked in, or else came in, when that happened just now."""
        mine = [
            (index, events.content_of(event).get("membership"))
            for index, event in enumerate(room_events)
            if event.get("type") == "m.room.member" and event.get("state_key") == self._login.identity.user
        ]
        if not any(membership == "join" for _, membership in mine):
            return None
        return next((index for index, membership in mine if membership in ("invite", "join")), None)

    async def _fetch_gap(self, room: str, prev_batch: str | None, since: str) -> list[Json]:
        """What lies between the last sync and this one's first event, oldest first."""
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
                "matrix %s: older ones than %d new events of a room are skipped", self._account_id, len(found)
            )
        return found[::-1]

    async def _retry_event(self, undecrypted: Json, on_message: OnMessage, encryption: MatrixEncryption) -> bool:
        room = self.rooms.get(undecrypted["room"])
        return (
            room is None
            or undecrypted["until"] < time.time()
            or await self._deliver_event(room, undecrypted["event"], on_message, encryption)
        )

    async def _deliver_event(
        self, room: MatrixRoom, event: Json, on_message: OnMessage, encryption: MatrixEncryption
    ) -> bool:
        """Hand over a message; False when it can't be opened yet."""
        if "state_key" in event or not event.get("event_id"):
            return True
        if event.get("sender") == self._login.identity.user:
            return True
        if event.get("type") == "m.room.encrypted":
            opened = encryption.decrypt(event, room.id)
            if opened is None:
                return not encryption.is_available
            event = opened
        heard = await self._parse_event(room, event)
        if heard is not None:
            await on_message(heard)
        return True

    async def _parse_event(self, room: MatrixRoom, event: Json) -> InboundMessage | None:
        content = events.content_of(event)
        if event.get("type") not in events.MESSAGE_TYPES or not content or events.is_edit(event):
            return None
        if content.get("msgtype") == "m.notice":
            return None  # by custom programs say it, and programs do not answer it
        media = events.media_of(event, content)
        reply_to = events.reply_of(event)
        user = str(event.get("sender"))
        return InboundMessage(
            id=str(event["event_id"]),
            address=ChatAddress(channel="matrix", account=self._account_id, to=room.id, thread=events.thread_of(event)),
            chat="direct" if room.is_direct else "group",
            # No user name: without its server it is anybody's, and an allow-list would let them all in.
            sender=Sender(id=user, name=room.display_name(user)),
            text=events.text_of(event, content),
            at=events.timestamp_ms(event),
            files=() if media is None else (msgspec.to_builtins(media),),
            reply_to=reply_to,
            mentioned=await self._mentions_us(room, content, reply_to),
            title=room.name or room.alias,
        )

    async def _mentions_us(self, room: MatrixRoom, content: Json, reply_to: str | None) -> bool:
        me = self._login.identity.user
        if events.mentions_user(content, me, room.display_name(me)):
            return True
        return reply_to is not None and await self._sender_of(room.id, reply_to) == me

    def remember_own_message(self, message_id: str) -> None:
        """A message of our own: an answer to it speaks to us."""
        self._remember_sender(message_id, self._login.identity.user)

    def _remember_sender(self, message_id: str, sender: str) -> None:
        self._senders[message_id] = sender
        while len(self._senders) > MAX_SENDERS:
            self._senders.popitem(last=False)

    async def _sender_of(self, room: str, message_id: str) -> str | None:
        if message_id not in self._senders:
            try:
                event = await self._server.get(
                    f"{CLIENT}/rooms/{quote_segment(room)}/event/{quote_segment(message_id)}"
                )
            except MatrixRefused:
                return None
            self._remember_sender(message_id, str(event.get("sender")))
        return self._senders[message_id]

    async def fetch_file(self, media: events.MatrixFile, encryption: MatrixEncryption) -> Attachment:
        """The file, or its name alone when it is too large, gone, or can't be opened."""
        try:
            data = await self._server.download(media.uri, limit=self._settings.media_limit)
            data = data if media.sealed is None else encryption.decrypt_file(data, media.sealed)
        except ChannelRefused as exc:
            logger.warning("matrix %s: an attachment was not taken: %s", self._account_id, exc)
            return Attachment(mime_type=media.mime_type, name=media.name)
        return Attachment(mime_type=media.mime_type, name=media.name, data=data)

    async def _handle_invite(self, room_id: str, invite: Json) -> None:
        """Accept an invitation if the settings say so. One refused by us stays open; a person may accept it."""
        state = timeline_events({"timeline": invite.get("invite_state")})
        me = self._login.identity.user
        mine: Json = next((e for e in state if e.get("type") == "m.room.member" and e.get("state_key") == me), {})
        inviter = str(mine.get("sender", ""))
        aliases = [events.content_of(e).get("alias") for e in state if e.get("type") == "m.room.canonical_alias"]
        names = {room_id, inviter, *map(str, aliases)}
        policy = self._settings.auto_join
        if policy == "off" or (policy == "allowlist" and not names & set(self._settings.auto_join_allowlist)):
            logger.info(
                "matrix %s: %s invites us to %s; left alone (autoJoin %s)", self._account_id, inviter, room_id, policy
            )
            return
        try:
            await self._server.post(f"{CLIENT}/join/{quote_segment(room_id)}", {})
        except MatrixRefused as exc:
            logger.warning("matrix %s: %s can't be joined: %s", self._account_id, room_id, exc)
            return
        if events.content_of(mine).get("is_direct") is True:
            lists = self.rooms.add_direct_room(user=inviter, room=room_id)
            await self._server.put(f"{CLIENT}/user/{quote_segment(me)}/account_data/m.direct", lists)


def _limit_waiting_events(waiting: list[Json]) -> tuple[Json, ...]:
    return tuple(waiting[-WAITING_LIMIT:])
