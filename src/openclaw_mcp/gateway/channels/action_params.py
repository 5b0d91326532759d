"""What a message action is given, under the many names clients use for it. Pure."""

import json
from typing import Any, Final

from msgspec import Struct

from ...core.channel import ChannelRefused
from ...core.model import Json
from ...core.numbers import whole

MOST_TARGETS: Final = 100  # conversations of one broadcast
LONGEST_ID: Final = 256  # characters of a thread's id; no messenger's is as long
MOST_READ: Final = 200  # messages of one read
EXTRAS: Final = ("buttons", "card", "components", "presentation")

NAMES: Final = {
    "send": "send", "reply": "reply", "thread-reply": "thread-reply", "threadreply": "thread-reply",
    "broadcast": "broadcast", "react": "react", "delete": "delete", "unsend": "delete",
    "sendattachment": "sendAttachment", "sendwitheffect": "sendWithEffect", "pin": "pin", "unpin": "unpin",
    "read": "read", "readmessages": "read", "edit": "edit", "poll": "poll",
}  # fmt: skip
"""An action as clients write it, in lower case, to the name it goes by here."""


class Wanted(Struct, frozen=True, kw_only=True):
    """One message action, read."""

    action: str
    channel: str | None = None
    account: str | None = None
    target: str | None = None
    targets: tuple[str, ...] = ()
    text: str = ""
    media: tuple[str, ...] = ()
    file_name: str | None = None
    reply_to: str | None = None
    thread: str | None = None
    message_id: str | None = None
    emoji: str | None = None
    effect: str | None = None
    remove: bool = False
    silent: bool = False
    limit: int = 20
    before: str | None = None
    question: str | None = None
    options: tuple[str, ...] = ()
    many: bool = False
    dry_run: bool = False
    extra: Json = {}


def read(action: str, given: Json) -> Wanted:
    """Raises ChannelRefused naming the parameter that is wrong or missing."""
    name = NAMES.get(action.strip().removeprefix("message:").lower())
    if name is None:
        raise ChannelRefused(f"unknown message action {action!r}; there are {', '.join(sorted(set(NAMES.values())))}")
    text = _text(given, "message", "text", "content") or _text(given, "caption") or ""
    target = _text(given, "target", "to", "channelId", "chatId")
    wanted = Wanted(
        action=name,
        channel=_text(given, "channel"),
        account=_text(given, "accountId", "account"),
        target=target,
        targets=_several(given, "targets"),
        text=text.replace("\\n", "\n"),
        media=_media(given),
        file_name=_text(given, "filename", "fileName"),
        reply_to=_text(given, "replyTo", "replyToId"),
        thread=_text(given, "threadId"),
        message_id=_text(given, "messageId"),
        emoji=_text(given, "emoji"),
        effect=_text(given, "effectId", "effect"),
        remove=given.get("remove") is True or name == "unpin",
        silent=given.get("silent") is True,
        limit=_number(given, "limit", 20, most=MOST_READ),
        before=_text(given, "before"),
        question=_text(given, "pollQuestion", "question"),
        options=_several(given, "pollOption", "options"),
        many=given.get("pollMulti") is True or _number(given, "maxSelections", 1, most=12) > 1,
        dry_run=_switch(given, "dryRun"),
        extra={key: _parsed(key, given[key]) for key in EXTRAS if given.get(key) is not None},
    )
    _complete(wanted)
    return wanted


def _complete(wanted: Wanted) -> None:
    action = wanted.action
    if action in ("send", "reply", "thread-reply", "broadcast", "sendWithEffect") and not (
        wanted.text.strip() or wanted.media or wanted.extra
    ):
        raise ChannelRefused("message required")
    needs = {
        "sendAttachment": ("file", wanted.media),
        "sendWithEffect": ("effectId", wanted.effect),
        "thread-reply": ("threadId", wanted.thread),
        "react": ("messageId", wanted.message_id),
        "delete": ("messageId", wanted.message_id),
        "pin": ("messageId", wanted.message_id),
        "unpin": ("messageId", wanted.message_id),
        "edit": ("messageId", wanted.message_id),
        "broadcast": ("targets", wanted.targets),
        "poll": ("question", wanted.question),
    }
    name, value = needs.get(action, ("", True))
    if not value:
        raise ChannelRefused(f"{name} required for {action}")
    if action == "react" and not wanted.emoji:
        raise ChannelRefused("emoji required for react")
    if action == "edit" and not wanted.text.strip():
        raise ChannelRefused("message required")
    if action == "poll" and not 2 <= len(wanted.options) <= 12:
        raise ChannelRefused("a poll has 2 to 12 options")
    if len(wanted.thread or "") > LONGEST_ID:
        raise ChannelRefused(f"threadId has at most {LONGEST_ID} characters")
    if len(wanted.targets) > MOST_TARGETS:
        raise ChannelRefused(f"a broadcast has at most {MOST_TARGETS} targets")


def _text(given: Json, *names: str) -> str | None:
    """The first of these parameters that says something; models like to write numbers for ids."""
    for name in names:
        value = given.get(name)
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int | float):
            value = str(value)
        if not isinstance(value, str):
            raise ChannelRefused(f"{name} must be a text")
        if value.strip():
            return value
    return None


def _several(given: Json, *names: str) -> tuple[str, ...]:
    for name in names:
        value = given.get(name)
        if isinstance(value, str) and value.strip():
            return (value,)
        if isinstance(value, list) and value:
            if not all(isinstance(one, str | int) for one in value):
                raise ChannelRefused(f"{name} must be a list of texts")
            return tuple(str(one) for one in value)
    return ()


def _media(given: Json) -> tuple[str, ...]:
    one = _text(given, "media", "mediaUrl", "file", "path", "filePath", "buffer")
    several = _several(given, "mediaUrls")
    return tuple(dict.fromkeys((*((one,) if one else ()), *several)))


def _number(given: Json, name: str, default: int, *, most: int) -> int:
    value = given.get(name)
    if isinstance(value, str):
        value = whole(value.strip()) or 0
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
        raise ChannelRefused(f"{name} must be a number from 1 to {most}")
    return min(int(value), most)


def _switch(given: Json, name: str) -> bool:
    """Only what is plainly true or false: a trial that was misread would be the deed itself."""
    value = given.get(name)
    if value is None or isinstance(value, bool):
        return value is True
    raise ChannelRefused(f"{name} must be true or false")


def _parsed(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ChannelRefused(f"{name} is not valid JSON") from None
