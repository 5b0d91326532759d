"""The part of the schema that names other MCP servers."""

from typing import Final

from ..core.model import Json
from .schema_parts import boolean, section, string, strings

MAX_WAIT: Final = 86_400_000  # milliseconds: a day


def _string_map(title: str) -> Json:
    return {"type": "object", "title": title, "additionalProperties": {"type": ["string", "number", "boolean"]}}


def _duration(title: str) -> Json:
    return {"type": "number", "title": title, "exclusiveMinimum": 0, "maximum": MAX_WAIT}


SERVER: Final[Json] = section(
    "One MCP server: a program or an address",
    {
        "command": string("The program to start", minLength=1),
        "args": strings("Its arguments"),
        "env": _string_map("Its further environment"),
        "cwd": string("Folder it starts in"),
        "workingDirectory": string("The same as cwd"),
        "url": string("The address of one that is reached over HTTP"),
        "headers": _string_map("Headers sent with every request"),
        "transport": string("How to talk to the address: streamable-http"),
        "protocol": {"enum": ["auto", "handshake", "stateless"], "title": "The era of MCP", "default": "auto"},
        "enabled": boolean("Used", True),
        "agents": strings("The agents that may use it; all, when it is not set"),
        "toolFilter": section(
            "Which of its tools", {"include": strings("Only these"), "exclude": strings("Not these")}, allow_extra=True
        ),
        "connectionTimeoutMs": _duration("Milliseconds it may take to start"),
        "requestTimeoutMs": _duration("Milliseconds it may take to answer"),
    },
    allow_extra=True,
)
MCP: Final[Json] = section(
    "MCP servers agents may use",
    {"servers": {"type": "object", "title": "Servers by name", "additionalProperties": SERVER}},
    allow_extra=True,
)
