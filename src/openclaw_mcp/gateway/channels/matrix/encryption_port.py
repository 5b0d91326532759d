"""What the channel asks of encryption, and the answer of an account that has none."""

from collections.abc import Sequence
from typing import Protocol

from ....core.channel import ChannelRefused
from ....core.model import Json

ENCRYPTION_REQUIRED = "the room is encrypted: set channels.matrix.encryption, and install openclaw-mcp[matrix]"


class MatrixEncryption(Protocol):
    @property
    def is_available(self) -> bool:
        """Whether there is a chance to open a message later that can't be opened now."""

    async def process_sync(self, sync: Json) -> bool:
        """What a sync brings for the keys, before its messages are opened; whether there are new keys."""

    def rotate_room_key(self, room: str) -> None:
        """Somebody came or went: what is said from now on has a key of its own."""

    def decrypt(self, event: Json, room: str) -> Json | None:
        """The event inside an encrypted one; None while its key has not come."""

    async def encrypt(self, room: str, kind: str, content: Json, users: Sequence[str]) -> Json:
        """The content of an `m.room.encrypted` event that `people` can open."""

    def encrypt_file(self, data: bytes) -> tuple[bytes, Json]: ...

    def decrypt_file(self, data: bytes, encryption_info: Json) -> bytes:
        """Raises ChannelRefused when the key does not fit."""

    async def aclose(self) -> None: ...


class NoEncryption:
    """Encryption is off: encrypted messages stay closed, and nothing is sent into an encrypted room in the open."""

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
