"""How hard the tests try: a little each time, as hard as we promise with OPENCLAW_LONG=1, which `make long` sets."""

import os
from typing import Final

LONG: Final = bool(os.environ.get("OPENCLAW_LONG"))


def often(each_time: int, long: int) -> int:
    """How many times something random is tried."""
    return long if LONG else each_time
