"""What the channel asks of encryption, and the answer of an account that has none."""

from collections.abc import Sequence
from typing import Protocol

from ....core.channel import ChannelRefused
from ....core.model import Json

CLOSED = "the room is encrypted: set channels.matrix.encryption, and install openclaw-mcp[matrix]"


class Sealer(Protocol):
    @property
    def can(self) -> bool:
        """Whether there is a chance to open a message later that can't be opened now."""

    async def take(self, sync: Json) -> bool:
        """What a sync brings for the keys, before its messages are opened; whether there are new keys."""

    def forget(self, room: str) -> None:
        """Somebody came or went: what is said from now on has a key of its own."""

    def open(self, event: Json, room: str) -> Json | None:
        """The event inside an encrypted one; None while its key has not come."""

    async def seal(self, room: str, kind: str, content: Json, people: Sequence[str]) -> Json:
        """The content of an `m.room.encrypted` event that `people` can open."""

    def seal_file(self, data: bytes) -> tuple[bytes, Json]: ...

    def open_file(self, data: bytes, sealed: Json) -> bytes:
        """Raises ChannelRefused when the key does not fit."""

    async def aclose(self) -> None: ...


class Unsealed:
    """Encryption is off: encrypted messages stay closed, and nothing is sent into an encrypted room in the open."""

    can = False

    async def take(self, sync: Json) -> bool:
        return False

    def forget(self, room: str) -> None:
        return

    def open(self, event: Json, room: str) -> Json | None:
        return None

    async def seal(self, room: str, kind: str, content: Json, people: Sequence[str]) -> Json:
        raise ChannelRefused(CLOSED)

    def seal_file(self, data: bytes) -> tuple[bytes, Json]:
        raise ChannelRefused(CLOSED)

    def open_file(self, data: bytes, sealed: Json) -> bytes:
        raise ChannelRefused(CLOSED)

    async def aclose(self) -> None:
        return
