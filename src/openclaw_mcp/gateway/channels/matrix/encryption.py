"""End-to-end encryption by matrix-nio's Olm machine (the `matrix` extra). It holds the keys; we make its requests.

Devices are trusted when first seen: a bot has no person to compare emoji. Keys are stored in the account's folder.
"""

import json
import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# nio takes a second to import; this module is imported only for an account with encryption switched on.
from nio.crypto import Olm, decrypt_attachment, encrypt_attachment
from nio.events import BadEvent, EncryptedToDeviceEvent, MegolmEvent, ToDeviceEvent, UnknownBadEvent
from nio.exceptions import EncryptionError
from nio.responses import KeysClaimResponse, KeysQueryResponse, KeysUploadResponse
from nio.store import SqliteStore

from ....core.channel import ChannelError, ChannelRefused
from ....core.model import Json
from ....net.files import create_if_absent
from .api import CLIENT, Homeserver
from .events import event_list

MAX_SHARE_REQUESTS: Final = 100  # to-device requests for one room key, twenty devices each: two thousand devices
KEY_TIMEOUT_MS: Final = 10_000  # milliseconds the homeserver may ask other servers for keys

logger = logging.getLogger(__name__)


class OlmEncryption:
    """A `MatrixEncryption` for one device."""

    is_available = True

    def __init__(self, server: Homeserver, folder: Path, *, user: str, device: str) -> None:
        pickle = create_if_absent(folder / "pickle.key", secrets.token_hex(32).encode()).decode()
        store = SqliteStore(user, device, str(folder), pickle_key=pickle, database_name="keys.sqlite")
        self._olm = Olm(user, device, store)
        self._server = server

    async def aclose(self) -> None:
        self._olm.store.database.close()

    async def process_sync(self, sync: Json) -> bool:
        handled = [self._handle_to_device(event) for event in event_list(sync.get("to_device"))]
        counts = sync.get("device_one_time_keys_count")
        if isinstance(counts, dict):
            self._olm.uploaded_key_count = int(counts.get("signed_curve25519", 0))
        lists = sync.get("device_lists")
        changed = set(lists.get("changed") or ()) if isinstance(lists, dict) else set()
        if changed & self._olm.tracked_users:
            self._olm.add_changed_users(changed & self._olm.tracked_users)
            self._olm.outbound_group_sessions.clear()  # a user has another device: it gets the next key, not this one
        await self.publish_keys()
        return any(handled)

    async def publish_keys(self) -> None:
        """Upload our keys, with enough one-time keys among them."""
        if self._olm.should_upload_keys:
            answer = await self._server.post(f"{CLIENT}/keys/upload", self._olm.share_keys())
            self._olm.handle_response(KeysUploadResponse.from_dict(answer))

    def rotate_room_key(self, room: str) -> None:
        self._olm.outbound_group_sessions.pop(room, None)

    def decrypt(self, event: Json, room: str) -> Json | None:
        encrypted = MegolmEvent.from_dict({**event, "room_id": room})
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
        source: Json = inner.source
        return {**event, "type": source.get("type"), "content": source.get("content")}

    async def encrypt(self, room: str, kind: str, content: Json, users: Sequence[str]) -> Json:
        await self._query_device_keys(users)
        if self._olm.should_share_group_session(room):
            await self._share_room_key(room, users)
        relation = content.get("m.relates_to")  # not encrypted: the server needs it
        inside = {name: value for name, value in content.items() if name != "m.relates_to"}
        encrypted: Json = self._olm.group_encrypt(room, {"type": kind, "content": inside})
        return {**encrypted, "m.relates_to": relation} if relation is not None else encrypted

    def encrypt_file(self, data: bytes) -> tuple[bytes, Json]:
        encrypted: tuple[bytes, Json] = encrypt_attachment(data)
        return encrypted

    def decrypt_file(self, data: bytes, encryption_info: Json) -> bytes:
        try:
            decrypted: bytes = decrypt_attachment(
                data, encryption_info["key"]["k"], encryption_info["hashes"]["sha256"], encryption_info["iv"]
            )
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
            answer = await self._server.post(f"{CLIENT}/keys/query", body)
            response = KeysQueryResponse.from_dict(answer)
            if not isinstance(response, KeysQueryResponse):
                raise ChannelError("the homeserver's answer about device keys is malformed")
            self._olm.handle_response(response)

    async def _share_room_key(self, room: str, users: Sequence[str]) -> None:
        """Send the room's key to every device of these users, over Olm."""
        missing = self._olm.get_missing_sessions(list(users))
        if missing:
            wanted = {user: dict.fromkeys(devices, "signed_curve25519") for user, devices in missing.items()}
            answer = await self._server.post(
                f"{CLIENT}/keys/claim", {"timeout": KEY_TIMEOUT_MS, "one_time_keys": wanted}
            )
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
            path = f"{CLIENT}/sendToDevice/m.room.encrypted/{secrets.token_hex(16)}"
            await self._server.put(path, json.loads(json.dumps(messages)))
            session.users_shared_with.update(shared)
        raise ChannelRefused("the room has more devices than a key can be given to")
