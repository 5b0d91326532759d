"""The 29 tools of a CLI agent and the gateway methods behind each. One table, for those who call and those who guard.

The tool server asks it what a gateway must offer for a tool to be listed; the gateway asks it which tools a method
serves, and lets a run's grant call the method only if the rules allow one of them.
"""

from collections.abc import Callable
from typing import Final

from .model import Caller, Json

DenialCheck = Callable[[Caller, str], str | None]
"""Why this caller may not use a tool of that name; None: it may."""

GRANT_PREFIX: Final = "ocg_"
"""How grant tokens begin, so that a run's is told from the gateway's own, and an ended one from a wrong one."""

MESSAGE_ACTIONS: Final[dict[str, str]] = {
    "message_send": "send",
    "message_reply": "reply",
    "message_thread_reply": "thread-reply",
    "message_broadcast": "broadcast",
    "message_react": "react",
    "message_delete": "delete",
    "message_send_attachment": "sendAttachment",
    "message_send_with_effect": "sendWithEffect",
    "message_pin": "pin",
    "message_read": "read",
}
"""Messaging tool to what `message.action` calls it."""

TOOLS_BY_ACTION: Final[dict[str, dict[str, str]]] = {
    "message": {action: tool for tool, action in MESSAGE_ACTIONS.items()}
    | {"unpin": "message_pin", "edit": "message_edit", "poll": "message_poll"},
    "cron": {
        action: f"cron_{action}" for action in ("status", "list", "add", "update", "remove", "run", "runs", "wake")
    },
    "gateway": {
        "restart": "gateway_restart",
        "config.get": "gateway_config_get",
        "config.apply": "gateway_config_apply",
        "config.patch": "gateway_config_patch",
        "config.schema": "gateway_config_schema",
    },
}
"""A tool with many actions: each by the name of the tool that does it alone, as rules name it. Three have no tool."""

_MESSAGE_METHODS: Final = (("message.action",),)

METHODS_BY_TOOL: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "sessions_list": (("sessions.list",),),
    "sessions_history": (("chat.history",),),
    "sessions_send": (("agent", "agent.wait"),),
    "sessions_spawn": (("sessions.spawn",), ("sessions.create",)),
    "session_status": (("sessions.describe",),),
    "agents_list": (("agents.list",),),
    "subagents": (("sessions.subagents",), ("sessions.list", "sessions.abort")),
    **dict.fromkeys(MESSAGE_ACTIONS, _MESSAGE_METHODS),
    "cron_status": (("cron.status",),),
    "cron_list": (("cron.list",),),
    "cron_add": (("cron.add",),),
    "cron_update": (("cron.update",),),
    "cron_remove": (("cron.remove",),),
    "cron_run": (("cron.run",),),
    "cron_runs": (("cron.runs",),),
    "gateway_restart": (("gateway.restart.request",),),
    "gateway_config_get": (("config.get",),),
    "gateway_config_apply": (("config.get", "config.apply"),),
    "gateway_config_patch": (("config.get", "config.patch"),),
    "gateway_config_schema": (("config.schema",),),
}
"""Tool to the methods it calls; where there are several ways, the first that a gateway offers in full is taken."""

_EXTRA_METHODS: Final[dict[str, tuple[str, ...]]] = {
    "sessions.resolve": ("sessions_send", "sessions_history"),
    "config.schema.lookup": ("gateway_config_schema",),
    "gateway.restart.preflight": ("gateway_restart",),
    "send": ("message_send",),
    "message:send": ("message_send",),
    "message:reply": ("message_reply",),
    "message:thread-reply": ("message_thread_reply",),
    "message:broadcast": ("message_broadcast",),
    "message:react": ("message_react",),
    "message:delete": ("message_delete",),
    "message:sendAttachment": ("message_send_attachment",),
    "message:sendWithEffect": ("message_send_with_effect",),
    "message:pin": ("message_pin",),
    "message:readMessages": ("message_read",),
}
"""Methods a gateway need not advertise for the tool to work, or that other clients of a grant may prefer."""

_ACTION_ALIASES: Final = {"unpin": "message_pin", "readMessages": "message_read"}


def _index_by_method() -> dict[str, frozenset[str]]:
    served: dict[str, set[str]] = {method: set(tools) for method, tools in _EXTRA_METHODS.items()}
    for tool, ways in METHODS_BY_TOOL.items():
        for method in ways[0]:
            served.setdefault(method, set()).add(tool)
    return {method: frozenset(tools) for method, tools in served.items()}


TOOLS_BY_METHOD: Final[dict[str, frozenset[str]]] = _index_by_method()
"""Method to the tools it serves, on a gateway of ours."""

_TOOL_BY_ACTION: Final = {action: tool for tool, action in MESSAGE_ACTIONS.items()} | _ACTION_ALIASES


def tools_for_request(method: str, params: Json) -> frozenset[str]:
    """The tools any of which this request may be made for; none: it is made for no tool."""
    if method == "message.action":
        action = params.get("action")
        tool = _TOOL_BY_ACTION.get(action) if isinstance(action, str) else None
        return frozenset() if tool is None else frozenset({tool})
    return TOOLS_BY_METHOD.get(method, frozenset())


AUXILIARY_METHODS: Final = frozenset({"agent.wait", "sessions.resolve", "gateway.restart.preflight"})
"""Methods that only help one of the others to do what a tool is for: no use of a tool by themselves."""


def find_missing_method(tool: str, methods: frozenset[str]) -> str | None:
    """A method the gateway would need for this tool, when it has none of the ways; None: the tool works."""
    ways = METHODS_BY_TOOL[tool]
    if any(methods.issuperset(way) for way in ways):
        return None
    return next(method for method in ways[0] if method not in methods)
