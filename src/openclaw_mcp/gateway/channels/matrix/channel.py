"""The matrix channel: one account, what it sends and does in rooms."""

import asyncio
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec

from ....core.agent import Attachment
from ....core.channel import Abilities, Address, ChannelError, ChannelRefused, Hear, Letter, Receipt, Seen
from ....core.model import Json
from . import events
from .account import Account, Me
from .api import CLIENT, Homeserver, LoggedOut, MatrixRefused, part, transaction
from .encryption_port import CLOSED, Sealer, Unsealed
from .history import History, pins
from .rooms import Room, Rooms
from .settings import MatrixSettings
from .sync import Listener

if TYPE_CHECKING:
    from .encryption import Sealing

NAME: Final = "matrix"
TEXT_LIMIT: Final = 4_000  # characters: with its HTML, quoted in an edit and encrypted, below an event's 64 KiB
TYPING_SHOWN: Final = 30_000  # milliseconds clients show us typing unless told otherwise
REACTION_PAGES: Final = 50  # of a hundred reactions each, looked through for our own
TARGET: Final = re.compile(r"[!#@][^\s/?&]+")
HINT: Final = "a Matrix target is a room id (!…), an alias (#name:server) or a person (@name:server)"


class Matrix:
    """A `Channel`. What `run` has learned of the rooms serves everything else; without it the server is asked."""

    name = NAME

    def __init__(self, settings: MatrixSettings, *, account: str, folder: Path) -> None:
        self.account = account
        self.abilities = Abilities(
            can=frozenset(
                (
                    "send", "reply", "thread", "broadcast", "react", "delete", "attachment", "pin", "read", "edit",
                    "typing", "poll",
                )
            ),
            text_limit=TEXT_LIMIT,
            markup="markdown",
            media=("*/*",),
            media_limit=settings.media_limit,
            once=True,
        )  # fmt: skip
        self._settings = settings
        self._folder = folder
        self._server = Homeserver(settings.homeserver)
        self._identity = Account(settings, self._server, folder, account)
        self._listener: Listener | None = None
        self._sealer: Sealer = Unsealed()
        self._ready = asyncio.Lock()
        self._sealing = asyncio.Lock()
        self._running = False

    async def aclose(self) -> None:
        await self._sealer.aclose()
        await self._server.aclose()

    def canonical(self, target: str) -> str:
        text = target.strip().removeprefix("https://matrix.to/#/")
        text = re.sub(r"^(matrix|room|user|channel):", "", unquote(text), flags=re.IGNORECASE).strip().partition("?")[0]
        if not TARGET.fullmatch(text) or (text[0] in "#@" and ":" not in text):
            raise ChannelRefused(HINT)
        if text[0] in "#@":
            local, _, server = text.partition(":")
            text = f"{local.lower() if text[0] == '@' else local}:{server.lower()}"
        rooms = self._listener.rooms if self._listener else None
        known = rooms and {"@": rooms.with_person, "#": rooms.by_alias}.get(text[0])
        return (known(text) if known else None) or text

    async def run(self, hear: Hear) -> None:
        listener = await self._prepared()
        self._running = True
        try:
            await listener.listen(hear, self._sealer)
        except LoggedOut as exc:
            self._identity.leave()
            if self._settings.secret_word(self.account) is None:
                raise ChannelRefused(str(exc)) from exc
            raise ChannelError("the homeserver ended our login; logging in again") from exc
        finally:
            self._running = False

    async def fetch(self, file: Json) -> Attachment:
        listener = await self._prepared()
        return await listener.fetched(msgspec.convert(file, events.Media), self._sealer)

    async def status(self) -> Json:
        known = self._identity.me if self._identity.entered else None
        return {
            "connected": self._running and self._listener is not None and self._listener.beat > 0,
            "homeserver": self._server.url,
            "userId": known.user if known else None,
            "deviceId": known.device if known else None,
            "encryption": self._sealer.can,
            "rooms": len(self._listener.rooms) if self._listener else 0,
            "lastSyncAt": self._listener.beat if self._listener else 0,
        }

    async def _prepared(self) -> Listener:
        """Logged in, keys at hand, rooms as far as they are known."""
        async with self._ready:
            me = await self._identity.enter()
            if self._listener is None:
                rooms = Rooms(me.user)
                if self._settings.encryption:
                    self._sealer = await self._keys(me)
                self._listener = Listener(self._settings, self._server, self._identity, rooms, self.account)
            return self._listener

    async def _keys(self, me: Me) -> "Sealing":
        try:
            # Here for start-up: it takes a second, and most accounts do without.
            from .encryption import Sealing
        except ImportError as exc:
            raise ChannelRefused("channels.matrix.encryption needs the extra: install openclaw-mcp[matrix]") from exc
        if not me.device:
            raise ChannelRefused("this access token belongs to no device: log in with a password for encryption")
        sealing = Sealing(self._server, self._folder, user=me.user, device=me.device)
        await sealing.publish()
        return sealing

    # ---- sending ----

    async def send(self, address: Address, letter: Letter, *, key: str) -> Receipt:
        room = await self._room(address.to)
        place = events.related(thread=address.thread, reply_to=letter.reply_to)
        if not letter.attachments:
            content = events.words(letter.text, silent=letter.silent)
            return _receipt([await self._event(room, "m.room.message", content | place, key=key)])
        sent = []
        for number, attachment in enumerate(letter.attachments):
            caption = letter.text if number == 0 else ""
            content = await self._file(room, attachment, caption=caption)
            sent.append(await self._event(room, "m.room.message", content | place, key=f"{key}/{number}"))
        return _receipt(sent)

    async def poll(self, address: Address, question: str, options: Sequence[str], *, many: bool, key: str) -> Receipt:
        room = await self._room(address.to)
        content = events.poll(question, options, many=many) | events.related(thread=address.thread, reply_to=None)
        return _receipt([await self._event(room, events.POLL, content, key=key)])

    async def edit(self, address: Address, message_id: str, text: str) -> None:
        room = await self._room(address.to)
        await self._event(room, "m.room.message", events.edited(message_id, text))

    async def react(self, address: Address, message_id: str, emoji: str, *, remove: bool = False) -> None:
        room = await self._room(address.to)
        if remove:
            for id in await self._own_reactions(room, message_id, emoji):
                await self._redact(room.id, id)
            return
        try:
            # In the open even in encrypted rooms: clients and servers count reactions by what they can see.
            path = f"{CLIENT}/rooms/{part(room.id)}/send/m.reaction/{secrets.token_hex(16)}"
            await self._server.put(path, events.reaction(message_id, emoji))
        except MatrixRefused as exc:
            if exc.errcode != "M_DUPLICATE_ANNOTATION":
                raise

    async def delete(self, address: Address, message_id: str) -> None:
        await self._redact((await self._room(address.to)).id, message_id)

    async def pin(self, address: Address, message_id: str, *, remove: bool = False) -> None:
        room = await self._room(address.to)
        async with self._ready:  # one change of the list after the other
            listed = [id for id in await pins(self._server, room.id) if id != message_id]
            pinned = listed if remove else [*listed, message_id]
            await self._server.put(f"{CLIENT}/rooms/{part(room.id)}/state/m.room.pinned_events/", {"pinned": pinned})

    async def read(self, address: Address, *, limit: int, before: str | None = None) -> Sequence[Seen]:
        room = await self._room(address.to)
        history = History(self._server, self._sealer, room, self._identity.me.user)
        return await history.read(address, limit=limit, before=before)

    async def typing(self, address: Address, *, on: bool) -> None:
        room, me = await self._room(address.to), self._identity.me.user
        body: Json = {"typing": on} | ({"timeout": TYPING_SHOWN} if on else {})
        await self._server.put(f"{CLIENT}/rooms/{part(room.id)}/typing/{part(me)}", body)

    async def _event(self, room: Room, kind: str, content: Json, *, key: str | None = None) -> str:
        if room.encrypted:
            async with self._sealing:  # two keys shared at once would leave some devices without either
                content = await self._sealer.seal(room.id, kind, content, await self._people(room))
            kind = "m.room.encrypted"
        name = secrets.token_hex(16) if key is None else transaction(key)
        answer = await self._server.put(f"{CLIENT}/rooms/{part(room.id)}/send/{kind}/{name}", content)
        id = str(answer["event_id"])
        assert self._listener is not None
        self._listener.sent(id)
        return id

    async def _file(self, room: Room, attachment: Attachment, *, caption: str) -> Json:
        if attachment.data is None:
            raise ChannelRefused("an attachment without its bytes can't be sent to Matrix")
        data, sealed, mime_type, name = attachment.data, None, attachment.mime_type, attachment.name
        if room.encrypted:
            data, sealed = self._sealer.seal_file(data)
            mime_type, name = "application/octet-stream", None  # the server need not know
        uri = await self._server.upload(data, mime_type=mime_type, name=name)
        return events.file(attachment, uri, caption=caption, sealed=sealed)

    async def _redact(self, room: str, message_id: str) -> None:
        path = f"{CLIENT}/rooms/{part(room)}/redact/{part(message_id)}/{secrets.token_hex(16)}"
        await self._server.put(path, {})

    async def _own_reactions(self, room: Room, message_id: str, emoji: str) -> list[str]:
        path = f"/_matrix/client/v1/rooms/{part(room.id)}/relations/{part(message_id)}/m.annotation/m.reaction"
        found: list[str] = []
        token = None
        for _ in range(REACTION_PAGES):
            page = await self._server.get(path, {"limit": 100, "from": token})
            found += [
                str(event["event_id"])
                for event in page.get("chunk") or []
                if event.get("sender") == self._identity.me.user and events.relation(event).get("key") == emoji
            ]
            token = page.get("next_batch")
            if token is None:
                break
        return found

    # ---- rooms ----

    async def _room(self, target: str) -> Room:
        """The room a target names. Raises ChannelRefused when it is encrypted and we are not."""
        listener = await self._prepared()
        id = await self._room_id(listener, target)
        room = listener.rooms.get(id)
        if room is None:
            room = Room(id=id, encrypted=await self._has(id, "m.room.encryption"))
        if room.encrypted and not self._sealer.can:
            raise ChannelRefused(CLOSED)
        return room

    async def _room_id(self, listener: Listener, target: str) -> str:
        if target.startswith("!"):
            return target
        if target.startswith("#"):
            known = listener.rooms.by_alias(target)
            return known or str((await self._server.get(f"{CLIENT}/directory/room/{part(target)}"))["room_id"])
        async with self._ready:  # two letters to a new person open one room
            return listener.rooms.with_person(target) or await self._open_direct(listener, target)

    async def _open_direct(self, listener: Listener, user: str) -> str:
        body: Json = {"preset": "trusted_private_chat", "is_direct": True, "invite": [user]}
        if self._sealer.can:
            rule = {"algorithm": "m.megolm.v1.aes-sha2"}
            body["initial_state"] = [{"type": "m.room.encryption", "state_key": "", "content": rule}]
        room = str((await self._server.post(f"{CLIENT}/createRoom", body))["room_id"])
        # Known before the next sync tells of it, so that a second letter finds it.
        people = [(self._identity.me.user, "join"), (user, "invite")]
        state = [{"type": "m.room.member", "state_key": who, "content": {"membership": m}} for who, m in people]
        counts = {"m.joined_member_count": 1, "m.invited_member_count": 1}
        listener.rooms.update(room, {"state": {"events": [*state, *body.get("initial_state", [])]}, "summary": counts})
        lists = listener.rooms.direct_list(user=user, room=room)
        me = part(self._identity.me.user)
        await self._server.put(f"{CLIENT}/user/{me}/account_data/m.direct", lists)
        return room

    async def _has(self, room: str, kind: str) -> bool:
        try:
            await self._server.get(f"{CLIENT}/rooms/{part(room)}/state/{kind}/")
        except MatrixRefused as exc:
            if exc.errcode == "M_NOT_FOUND":
                return False
            raise
        return True

    async def _people(self, room: Room) -> list[str]:
        if not room.everybody:
            answer = await self._server.get(f"{CLIENT}/rooms/{part(room.id)}/members")
            for event in answer.get("chunk") or []:
                room.people[str(event["state_key"])] = events.content_of(event)
            room.everybody = True
        return room.present


def _receipt(sent: list[str]) -> Receipt:
    more: Json = {"messageIds": sent} if len(sent) > 1 else {}
    return Receipt(message_id=sent[0], at=int(time.time() * 1000), extra=more)
