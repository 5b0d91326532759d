"""Handlers of the messaging tools: ten actions, all through the gateway's `message.action`."""

from typing import Any, Final

from ..core.claw_methods import recorded_tool
from ..core.effects import SentMessage
from ..core.errors import OpenClawError, ToolArguments, ToolError
from ..core.model import Json
from . import files
from .message_action import OWN_GATEWAY_METHOD, MessageAction, MessageArguments
from .tool_context import ClawContext, OutcomeUnknown, bind_handlers, require_text

# ---- sending ---------------------------------------------------------------------------------------------------------


async def _send(context: ClawContext, arguments: MessageArguments) -> Any:
    media, message = arguments.media.strip() or None, arguments.message
    if media is None:
        require_text("message", message)
    act = MessageAction(context, "message_send", arguments, arguments.target)
    params = {"message": message, "replyTo": arguments.reply_to_id, **await files.file_parameters(context, media)}
    return await act.send(params, text=message, media=media)


async def _reply(context: ClawContext, arguments: MessageArguments, tool: str = "message_reply") -> Any:
    message = require_text("message", arguments.message)
    params = {"message": message, "replyTo": arguments.reply_to_id}
    return await MessageAction(context, tool, arguments).send(params, text=message)


async def _thread_reply(context: ClawContext, arguments: MessageArguments) -> Any:
    require_text("threadId", arguments.thread_id)
    return await _reply(context, arguments, "message_thread_reply")


async def _send_attachment(context: ClawContext, arguments: MessageArguments) -> Any:
    file, caption = require_text("file", arguments.file).strip(), arguments.caption
    act = MessageAction(context, "message_send_attachment", arguments, arguments.target)
    params = {"message": caption, "caption": caption, **await files.file_parameters(context, file)}
    return await act.send(params, text=caption, media=file)


async def _send_with_effect(context: ClawContext, arguments: MessageArguments) -> Any:
    message = require_text("message", arguments.message)
    act = MessageAction(context, "message_send_with_effect", arguments, arguments.target)
    effect = require_text("effectId", arguments.effect_id)
    return await act.send({"message": message, "effectId": effect, "effect": effect}, text=message)


# ---- to many ---------------------------------------------------------------------------------------------------------


async def _broadcast(context: ClawContext, arguments: MessageArguments) -> Any:
    message = require_text("message", arguments.message)
    targets = list(dict.fromkeys(target.strip() for target in arguments.targets if target.strip()))
    if not targets:
        raise ToolArguments("`targets` is empty; name the conversations it goes to")
    act = MessageAction(context, "message_broadcast", arguments, None)
    if not act.channel:
        raise ToolArguments("this run has no channel of its own; say in `channel` where the targets are")
    context.effects.ensure_open()
    if OWN_GATEWAY_METHOD in await context.gateway.methods():
        results = await _broadcast_at_once(act, context, targets, message)
    else:
        acts = [MessageAction(context, "message_send", arguments, target) for target in targets]
        results = [await _send_one(context, act, message) for act in acts]
    count = sum(one["ok"] for one in results)
    if not count:
        reasons = "; ".join(f"{one['to']}: {one.get('error') or 'not sent'}" for one in results)
        raise ToolError(f"nothing was sent: {reasons}")
    return {"kind": "broadcast", "sent": count, "failed": len(results) - count, "results": results}


async def _broadcast_at_once(
    action: MessageAction, context: ClawContext, targets: list[str], message: str
) -> list[Json]:
    try:
        answer = await action.perform({"targets": targets, "message": message})
    except OutcomeUnknown:
        tool = recorded_tool("message_broadcast")
        context.effects.record_uncertain([SentMessage(tool=tool, to=to, text=message) for to in targets])
        raise
    payload = answer.get("payload") if isinstance(answer, dict) else None
    found = (payload if isinstance(payload, dict) else answer).get("results")
    answers = [one if isinstance(one, dict) else {} for one in found or ()]
    results = [{"to": to, **one, "ok": one.get("ok") is True} for to, one in zip(targets, answers, strict=False)]
    # The name the gateway gives a conversation counts, not the one the agent wrote.
    done = [action.make_record(one, message, None) for one in results if one["ok"]]
    if done:
        context.record_messages(done, {})
    return results


async def _send_one(context: ClawContext, action: MessageAction, message: str) -> Json:
    """A gateway without a broadcast of its own gets one message after another."""
    where = {"channel": action.channel, "to": action.target}
    try:
        answer = await action.perform({"message": message})
    except OpenClawError as exc:
        if isinstance(exc, OutcomeUnknown):
            context.effects.record_uncertain([action.make_record({}, message, None)])
        return {**where, "ok": False, "error": str(exc)}
    return context.record_messages([action.make_record(answer, message, None)], {**where, "ok": True, "result": answer})


# ---- existing messages -----------------------------------------------------------------------------------------------

OPERATOR_READ_ORIGIN: Final = {"conversationReadOrigin": "direct-operator"}
"""A real gateway else lets only its own agents act on existing messages. It takes this from operators alone."""


async def _react(context: ClawContext, arguments: MessageArguments) -> Any:
    emoji = require_text("emoji", arguments.emoji)
    return await _change(context, "message_react", arguments, emoji=emoji, remove=arguments.remove)


async def _change(context: ClawContext, tool: str, arguments: MessageArguments, **params: str | bool | None) -> Any:
    message_id = require_text("messageId", arguments.message_id)
    act = MessageAction(context, tool, arguments, arguments.target)
    return await act.perform({"messageId": message_id, **params}, **OPERATOR_READ_ORIGIN)


async def _read(context: ClawContext, arguments: MessageArguments) -> Any:
    act = MessageAction(context, "message_read", arguments, arguments.channel_id)
    return await act.perform({"limit": arguments.limit, "before": arguments.before}, **OPERATOR_READ_ORIGIN)


HANDLERS: Final = bind_handlers(
    MessageArguments,
    {
        "message_send": _send,
        "message_reply": _reply,
        "message_thread_reply": _thread_reply,
        "message_broadcast": _broadcast,
        "message_react": _react,
        "message_delete": lambda context, asked: _change(context, "message_delete", asked),
        "message_send_attachment": _send_attachment,
        "message_send_with_effect": _send_with_effect,
        "message_pin": lambda context, asked: _change(context, "message_pin", asked, remove=asked.remove),
        "message_read": _read,
    },
)
