"""Which commands may be offered, which scopes approve them, which scopes may use them. Pure."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Final

from ...core.rpc import ADMIN, PAIRING, WRITE

MAX_COMMANDS: Final = 512  # a node with every capability has some forty
_COMMAND_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")

HARMLESS_COMMANDS: Final = (
    "canvas.*", "device.*", "tts.*", "stt.*", "system.notify", "camera.list", "location.get",
)  # fmt: skip
"""Commands an operator without admin rights may approve; any other command may do anything."""
ADMIN_COMMANDS: Final = frozenset({"browser.proxy", "browser.proxy.upload.v1", "fs.listDir", "terminal.upload"})
"""Commands that bypass the node's own rules: only admins invoke them."""
EXEC_APPROVALS_COMMANDS: Final = ("system.execApprovals.get", "system.execApprovals.set")
"""A node's rules have methods of their own: `exec.approvals.node.*`."""


def filter_commands(commands: Iterable[str], deny_patterns: Iterable[str]) -> tuple[str, ...]:
    """Those that are well-formed and not denied by the config, each once, in order."""
    patterns = tuple(deny_patterns)
    kept = (name for name in commands if _COMMAND_PATTERN.fullmatch(name) and not matches(name, patterns))
    return tuple(dict.fromkeys(kept))[:MAX_COMMANDS]


def matches(command: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(command, pattern) for pattern in patterns)


def scopes_to_approve(commands: Iterable[str]) -> tuple[str, ...]:
    wanted = tuple(commands)
    if not wanted:
        return (PAIRING,)
    return (PAIRING, WRITE if all(matches(name, HARMLESS_COMMANDS) for name in wanted) else ADMIN)


def scope_to_invoke(command: str) -> str:
    return ADMIN if command in ADMIN_COMMANDS else WRITE


def read_deny_patterns(nodes: dict[str, Any]) -> tuple[str, ...]:
    """`commands.deny` of the config's `gateway.nodes`, or its older name; * and ? are wildcards."""
    commands, listed = nodes.get("commands"), nodes.get("denyCommands")
    if isinstance(commands, dict):
        listed = commands.get("deny", listed)
    return tuple(each for each in listed if isinstance(each, str)) if isinstance(listed, list) else ()
