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
from ....core.channel import (
    ChannelAbilities,
    ChannelError,
    ChannelRefused,
    ChatAddress,
    DeliveryReceipt,
    OnMessage,
    OutboundMessage,
    StoredMessage,
)
from ....core.model import Json
from . import events
from .account import MatrixIdentity, MatrixLogin
from .api import CLIENT, Homeserver, LoggedOut, MatrixRefused, quote_segment, transaction_id
from .encryption_port import ENCRYPTION_REQUIRED, MatrixEncryption, NoEncryption
from .history import RoomHistory, read_pins
from .rooms import MatrixRoom, MatrixRooms
from .settings import MatrixSettings
from .sync import MatrixReceiver

if TYPE_CHECKING:
    from .encryption import OlmEncryption

NAME: Final = "matrix"
TEXT_LIMIT: Final = 4_000  # characters: with its HTML, quoted in an edit and encrypted, below an event's 64 KiB
TYPING_TIMEOUT_MS: Final = 30_000  # milliseconds clients show us typing unless told otherwise
REACTION_PAGES: Final = 50  # of a hundred reactions each, looked through for our own
TARGET_PATTERN: Final = re.compile(r"[!#@][^\s/?&]+")
TARGET_HINT: Final = "a Matrix target is a room id (!…), an alias (#name:server) or a person (@name:server)"


class MatrixChannel:
    """A `Channel`. What `run` has learned of the rooms serves everything else; without it the server is asked."""

    name = NAME

    def __init__(self, settings: MatrixSettings, *, account: str, folder: Path) -> None:
        self.account = account
        self.abilities = ChannelAbilities(
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
        self._login = MatrixLogin(settings, self._server, folder, account)
        self._receiver: MatrixReceiver | None = None
        self._encryption: MatrixEncryption = NoEncryption()
        self._setup_lock = asyncio.Lock()
        self._encrypt_lock = asyncio.Lock()
        self._running = False

    async def aclose(self) -> None:
        await self._encryption.aclose()
        await self._server.aclose()

    def normalize_target(self, target: str) -> str:
        text = target.strip().removeprefix("https://matrix.to/#/")
        text = re.sub(r"^(matrix|room|user|channel):", "", unquote(text), flags=re.IGNORECASE).strip().partition("?")[0]
        if not TARGET_PATTERN.fullmatch(text) or (text[0] in "#@" and ":" not in text):
            raise ChannelRefused(TARGET_HINT)
        if text[0] in "#@":
            local, _, server = text.partition(":")
            text = f"{local.lower() if text[0] == '@' else local}:{server.lower()}"
        rooms = self._receiver.rooms if self._receiver else None
        known = rooms and {"@": rooms.find_direct_room, "#": rooms.find_by_alias}.get(text[0])
        return (known(text) if known else None) or text

    async def run(self, on_message: OnMessage) -> None:
        listener = await self._prepare()
        self._running = True
        try:
            await listener.run(on_message, self._encryption)
        except LoggedOut as exc:
            self._login.invalidate()
            if self._settings.resolve_password(self.account) is None:
                raise ChannelRefused(str(exc)) from exc
            raise ChannelError("the homeserver ended our login; logging in again") from exc
        finally:
            self._running = False

    async def fetch(self, file: Json) -> Attachment:
        listener = await self._prepare()
        return await listener.fetch_file(msgspec.convert(file, events.MatrixFile), self._encryption)

    async def status(self) -> Json:
        known = self._login.identity if self._login.is_logged_in else None
        return {
            "connected": self._running and self._receiver is not None and self._receiver.last_sync_at > 0,
            "homeserver": self._server.url,
            "userId": known.user if known else None,
            "deviceId": known.device if known else None,
            "encryption": self._encryption.is_available,
            "rooms": len(self._receiver.rooms) if self._receiver else 0,
            "lastSyncAt": self._receiver.last_sync_at if self._receiver else 0,
        }

    async def _prepare(self) -> MatrixReceiver:
        """Logged in, keys at hand, rooms as far as they are known."""
        async with self._setup_lock:
            me = await self._login.log_in()
            if self._receiver is None:
                rooms = MatrixRooms(me.user)
                if self._settings.encryption:
                    self._encryption = await self._open_encryption(me)
                self._receiver = MatrixReceiver(self._settings, self._server, self._login, rooms, self.account)
            return self._receiver

    async def _open_encryption(self, identity: MatrixIdentity) -> "OlmEncryption":
        try:
            # Here for start-up: it takes a second, and most accounts do without.
            from .encryption import OlmEncryption
        except ImportError as exc:
            raise ChannelRefused("channels.matrix.encryption needs the extra: install openclaw-mcp[matrix]") from exc
        if not identity.device:
            raise ChannelRefused("this access token belongs to no device: log in with a password for encryption")
        sealing = OlmEncryption(self._server, self._folder, user=identity.user, device=identity.device)
        await sealing.publish_keys()
        return sealing

    # ---- sending ----

    async def send(self, address: ChatAddress, message: OutboundMessage, *, key: str) -> DeliveryReceipt:
        room = await self._resolve_room(address.to)
        place = events.relation_content(thread=address.thread, reply_to=message.reply_to)
        if not message.attachments:
            content = events.text_content(message.text, silent=message.silent)
            return _receipt([await self._send_event(room, "m.room.message", content | place, key=key)])
        sent = []
        for number, attachment in enumerate(message.attachments):
            caption = message.text if number == 0 else ""
            content = await self._upload_file(room, attachment, caption=caption)
            sent.append(await self._send_event(room, "m.room.message", content | place, key=f"{key}/{number}"))
        return _receipt(sent)

    async def send_poll(
        self, address: ChatAddress, question: str, options: Sequence[str], *, many: bool, key: str
    ) -> DeliveryReceipt:
        room = await self._resolve_room(address.to)
        content = events.poll_content(question, options, many=many) | events.relation_content(
            thread=address.thread, reply_to=None
        )
        return _receipt([await self._send_event(room, events.POLL, content, key=key)])

    async def edit(self, address: ChatAddress, message_id: str, text: str) -> None:
        room = await self._resolve_room(address.to)
        await self._send_event(room, "m.room.message", events.edit_content(message_id, text))

    async def react(self, address: ChatAddress, message_id: str, emoji: str, *, remove: bool = False) -> None:
        room = await self._resolve_room(address.to)
        if remove:
            for id in await self._own_reactions(room, message_id, emoji):
                await self._redact(room.id, id)
            return
        try:
            # In the open even in encrypted rooms: clients and servers count reactions by what they can see.
            path = f"{CLIENT}/rooms/{quote_segment(room.id)}/send/m.reaction/{secrets.token_hex(16)}"
            await self._server.put(path, events.reaction_content(message_id, emoji))
        except MatrixRefused as exc:
            if exc.errcode != "M_DUPLICATE_ANNOTATION":
                raise

    async def delete(self, address: ChatAddress, message_id: str) -> None:
        await self._redact((await self._resolve_room(address.to)).id, message_id)

    async def pin(self, address: ChatAddress, message_id: str, *, remove: bool = False) -> None:
        room = await self._resolve_room(address.to)
        async with self._setup_lock:  # one change of the list after the other
            listed = [id for id in await read_pins(self._server, room.id) if id != message_id]
            pinned = listed if remove else [*listed, message_id]
            await self._server.put(
                f"{CLIENT}/rooms/{quote_segment(room.id)}/state/m.room.pinned_events/", {"pinned": pinned}
            )

    async def read(self, address: ChatAddress, *, limit: int, before: str | None = None) -> Sequence[StoredMessage]:
        room = await self._resolve_room(address.to)
        history = RoomHistory(self._server, self._encryption, room, self._login.identity.user)
        return await history.read(address, limit=limit, before=before)

    async def set_typing(self, address: ChatAddress, *, on: bool) -> None:
        room, me = await self._resolve_room(address.to), self._login.identity.user
        body: Json = {"typing": on} | ({"timeout": TYPING_TIMEOUT_MS} if on else {})
        await self._server.put(f"{CLIENT}/rooms/{quote_segment(room.id)}/typing/{quote_segment(me)}", body)

    async def _send_event(self, room: MatrixRoom, kind: str, content: Json, *, key: str | None = None) -> str:
        if room.encrypted:
            async with self._encrypt_lock:  # two keys shared at once would leave some devices without either
                content = await self._encryption.encrypt(room.id, kind, content, await self._member_ids(room))
            kind = "m.room.encrypted"
        name = secrets.token_hex(16) if key is None else transaction_id(key)
        answer = await self._server.put(f"{CLIENT}/rooms/{quote_segment(room.id)}/send/{kind}/{name}", content)
        id = str(answer["event_id"])
        assert self._receiver is not None
        self._receiver.remember_own_message(id)
        return id

    async def _upload_file(self, room: MatrixRoom, attachment: Attachment, *, caption: str) -> Json:
        if attachment.data is None:
            raise ChannelRefused("an attachment without its bytes can't be sent to Matrix")
        data, sealed, mime_type, name = attachment.data, None, attachment.mime_type, attachment.name
        if room.encrypted:
            data, sealed = self._encryption.encrypt_file(data)
            mime_type, name = "application/octet-stream", None  # the server need not know
        uri = await self._server.upload(data, mime_type=mime_type, name=name)
        return events.file_content(attachment, uri, caption=caption, encryption_info=sealed)

    async def _redact(self, room: str, message_id: str) -> None:
        path = f"{CLIENT}/rooms/{quote_segment(room)}/redact/{quote_segment(message_id)}/{secrets.token_hex(16)}"
        await self._server.put(path, {})

    async def _own_reactions(self, room: MatrixRoom, message_id: str, emoji: str) -> list[str]:
        relations = f"/_matrix/client/v1/rooms/{quote_segment(room.id)}/relations/{quote_segment(message_id)}"
        path = f"{relations}/m.annotation/m.reaction"
        found: list[str] = []
        token = None
        for _ in range(REACTION_PAGES):
            page = await self._server.get(path, {"limit": 100, "from": token})
            found += [
                str(event["event_id"])
                for event in page.get("chunk") or []
                if event.get("sender") == self._login.identity.user and events.relation(event).get("key") == emoji
            ]
            token = page.get("next_batch")
            if token is None:
                break
        return found

    # ---- rooms ----

    async def _resolve_room(self, target: str) -> MatrixRoom:
        """The room a target names. Raises ChannelRefused when it is encrypted and we are not."""
        listener = await self._prepare()
        id = await self._resolve_room_id(listener, target)
        room = listener.rooms.get(id)
        if room is None:
            room = MatrixRoom(id=id, encrypted=await self._has_state(id, "m.room.encryption"))
        if room.encrypted and not self._encryption.is_available:
            raise ChannelRefused(ENCRYPTION_REQUIRED)
        return room

    async def _resolve_room_id(self, receiver: MatrixReceiver, target: str) -> str:
        if target.startswith("!"):
            return target
        if target.startswith("#"):
            known = receiver.rooms.find_by_alias(target)
            return known or str((await self._server.get(f"{CLIENT}/directory/room/{quote_segment(target)}"))["room_id"])
        async with self._setup_lock:  # two letters to a new person open one room
            return receiver.rooms.find_direct_room(target) or await self._create_direct_room(receiver, target)

    async def _create_direct_room(self, receiver: MatrixReceiver, user: str) -> str:
        body: Json = {"preset": "trusted_private_chat", "is_direct": True, "invite": [user]}
        if self._encryption.is_available:
            rule = {"algorithm": "m.megolm.v1.aes-sha2"}
            body["initial_state"] = [{"type": "m.room.encryption", "state_key": "", "content": rule}]
        room = str((await self._server.post(f"{CLIENT}/createRoom", body))["room_id"])
        # Known before the next sync tells of it, so that a second letter finds it.
        people = [(self._login.identity.user, "join"), (user, "invite")]
        state = [{"type": "m.room.member", "state_key": who, "content": {"membership": m}} for who, m in people]
        counts = {"m.joined_member_count": 1, "m.invited_member_count": 1}
        receiver.rooms.update(room, {"state": {"events": [*state, *body.get("initial_state", [])]}, "summary": counts})
        lists = receiver.rooms.add_direct_room(user=user, room=room)
        me = quote_segment(self._login.identity.user)
        await self._server.put(f"{CLIENT}/user/{me}/account_data/m.direct", lists)
        return room

    async def _has_state(self, room: str, kind: str) -> bool:
        try:
            await self._server.get(f"{CLIENT}/rooms/{quote_segment(room)}/state/{kind}/")
        except MatrixRefused as exc:
            if exc.errcode == "M_NOT_FOUND":
                return False
            raise
        return True

    async def _member_ids(self, room: MatrixRoom) -> list[str]:
        if not room.has_all_members:
            answer = await self._server.get(f"{CLIENT}/rooms/{quote_segment(room.id)}/members")
            for event in answer.get("chunk") or []:
                room.members[str(event["state_key"])] = events.content_of(event)
            room.has_all_members = True
        return room.member_ids


def _receipt(sent: list[str]) -> DeliveryReceipt:
    more: Json = {"messageIds": sent} if len(sent) > 1 else {}
    return DeliveryReceipt(message_id=sent[0], at=int(time.time() * 1000), extra=more)
