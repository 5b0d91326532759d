"""The interface of a capability: its commands, and whether each can work here right now."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct

from ..core.model import ContentBlock, Text, ToolCall, ToolResult, ToolSpec

Danger = Literal["safe", "private", "dangerous"]
RequireConsent = Callable[[ToolCall, str], Awaitable[None]]
"""Ask the person whether this call may do the named thing. Raises ToolDenied."""


class NodeCommand(Struct, frozen=True, kw_only=True):
    spec: ToolSpec
    """Its name such as `screen.snapshot`; the schema accepts properties it does not name."""
    run: Callable[[ToolCall], Awaitable[ToolResult]]
    danger: Danger = "safe"
    """`private` needs consent (camera, screen recording); `dangerous` changes or runs things."""


class UnavailableReason(Struct, frozen=True):
    reason: str
    """Why the command can't work here, one sentence."""
    remedy: str
    """What to install or switch on."""


class Capability(Protocol):
    """One category of commands, such as `screen`."""

    name: str

    def commands(self) -> Sequence[NodeCommand]: ...

    def unavailable_reason(self, command: str) -> UnavailableReason | None:
        """None = works here right now. Cheap: asked often."""

    async def aclose(self) -> None: ...


def json_result(value: Any, *media: ContentBlock) -> ToolResult:
    """A result as every command gives it: JSON as structure and as text, then pictures, sound or video."""
    return ToolResult((Text(msgspec.json.encode(value).decode()), *media), structured=value)
