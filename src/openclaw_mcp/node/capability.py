"""The interface of a capability: its commands, and whether each can work here right now."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct

from ..core.errors import ToolBusy
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
        """None = works here right now. Called often, so it must be cheap."""

    async def aclose(self) -> None:
        return


@asynccontextmanager
async def hold_lock(lock: asyncio.Lock, seconds: float, busy: str) -> AsyncIterator[None]:
    """One call at a time. Raises ToolBusy with this text when the lock is not free within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await lock.acquire()
    except TimeoutError:
        raise ToolBusy(busy) from None
    try:
        yield
    finally:
        lock.release()


def json_result(value: Any, *media: ContentBlock) -> ToolResult:
    """A result as every command gives it: JSON as structure and as text, then pictures, sound or video."""
    return ToolResult((Text(msgspec.json.encode(value).decode()), *media), structured=value)
