"""Which gateway methods serve which of the 29 tools, derived from the catalogue.

The tool server asks what a gateway must offer for a tool to be listed; the gateway asks which tools a method serves,
and lets a run's grant call the method only if the rules allow one of them.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from .claw_catalogue import CLAW_TOOLS
from .model import Caller, Json, PolicyDecision

DenialCheck = Callable[[Caller, str], str | None]
"""Why this caller may not use a tool of that name; None if it may."""

ToolDecider = Callable[[Caller, str], PolicyDecision]
"""Whether this caller may use a tool of that name, and by which rule."""


class GrantedCall(Struct, frozen=True, kw_only=True):
    """A request as the tool call it is, with what the rules decide on it: evaluated once, for the check and the audit.

    `tool` is the method's own name when the method is behind no tool."""

    caller: Caller
    method: str
    params: Json
    tool: str
    decision: PolicyDecision


GRANT_PREFIX: Final = "ocg_"
"""How grant tokens begin: it tells a run's token from the gateway's own, and an ended one from a wrong one."""

MESSAGE_ACTIONS: Final = {name: tool.action for name, tool in CLAW_TOOLS.items() if tool.parent == "message"}
"""Messaging tool to its name in `message.action`."""

TOOLS_BY_ACTION: Final[dict[str, dict[str, str]]] = {
    parent: {tool.action: name for name, tool in CLAW_TOOLS.items() if tool.parent == parent} | others
    for parent, others in {
        "message": {"unpin": "message_pin", "edit": "message_edit", "poll": "message_poll"},
        "cron": {"wake": "cron_wake"},
        "gateway": {},
    }.items()
}
"""A tool with many actions: each by the name of the tool that does it alone, as rules name it. Three have no tool."""


def recorded_tool(name: str) -> str:
    """The tool as records of its effects name it: the messaging tools are all `message`."""
    return CLAW_TOOLS[name].parent or name


METHODS_BY_TOOL: Final = {name: tool.methods for name, tool in CLAW_TOOLS.items()}

TOOLS_BY_METHOD: Final[dict[str, frozenset[str]]] = {
    method: frozenset(name for name, tool in CLAW_TOOLS.items() if method in tool.methods[0] + tool.extra_methods)
    for each in CLAW_TOOLS.values()
    for method in each.methods[0] + each.extra_methods
}
"""Method to the tools it serves, on a gateway of ours."""

_TOOL_BY_ACTION: Final = {action: tool for tool, action in MESSAGE_ACTIONS.items()} | {
    "unpin": "message_pin", "readMessages": "message_read",
}  # fmt: skip


def tools_for_request(method: str, params: Json) -> frozenset[str]:
    """The tools any of which this request may be made for; none if it belongs to no tool."""
    if method == "message.action":
        action = params.get("action")
        tool = _TOOL_BY_ACTION.get(action) if isinstance(action, str) else None
        return frozenset() if tool is None else frozenset({tool})
    return TOOLS_BY_METHOD.get(method, frozenset())


LIST_FURTHER_TOOLS: Final = "tools.list"
CALL_FURTHER_TOOL: Final = "tools.call"
"""A session's tools besides the 29: those of MCP servers, nodes and apps."""
FURTHER_TOOL_METHODS: Final = frozenset({LIST_FURTHER_TOOLS, CALL_FURTHER_TOOL})
"""Behind no tool of the 29: each tool called by them is decided and recorded by the gateway's dispatcher."""

AUXILIARY_METHODS: Final = frozenset({"agent.wait", "sessions.resolve", "gateway.restart.preflight"})
"""Methods that only help one of the others to do what a tool is for: no use of a tool by themselves."""


def find_missing_method(tool: str, methods: frozenset[str]) -> str | None:
    """A method the gateway lacks for this tool; None when the tool works, by any of its alternatives."""
    alternatives = CLAW_TOOLS[tool].methods
    if any(methods.issuperset(each) for each in alternatives):
        return None
    return next(method for method in alternatives[0] if method not in methods)
