"""Names of other servers' tools here: `<server>__<tool>`, in characters every model's API takes.

A tool's own name is spelt as a node's is: `system.run` is `laptop__system_run`, whichever way the machine is reached.
"""

from collections.abc import Iterable
from typing import Final

from ...core.tool_naming import MAX_TOOL_NAME, SEPARATOR, make_unique, replace_unsafe

MAX_SERVER: Final = 30  # characters of a server's name in a tool's name


def server_names(names: Iterable[str]) -> dict[str, str]:
    """Each server's name as tools carry it, in the order given: the first keeps its own, a later like one gets `-2`."""
    taken: set[str] = set()
    return {name: _take_name(replace_unsafe(name.strip(), "-"), "mcp", "", MAX_SERVER, taken) for name in names}


def tool_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """Full name to the server's own, in the order given."""
    taken: set[str] = set()
    return {
        _take_name(replace_unsafe(tool.strip(), "_"), "tool", server + SEPARATOR, MAX_TOOL_NAME, taken): tool
        for tool in tools
    }


def _take_name(safe: str, default: str, prefix: str, max_length: int, taken: set[str]) -> str:
    text = safe or default
    text = text if text[0].isalpha() else f"{default}-{text}"
    name = make_unique(text, lambda name: name.lower() in taken, max_length=max_length, prefix=prefix)
    taken.add(name.lower())
    return name
