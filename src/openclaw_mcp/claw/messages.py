"""Messaging tools: ten things done in conversations, all through the gateway's `message.action`."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from ..core.effects import Sent
from ..core.errors import OpenClawError, ToolArguments, ToolError
from ..core.model import Json
from . import files
from .message_action import OUR_KIND, Act
from .tool_context import Nature, Seat, Tool, Unsure, Work, also, flag, number, some, text, tool, whole

MOST_TARGETS: Final = 100  # of one broadcast

OTHER_NAMES: Final = also(
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


async def _send(seat: Seat, asked: Json) -> Any:
    media = (asked.get("media") or "").strip() or None
    message = asked.get("message") or ""
    if not media:
        message = some(asked, "message")
    act = Act(seat, "message_send", asked, target=some(asked, "target"))
    params = {"message": message, "replyTo": asked.get("replyToId"), **await files.carried(seat, media)}
    return await act.send(params, said=message, media=media)


async def _reply(seat: Seat, asked: Json) -> Any:
    act = Act(seat, "message_reply", asked, target=None)
    message = some(asked, "message")
    return await act.send({"message": message, "replyTo": asked.get("replyToId")}, said=message)


async def _thread_reply(seat: Seat, asked: Json) -> Any:
    some(asked, "threadId")
    act = Act(seat, "message_thread_reply", asked, target=None)
    message = some(asked, "message")
    return await act.send({"message": message, "replyTo": asked.get("replyToId")}, said=message)


async def _attachment(seat: Seat, asked: Json) -> Any:
    file, caption = some(asked, "file").strip(), asked.get("caption") or ""
    act = Act(seat, "message_send_attachment", asked, target=some(asked, "target"))
    params = {"message": caption, "caption": caption, **await files.carried(seat, file)}
    return await act.send(params, said=caption, media=file)


async def _effect(seat: Seat, asked: Json) -> Any:
    message = some(asked, "message")
    act = Act(seat, "message_send_with_effect", asked, target=some(asked, "target"))
    effect = some(asked, "effectId")
    return await act.send({"message": message, "effectId": effect, "effect": effect}, said=message)


# ---- to many ---------------------------------------------------------------------------------------------------------


async def _broadcast(seat: Seat, asked: Json) -> Any:
    message = some(asked, "message")
    targets = list(dict.fromkeys(target.strip() for target in asked["targets"] if target.strip()))
    if not targets:
        raise ToolArguments("`targets` is empty; name the conversations it goes to")
    act = Act(seat, "message_broadcast", asked, target=None)
    if not act.channel:
        raise ToolArguments("this run has no channel of its own; say in `channel` where the targets are")
    seat.effects.ready()
    if OUR_KIND in await seat.gateway.methods():
        results = await _together(act, seat, targets, message)
    else:
        results = [await _single(seat, asked, target, message) for target in targets]
    count = sum(one["ok"] for one in results)
    if not count:
        reasons = "; ".join(f"{one['to']}: {one.get('error') or 'not sent'}" for one in results)
        raise ToolError(f"nothing was sent: {reasons}")
    return {"kind": "broadcast", "sent": count, "failed": len(results) - count, "results": results}


async def _together(act: Act, seat: Seat, targets: list[str], message: str) -> list[Json]:
    act.target = ""
    act.thread = ""
    try:
        answer = await act.make({"targets": targets, "message": message})
    except Unsure:
        seat.effects.unsure([Sent(tool="message_broadcast", to=to, text=message) for to in targets])
        raise
    payload = answer.get("payload") if isinstance(answer, dict) else None
    found = (payload if isinstance(payload, dict) else answer).get("results")
    told = [one if isinstance(one, dict) else {} for one in found or ()]
    results = [{"to": to, **one, "ok": one.get("ok") is True} for to, one in zip(targets, told, strict=False)]
    # The conversation as the agent wrote it says where; what the gateway made of it is plainer, and is what counts.
    done = [act.sent(one, message, None) for one in results if one["ok"]]
    if done:
        seat.note(done, {})
    return results


async def _single(seat: Seat, asked: Json, target: str, message: str) -> Json:
    """A gateway without a broadcast of its own gets one message after another."""
    act = Act(seat, "message_send", asked, target=target)
    where: Json = {"channel": act.channel, "to": target}
    try:
        answer = await act.make({"message": message})
    except OpenClawError as exc:
        if isinstance(exc, Unsure):
            seat.effects.unsure([replace(act.sent({}, message, None), tool="message_broadcast")])
        return {**where, "ok": False, "error": str(exc)}
    sent = act.sent(answer, message, None)
    return seat.note([replace(sent, tool="message_broadcast")], {**where, "ok": True, "result": answer})


# ---- about messages that are there -----------------------------------------------------------------------------------

DIRECTLY: Final = {"conversationReadOrigin": "direct-operator"}
"""For a real gateway, which else lets only its own agents touch what is there. It heeds this from operators alone."""


async def _react(seat: Seat, asked: Json) -> Any:
    params = {"emoji": some(asked, "emoji"), "messageId": some(asked, "messageId"), "remove": asked.get("remove")}
    return await Act(seat, "message_react", asked, target=asked.get("target")).make(params, **DIRECTLY)


async def _delete(seat: Seat, asked: Json) -> Any:
    act = Act(seat, "message_delete", asked, target=asked.get("target"))
    return await act.make({"messageId": some(asked, "messageId")}, **DIRECTLY)


async def _pin(seat: Seat, asked: Json) -> Any:
    act = Act(seat, "message_pin", asked, target=asked.get("target"))
    return await act.make({"messageId": some(asked, "messageId"), "remove": asked.get("remove")}, **DIRECTLY)


async def _read(seat: Seat, asked: Json) -> Any:
    act = Act(seat, "message_read", asked, target=asked.get("channelId"))
    wanted = {"limit": number(asked, "limit"), "before": asked.get("before")}
    return await act.make(wanted, **DIRECTLY)


# ---- what agents are told --------------------------------------------------------------------------------------------

TARGET: Final = text("The conversation, as its channel writes it: a chat id, @name, room or channel id.")
MESSAGE: Final = text("The text.")
MESSAGE_ID: Final = text("The message, by the id message_read or an earlier send gave it.")
ELSEWHERE: Final[Mapping[str, Json]] = {
    "channel": text("The channel (telegram, matrix, local …); this conversation's unless given."),
    "accountId": text("The account of that channel; this conversation's unless given."),
}
HERE: Final = {"target": text("The conversation the message is in; this one unless given."), **ELSEWHERE}
THREAD: Final = {"threadId": text("The thread or topic; in this conversation the current one unless given.")}
REPLY_TO: Final = {"replyToId": text("The id of the message this answers.")}


SENDS: Final = Nature(effect="send", outside=True)
CHANGES: Final = Nature(effect="write", idempotent=True, outside=True)
DELETES: Final = Nature(effect="write", destructive=True, idempotent=True, outside=True)
SEEN: Final = "What you send is seen by people: do not repeat it in your final answer."


def _tool(
    name: str,
    description: str,
    work: Work,
    *,
    title: str,
    parameters: Mapping[str, Json],
    required: tuple[str, ...],
    nature: Nature = SENDS,
    aliases: Mapping[str, str] | None = None,
) -> Tool:
    does = {"media": "message_send_attachment", "replyToId": "message_reply"}
    known = {other: name for other, name in OTHER_NAMES.items() if name in parameters and other not in parameters}
    return tool(
        name,
        f"{description} {SEEN}" if nature is SENDS else description,
        work,
        title=title,
        nature=nature,
        parameters=parameters,
        required=required,
        aliases=known | dict(aliases or {}),
        parameter_tools={own: other for own, other in does.items() if own in parameters and other != name},
    )


TOOLS = (
    _tool(
        "message_send",
        "Send a message to any conversation, with a picture or file if `media` is given.",
        _send,
        title="Send a message",
        parameters={
            "target": TARGET,
            "message": MESSAGE,
            "media": text("A file to go with it: a path in your workspace or an http(s) address."),
            **REPLY_TO,
            **THREAD,
            **ELSEWHERE,
        },
        required=("target", "message"),
        aliases=also(media="file path"),
    ),
    _tool(
        "message_reply",
        "Answer in the conversation this run came from, in its thread; `replyToId` quotes one message.",
        _reply,
        title="Reply here",
        parameters={"message": MESSAGE, **REPLY_TO},
        required=("message",),
        aliases=also(replyToId="messageId"),
    ),
    _tool(
        "message_thread_reply",
        "Answer in a certain thread of the conversation this run came from.",
        _thread_reply,
        title="Reply in a thread",
        parameters={"message": MESSAGE, "threadId": text("The thread or topic."), **REPLY_TO},
        required=("message", "threadId"),
    ),
    _tool(
        "message_broadcast",
        "Send one text to several conversations of a channel. The answer says for each whether it went out.",
        _broadcast,
        title="Broadcast",
        parameters={
            "targets": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": MOST_TARGETS,
                "description": "The conversations, as their channel writes them.",
            },
            "message": MESSAGE,
            **ELSEWHERE,
        },
        required=("targets", "message"),
        aliases=also(targets="to recipients"),
    ),
    _tool(
        "message_react",
        "Put an emoji on a message of this conversation, or take it away with `remove`.",
        _react,
        title="React",
        parameters={
            "emoji": text("The emoji."),
            "messageId": MESSAGE_ID,
            "remove": flag("Take the reaction away."),
            **HERE,
        },
        required=("emoji", "messageId"),
        nature=CHANGES,
    ),
    _tool(
        "message_delete",
        "Delete a message of this conversation for everybody. It can't be brought back.",
        _delete,
        title="Delete a message",
        parameters={"messageId": MESSAGE_ID, **HERE},
        required=("messageId",),
        nature=DELETES,
    ),
    _tool(
        "message_send_attachment",
        "Send a file to a conversation, with a caption if you like.",
        _attachment,
        title="Send a file",
        parameters={
            "target": TARGET,
            "file": text("A path in your workspace or an http(s) address."),
            "caption": text("Words to go with it."),
            **THREAD,
            **ELSEWHERE,
        },
        required=("target", "file"),
        aliases=also(file="path filePath file_path media mediaUrl url", caption="message text"),
    ),
    _tool(
        "message_send_with_effect",
        "Send a message with a visual effect (confetti, fireworks …) where the channel has such.",
        _effect,
        title="Send with an effect",
        parameters={
            "target": TARGET,
            "message": MESSAGE,
            "effectId": text("The effect, as the channel names it."),
            **THREAD,
            **ELSEWHERE,
        },
        required=("target", "message", "effectId"),
        aliases=also(effectId="effect effect_id"),
    ),
    _tool(
        "message_pin",
        "Pin a message of this conversation, or unpin it with `remove`.",
        _pin,
        title="Pin a message",
        parameters={"messageId": MESSAGE_ID, "remove": flag("Unpin it."), **HERE},
        required=("messageId",),
        nature=CHANGES,
    ),
    _tool(
        "message_read",
        "Read the newest messages of a conversation, with their ids; this conversation's unless `channelId` is given.",
        _read,
        title="Read messages",
        parameters={
            "channelId": text("The conversation, as its channel writes it; this one unless given."),
            "limit": whole("At most so many messages.", most=200),
            "before": text("Only messages older than the one of this id."),
            **THREAD,
            **ELSEWHERE,
        },
        required=(),
        aliases=also(channelId="target to channel_id chat_id"),
        nature=Nature(outside=True),
    ),
)
