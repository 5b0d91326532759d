"""The part of the schema that names other MCP servers."""

from typing import Final

from ..core.model import Json
from .schema_parts import flag, section, text, texts

LONGEST_WAIT: Final = 86_400_000  # milliseconds: a day


def _pairs(title: str) -> Json:
    return {"type": "object", "title": title, "additionalProperties": {"type": ["string", "number", "boolean"]}}


def _wait(title: str) -> Json:
    return {"type": "number", "title": title, "exclusiveMinimum": 0, "maximum": LONGEST_WAIT}


SERVER: Final[Json] = section(
    "One MCP server: a program or an address",
    {
        "command": text("The program to start", minLength=1),
        "args": texts("Its arguments"),
        "env": _pairs("Its further environment"),
        "cwd": text("Folder it starts in"),
        "workingDirectory": text("The same as cwd"),
        "url": text("The address of one that is reached over HTTP"),
        "headers": _pairs("Headers sent with every request"),
        "transport": text("How to talk to the address: streamable-http"),
        "protocol": {"enum": ["auto", "handshake", "stateless"], "title": "The era of MCP", "default": "auto"},
        "enabled": flag("Used", True),
        "agents": texts("The agents that may use it; all, when it is not set"),
        "toolFilter": section(
            "Which of its tools", {"include": texts("Only these"), "exclude": texts("Not these")}, open=True
        ),
        "connectionTimeoutMs": _wait("Milliseconds it may take to start"),
        "requestTimeoutMs": _wait("Milliseconds it may take to answer"),
    },
    open=True,
)
MCP: Final[Json] = section(
    "MCP servers agents may use",
    {"servers": {"type": "object", "title": "Servers by name", "additionalProperties": SERVER}},
    open=True,
)
