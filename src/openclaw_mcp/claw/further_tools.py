"""The tools a session has besides the 29: those of the gateway's MCP servers, its nodes and its apps."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from msgspec import structs

from ..core.claw_methods import CALL_FURTHER_TOOL, LIST_FURTHER_TOOLS
from ..core.errors import OpenClawError
from ..core.model import ToolCall, ToolResult, ToolSpec
from ..core.signal import Signal
from ..net.tasks import Tasks
from ..protocol.mcp_results import read_result, read_tool
from .tool_context import ClawGateway, GatewayOffer

CALL_DEADLINE: Final = 1000.0  # seconds; the gateway ends a call earlier: its longest is a node's command, 960 s

logger = logging.getLogger(__name__)


class FurtherTools:
    """A `ToolSource`: as the gateway lists them, read again at each of its announcements; none on a gateway that has
    no such list."""

    def __init__(self, gateway: ClawGateway) -> None:
        self.changed: Signal[None] = Signal()
        self._gateway = gateway
        self._specs: tuple[ToolSpec, ...] = ()
        self._is_stale = self._is_reading = False
        self._known = asyncio.Event()
        self._tasks = Tasks("further tools")
        gateway.offered.connect(self._on_offer)

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def wait_until_known(self) -> None:
        await self._known.wait()

    async def call(self, call: ToolCall) -> ToolResult:
        params = {"name": call.name, "arguments": call.arguments}
        answer = await self._gateway.call(CALL_FURTHER_TOOL, params, within=CALL_DEADLINE)
        return read_result(answer if isinstance(answer, dict) else {})

    def _on_offer(self, offer: GatewayOffer) -> None:
        if LIST_FURTHER_TOOLS not in offer.methods:
            self._known.set()
            return
        self._is_stale = True
        if not self._is_reading:
            self._is_reading = True
            self._tasks.spawn(self._read_lists(), name="list")

    async def _read_lists(self) -> None:
        """One list after another, so that the last one is the newest."""
        try:
            while self._is_stale:
                self._is_stale = False
                self._keep(await self._gateway.call(LIST_FURTHER_TOOLS, {}, repeatable=True))
        except OpenClawError as exc:
            logger.warning("the gateway's further tools can't be listed: %s", exc)
        finally:
            self._is_reading = False
            self._known.set()

    def _keep(self, answer: Any) -> None:
        listed = answer.get("tools") if isinstance(answer, dict) else None
        read = (read_tool(tool) for tool in listed or ())
        specs = tuple(structs.replace(tool, deadline=CALL_DEADLINE) for tool in read if tool is not None)
        if specs != self._specs:
            self._specs = specs
            self.changed.emit(None)
