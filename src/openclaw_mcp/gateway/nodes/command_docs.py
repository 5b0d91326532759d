"""What the usual commands of nodes do, for nodes that do not describe them. Pure."""

from typing import Any, Final

from msgspec import Struct

from ...core.model import Effect, Json


class Word(Struct, frozen=True):
    description: str
    effect: Effect
    schema: Json


MCP_CALL: Final = "mcp.tools.call.v1"
"""Asks a tool of an MCP server on the node: `{server, tool, arguments}`; answers as that server does."""
NOT_TOOLS: Final = (
    "system.execApprovals.*", "system.run.prepare", "browser.*", "terminal.*", "desktop.*", "worker.*",
    "mcp.tools.call*", "workspace.*",
)  # fmt: skip
"""Commands gateways and apps use among themselves; a model has no business with them."""


def _takes(required: tuple[str, ...] = (), **properties: Any) -> Json:
    schema: Json = {"type": "object", "properties": {name: _property(told) for name, told in properties.items()}}
    return schema | ({"required": list(required)} if required else {})


def _property(told: Any) -> Json:
    kind, words = told
    items = {"items": {"type": "string"}} if kind == "array" else {}
    return {"type": kind, "description": words} | items


WORDS: Final = {
    "system.run": Word(
        "runs a program, if the machine's rules or its person allow it, and answers with its output.",
        "run",
        _takes(
            ("command",),
            command=("array", "The program and its arguments."),
            cwd=("string", "The folder to run it in."),
            timeoutMs=("integer", "Milliseconds before it is ended."),
        ),
    ),
    "system.which": Word(
        "finds programs.", "read", _takes(("bins",), bins=("array", "Program names, without folders."))
    ),
    "system.notify": Word(
        "shows a notification.", "send", _takes(title=("string", "Its title."), body=("string", "Its text."))
    ),
    "screen.snapshot": Word(
        "takes a picture of the screen.",
        "read",
        _takes(
            format=("string", "png or jpeg."),
            maxWidth=("integer", "Width in pixels at most."),
            screenIndex=("integer", "Which screen, from 0."),
        ),
    ),
    "screen.record": Word(
        "films the screen, if its person consents.",
        "read",
        _takes(durationMs=("integer", "How long, in milliseconds.")),
    ),
    "camera.list": Word("lists the cameras.", "read", _takes()),
    "camera.snap": Word("takes a photo, if its person consents.", "read", _takes(deviceId=("string", "Which camera."))),
    "camera.clip": Word(
        "films with the camera, if its person consents.",
        "read",
        _takes(deviceId=("string", "Which camera."), durationMs=("integer", "How long, in milliseconds.")),
    ),
    "location.get": Word("says where the machine is.", "read", _takes()),
    "device.info": Word("says what kind of machine it is.", "read", _takes()),
    "device.status": Word("says how the machine is doing: load, memory, disks, battery.", "read", _takes()),
    "tts.speak": Word("says a text aloud.", "send", _takes(("text",), text=("string", "What to say."))),
    "fs.listDir": Word("lists a folder.", "read", _takes(path=("string", "The folder."))),
}
