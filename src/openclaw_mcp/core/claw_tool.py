"""How one of the 29 tools of a CLI agent is declared. The declarations are in `claw_catalogue`."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from .model import Json, ToolEffect, ToolSpec

VISIBILITY_NOTE: Final = "What you send is seen by people: do not repeat it in your final answer."


class ClawTool(Struct, frozen=True, kw_only=True):
    """One tool. `aliases` are other names agents use for its parameters."""

    spec: ToolSpec
    aliases: Mapping[str, str]
    methods: tuple[tuple[str, ...], ...]
    """The gateway methods it calls; of several alternatives, the first that a gateway offers completely is used."""
    extra_methods: tuple[str, ...] = ()
    """Methods that serve it too, but that a gateway need not advertise for the tool to be listed."""
    parent: str = ""
    """The tool with many actions that does this too, as its `action`; empty if there is none."""
    action: str = ""
    group: str = "group:sessions"
    """The group of policy rules that it, or its parent, belongs to."""
    records: Literal["", "message_sent", "cron_added"] = ""
    """What a call leaves in the side-effects file."""

    @property
    def name(self) -> str:
        return self.spec.name


class Parameter(Struct, frozen=True):
    name: str
    schema: Json
    aliases: str = ""
    """Other names, separated by spaces."""


def text(name: str, description: str, aliases: str = "", **extra: Any) -> Parameter:
    return Parameter(name, {"type": "string", "description": description, **extra}, aliases)


def integer(
    name: str, description: str, aliases: str = "", *, least: int = 1, most: int | None = None, kind: str = "integer"
) -> Parameter:
    bounds: Json = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    return Parameter(name, {"type": kind, **bounds, "description": description}, aliases)


def text_list(name: str, description: str, aliases: str = "", **bounds: int) -> Parameter:
    items = {"type": "string"}
    return Parameter(name, {"type": "array", "items": items, **bounds, "description": description}, aliases)


def flag(name: str, description: str, aliases: str = "") -> Parameter:
    return Parameter(name, {"type": "boolean", "description": description}, aliases)


def json_object(name: str, description: str, aliases: str = "") -> Parameter:
    return Parameter(name, {"type": "object", "description": description, "additionalProperties": True}, aliases)


def define_tool(
    name: str,
    title: str,
    description: str,
    *parameters: Parameter,
    required: str = "",
    effect: ToolEffect = "read",
    destructive: bool = False,
    idempotent: bool = False,
    open_world: bool = False,
    spec: Json | None = None,
    **fields: Any,
) -> ClawTool:
    """`spec` are further fields of its ToolSpec, `fields` those of the ClawTool."""
    schema: Json = {"type": "object", "properties": {each.name: each.schema for each in parameters}}
    if required:
        schema["required"] = required.split()
    annotations: Json = {"title": title, "readOnlyHint": effect == "read", "openWorldHint": open_world}
    if effect != "read":
        annotations |= {"destructiveHint": destructive, "idempotentHint": idempotent}
    shown: Json = {"name": name, "title": title, "description": description, "input_schema": schema}
    aliases = {alias: each.name for each in parameters for alias in each.aliases.split()}
    return ClawTool(
        spec=ToolSpec(**shown, annotations=annotations, effect=effect, **(spec or {})), aliases=aliases, **fields
    )


def message_tool(
    name: str, action: str, title: str, description: str, *parameters: Parameter, **traits: Any
) -> ClawTool:
    """A tool that does one action of `message.action`; it sends something unless `traits` name another effect."""
    given = {each.name for each in parameters}
    other_tools = {"media": "message_send_attachment", "replyToId": "message_reply"}
    sends: Json = {"effect": "send", "records": "message_sent"} if "effect" not in traits else {}
    return define_tool(
        name,
        title,
        f"{description} {VISIBILITY_NOTE}" if sends else description,
        *parameters,
        methods=(("message.action",),),
        extra_methods=traits.pop("extra_methods", (f"message:{action}",)),
        parent="message",
        action=action,
        group="group:messaging",
        open_world=True,
        spec={"parameter_tools": {own: other for own, other in other_tools.items() if own in given and other != name}},
        **sends,
        **traits,
    )


def cron_tool(name: str, title: str, description: str, *parameters: Parameter, **traits: Any) -> ClawTool:
    action = name.removeprefix("cron_")
    return define_tool(
        name, title, description, *parameters, methods=((f"cron.{action}",),), parent="cron", action=action,
        group="group:automation", spec={"owner_only": True}, **traits,
    )  # fmt: skip


def gateway_tool(
    name: str,
    action: str,
    title: str,
    description: str,
    *parameters: Parameter,
    methods: tuple[str, ...],
    **traits: Any,
) -> ClawTool:
    return define_tool(
        name, title, description, *parameters, methods=(methods,), parent="gateway", action=action,
        group="group:automation", spec={"owner_only": True}, **traits,
    )  # fmt: skip
