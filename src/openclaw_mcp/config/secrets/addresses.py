"""Web addresses that are secret themselves: the part behind the host is all it takes to use them. Pure."""

import re
from typing import Final

_ADDRESS: Final = re.compile(
    r"(?P<before>-[\w-]+=)?(?P<scheme>https?|wss?)://([^/?#@\s]*@)?"
    r"(?P<host>(\[[\da-f:.]+\]|[\w.-]+|\$\{\w+\})(:\d+)?)(?P<rest>[/?#][^@\s]*)?",
    re.IGNORECASE,
)
"""An address, as a value or glued to an option; none with another `@`, where the host would be ambiguous."""
_COMMON_PATH: Final = re.compile(
    r"(/(api|http|mcp|messages?|rpc|servers?|sse|stream|v\d|ws|\0)?)*(\?[\w.-]+=\0(&[\w.-]+=\0)*)?", re.IGNORECASE
)
"""The usual paths of MCP servers, which reveal nothing. `\0` is a reference to the environment."""
_SEPARATOR: Final = re.compile(r"[/?&=#;]")
_RANDOM_SEGMENT: Final = re.compile(
    r"(?=\w*\d)(?=\w*[A-Za-z])\w{16,}"  # letters and digits without an end
    r"|(?=[\w~-]*\d)(?=[\w~-]*[a-z])(?=[\w~-]*[A-Z])[\w~-]{20,}"
    r"|[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}"
    r"|bot\d{6,}.*",
    re.ASCII,
)
"""A step of a path, or a parameter, that looks generated."""
_ADDRESS_IN_TEXT: Final = re.compile(r"(?<![+\w])(?:https?|wss?)://[^\s\"'<>]+", re.IGNORECASE)


def address_origin(text: str) -> str | None:
    """Of a text that is one address: all up to its host, without user and password; None: it is none."""
    found = _ADDRESS.fullmatch(text) if "://" in text else None
    return f"{found['before'] or ''}{found['scheme']}://{found['host']}/" if found else None


def has_private_path(text: str) -> bool:
    """Whether there is more behind an address's host than a usual path. `\0` replaces each reference."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and _COMMON_PATH.fullmatch(found["rest"] or "") is None


def has_random_segment(text: str) -> bool:
    """Whether an address in this text has a step or parameter that looks made up by a program."""
    if "://" not in text:
        return False
    return any(
        _RANDOM_SEGMENT.fullmatch(step)
        for address in _ADDRESS_IN_TEXT.findall(text)
        for step in _SEPARATOR.split(address)[3:]
    )
