"""What arrives on Matrix: one sync after another, each acknowledged when all it brought has been handed over."""

import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from ....core.agent import Attachment
from ....core.channel import Address, ChannelRefused, Hear, Heard
from ....core.model import Json, Sender
from . import events
from .account import Account, Position
from .api import CLIENT, Homeserver, MatrixRefused, part
from .encryption_port import Sealer
from .rooms import Room, Rooms, timeline
from .settings import MatrixSettings

POLL_WAIT: Final = 30  # seconds a sync stays open while nothing happens
POLL_GRACE: Final = 30  # seconds more for a busy server to answer it
PAGE: Final = 100  # events of a room a sync brings at once; the rest is fetched
GAP_PAGES: Final = 50  # pages fetched to close a gap: five thousand messages while we were away
WAITING_LIMIT: Final = 500  # encrypted messages kept until their keys come
WAITING_SECONDS: Final = 3600  # a key that has not come in an hour does not come
SENDERS_KEPT: Final = 2_000  # whose message an answered one was, remembered so that the server is asked once
FILTER: Final = msgspec.json.encode(
    {
        # Redundant members: a process that starts again does not know what the server told the one before.
        "room": {
            "timeline": {"limit": PAGE, "lazy_load_members": True},
            "state": {"lazy_load_members": True, "include_redundant_members": True},
        },
        "presence": {"types": []},
    }
).decode()

logger = logging.getLogger(__name__)


class Listener:
    """The ear of one account. `rooms` is what it knows; `beat` is when the server last answered, Unix milliseconds."""

    def __init__(self, settings: MatrixSettings, server: Homeserver, account: Account, rooms: Rooms, name: str) -> None:
        self._settings = settings
        self._server = server
        self._account = account
        self._name = name
        self._senders: OrderedDict[str, str] = OrderedDict()
        self.rooms = rooms
        self.beat = 0

    async def listen(self, hear: Hear, sealer: Sealer) -> None:
        """Until cancelled, or the server fails."""
        position = await self._account.position()
        whole = True  # the first sync tells all state again: a process that starts knows nothing
        while True:
            since = position.since if position else None
            sync = await self._sync(since, whole=whole)
            fresh = await sealer.take(sync)
            self.rooms.account_data(sync.get("account_data"))
            waiting = list(position.waiting) if position else []
            if fresh or whole:
                waiting = [held for held in waiting if not await self._retried(held, hear, sealer)]
            async for room, event in self._news(sync, since, sealer):
                if not await self._handed(room, event, hear, sealer):
                    waiting.append({"room": room.id, "event": event, "until": time.time() + WAITING_SECONDS})
            after = Position(user=self._account.me.user, since=str(sync["next_batch"]), waiting=_kept(waiting))
            if after != position:
                await self._account.listened(after)
            position, whole, self.beat = after, False, int(time.time() * 1000)

    async def _sync(self, since: str | None, *, whole: bool) -> Json:
        params = {
            "since": since,
            "timeout": 0 if whole else POLL_WAIT * 1000,
            "full_state": "true" if whole else None,
            "filter": FILTER,
        }
        return await self._server.get(f"{CLIENT}/sync", params, wait=POLL_WAIT + POLL_GRACE)

    async def _news(self, sync: Json, since: str | None, sealer: Sealer) -> AsyncIterator[tuple[Room, Json]]:
        """Each room's new events, in order, none left out. Of an account's first sync: none, it is all history."""
        rooms = sync.get("rooms") or {}
        for id in rooms.get("leave") or {}:
            self.rooms.left(id)
        for id, joined in (rooms.get("join") or {}).items():
            if self.rooms.update(id, joined):
                sealer.forget(id)
            room, line = self.rooms.get(id), timeline(joined)
            assert room is not None
            start = self._arrival(line)
            if start is not None:
                line = line[start:]  # what was said before we were asked in is not for us
            elif since is not None and joined.get("timeline", {}).get("limited"):
                line = await self._gap(id, joined["timeline"].get("prev_batch"), since) + line
            if since is not None:
                for event in line:
                    yield room, event
        for id, invited in (rooms.get("invite") or {}).items():
            await self._invited(id, invited)

    def _arrival(self, line: list[Json]) -> int | None:
        """Where we were asked in, or else came in, when that happened just now."""
        mine = [
            (index, events.content_of(event).get("membership"))
            for index, event in enumerate(line)
            if event.get("type") == "m.room.member" and event.get("state_key") == self._account.me.user
        ]
        if not any(membership == "join" for _, membership in mine):
            return None
        return next((index for index, membership in mine if membership in ("invite", "join")), None)

    async def _gap(self, room: str, prev_batch: str | None, since: str) -> list[Json]:
        """What lies between the last sync and this one's first event, oldest first."""
        found: list[Json] = []
        token = prev_batch
        for _ in range(GAP_PAGES):
            if token is None:
                break
            params = {"dir": "b", "limit": PAGE, "from": token, "to": since}
            page = await self._server.get(f"{CLIENT}/rooms/{part(room)}/messages", params)
            found += page.get("chunk") or []
            token = page.get("end")
        else:
            logger.warning("matrix %s: older ones than %d new events of a room are skipped", self._name, len(found))
        return found[::-1]

    async def _retried(self, held: Json, hear: Hear, sealer: Sealer) -> bool:
        room = self.rooms.get(held["room"])
        return room is None or held["until"] < time.time() or await self._handed(room, held["event"], hear, sealer)

    async def _handed(self, room: Room, event: Json, hear: Hear, sealer: Sealer) -> bool:
        """Hand over a message; False when it can't be opened yet."""
        if "state_key" in event or not event.get("event_id"):
            return True
        if event.get("sender") == self._account.me.user:
            return True
        if event.get("type") == "m.room.encrypted":
            opened = sealer.open(event, room.id)
            if opened is None:
                return not sealer.can
            event = opened
        heard = await self._heard(room, event)
        if heard is not None:
            await hear(heard)
        return True

    async def _heard(self, room: Room, event: Json) -> Heard | None:
        content = events.content_of(event)
        if event.get("type") not in events.MESSAGES or not content or events.is_edit(event):
            return None
        if content.get("msgtype") == "m.notice":
            return None  # by custom programs say it, and programs do not answer it
        media = events.media_of(event, content)
        reply_to = events.reply_of(event)
        user = str(event.get("sender"))
        return Heard(
            id=str(event["event_id"]),
            address=Address(channel="matrix", account=self._name, to=room.id, thread=events.thread_of(event)),
            chat="direct" if room.direct else "group",
            # No user name: without its server it is anybody's, and an allow-list would let them all in.
            sender=Sender(id=user, name=room.display(user)),
            text=events.text_of(event, content),
            at=events.moment(event),
            files=() if media is None else (msgspec.to_builtins(media),),
            reply_to=reply_to,
            mentioned=await self._to_us(room, content, reply_to),
            title=room.name or room.alias,
        )

    async def _to_us(self, room: Room, content: Json, reply_to: str | None) -> bool:
        me = self._account.me.user
        if events.names(content, me, room.display(me)):
            return True
        return reply_to is not None and await self._sender(room.id, reply_to) == me

    def sent(self, message_id: str) -> None:
        """A message of our own: an answer to it speaks to us."""
        self._remember(message_id, self._account.me.user)

    def _remember(self, message_id: str, sender: str) -> None:
        self._senders[message_id] = sender
        while len(self._senders) > SENDERS_KEPT:
            self._senders.popitem(last=False)

    async def _sender(self, room: str, message_id: str) -> str | None:
        if message_id not in self._senders:
            try:
                event = await self._server.get(f"{CLIENT}/rooms/{part(room)}/event/{part(message_id)}")
            except MatrixRefused:
                return None
            self._remember(message_id, str(event.get("sender")))
        return self._senders[message_id]

    async def fetched(self, media: events.Media, sealer: Sealer) -> Attachment:
        """The file, or its name alone when it is too large, gone, or can't be opened."""
        try:
            data = await self._server.download(media.uri, limit=self._settings.media_limit)
            data = data if media.sealed is None else sealer.open_file(data, media.sealed)
        except ChannelRefused as exc:
            logger.warning("matrix %s: an attachment was not taken: %s", self._name, exc)
            return Attachment(mime_type=media.mime_type, name=media.name)
        return Attachment(mime_type=media.mime_type, name=media.name, data=data)

    async def _invited(self, id: str, invited: Json) -> None:
        """Accept an invitation if the settings say so. One refused by us stays open; a person may accept it."""
        state = timeline({"timeline": invited.get("invite_state")})
        me = self._account.me.user
        mine: Json = next((e for e in state if e.get("type") == "m.room.member" and e.get("state_key") == me), {})
        inviter = str(mine.get("sender", ""))
        aliases = [events.content_of(e).get("alias") for e in state if e.get("type") == "m.room.canonical_alias"]
        names = {id, inviter, *map(str, aliases)}
        policy = self._settings.auto_join
        if policy == "off" or (policy == "allowlist" and not names & set(self._settings.auto_join_allowlist)):
            logger.info("matrix %s: %s invites us to %s; left alone (autoJoin %s)", self._name, inviter, id, policy)
            return
        try:
            await self._server.post(f"{CLIENT}/join/{part(id)}", {})
        except MatrixRefused as exc:
            logger.warning("matrix %s: %s can't be joined: %s", self._name, id, exc)
            return
        if events.content_of(mine).get("is_direct") is True:
            lists = self.rooms.direct_list(user=inviter, room=id)
            await self._server.put(f"{CLIENT}/user/{part(me)}/account_data/m.direct", lists)


def _kept(waiting: list[Json]) -> tuple[Json, ...]:
    return tuple(waiting[-WAITING_LIMIT:])
