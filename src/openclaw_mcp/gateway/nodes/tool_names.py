"""The names of a node's tools: `<node>__<command>` or `<node>__<name>`, in characters every model's API takes."""

import re
from collections.abc import Container, Iterable, Set
from typing import Final

from ...core.tool_naming import MAX_TOOL_NAME, SEPARATOR, make_unique, replace_unsafe

MAX_ALIAS_LENGTH: Final = 24  # characters of a node's name in a tool's name

_UNSAFE: Final = re.compile(r"[^a-z0-9]+")


def alias_for(name: str, taken: Set[str]) -> str:
    """A node's name in the names of its tools: short, lower case, unlike those taken."""
    plain = _UNSAFE.sub("-", name.lower()).strip("-") or "node"
    if not plain[0].isalpha():
        plain = f"node-{plain}"
    plain = plain[:MAX_ALIAS_LENGTH].rstrip("-")
    return make_unique(plain, taken.__contains__, max_length=MAX_ALIAS_LENGTH, trim="-")


def tool_names(alias: str, commands: Iterable[str]) -> dict[str, str]:
    """Tool name to the command behind it; of two with the same name, the first is offered."""
    names: dict[str, str] = {}
    for command in commands:
        name = f"{alias}{SEPARATOR}{replace_unsafe(command, '_')}"
        names.setdefault(name[:MAX_TOOL_NAME], command)
    return names


def tool_name(alias: str, base_name: str, taken: Container[str]) -> str:
    """The name of a tool the node itself has named, unlike those taken."""
    return make_unique(f"{alias}{SEPARATOR}{base_name}", taken.__contains__, max_length=MAX_TOOL_NAME)
