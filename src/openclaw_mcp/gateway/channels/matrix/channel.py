"""The matrix channel: one account, what it sends and does in rooms."""

import asyncio
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from ....core.agent import Attachment
from ....core.channel import (
    Ability,
    ChannelAbilities,
    ChannelError,
    ChannelRefused,
    ChannelStatus,
    ChatAddress,
    DeliveryReceipt,
    OnMessage,
    OutboundMessage,
    Poll,
    StoredMessage,
)
from ....core.lenient import convert_lenient
from ....core.mime import OCTET_STREAM
from ....core.model import Json
from ....core.sessions import now_ms
from . import events
from .api import Homeserver, LoggedOut, MatrixRefused, client_path, transaction_id
from .encryption_port import ENCRYPTION_REQUIRED, MatrixEncryption
from .events import EncryptedFile, EventContent, MatrixEvent, MatrixFile
from .history import RoomHistory, read_pins
from .login import MatrixIdentity, MatrixLogin, PositionFile
from .responses import EventList, EventPage, JoinedRoom, RoomAnswer, RoomSummary
from .rooms import MatrixRoom, MatrixRooms
from .settings import MatrixSettings
from .sync import MatrixReceiver

NAME: Final = "matrix"
MESSAGE_TYPE: Final = "m.room.message"
TEXT_LIMIT: Final = 4_000  # characters: with its HTML, quoted in an edit and encrypted, below an event's 64 KiB
TYPING_TIMEOUT_MS: Final = 30_000  # milliseconds that clients show us typing, unless we stop it
REACTION_PAGES: Final = 50  # of a hundred reactions each, searched for our own
TARGET_PATTERN: Final = re.compile(r"[!#@][^\s/?&]+")
TARGET_HINT: Final = "a Matrix target is a room id (!…), an alias (#name:server) or a person (@name:server)"


class MatrixSession(Struct, frozen=True, kw_only=True):
    """What one login opened."""

    identity: MatrixIdentity
    encryption: MatrixEncryption
    receiver: MatrixReceiver

    @property
    def rooms(self) -> MatrixRooms:
        return self.receiver.rooms


class MatrixChannel:
    """A `Channel`. Sending uses what `run` has learned of the rooms; of unknown ones the server is asked."""

    name = NAME

    def __init__(self, settings: MatrixSettings, *, account: str, folder: Path) -> None:
        self.account = account
        self.abilities = ChannelAbilities(
            can=frozenset(get_args(Ability)) - {"effect"},
            text_limit=TEXT_LIMIT,
            markup="markdown",
            media=("*/*",),
            media_limit=settings.media_limit,
            once=True,
        )
        self._settings = settings
        self._folder = folder
        self._server = Homeserver(settings.homeserver)
        self._login = MatrixLogin(settings, self._server, folder, account)
        self._session: MatrixSession | None = None
        """The latest session. It outlives its login: logging in again keeps the rooms and keys."""
        self._is_logged_in = False
        self._running = False
        self._login_lock = asyncio.Lock()
        self._pin_lock = asyncio.Lock()
        """One change of a room's pin list at a time: each is a read and a write."""
        self._room_lock = asyncio.Lock()
        """One direct chat is created at a time: two messages to a new person share it."""
        self._encrypt_lock = asyncio.Lock()
        """One message is encrypted at a time: two room keys shared at once would leave devices without either."""

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.encryption.aclose()
        await self._server.aclose()

    def normalize_target(self, target: str) -> str:
        text = target.strip().removeprefix("https://matrix.to/#/")
        text = re.sub(r"^(matrix|room|user|channel):", "", unquote(text), flags=re.IGNORECASE).strip().partition("?")[0]
        if not TARGET_PATTERN.fullmatch(text) or (text[0] in "#@" and ":" not in text):
            raise ChannelRefused(TARGET_HINT)
        if text[0] == "!":
            return text
        local, _, server = text.partition(":")
        text = f"{local.lower() if text[0] == '@' else local}:{server.lower()}"
        if self._session is None:
            return text
        rooms = self._session.rooms
        return (rooms.find_direct_room(text) if text[0] == "@" else rooms.find_by_alias(text)) or text

    async def run(self, on_message: OnMessage) -> None:
        session = await self._open_session()
        self._running = True
        try:
            await session.receiver.run(on_message)
        except LoggedOut as exc:
            self._is_logged_in = False
            if self._settings.resolve_password(self.account) is None:
                raise ChannelRefused(str(exc)) from exc
            raise ChannelError("the homeserver ended our login; logging in again") from exc
        finally:
            self._running = False

    async def fetch(self, file: Json) -> Attachment:
        return await (await self._open_session()).receiver.fetch_file(convert_lenient(file, MatrixFile))

    async def status(self) -> ChannelStatus:
        session = self._session
        identity = session.identity if session is not None and self._is_logged_in else None
        last_sync_at = session.receiver.last_sync_at if session else 0
        return {
            "connected": self._running and last_sync_at > 0,
            "homeserver": self._server.url,
            "userId": identity.user if identity else None,
            "deviceId": identity.device if identity else None,
            "encryption": session is not None and session.encryption.is_available,
            "rooms": len(session.rooms) if session else 0,
            "lastSyncAt": last_sync_at,
        }

    async def _open_session(self) -> MatrixSession:
        """The current session; logs in if need be."""
        async with self._login_lock:
            session = self._session
            if session is None or not self._is_logged_in:
                identity = await self._login.log_in()
                if session is None:
                    session = self._session = await self._new_session(identity)
                self._is_logged_in = True
            return session

    async def _new_session(self, identity: MatrixIdentity) -> MatrixSession:
        encryption = await self._open_encryption(identity) if self._settings.encryption else MatrixEncryption()
        receiver = MatrixReceiver(
            self._settings, self._server, encryption, PositionFile(self._folder, identity.user), user=identity.user,
            account=self.account,
        )  # fmt: skip
        return MatrixSession(identity=identity, encryption=encryption, receiver=receiver)

    async def _open_encryption(self, identity: MatrixIdentity) -> MatrixEncryption:
        try:
            # Here for start-up: it takes a second, and most accounts do without.
            from .encryption import OlmEncryption
        except ImportError as exc:
            raise ChannelRefused("channels.matrix.encryption needs the extra: install openclaw-mcp[matrix]") from exc
        if not identity.device:
            raise ChannelRefused("this access token belongs to no device: log in with a password for encryption")
        encryption = OlmEncryption(self._server, self._folder, user=identity.user, device=identity.device)
        await encryption.publish_keys()
        return encryption

    # ---- sending ----

    async def send(self, address: ChatAddress, message: OutboundMessage, *, key: str) -> DeliveryReceipt:
        session, room = await self._resolve_room(address.to)
        relation = events.relation_to(thread=address.thread, reply_to=message.reply_to)
        contents = [(key, events.text_content(message.text, silent=message.silent))]
        if message.attachments:
            captions = [message.text, *[""] * (len(message.attachments) - 1)]
            contents = [
                (f"{key}/{number}", await self._upload_file(session, room, attachment, caption=caption))
                for number, (attachment, caption) in enumerate(zip(message.attachments, captions, strict=True))
            ]
        return _receipt(
            [
                await self._send_event(session, room, MESSAGE_TYPE, replace(content, relates_to=relation), key=part_key)
                for part_key, content in contents
            ]
        )

    async def send_poll(self, address: ChatAddress, poll: Poll, *, key: str) -> DeliveryReceipt:
        session, room = await self._resolve_room(address.to)
        content = events.poll_content(poll, events.relation_to(thread=address.thread, reply_to=None))
        return _receipt([await self._send_event(session, room, events.POLL_TYPE, content, key=key)])

    async def edit(self, address: ChatAddress, message_id: str, text: str) -> None:
        session, room = await self._resolve_room(address.to)
        await self._send_event(session, room, MESSAGE_TYPE, events.edit_content(message_id, text))

    async def react(self, address: ChatAddress, message_id: str, emoji: str, *, remove: bool = False) -> None:
        session, room = await self._resolve_room(address.to)
        if remove:
            for id in await self._own_reactions(session, room, message_id, emoji):
                await self._redact(room.id, id)
            return
        try:
            # Not encrypted even in encrypted rooms: clients and servers count the reactions they can read.
            path = client_path("rooms", room.id, "send", "m.reaction", secrets.token_hex(16))
            await self._server.put(path, events.reaction_content(message_id, emoji))
        except MatrixRefused as exc:
            if exc.errcode != "M_DUPLICATE_ANNOTATION":
                raise

    async def delete(self, address: ChatAddress, message_id: str) -> None:
        _, room = await self._resolve_room(address.to)
        await self._redact(room.id, message_id)

    async def pin(self, address: ChatAddress, message_id: str, *, remove: bool = False) -> None:
        _, room = await self._resolve_room(address.to)
        async with self._pin_lock:
            others = [id for id in await read_pins(self._server, room.id) if id != message_id]
            pinned = EventContent(pinned=others if remove else [*others, message_id])
            await self._server.put(client_path("rooms", room.id, "state", "m.room.pinned_events", ""), pinned)

    async def read(self, address: ChatAddress, *, limit: int, before: str | None = None) -> Sequence[StoredMessage]:
        session, room = await self._resolve_room(address.to)
        history = RoomHistory(server=self._server, encryption=session.encryption, room=room, user=session.identity.user)
        return await history.read(address, limit=limit, before=before)

    async def set_typing(self, address: ChatAddress, *, on: bool) -> None:
        session, room = await self._resolve_room(address.to)
        body = {"typing": on} | ({"timeout": TYPING_TIMEOUT_MS} if on else {})
        await self._server.put(client_path("rooms", room.id, "typing", session.identity.user), body)

    async def _send_event(
        self, session: MatrixSession, room: MatrixRoom, kind: str, content: EventContent, *, key: str | None = None
    ) -> str:
        if room.encrypted:
            async with self._encrypt_lock:
                content = await session.encryption.encrypt(room.id, kind, content, await self._member_ids(room))
            kind = "m.room.encrypted"
        transaction = secrets.token_hex(16) if key is None else transaction_id(key)
        id = (await self._server.put(client_path("rooms", room.id, "send", kind, transaction), content)).event_id
        session.receiver.remember_own_message(id)
        return id

    async def _upload_file(
        self, session: MatrixSession, room: MatrixRoom, attachment: Attachment, *, caption: str
    ) -> EventContent:
        if attachment.data is None:
            raise ChannelRefused("an attachment without its bytes can't be sent to Matrix")
        data, file, mime_type, name = attachment.data, EncryptedFile(), attachment.mime_type, attachment.name
        if room.encrypted:
            data, file = session.encryption.encrypt_file(data)
            mime_type, name = OCTET_STREAM, None  # the server need not know
        uri = await self._server.upload(data, mime_type=mime_type, name=name)
        return events.file_content(attachment, replace(file, url=uri), caption=caption)

    async def _redact(self, room: str, message_id: str) -> None:
        await self._server.put(client_path("rooms", room, "redact", message_id, secrets.token_hex(16)), {})

    async def _own_reactions(self, session: MatrixSession, room: MatrixRoom, message_id: str, emoji: str) -> list[str]:
        path = client_path("rooms", room.id, "relations", message_id, "m.annotation", "m.reaction", version="v1")
        found: list[str] = []
        token = None
        for _ in range(REACTION_PAGES):
            page = await self._server.get(path, EventPage, params={"limit": 100, "from": token})
            own = [event for event in page.chunk if event.sender == session.identity.user]
            found += [event.event_id for event in own if event.content.relation.key == emoji]
            token = page.next_batch
            if token is None:
                break
        return found

    # ---- rooms ----

    async def _resolve_room(self, target: str) -> tuple[MatrixSession, MatrixRoom]:
        """The room that a target names. Raises ChannelRefused when it is encrypted and we have no encryption."""
        session = await self._open_session()
        id = await self._resolve_room_id(session, target)
        room = session.rooms.get(id) or MatrixRoom(id=id, encrypted=await self._is_encrypted(id))
        if room.encrypted and not session.encryption.is_available:
            raise ChannelRefused(ENCRYPTION_REQUIRED)
        return session, room

    async def _resolve_room_id(self, session: MatrixSession, target: str) -> str:
        if target.startswith("!"):
            return target
        if target.startswith("#"):
            if known := session.rooms.find_by_alias(target):
                return known
            return (await self._server.get(client_path("directory", "room", target), RoomAnswer)).room_id
        async with self._room_lock:
            return session.rooms.find_direct_room(target) or await self._create_direct_room(session, target)

    async def _create_direct_room(self, session: MatrixSession, user: str) -> str:
        rule = EventContent(algorithm="m.megolm.v1.aes-sha2")
        encryption = [MatrixEvent(type="m.room.encryption", state_key="", content=rule)]
        state = encryption if session.encryption.is_available else []
        body = {"preset": "trusted_private_chat", "is_direct": True, "invite": [user]}
        body |= {"initial_state": state} if state else {}
        room = (await self._server.post(client_path("createRoom"), body, RoomAnswer)).room_id
        # Known before the next sync contains it, so that a second message finds it.
        members = [
            MatrixEvent(type="m.room.member", state_key=id, content=EventContent(membership=membership))
            for id, membership in ((session.identity.user, "join"), (user, "invite"))
        ]
        known = JoinedRoom(state=EventList(events=[*members, *state]), summary=RoomSummary(joined=1, invited=1))
        session.rooms.update(room, known)
        await session.receiver.add_direct_room(user, room)
        return room

    async def _is_encrypted(self, room: str) -> bool:
        try:
            await self._server.get(client_path("rooms", room, "state", "m.room.encryption", ""), EventContent)
        except MatrixRefused as exc:
            if exc.errcode == "M_NOT_FOUND":
                return False
            raise
        return True

    async def _member_ids(self, room: MatrixRoom) -> list[str]:
        if not room.has_all_members:
            for event in (await self._server.get(client_path("rooms", room.id, "members"), EventPage)).chunk:
                room.set_member(event.state_key or "", event.content)
            room.has_all_members = True
        return room.member_ids


def _receipt(sent: list[str]) -> DeliveryReceipt:
    extra = {"messageIds": sent} if len(sent) > 1 else {}
    return DeliveryReceipt(message_id=sent[0], at=now_ms(), extra=extra)
