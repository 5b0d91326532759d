"""End-to-end encryption by matrix-nio's Olm machine (the `matrix` extra). It holds the keys; we make its requests.

Devices are trusted when first seen: a bot has no person to compare emoji. Keys are stored in the account's folder.
"""

import json
import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import convert, to_builtins
from msgspec.structs import replace

# nio takes a second to import; this module is imported only for an account with encryption switched on.
from nio.crypto import Olm, decrypt_attachment, encrypt_attachment
from nio.events import BadEvent, EncryptedToDeviceEvent, MegolmEvent, ToDeviceEvent, UnknownBadEvent
from nio.exceptions import EncryptionError
from nio.responses import KeysClaimResponse, KeysQueryResponse, KeysUploadResponse
from nio.store import SqliteStore

from ....core.channel import ChannelError, ChannelRefused
from ....core.lenient import convert_lenient
from ....core.model import Json
from ....net.files import create_if_absent
from .api import Homeserver, client_path
from .encryption_port import MatrixEncryption
from .events import EncryptedFile, EventContent, MatrixEvent
from .responses import SyncAnswer

MAX_SHARE_REQUESTS: Final = 100  # to-device requests for one room key, twenty devices each: two thousand devices
KEY_TIMEOUT_MS: Final = 10_000  # milliseconds the homeserver may ask other servers for keys

logger = logging.getLogger(__name__)


class OlmEncryption(MatrixEncryption):
    """A `MatrixEncryption` for one device."""

    is_available = True

    def __init__(self, server: Homeserver, folder: Path, *, user: str, device: str) -> None:
        pickle = create_if_absent(folder / "pickle.key", secrets.token_hex(32).encode()).decode()
        store = SqliteStore(user, device, str(folder), pickle_key=pickle, database_name="keys.sqlite")
        self._olm = Olm(user, device, store)
        self._server = server

    async def aclose(self) -> None:
        self._olm.store.database.close()

    async def process_sync(self, sync: SyncAnswer) -> bool:
        handled = [self._handle_to_device(event) for event in sync.to_device.events]
        if sync.device_one_time_keys_count is not None:
            self._olm.uploaded_key_count = sync.device_one_time_keys_count.get("signed_curve25519", 0)
        changed = set(sync.device_lists.changed)
        if changed & self._olm.tracked_users:
            self._olm.add_changed_users(changed & self._olm.tracked_users)
            self._olm.outbound_group_sessions.clear()  # a user has another device: it gets the next key, not this one
        await self.publish_keys()
        return any(handled)

    async def publish_keys(self) -> None:
        """Upload our keys, with enough one-time keys among them."""
        if self._olm.should_upload_keys:
            answer = await self._server.post(client_path("keys", "upload"), self._olm.share_keys(), Json)
            self._olm.handle_response(KeysUploadResponse.from_dict(answer))

    def rotate_room_key(self, room: str) -> None:
        self._olm.outbound_group_sessions.pop(room, None)

    def decrypt(self, event: MatrixEvent, room: str) -> MatrixEvent | None:
        encrypted = MegolmEvent.from_dict(to_builtins(event) | {"room_id": room})
        if not isinstance(encrypted, MegolmEvent):
            return None
        try:
            inner = self._olm.decrypt_megolm_event(encrypted, room)
        except Exception as exc:  # noqa: BLE001  (bytes of unknown senders: no failure may end the sync)
            if not isinstance(exc, EncryptionError):
                logger.warning("matrix: encrypted message ignored (%s)", type(exc).__name__)
            return None
        if isinstance(inner, BadEvent | UnknownBadEvent):
            return None
        decrypted = convert_lenient(inner.source, MatrixEvent)
        return replace(event, type=decrypted.type, content=decrypted.content)

    async def encrypt(self, room: str, kind: str, content: EventContent, users: Sequence[str]) -> EventContent:
        await self._query_device_keys(users)
        if self._olm.should_share_group_session(room):
            await self._share_room_key(room, users)
        inside = to_builtins(replace(content, relates_to=None))
        encrypted = convert(self._olm.group_encrypt(room, {"type": kind, "content": inside}), EventContent)
        return replace(encrypted, relates_to=content.relates_to)  # not encrypted: the server needs it

    def encrypt_file(self, data: bytes) -> tuple[bytes, EncryptedFile]:
        encrypted, key = encrypt_attachment(data)
        return encrypted, convert(key, EncryptedFile)

    def decrypt_file(self, data: bytes, file: EncryptedFile) -> bytes:
        try:
            key = "" if file.key is None else file.key.k
            decrypted: bytes = decrypt_attachment(data, key, file.hashes["sha256"], file.iv)
        except (EncryptionError, KeyError, TypeError) as exc:
            raise ChannelRefused("the attachment can't be opened with the key that came with it") from exc
        return decrypted

    def _handle_to_device(self, raw: Json) -> bool:
        event = ToDeviceEvent.parse_event(raw)
        if not isinstance(event, EncryptedToDeviceEvent):
            return False
        try:
            return self._olm.handle_to_device_event(event) is not None
        except Exception as exc:  # noqa: BLE001  (as above)
            logger.warning("matrix: message to this device ignored (%s)", type(exc).__name__)
            return False

    async def _query_device_keys(self, users: Sequence[str]) -> None:
        """Fetch the device keys of these users."""
        unknown = (set(users) - self._olm.tracked_users) | (self._olm.users_for_key_query & set(users))
        if unknown:
            body = {"timeout": KEY_TIMEOUT_MS, "device_keys": {user: [] for user in sorted(unknown)}}
            answer = await self._server.post(client_path("keys", "query"), body, Json)
            response = KeysQueryResponse.from_dict(answer)
            if not isinstance(response, KeysQueryResponse):
                raise ChannelError("the homeserver's answer about device keys is malformed")
            self._olm.handle_response(response)

    async def _share_room_key(self, room: str, users: Sequence[str]) -> None:
        """Send the room's key to every device of these users, over Olm."""
        missing = self._olm.get_missing_sessions(list(users))
        if missing:
            wanted = {user: dict.fromkeys(devices, "signed_curve25519") for user, devices in missing.items()}
            body = {"timeout": KEY_TIMEOUT_MS, "one_time_keys": wanted}
            answer = await self._server.post(client_path("keys", "claim"), body, Json)
            response = KeysClaimResponse.from_dict(answer)
            if isinstance(response, KeysClaimResponse):
                self._olm.handle_response(response)
        for _ in range(MAX_SHARE_REQUESTS):
            shared, messages = self._olm.share_group_session(
                room, list(users), ignore_missing_sessions=True, ignore_unverified_devices=True
            )
            session = self._olm.outbound_group_sessions[room]
            if not shared:
                session.mark_as_shared()
                return
            path = client_path("sendToDevice", "m.room.encrypted", secrets.token_hex(16))
            await self._server.put(path, json.loads(json.dumps(messages)))
            session.users_shared_with.update(shared)
        raise ChannelRefused("the room has more devices than a key can be given to")
