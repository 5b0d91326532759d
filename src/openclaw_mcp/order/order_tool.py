"""The one tool: `order_openclaw`."""

import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final

from ..core.agent import AgentEvent, Block, Failed, Media, Partial, ToolUse
from ..core.agent import Final as Done
from ..core.errors import InputRequired, OpenClawError, ToolArguments, ToolNotFound
from ..core.model import Caller, Json, ToolCall, ToolResult, ToolSpec, said
from ..core.ports import Toolbox
from ..core.signal import Bell
from . import attachments
from .answer import Gatherer
from .conversation import RUN_WITHIN, Order

logger = logging.getLogger(__name__)

LONGEST_KEY: Final = 512
SHOWN: Final = 200  # characters of the text so far that go with each sign of progress

Carry = Callable[[Order], AsyncGenerator[AgentEvent, None]]
"""Has an order carried out; closing the iterator stops it."""


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


ORDER: Final = ToolSpec(
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
    deadline=RUN_WITHIN,
    task="offered",
)


class OrderTools:
    """A ToolSource of one tool. `carry` knows where the agent is."""

    def __init__(self, carry: Carry) -> None:
        self.changed: Bell[None] = Bell()
        self._carry = carry

    def specs(self) -> Sequence[ToolSpec]:
        return (ORDER,)

    async def call(self, call: ToolCall) -> ToolResult:
        order = Order(
            message=_message(call.arguments),
            session_key=_session_key(call.arguments),
            attachments=attachments.attachments(call.arguments),
        )
        items = ", ".join(f"{item.mime_type} of {len(item.data or b'')} bytes" for item in order.attachments)
        logger.debug("an order of %d characters, with %s", len(order.message), items or "nothing attached")
        answer, heard = Gatherer(), 0
        async with aclosing(self._carry(order)) as events:
            async for event in events:
                match event:
                    case Partial(text=text):
                        heard += 1
                        await call.line.progress(heard, message=text[-SHOWN:])
                    case ToolUse(name=name):
                        heard += 1
                        logger.debug("the agent uses %s", name)
                        await call.line.progress(heard, message=f"using {name}")
                    case Block(text=text):
                        answer.say(text)
                    case Media(attachment=item):
                        answer.show(item)
                    case Done(text=text):
                        answer.say(text or "")
                    case Failed(message=reason):
                        return said(f"Error: {reason}", failed=True)
        return answer.result()


class Spoken:
    """A Toolbox whose refusals read `Error: …`, as this surface promises."""

    def __init__(self, desk: Toolbox) -> None:
        self._desk = desk

    @property
    def changed(self) -> Bell[None]:
        return self._desk.changed

    async def list(self, caller: Caller) -> Sequence[ToolSpec]:
        return await self._desk.list(caller)

    async def call(self, call: ToolCall) -> ToolResult:
        try:
            return await self._desk.call(call)
        except (ToolNotFound, InputRequired):
            raise
        except OpenClawError as exc:
            return said(f"Error: {exc}", failed=True)


def _message(arguments: Json) -> str:
    message: str = arguments["message"]
    if not message.strip():
        raise ToolArguments("`message` is empty; say what the agent is to do")
    if "\0" in message:
        raise ToolArguments("`message` holds a NUL character; remove it")
    return message


def _session_key(arguments: Json) -> str:
    key = arguments.get("sessionKey")
    if key is None:
        return f"mcp-{int(time.time() * 1000)}-{os.urandom(6).hex()}"
    if not key.strip() or len(key) > LONGEST_KEY or not key.isprintable():
        raise ToolArguments(f"`sessionKey` must be 1 to {LONGEST_KEY} printable characters")
    return str(key)
