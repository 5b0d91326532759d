"""Names nobody else has: random UUIDs."""

import os
import uuid
from typing import Final

DRAWN: Final = 128  # ids' worth of randomness asked of the system at a time

_drawn: list[bytes] = []


def new_id() -> str:
    """As `str(uuid.uuid4())`; safe in any thread.

    Each question to the system lets other threads in and may wait for them: far longer than making an id takes.
    """
    try:
        sixteen = _drawn.pop()
    except IndexError:
        random = os.urandom(16 * DRAWN)
        _drawn.extend(random[start : start + 16] for start in range(16, len(random), 16))
        sixteen = random[:16]
    return str(uuid.UUID(bytes=sixteen, version=4))


if hasattr(os, "register_at_fork"):  # a child must not draw what its parent draws
    os.register_at_fork(after_in_child=_drawn.clear)
