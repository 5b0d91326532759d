"""What a tool is called in the rules: aliases, parents, groups, profiles, wildcards. Pure."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from msgspec import Struct

from ..core.claw_catalogue import CLAW_TOOLS as CATALOGUE

KEPT_TOOLS: Final = 4096  # tools whose labels are cached; a tool list has hundreds at most
KEPT_LISTS: Final = 1024  # compiled lists shared by callers; a config has tens

ALIASES: Final = {"bash": "exec", "apply-patch": "apply_patch", "automations": "cron"}

CHILD_TOOLS: Final[dict[str, tuple[str, ...]]] = {
    parent: tuple(name for name, tool in CATALOGUE.items() if tool.parent == parent)
    for parent in ("message", "cron", "gateway")
} | {
    "nodes": (
        "node_list", "node_describe", "node_invoke", "node_rename", "node_pair_list", "node_pair_approve",
        "node_pair_reject",
    ),
    "canvas": (
        "canvas_present", "canvas_hide", "canvas_navigate", "canvas_eval", "canvas_snapshot", "canvas_a2ui_push",
        "canvas_a2ui_reset",
    ),
    "browser": ("browser_request",),
    "tts": ("tts_status", "tts_convert", "tts_providers", "tts_set_provider", "tts_enable", "tts_disable"),
}  # fmt: skip
"""Rules written for one tool with many actions (`message`) hold for the tools that do one action each."""

_PARENTS: Final = {child: parent for parent, children in CHILD_TOOLS.items() for child in children} | {
    "message_edit": "message", "message_poll": "message", "cron_wake": "cron",
}  # fmt: skip
"""The last three are actions of their parents that no tool does alone."""

CLAW_TOOLS: Final = tuple(CATALOGUE)
"""The 29 tools an agent reaches the gateway with."""

PLUGINS_GROUP: Final = "group:plugins"
OPENCLAW_GROUP: Final = "group:openclaw"
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "group:fs": ("read", "write", "edit", "apply_patch"),
    "group:runtime": ("exec", "process"),
    "group:memory": ("memory_search", "memory_get"),
    "group:web": ("web_search", "web_fetch"),
    "group:media": ("image", "tts"),
    **{
        group: tuple(dict.fromkeys(tool.parent or tool.name for tool in CATALOGUE.values() if tool.group == group))
        for group in ("group:sessions", "group:messaging", "group:automation", "group:agents")
    },
    "group:ui": ("browser", "canvas"),
    "group:nodes": ("nodes",),
    OPENCLAW_GROUP: (OPENCLAW_GROUP,),
    "group:remoteclaw": (OPENCLAW_GROUP,),
    PLUGINS_GROUP: (PLUGINS_GROUP,),
}  # fmt: skip

PROFILES: Final[dict[str, tuple[str, ...] | None]] = {
    "minimal": ("session_status",),
    "coding": (
        "group:fs", "group:runtime", "group:memory", "image", "group:sessions", "cron", "bundle-mcp",
    ),
    "messaging": ("sessions_list", "sessions_history", "sessions_send", "session_status", "message", "bundle-mcp"),
    "full": None,
}  # fmt: skip
"""Profile to what it allows; None = no restriction."""

OWNER_ONLY: Final = frozenset({"whatsapp_login"}) | {tool.parent for tool in CATALOGUE.values() if tool.spec.owner_only}
OWNER_ONLY_TAG: Final = "(owner only)"
"""The label of every owner-only tool."""
EXPLICIT_ONLY_TAG: Final = "(others: by name only)"
"""The label of every tool that others than the owner have only where an allow list names it."""
ACTING_SOURCE_KINDS: Final = frozenset({"node", "mcp", "plugin"})
"""Kinds of foreign sources whose tools act on a machine, or with the owner's credentials elsewhere."""
NAME_SEPARATOR: Final = "__"
"""Separates the source's name from the rest in the name of a foreign tool."""

_PRIMITIVES: Final = frozenset(GROUPS["group:fs"] + GROUPS["group:runtime"])
_BUILTIN_NAMES: Final = (
    frozenset(name for members in GROUPS.values() for name in members if ":" not in name)
    | frozenset(_PARENTS)
    | OWNER_ONLY
)
_IMPLIED_BY: Final = {"apply_patch": ("exec", "write")}
"""A tool that an allow list grants along with another."""


class PolicyTool(Struct, frozen=True):
    """A tool as rules see it. `labels` is every name a rule may give it, its own first; `source` offers it."""

    name: str
    parent: str
    labels: tuple[str, ...]
    source: str = ""


def normalize_name(name: str) -> str:
    """The one spelling of a name: trimmed, lower case, aliases resolved."""
    name = name.strip().lower()
    return ALIASES.get(name, name)


def is_known_name(name: str) -> bool:
    """Whether an entry of an allow list names one of our own tools, groups or patterns."""
    name = normalize_name(name)
    return "*" in name or name in _BUILTIN_NAMES or name in GROUPS or name == "bundle-mcp"


def is_builtin_name(name: str) -> bool:
    """Whether one of our own tools has this name."""
    return normalize_name(name) in _BUILTIN_NAMES


@lru_cache(maxsize=KEPT_TOOLS)
def identify_tool(source: str, name: str, owner_only: bool) -> PolicyTool:
    """A source called `kind/id` is a foreign one: its tools have the labels `group:plugins`, `kind/id`, for kinds that
    only the config can name (`plugin`, `mcp`) the bare id, and of a `node/id` `nodes`. Others are our own."""
    name = normalize_name(name)
    if name.startswith("group:"):
        name = f"tool {name}"  # a foreign source may give its tool any name but a group's
    parent = _PARENTS.get(name, name)
    labels = [name] if parent == name else [name, parent]
    kind, slash, id = source.strip().lower().partition("/")
    if slash:
        labels += [PLUGINS_GROUP, f"{kind}/{id}"]
        if kind in ("plugin", "mcp") and id not in _BUILTIN_NAMES:
            labels.append(id)
        if kind == "mcp":
            labels.append("bundle-mcp")
        if kind == "node":
            labels.append("nodes")  # rules for the tool that calls any node hold for a tool that calls one
    elif parent not in _PRIMITIVES and parent != "canvas":
        labels.append(OPENCLAW_GROUP)
    if owner_only or parent in OWNER_ONLY:
        labels.append(OWNER_ONLY_TAG)
    if slash and kind in ACTING_SOURCE_KINDS:
        labels.append(EXPLICIT_ONLY_TAG)
    return PolicyTool(name, parent, tuple(labels), f"{kind}{slash}{id}")


class NameMatcher:
    """A compiled list of names, groups and wildcards. `problem` is a sentence when an entry can't be understood."""

    __slots__ = ("_exact", "_exact_names", "_globs", "problem", "unknown_entries")

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._exact: dict[str, str] = {}
        self._globs: list[tuple[Callable[[str], object], str]] = []
        self.problem: str | None = None
        self.unknown_entries = tuple(entry for entry in entries if not is_known_name(entry))
        for entry in entries:
            self._add_entry(entry)
        self._exact_names = frozenset(self._exact)

    def _add_entry(self, entry: str) -> None:
        name = normalize_name(entry)
        if name in GROUPS:
            for member in GROUPS[name]:
                self._exact.setdefault(member, name)
        elif name.startswith("group:"):
            self.problem = f"there is no {name!r}; the groups are {', '.join(sorted(GROUPS))}"
        elif "*" in name:
            self._globs.append((_compile_glob(name), name))
        else:
            self._exact.setdefault(name, name)

    def find_entry(self, tool: PolicyTool) -> str | None:
        """The entry that names `tool`, if any. Wildcards match its name and parent, not its source."""
        if not self._exact_names.isdisjoint(tool.labels):
            return next(self._exact[label] for label in tool.labels if label in self._exact)
        for glob, entry in self._globs:
            if glob(tool.name) or (tool.parent is not tool.name and glob(tool.parent)):
                return entry
        return None

    def names_explicitly(self, tool: PolicyTool) -> bool:
        """Whether an entry names this foreign tool, its source, or its kind. One that merely covers it, as `*` and
        `group:plugins` do, does not; a pattern does when it begins with the source's name: `files__*`."""
        explicit = [label for label in tool.labels if label not in (PLUGINS_GROUP, EXPLICIT_ONLY_TAG)]
        patterns = (entry for glob, entry in self._globs if glob(tool.name))
        return not self._exact_names.isdisjoint(explicit) or any(
            NAME_SEPARATOR in entry.partition("*")[0] for entry in patterns
        )

    def find_allow_entry(self, tool: PolicyTool) -> str | None:
        """As `find_entry`, for an allow list: some tools come with another."""
        entry = self.find_entry(tool)
        if entry is None and tool.name in _IMPLIED_BY:
            for other in _IMPLIED_BY[tool.name]:
                entry = entry or self.find_entry(PolicyTool(other, other, (other,)))
        return entry


def _compile_glob(pattern: str) -> Callable[[str], object]:
    """A test of names against a pattern in which `*` matches any text; no other sign is special."""
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL).fullmatch


@lru_cache(maxsize=KEPT_LISTS)
def compile_names(entries: tuple[str, ...]) -> NameMatcher:
    return NameMatcher(entries)
