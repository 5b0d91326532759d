"""Tool names that every model's API takes: letters, digits, `_` and `-`, 64 characters at most. Pure."""

import re
from collections.abc import Callable
from typing import Final

MAX_TOOL_NAME: Final = 64  # model APIs refuse longer function names
SEPARATOR: Final = "__"
"""Between the name of what owns a tool and the tool's own."""

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


def replace_unsafe(name: str, replacement: str) -> str:
    """`name` with `replacement` for each character that an API may refuse."""
    return _UNSAFE.sub(replacement, name)


def make_unique(
    name: str, is_taken: Callable[[str], bool], *, max_length: int, prefix: str = "", trim: str = ""
) -> str:
    """`prefix + name`, cut to `max_length` and numbered so that it is not taken.

    Characters of `trim` are removed where the cut leaves them before the number.
    """
    room = max(1, max_length - len(prefix))
    candidate, number = prefix + name[:room], 2
    while is_taken(candidate):
        suffix = f"-{number}"
        candidate = prefix + name[: max(1, room - len(suffix))].rstrip(trim) + suffix
        number += 1
    return candidate
