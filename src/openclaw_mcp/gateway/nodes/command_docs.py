"""What the usual commands of nodes do, for nodes that do not describe them. Pure."""

from typing import Final

from msgspec import Struct

from ...core.model import Json, ToolEffect


class CommandDescription(Struct, frozen=True):
    description: str
    effect: ToolEffect
    schema: Json


MCP_CALL: Final = "mcp.tools.call.v1"
"""Calls a tool of an MCP server on the node: `{server, tool, arguments}`; answers as that server does."""
INTERNAL_COMMANDS: Final = (
    "system.execApprovals.*", "system.run.prepare", "browser.*", "terminal.*", "desktop.*", "worker.*",
    "mcp.tools.call*", "workspace.*",
)  # fmt: skip
"""Commands that gateways and apps use between each other; not offered to models."""


def _object_schema(required: tuple[str, ...] = (), **properties: tuple[str, str]) -> Json:
    """`properties`: type and description of each."""
    described = {
        name: {"type": kind, "description": text} | ({"items": {"type": "string"}} if kind == "array" else {})
        for name, (kind, text) in properties.items()
    }
    return {"type": "object", "properties": described} | ({"required": list(required)} if required else {})


COMMAND_DESCRIPTIONS: Final = {
    "system.run": CommandDescription(
        "runs a program, if the machine's rules or its person allow it, and answers with its output.",
        "run",
        _object_schema(
            ("command",),
            command=("array", "The program and its arguments."),
            cwd=("string", "The folder to run it in."),
            timeoutMs=("integer", "Milliseconds before it is ended."),
        ),
    ),
    "system.which": CommandDescription(
        "finds programs.", "read", _object_schema(("bins",), bins=("array", "Program names, without folders."))
    ),
    "system.notify": CommandDescription(
        "shows a notification.", "send", _object_schema(title=("string", "Its title."), body=("string", "Its text."))
    ),
    "screen.snapshot": CommandDescription(
        "takes a picture of the screen.",
        "read",
        _object_schema(
            format=("string", "png or jpeg."),
            maxWidth=("integer", "Width in pixels at most."),
            screenIndex=("integer", "Which screen, from 0."),
        ),
    ),
    "screen.record": CommandDescription(
        "films the screen, if its person consents.",
        "read",
        _object_schema(durationMs=("integer", "How long, in milliseconds.")),
    ),
    "camera.list": CommandDescription("lists the cameras.", "read", _object_schema()),
    "camera.snap": CommandDescription(
        "takes a photo, if its person consents.", "read", _object_schema(deviceId=("string", "Which camera."))
    ),
    "camera.clip": CommandDescription(
        "films with the camera, if its person consents.",
        "read",
        _object_schema(deviceId=("string", "Which camera."), durationMs=("integer", "How long, in milliseconds.")),
    ),
    "location.get": CommandDescription("says where the machine is.", "read", _object_schema()),
    "device.info": CommandDescription("says what kind of machine it is.", "read", _object_schema()),
    "device.status": CommandDescription(
        "says how the machine is doing: load, memory, disks, battery.", "read", _object_schema()
    ),
    "tts.speak": CommandDescription(
        "says a text aloud.", "send", _object_schema(("text",), text=("string", "What to say."))
    ),
    "fs.listDir": CommandDescription("lists a folder.", "read", _object_schema(path=("string", "The folder."))),
}
