"""The one tool: `order_openclaw`."""

import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final

from ..core.errors import InputRequired, OpenClawError, ToolArguments, ToolNotFound
from ..core.model import Caller, Json, ToolCall, ToolResult, ToolSpec, text_result
from ..core.ports import Toolbox
from ..core.signal import Signal
from . import attachments
from .approvals import OrderEvent
from .conversation import RUN_TIMEOUT, AgentOrder
from .running_order import RunningOrder, SuspendedOrders

logger = logging.getLogger(__name__)

MAX_KEY_LENGTH: Final = 512

OrderRunner = Callable[[AgentOrder], Awaitable[AsyncGenerator[OrderEvent, None]]]
"""Finds an agent for an order; iterating has the order carried out, closing the iterator stops it."""


def _attachment_schema(what: str, example: str) -> Json:
    return {
        "type": "object",
        "properties": {
            "data": {"type": "string", "description": f"Base64-encoded {what} data"},
            "mimeType": {"type": "string", "description": f"MIME type (e.g., '{example}')"},
            "filename": {"type": "string", "description": "Optional filename"},
        },
        "required": ["data", "mimeType"],
    }


ORDER_TOOL: Final = ToolSpec(
    name="order_openclaw",
    description=(
        "Send a message to OpenClaw and receive a response. The message will be processed as if typed by a user. "
        "Supports sending images, files (PDF, text, markdown, CSV, JSON), audio, video, and archives (ZIP, TAR.GZ) "
        "via base64 encoding."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "message": {"type": "string", "description": "The message to send to OpenClaw"},
            "sessionKey": {"type": "string", "description": "Optional session key for conversation continuity"},
            "images": {
                "type": "array",
                "description": "Optional base64-encoded images (max 10, 15MB each)",
                "items": _attachment_schema("image", "image/png"),
            },
            "files": {
                "type": "array",
                "description": "Optional base64-encoded files (max 5, 15MB each)",
                "items": _attachment_schema("file", "application/pdf"),
            },
        },
        "required": ["message"],
    },
    effect="run",
    deadline=RUN_TIMEOUT,
    task="offered",
)


class OrderTools:
    """A ToolSource of one tool. `run_order` finds the agent."""

    def __init__(self, run_order: OrderRunner, suspended: SuspendedOrders) -> None:
        """`suspended`: orders whose clients are to call again; closed by who made it."""
        self.changed: Signal[None] = Signal()
        self._run_order, self._suspended = run_order, suspended

    def specs(self) -> Sequence[ToolSpec]:
        return (ORDER_TOOL,)

    async def call(self, call: ToolCall) -> ToolResult:
        running = await self._suspended.take(call)
        if running is None:
            order = AgentOrder(
                message=_read_message(call.arguments),
                session_key=_read_session_key(call.arguments),
                attachments=attachments.read_attachments(call.arguments),
            )
            items = ", ".join(f"{item.mime_type} of {len(item.data or b'')} bytes" for item in order.attachments)
            logger.debug("an order of %d characters, with %s", len(order.message), items or "nothing attached")
            running = RunningOrder(await self._run_order(order))
        try:
            result = await running.collect(call.context)
        except InputRequired:
            self._suspended.add(call, running)
            raise
        except BaseException:
            await running.aclose()
            raise
        await running.aclose()
        return result


class ErrorTextToolbox:
    """A Toolbox whose refusals read `Error: …`, as the contract of this server has it."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    @property
    def changed(self) -> Signal[None]:
        return self._toolbox.changed

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        return await self._toolbox.list(caller)

    async def call(self, call: ToolCall) -> ToolResult:
        try:
            return await self._toolbox.call(call)
        except (ToolNotFound, InputRequired):
            raise
        except OpenClawError as exc:
            return text_result(f"Error: {exc}", failed=True)


def _read_message(arguments: Json) -> str:
    message: str = arguments["message"]
    if not message.strip():
        raise ToolArguments("`message` is empty; say what the agent is to do")
    if "\0" in message:
        raise ToolArguments("`message` holds a NUL character; remove it")
    return message


def _read_session_key(arguments: Json) -> str:
    key = arguments.get("sessionKey")
    if key is None:
        return f"mcp-{int(time.time() * 1000)}-{os.urandom(6).hex()}"
    if not key.strip() or len(key) > MAX_KEY_LENGTH or not key.isprintable():
        raise ToolArguments(f"`sessionKey` must be 1 to {MAX_KEY_LENGTH} printable characters")
    return str(key)
