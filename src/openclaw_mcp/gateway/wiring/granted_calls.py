"""Calls of tools that end with the credential or the connection they were made under."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from ...core.errors import ToolUnavailable
from ...core.model import Caller, ToolCall, ToolResult, ToolSpec
from ...core.ports import Toolbox
from ...core.signal import Signal
from ...net.tasks import Tasks
from ..rpc.grants import RunGrants, find_grant_id

GRANT_ENDED: Final = "the grant it was called under has ended"


async def call_until(toolbox: Toolbox, call: ToolCall, end: "asyncio.Future[None]", reason: str) -> ToolResult:
    """The result. A call that is at work at the `end` is cancelled, as a model's is when its run is stopped; then
    raises ToolUnavailable with the `reason`."""
    async with Tasks("granted calls") as tasks:
        work = tasks.spawn(toolbox.call(call), name=call.name, on_failure="raise")
        either: set[asyncio.Future[Any]] = {work, end}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ToolUnavailable(reason)
        return await work


class GrantedToolbox:
    """A `Toolbox` for HTTP, where a connection does not end with a grant: its calls end with it."""

    def __init__(self, toolbox: Toolbox, grants: RunGrants) -> None:
        self._toolbox, self._grants = toolbox, grants

    @property
    def changed(self) -> Signal[None]:
        return self._toolbox.changed

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        return await self._toolbox.list(caller)

    async def call(self, call: ToolCall) -> ToolResult:
        id = find_grant_id(call.caller)
        if id is None:
            return await self._toolbox.call(call)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_end(ended_id: str) -> None:
            if ended_id == id and not ended.done():
                ended.set_result(None)

        disconnect = self._grants.ended.connect(on_end)
        try:
            if not self._grants.is_held(id):
                raise ToolUnavailable(GRANT_ENDED)
            return await call_until(self._toolbox, call, ended, GRANT_ENDED)
        finally:
            disconnect()
