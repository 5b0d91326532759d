"""Messaging tools: ten things done in conversations, all through the gateway's `message.action`."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from ..core.effects import SentMessage
from ..core.errors import OpenClawError, ToolArguments, ToolError
from ..core.model import Json
from . import files
from .message_action import OWN_GATEWAY_METHOD, MessageAction
from .tool_context import (
    ClawContext,
    ClawTool,
    OutcomeUnknown,
    ToolHandler,
    ToolTraits,
    define_tool,
    flag_parameter,
    integer_parameter,
    optional_integer,
    parameter_aliases,
    require_text,
    text_parameter,
)

MAX_TARGETS: Final = 100  # of one broadcast

PARAMETER_ALIASES: Final = parameter_aliases(
    target="to recipient chat_id chatId",
    message="text content body",
    media="mediaUrl media_url",
    messageId="message_id id",
    threadId="thread_id",
    replyToId="replyTo reply_to reply_to_id",
    accountId="account_id",
    channel="provider",
)


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
    act = MessageAction(context, "message_reply", arguments, target=None)
    message = require_text(arguments, "message")
    return await act.send({"message": message, "replyTo": arguments.get("replyToId")}, text=message)


async def _thread_reply(context: ClawContext, arguments: Json) -> Any:
    require_text(arguments, "threadId")
    act = MessageAction(context, "message_thread_reply", arguments, target=None)
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
    act = MessageAction(context, "message_broadcast", arguments, target=None)
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
    action.target = ""
    action.thread = ""
    try:
        answer = await action.perform({"targets": targets, "message": message})
    except OutcomeUnknown:
        context.effects.record_uncertain([SentMessage(tool="message_broadcast", to=to, text=message) for to in targets])
        raise
    payload = answer.get("payload") if isinstance(answer, dict) else None
    found = (payload if isinstance(payload, dict) else answer).get("results")
    told = [one if isinstance(one, dict) else {} for one in found or ()]
    results = [{"to": to, **one, "ok": one.get("ok") is True} for to, one in zip(targets, told, strict=False)]
    # The conversation as the agent wrote it says where; what the gateway made of it is plainer, and is what counts.
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


# ---- about messages that are there -----------------------------------------------------------------------------------

OPERATOR_READ_ORIGIN: Final = {"conversationReadOrigin": "direct-operator"}
"""For a real gateway, which else lets only its own agents touch what is there. It heeds this from operators alone."""


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


# ---- what agents are told --------------------------------------------------------------------------------------------

TARGET_PARAMETER: Final = text_parameter(
    "The conversation, as its channel writes it: a chat id, @name, room or channel id."
)
MESSAGE_PARAMETER: Final = text_parameter("The text.")
MESSAGE_ID_PARAMETER: Final = text_parameter("The message, by the id message_read or an earlier send gave it.")
CHANNEL_PARAMETERS: Final[Mapping[str, Json]] = {
    "channel": text_parameter("The channel (telegram, matrix, local …); this conversation's unless given."),
    "accountId": text_parameter("The account of that channel; this conversation's unless given."),
}
CONVERSATION_PARAMETERS: Final = {
    "target": text_parameter("The conversation the message is in; this one unless given."),
    **CHANNEL_PARAMETERS,
}
THREAD_PARAMETERS: Final = {
    "threadId": text_parameter("The thread or topic; in this conversation the current one unless given.")
}
REPLY_PARAMETERS: Final = {"replyToId": text_parameter("The id of the message this answers.")}


SEND_TRAITS: Final = ToolTraits(effect="send", open_world=True)
CHANGE_TRAITS: Final = ToolTraits(effect="write", idempotent=True, open_world=True)
DELETE_TRAITS: Final = ToolTraits(effect="write", destructive=True, idempotent=True, open_world=True)
VISIBILITY_NOTE: Final = "What you send is seen by people: do not repeat it in your final answer."


def _message_tool(
    name: str,
    description: str,
    handler: ToolHandler,
    *,
    title: str,
    parameters: Mapping[str, Json],
    required: tuple[str, ...],
    traits: ToolTraits = SEND_TRAITS,
    aliases: Mapping[str, str] | None = None,
) -> ClawTool:
    does = {"media": "message_send_attachment", "replyToId": "message_reply"}
    known = {other: name for other, name in PARAMETER_ALIASES.items() if name in parameters and other not in parameters}
    return define_tool(
        name,
        f"{description} {VISIBILITY_NOTE}" if traits is SEND_TRAITS else description,
        handler,
        title=title,
        traits=traits,
        parameters=parameters,
        required=required,
        aliases=known | dict(aliases or {}),
        parameter_tools={own: other for own, other in does.items() if own in parameters and other != name},
    )


TOOLS = (
    _message_tool(
        "message_send",
        "Send a message to any conversation, with a picture or file if `media` is given.",
        _send,
        title="Send a message",
        parameters={
            "target": TARGET_PARAMETER,
            "message": MESSAGE_PARAMETER,
            "media": text_parameter("A file to go with it: a path in your workspace or an http(s) address."),
            **REPLY_PARAMETERS,
            **THREAD_PARAMETERS,
            **CHANNEL_PARAMETERS,
        },
        required=("target", "message"),
        aliases=parameter_aliases(media="file path"),
    ),
    _message_tool(
        "message_reply",
        "Answer in the conversation this run came from, in its thread; `replyToId` quotes one message.",
        _reply,
        title="Reply here",
        parameters={"message": MESSAGE_PARAMETER, **REPLY_PARAMETERS},
        required=("message",),
        aliases=parameter_aliases(replyToId="messageId"),
    ),
    _message_tool(
        "message_thread_reply",
        "Answer in a certain thread of the conversation this run came from.",
        _thread_reply,
        title="Reply in a thread",
        parameters={
            "message": MESSAGE_PARAMETER,
            "threadId": text_parameter("The thread or topic."),
            **REPLY_PARAMETERS,
        },
        required=("message", "threadId"),
    ),
    _message_tool(
        "message_broadcast",
        "Send one text to several conversations of a channel. The answer says for each whether it went out.",
        _broadcast,
        title="Broadcast",
        parameters={
            "targets": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": MAX_TARGETS,
                "description": "The conversations, as their channel writes them.",
            },
            "message": MESSAGE_PARAMETER,
            **CHANNEL_PARAMETERS,
        },
        required=("targets", "message"),
        aliases=parameter_aliases(targets="to recipients"),
    ),
    _message_tool(
        "message_react",
        "Put an emoji on a message of this conversation, or take it away with `remove`.",
        _react,
        title="React",
        parameters={
            "emoji": text_parameter("The emoji."),
            "messageId": MESSAGE_ID_PARAMETER,
            "remove": flag_parameter("Take the reaction away."),
            **CONVERSATION_PARAMETERS,
        },
        required=("emoji", "messageId"),
        traits=CHANGE_TRAITS,
    ),
    _message_tool(
        "message_delete",
        "Delete a message of this conversation for everybody. It can't be brought back.",
        _delete,
        title="Delete a message",
        parameters={"messageId": MESSAGE_ID_PARAMETER, **CONVERSATION_PARAMETERS},
        required=("messageId",),
        traits=DELETE_TRAITS,
    ),
    _message_tool(
        "message_send_attachment",
        "Send a file to a conversation, with a caption if you like.",
        _send_attachment,
        title="Send a file",
        parameters={
            "target": TARGET_PARAMETER,
            "file": text_parameter("A path in your workspace or an http(s) address."),
            "caption": text_parameter("Words to go with it."),
            **THREAD_PARAMETERS,
            **CHANNEL_PARAMETERS,
        },
        required=("target", "file"),
        aliases=parameter_aliases(file="path filePath file_path media mediaUrl url", caption="message text"),
    ),
    _message_tool(
        "message_send_with_effect",
        "Send a message with a visual effect (confetti, fireworks …) where the channel has such.",
        _send_with_effect,
        title="Send with an effect",
        parameters={
            "target": TARGET_PARAMETER,
            "message": MESSAGE_PARAMETER,
            "effectId": text_parameter("The effect, as the channel names it."),
            **THREAD_PARAMETERS,
            **CHANNEL_PARAMETERS,
        },
        required=("target", "message", "effectId"),
        aliases=parameter_aliases(effectId="effect effect_id"),
    ),
    _message_tool(
        "message_pin",
        "Pin a message of this conversation, or unpin it with `remove`.",
        _pin,
        title="Pin a message",
        parameters={
            "messageId": MESSAGE_ID_PARAMETER,
            "remove": flag_parameter("Unpin it."),
            **CONVERSATION_PARAMETERS,
        },
        required=("messageId",),
        traits=CHANGE_TRAITS,
    ),
    _message_tool(
        "message_read",
        "Read the newest messages of a conversation, with their ids; this conversation's unless `channelId` is given.",
        _read,
        title="Read messages",
        parameters={
            "channelId": text_parameter("The conversation, as its channel writes it; this one unless given."),
            "limit": integer_parameter("At most so many messages.", most=200),
            "before": text_parameter("Only messages older than the one of this id."),
            **THREAD_PARAMETERS,
            **CHANNEL_PARAMETERS,
        },
        required=(),
        aliases=parameter_aliases(channelId="target to channel_id chat_id"),
        traits=ToolTraits(open_world=True),
    ),
)
