"""Random ids. Bytes are requested from the system many at a time: each request lets other threads run, and
may wait for them far longer than the use of the bytes takes."""

import os
import uuid
from typing import Final

BATCH_SIZE: Final = 128  # pieces requested from the system at once


class RandomPool:
    """Pieces of `size` random bytes, each given out once. Safe in any thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pieces: list[bytes] = []
        if hasattr(os, "register_at_fork"):  # a forked child must not get the bytes of its parent
            os.register_at_fork(after_in_child=self._pieces.clear)

    def draw(self) -> bytes:
        try:
            return self._pieces.pop()
        except IndexError:
            size = self._size
            random = os.urandom(size * BATCH_SIZE)
            self._pieces.extend(random[start : start + size] for start in range(size, len(random), size))
            return random[:size]


_random = RandomPool(16)


def new_id() -> str:
    """As `str(uuid.uuid4())`; safe in any thread."""
    return str(uuid.UUID(bytes=_random.draw(), version=4))
