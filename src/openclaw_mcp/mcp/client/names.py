"""What other servers' tools are called here: `<server>__<tool>`, in letters every model's API takes."""

import re
from collections.abc import Iterable
from typing import Final

LONGEST_SERVER: Final = 30  # characters of a server's name in a tool's name
LONGEST_TOOL: Final = 64  # model APIs refuse longer function names
BETWEEN: Final = "__"

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def server_names(names: Iterable[str]) -> dict[str, str]:
    """Each server's name as tools carry it, in the order given: the first keeps its own, a later like one gets `-2`."""
    taken: set[str] = set()
    return {name: _unlike(_safe(name, "mcp"), "", LONGEST_SERVER, taken) for name in names}


def tool_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """Full name to the server's own, in the order given."""
    taken: set[str] = set()
    prefix = server + BETWEEN
    return {_unlike(_safe(tool, "tool"), prefix, LONGEST_TOOL, taken): tool for tool in tools}


def _safe(raw: str, instead: str) -> str:
    text = _UNSAFE.sub("-", raw.strip()) or instead
    return text if text[0].isalpha() else f"{instead}-{text}"


def _unlike(text: str, prefix: str, longest: int, taken: set[str]) -> str:
    """`prefix + text`, cut to `longest` and numbered so that it differs from all in `taken`, whatever their case."""
    room = max(1, longest - len(prefix))
    candidate, number = prefix + text[:room], 2
    while candidate.lower() in taken:
        suffix = f"-{number}"
        candidate = prefix + text[: max(1, room - len(suffix))] + suffix
        number += 1
    taken.add(candidate.lower())
    return candidate
