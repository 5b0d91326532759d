"""The names of a node's tools: `<node>__<command>` or `<node>__<name>`, in characters every model's API takes."""

import re
from collections.abc import Container, Iterable, Set
from typing import Final

MAX_ALIAS_LENGTH: Final = 24  # characters of a node's name in a tool's name
MAX_TOOL_NAME_LENGTH: Final = 64  # model APIs refuse longer function names
SEPARATOR: Final = "__"

_UNSAFE: Final = re.compile(r"[^a-z0-9]+")


def alias_for(name: str, taken: Set[str]) -> str:
    """A node's name in the names of its tools: short, lower case, unlike those taken."""
    plain = _UNSAFE.sub("-", name.lower()).strip("-") or "node"
    if not plain[0].isalpha():
        plain = f"node-{plain}"
    plain = plain[:MAX_ALIAS_LENGTH].rstrip("-")
    candidate, number = plain, 2
    while candidate in taken:
        suffix = f"-{number}"
        candidate = plain[: MAX_ALIAS_LENGTH - len(suffix)].rstrip("-") + suffix
        number += 1
    return candidate


def tool_names(alias: str, commands: Iterable[str]) -> dict[str, str]:
    """Tool name to the command behind it; of two with the same name, the first is offered."""
    names: dict[str, str] = {}
    for command in commands:
        safe = re.sub(r"[^A-Za-z0-9_-]", "_", command)
        names.setdefault(f"{alias}{SEPARATOR}{safe}"[:MAX_TOOL_NAME_LENGTH], command)
    return names


def tool_name(alias: str, base_name: str, taken: Container[str]) -> str:
    """The name of a tool the node itself has named, unlike those taken."""
    name, number = f"{alias}{SEPARATOR}{base_name}"[:MAX_TOOL_NAME_LENGTH], 2
    candidate = name
    while candidate in taken:
        suffix = f"-{number}"
        candidate = name[: MAX_TOOL_NAME_LENGTH - len(suffix)] + suffix
        number += 1
    return candidate
