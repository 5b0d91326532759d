"""Telegram messages: what one of anybody's says, to whom and where. Pure, and doubtful of everything it reads."""

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from ....core.channel import ChatKind
from ....core.model import Json, Sender

CHAT_KINDS: Final[dict[str, ChatKind]] = {
    "private": "direct",
    "group": "group",
    "supergroup": "group",
    "channel": "channel",
}
DEFAULT_MIME_TYPES: Final = {
    "document": "application/octet-stream",
    "video": "video/mp4",
    "animation": "video/mp4",
    "audio": "audio/mpeg",
    "voice": "audio/ogg",
    "video_note": "video/mp4",
}
"""Parts of a message that hold a file, and what it is when the sender's program did not say."""


class TelegramBot(Struct, frozen=True, kw_only=True):
    """The bot, as `getMe` tells."""

    id: int
    username: str


class TelegramFile(Struct, frozen=True, kw_only=True):
    file_id: str
    name: str | None
    mime_type: str
    size: int


def message_key(chat: Any, message: Any) -> str:
    """A message's name with us. Telegram counts in each chat from one, so the chat is part of it."""
    return f"{chat}:{message}"


def message_of(update: Json) -> Json | None:
    """The new message an update tells of."""
    for kind in ("message", "channel_post"):
        if isinstance(update.get(kind), dict) and isinstance(update[kind].get("chat"), dict):
            return dict(update[kind])
    return None


def chat_kind(message: Json) -> ChatKind:
    return CHAT_KINDS.get(str(message["chat"].get("type")), "group")


def title_of(message: Json) -> str | None:
    return _text(message["chat"].get("title"))


def timestamp_ms(message: Json) -> int:
    """When Telegram says it was, Unix milliseconds."""
    return _number(message.get("date")) * 1000


def thread_of(message: Json) -> str | None:
    """The topic; not the tree of replies that a plain group calls a thread."""
    thread = message.get("message_thread_id")
    return str(thread) if message.get("is_topic_message") is True and isinstance(thread, int) else None


def sender_of(message: Json) -> Sender:
    """Who wrote it. For an administrator in disguise and for channels that is the chat they speak for."""
    chat = _dict(message.get("sender_chat"))
    if chat:
        return Sender(id=str(chat.get("id")), username=_text(chat.get("username")), name=_text(chat.get("title")))
    person = _dict(message.get("from"))
    name = " ".join(part for part in (person.get("first_name"), person.get("last_name")) if isinstance(part, str))
    return Sender(id=str(person.get("id")), username=_text(person.get("username")), name=name or None)


def reply_of(message: Json) -> str | None:
    answered = _dict(message.get("reply_to_message"))
    # In a topic, what answers nothing is shown as an answer to the topic's first message.
    if not answered or "forum_topic_created" in answered:
        return None
    return message_key(message["chat"].get("id"), answered.get("message_id"))


def text_of(message: Json) -> str | None:
    """What it says; None for what nobody said: people coming and going, pins, titles."""
    text = _text(message.get("text")) or _text(message.get("caption"))
    if text is not None:
        return text
    for kind, said in (("location", _location), ("contact", _contact), ("poll", _poll), ("sticker", _sticker)):
        part = _dict(message.get(kind))
        if part:
            return said(part)
    return "" if media_of(message) is not None else None


def media_of(message: Json) -> TelegramFile | None:
    photos = message.get("photo")
    if isinstance(photos, list) and photos:
        largest = max((_dict(photo) for photo in photos), key=lambda photo: _number(photo.get("file_size")))
        return _file(largest, "image/jpeg")
    for kind, mime_type in DEFAULT_MIME_TYPES.items():
        if isinstance(message.get(kind), dict):
            return _file(message[kind], mime_type)
    sticker = _dict(message.get("sticker"))
    if sticker and not sticker.get("is_animated") and not sticker.get("is_video"):
        return _file(sticker, "image/webp")
    return None


def mentions_bot(message: Json, bot: TelegramBot) -> bool:
    """Whether it names the bot, commands it, or answers it."""
    if _dict(_dict(message.get("reply_to_message")).get("from")).get("id") == bot.id and reply_of(message) is not None:
        return True
    name = f"@{bot.username}".lower()
    for kind, text, person in _entities(message):
        if kind == "mention" and text.lower() == name:
            return True
        if kind == "bot_command" and text.lower().endswith(name):
            return True
        if kind == "text_mention" and person == bot.id:
            return True
    return False


def _entities(message: Json) -> Iterator[tuple[str, str, Any]]:
    text = _text(message.get("text")) or _text(message.get("caption")) or ""
    units = text.encode("utf-16-le")  # Telegram counts in these
    for key in ("entities", "caption_entities"):
        listed = message.get(key)
        for entity in listed if isinstance(listed, list) else ():
            start, length = _dict(entity).get("offset"), _dict(entity).get("length")
            if isinstance(start, int) and isinstance(length, int):
                said = units[start * 2 : (start + length) * 2].decode("utf-16-le", errors="replace")
                yield str(entity.get("type")), said, _dict(entity.get("user")).get("id")


def _file(part: Json, mime_type: str) -> TelegramFile | None:
    id = _text(part.get("file_id"))
    if id is None:
        return None
    kind = _text(part.get("mime_type")) or mime_type
    size = _number(part.get("file_size"))
    return TelegramFile(file_id=id, name=_text(part.get("file_name")), mime_type=kind, size=size)


def _location(part: Json) -> str:
    return f"location: {part.get('latitude')}, {part.get('longitude')}"


def _contact(part: Json) -> str:
    said = [part.get("first_name"), part.get("last_name"), part.get("phone_number")]
    return "contact: " + " ".join(str(word) for word in said if word)


def _poll(part: Json) -> str:
    options = part.get("options")
    listed = [str(_dict(option).get("text")) for option in (options if isinstance(options, list) else ())]
    return "\n".join([str(part.get("question")), *(f"{number}. {text}" for number, text in enumerate(listed, 1))])


def _sticker(part: Json) -> str:
    return _text(part.get("emoji")) or ""


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
