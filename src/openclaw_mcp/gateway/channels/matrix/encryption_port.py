"""The encryption of an account, as the channel uses it; off unless a subclass is used."""

from collections.abc import Sequence

from ....core.channel import ChannelRefused
from .events import EncryptedFile, EventContent, MatrixEvent
from .responses import SyncAnswer

ENCRYPTION_REQUIRED = "the room is encrypted: set channels.matrix.encryption, and install openclaw-mcp[matrix]"


class MatrixEncryption:
    """Encryption that is off: encrypted messages are not read, and nothing is sent unencrypted into an encrypted room.

    `encryption.OlmEncryption` does it.
    """

    is_available = False
    """Whether a message that can't be decrypted now may be decrypted later."""

    async def process_sync(self, sync: SyncAnswer) -> bool:
        """Process a sync's keys, before its messages are decrypted; returns whether there are new keys."""
        return False

    def rotate_room_key(self, room: str) -> None:
        """The members changed: later messages need a new key."""

    def decrypt(self, event: MatrixEvent, room: str) -> MatrixEvent | None:
        """The event inside an encrypted one; None while its key has not arrived."""
        return None

    async def encrypt(self, room: str, kind: str, content: EventContent, users: Sequence[str]) -> EventContent:
        """The content of an `m.room.encrypted` event that `users` can decrypt."""
        raise ChannelRefused(ENCRYPTION_REQUIRED)

    def encrypt_file(self, data: bytes) -> tuple[bytes, EncryptedFile]:
        raise ChannelRefused(ENCRYPTION_REQUIRED)

    def decrypt_file(self, data: bytes, file: EncryptedFile) -> bytes:
        """Raises ChannelRefused when the key does not fit."""
        raise ChannelRefused(ENCRYPTION_REQUIRED)

    async def aclose(self) -> None:
        return
