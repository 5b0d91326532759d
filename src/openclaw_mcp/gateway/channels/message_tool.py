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
from .action_context import ActionContext, ActionContexts
from .message_actions import MessageActions

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

    def __init__(self, actions: MessageActions, contexts: ActionContexts) -> None:
        self.changed: Signal[None] = Signal()
        self._actions = actions
        self._contexts = contexts

    def specs(self) -> Sequence[ToolSpec]:
        return (SPEC,)

    async def call(self, call: ToolCall) -> ToolResult:
        if call.name != SPEC.name:
            raise ToolNotFound(f"Unknown tool: {call.name}")
        params = dict(call.arguments)
        action = params.pop("action", "")
        if not isinstance(action, str):
            raise ToolError("action must be a text")
        context = await self._context(call)
        try:
            result = await self._actions.perform(action, params, context, key=f"tool:{uuid.uuid4()}")
        except ChannelError as exc:
            raise ToolError(str(exc)) from None
        return ToolResult((Text(msgspec.json.encode(result.payload).decode()),), structured=result.payload)

    async def _context(self, call: ToolCall) -> ActionContext:
        caller = call.caller
        if caller.kind == "agent" or caller.grant is not None:
            return await self._contexts.of_agent(caller)
        base = ActionContext(origin="tool", owner=caller.is_owner, policy_caller=caller)
        context = await self._contexts.of_session(caller.session, base)
        own = () if context.address is None else (context.address,)
        return msgspec.structs.replace(context, own_addresses=own)
