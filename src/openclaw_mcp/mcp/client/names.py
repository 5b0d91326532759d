"""What other servers' tools are called here: `<server>__<tool>`, in letters every model's API takes."""

import re
from collections.abc import Iterable
from typing import Final

MAX_SERVER: Final = 30  # characters of a server's name in a tool's name
MAX_TOOL: Final = 64  # model APIs refuse longer function names
NAME_SEPARATOR: Final = "__"

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def server_names(names: Iterable[str]) -> dict[str, str]:
    """Each server's name as tools carry it, in the order given: the first keeps its own, a later like one gets `-2`."""
    taken: set[str] = set()
    return {name: _make_unique(_sanitize(name, "mcp"), "", MAX_SERVER, taken) for name in names}


def tool_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """Full name to the server's own, in the order given."""
    taken: set[str] = set()
    prefix = server + NAME_SEPARATOR
    return {_make_unique(_sanitize(tool, "tool"), prefix, MAX_TOOL, taken): tool for tool in tools}


def _sanitize(raw: str, default: str) -> str:
    text = _UNSAFE.sub("-", raw.strip()) or default
    return text if text[0].isalpha() else f"{default}-{text}"


def _make_unique(text: str, prefix: str, longest: int, taken: set[str]) -> str:
    """`prefix + text`, cut to `longest` and numbered so that it differs from all in `taken`, whatever their case."""
    room = max(1, longest - len(prefix))
    candidate, number = prefix + text[:room], 2
    while candidate.lower() in taken:
        suffix = f"-{number}"
        candidate = prefix + text[: max(1, room - len(suffix))] + suffix
        number += 1
    taken.add(candidate.lower())
    return candidate
