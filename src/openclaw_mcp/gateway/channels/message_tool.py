"""The agents' tool `message`: the same actions a client of the gateway has, bound to the agent's conversation."""

import uuid
from collections.abc import Sequence
from typing import Final

import msgspec

from ...core.channel import ChannelError
from ...core.claw_methods import TOOLS_BY_ACTION
from ...core.errors import ToolError, ToolNotFound
from ...core.model import Json, Text, ToolCall, ToolResult, ToolSpec
from ...core.signal import Signal
from .message_actions import ActionContext, MessageActions
from .rpc_methods import agent_context
from .service import ChannelService

TEXT: Final[Json] = {"type": "string"}
SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {
        "action": {
            "type": "string",
            "enum": [
                "send", "reply", "thread-reply", "broadcast", "react", "delete", "sendAttachment", "sendWithEffect",
                "pin", "unpin", "read", "edit", "poll",
            ],
        },
        "target": {**TEXT, "description": "Conversation to act in; without it, the one you are in."},
        "targets": {"type": "array", "items": TEXT, "description": "Conversations of a broadcast."},
        "channel": {**TEXT, "description": "Channel of the target; without it, the one you are on."},
        "accountId": TEXT,
        "message": {**TEXT, "description": "What to say."},
        "media": {**TEXT, "description": "A file to send: an http(s) address, or a path in your workspace."},
        "caption": TEXT,
        "replyTo": {**TEXT, "description": "Id of the message to answer."},
        "threadId": TEXT,
        "messageId": {**TEXT, "description": "Message to react to, delete, edit or pin."},
        "emoji": TEXT,
        "remove": {"type": "boolean", "description": "Take the reaction or pin away again."},
        "effectId": TEXT,
        "limit": {"type": "integer", "minimum": 1, "maximum": 200},
        "before": {**TEXT, "description": "Read messages older than this one."},
        "question": TEXT,
        "options": {"type": "array", "items": TEXT},
        "silent": {"type": "boolean"},
        "dryRun": {"type": "boolean", "description": "Say what would be sent, and send nothing."},
    },
    "required": ["action"],
}  # fmt: skip
SPEC: Final = ToolSpec(
    name="message",
    description=(
        "Send messages through the channels people use, and act on messages there. What you send to the conversation "
        "you are in is your answer; do not repeat it. Use dryRun to see where a message would go."
    ),
    input_schema=SCHEMA,
    effect="send",
    actions=TOOLS_BY_ACTION["message"],
    parameter_tools={
        "media": "message_send_attachment", "effectId": "message_send_with_effect", "replyTo": "message_reply",
    },
)  # fmt: skip


class MessageTool:
    """A `ToolSource`."""

    def __init__(self, channels: ChannelService, actions: MessageActions) -> None:
        self.changed: Signal[None] = Signal()
        self._channels = channels
        self._actions = actions

    def specs(self) -> Sequence[ToolSpec]:
        return (SPEC,)

    async def call(self, call: ToolCall) -> ToolResult:
        if call.name != SPEC.name:
            raise ToolNotFound(f"Unknown tool: {call.name}")
        given = dict(call.arguments)
        action = given.pop("action", "")
        if not isinstance(action, str):
            raise ToolError("action must be a text")
        context = await self._context(call)
        try:
            done = await self._actions.perform(action, given, context, key=f"tool:{uuid.uuid4()}")
        except ChannelError as exc:
            raise ToolError(str(exc)) from None
        payload = done["payload"]
        return ToolResult((Text(msgspec.json.encode(payload).decode()),), structured=payload)

    async def _context(self, call: ToolCall) -> ActionContext:
        if call.caller.kind == "agent" or call.caller.grant is not None:
            return await agent_context(self._channels, call.caller)
        session = call.caller.session
        address = None if session is None else await self._channels.find_address(session)
        own = () if address is None else (address,)
        return ActionContext(
            session=session,
            address=address,
            origin="tool",
            owner=call.caller.is_owner,
            policy_caller=call.caller,
            own_addresses=own,
        )
