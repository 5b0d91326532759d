"""The port of encryption, and its implementation for accounts without it."""

from collections.abc import Sequence
from typing import Protocol

from ....core.channel import ChannelRefused
from ....core.model import Json

ENCRYPTION_REQUIRED = "the room is encrypted: set channels.matrix.encryption, and install openclaw-mcp[matrix]"


class MatrixEncryption(Protocol):
    @property
    def is_available(self) -> bool:
        """Whether a message that can't be decrypted now may be decrypted later."""

    async def process_sync(self, sync: Json) -> bool:
        """Process a sync's keys, before its messages are decrypted; returns whether there are new keys."""

    def rotate_room_key(self, room: str) -> None:
        """The members changed: later messages need a new key."""

    def decrypt(self, event: Json, room: str) -> Json | None:
        """The event inside an encrypted one; None while its key has not arrived."""

    async def encrypt(self, room: str, kind: str, content: Json, users: Sequence[str]) -> Json:
        """The content of an `m.room.encrypted` event that `users` can decrypt."""

    def encrypt_file(self, data: bytes) -> tuple[bytes, Json]: ...

    def decrypt_file(self, data: bytes, encryption_info: Json) -> bytes:
        """Raises ChannelRefused when the key does not fit."""

    async def aclose(self) -> None: ...


class NoEncryption:
    """Encryption is off: encrypted messages are not read, and nothing is sent unencrypted into an encrypted room."""

    is_available = False

    async def process_sync(self, sync: Json) -> bool:
        return False

    def rotate_room_key(self, room: str) -> None:
        return

    def decrypt(self, event: Json, room: str) -> Json | None:
        return None

    async def encrypt(self, room: str, kind: str, content: Json, users: Sequence[str]) -> Json:
        raise ChannelRefused(ENCRYPTION_REQUIRED)

    def encrypt_file(self, data: bytes) -> tuple[bytes, Json]:
        raise ChannelRefused(ENCRYPTION_REQUIRED)

    def decrypt_file(self, data: bytes, encryption_info: Json) -> bytes:
        raise ChannelRefused(ENCRYPTION_REQUIRED)

    async def aclose(self) -> None:
        return
