"""Names nobody else has: random UUIDs."""

import uuid

from .randomness import Drawn

_drawn = Drawn(16)


def new_id() -> str:
    """As `str(uuid.uuid4())`; safe in any thread."""
    return str(uuid.UUID(bytes=_drawn.draw(), version=4))
