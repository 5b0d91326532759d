"""Handlers of the messaging tools: ten actions, all through the gateway's `message.action`."""

from typing import Any, Final

from msgspec.structs import replace

from ..core.effects import SentMessage
from ..core.errors import OpenClawError, ToolArguments, ToolError
from ..core.model import Json
from . import files
from .message_action import OWN_GATEWAY_METHOD, MessageAction
from .tool_context import ClawContext, OutcomeUnknown, ToolHandler, optional_integer, require_text

# ---- sending ---------------------------------------------------------------------------------------------------------


async def _send(context: ClawContext, arguments: Json) -> Any:
    media = (arguments.get("media") or "").strip() or None
    message = arguments.get("message") or ""
    if not media:
        message = require_text(arguments, "message")
    act = MessageAction(context, "message_send", arguments, target=require_text(arguments, "target"))
    params = {"message": message, "replyTo": arguments.get("replyToId"), **await files.file_parameters(context, media)}
    return await act.send(params, text=message, media=media)


async def _reply(context: ClawContext, arguments: Json) -> Any:
    act = MessageAction(context, "message_reply", arguments)
    message = require_text(arguments, "message")
    return await act.send({"message": message, "replyTo": arguments.get("replyToId")}, text=message)


async def _thread_reply(context: ClawContext, arguments: Json) -> Any:
    require_text(arguments, "threadId")
    act = MessageAction(context, "message_thread_reply", arguments)
    message = require_text(arguments, "message")
    return await act.send({"message": message, "replyTo": arguments.get("replyToId")}, text=message)


async def _send_attachment(context: ClawContext, arguments: Json) -> Any:
    file, caption = require_text(arguments, "file").strip(), arguments.get("caption") or ""
    act = MessageAction(context, "message_send_attachment", arguments, target=require_text(arguments, "target"))
    params = {"message": caption, "caption": caption, **await files.file_parameters(context, file)}
    return await act.send(params, text=caption, media=file)


async def _send_with_effect(context: ClawContext, arguments: Json) -> Any:
    message = require_text(arguments, "message")
    act = MessageAction(context, "message_send_with_effect", arguments, target=require_text(arguments, "target"))
    effect = require_text(arguments, "effectId")
    return await act.send({"message": message, "effectId": effect, "effect": effect}, text=message)


# ---- to many ---------------------------------------------------------------------------------------------------------


async def _broadcast(context: ClawContext, arguments: Json) -> Any:
    message = require_text(arguments, "message")
    targets = list(dict.fromkeys(target.strip() for target in arguments["targets"] if target.strip()))
    if not targets:
        raise ToolArguments("`targets` is empty; name the conversations it goes to")
    act = MessageAction(context, "message_broadcast", arguments, in_conversation=False)
    if not act.channel:
        raise ToolArguments("this run has no channel of its own; say in `channel` where the targets are")
    context.effects.ensure_open()
    if OWN_GATEWAY_METHOD in await context.gateway.methods():
        results = await _broadcast_at_once(act, context, targets, message)
    else:
        results = [await _send_one(context, arguments, target, message) for target in targets]
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
        context.effects.record_uncertain([SentMessage(tool="message_broadcast", to=to, text=message) for to in targets])
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


async def _send_one(context: ClawContext, arguments: Json, target: str, message: str) -> Json:
    """A gateway without a broadcast of its own gets one message after another."""
    act = MessageAction(context, "message_send", arguments, target=target)
    where: Json = {"channel": act.channel, "to": target}
    try:
        answer = await act.perform({"message": message})
    except OpenClawError as exc:
        if isinstance(exc, OutcomeUnknown):
            context.effects.record_uncertain([replace(act.make_record({}, message, None), tool="message_broadcast")])
        return {**where, "ok": False, "error": str(exc)}
    sent = act.make_record(answer, message, None)
    return context.record_messages([replace(sent, tool="message_broadcast")], {**where, "ok": True, "result": answer})


# ---- existing messages -----------------------------------------------------------------------------------------------

OPERATOR_READ_ORIGIN: Final = {"conversationReadOrigin": "direct-operator"}
"""A real gateway else lets only its own agents act on existing messages. It takes this from operators alone."""


async def _react(context: ClawContext, arguments: Json) -> Any:
    params = {
        "emoji": require_text(arguments, "emoji"),
        "messageId": require_text(arguments, "messageId"),
        "remove": arguments.get("remove"),
    }
    return await MessageAction(context, "message_react", arguments, target=arguments.get("target")).perform(
        params, **OPERATOR_READ_ORIGIN
    )


async def _delete(context: ClawContext, arguments: Json) -> Any:
    act = MessageAction(context, "message_delete", arguments, target=arguments.get("target"))
    return await act.perform({"messageId": require_text(arguments, "messageId")}, **OPERATOR_READ_ORIGIN)


async def _pin(context: ClawContext, arguments: Json) -> Any:
    act = MessageAction(context, "message_pin", arguments, target=arguments.get("target"))
    return await act.perform(
        {"messageId": require_text(arguments, "messageId"), "remove": arguments.get("remove")}, **OPERATOR_READ_ORIGIN
    )


async def _read(context: ClawContext, arguments: Json) -> Any:
    act = MessageAction(context, "message_read", arguments, target=arguments.get("channelId"))
    wanted = {"limit": optional_integer(arguments, "limit"), "before": arguments.get("before")}
    return await act.perform(wanted, **OPERATOR_READ_ORIGIN)


HANDLERS: Final[dict[str, ToolHandler]] = {
    "message_send": _send,
    "message_reply": _reply,
    "message_thread_reply": _thread_reply,
    "message_broadcast": _broadcast,
    "message_react": _react,
    "message_delete": _delete,
    "message_send_attachment": _send_attachment,
    "message_send_with_effect": _send_with_effect,
    "message_pin": _pin,
    "message_read": _read,
}
