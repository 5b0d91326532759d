"""Parses Telegram messages. Pure, and trusts no field of what it reads."""

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from ....core.channel import ChatKind, Poll
from ....core.model import Json, Sender
from ..json_values import as_dict, as_dicts, as_int, as_text

CHAT_KINDS: Final[dict[str, ChatKind]] = {
    "private": "direct", "group": "group", "supergroup": "group", "channel": "channel",
}  # fmt: skip
DEFAULT_MIME_TYPES: Final = {
    "document": "application/octet-stream", "video": "video/mp4", "animation": "video/mp4", "audio": "audio/mpeg",
    "voice": "audio/ogg", "video_note": "video/mp4",
}  # fmt: skip
"""Fields of a message that hold a file, and its type when the sender's client names none."""


class TelegramBot(Struct, frozen=True, kw_only=True):
    """The result of `getMe`."""

    id: int
    username: str


class TelegramFile(Struct, frozen=True, kw_only=True):
    file_id: str
    name: str | None
    mime_type: str
    size: int


def message_key(chat: Any, message: Any) -> str:
    """Our id of a message. Telegram numbers the messages of each chat from one, so the chat is part of it."""
    return f"{chat}:{message}"


def message_of(update: Json) -> Json | None:
    """The new message in an update."""
    for kind in ("message", "channel_post"):
        if isinstance(update.get(kind), dict) and isinstance(update[kind].get("chat"), dict):
            return dict(update[kind])
    return None


def chat_kind(message: Json) -> ChatKind:
    return CHAT_KINDS.get(str(message["chat"].get("type")), "group")


def title_of(message: Json) -> str | None:
    return as_text(message["chat"].get("title"))


def timestamp_ms(message: Json) -> int:
    """Telegram's time of the message, Unix milliseconds."""
    return as_int(message.get("date")) * 1000


def thread_of(message: Json) -> str | None:
    """The topic; not the chain of replies that a plain group calls a thread."""
    thread = message.get("message_thread_id")
    return str(thread) if message.get("is_topic_message") is True and isinstance(thread, int) else None


def sender_of(message: Json) -> Sender:
    """Who wrote it. For anonymous administrators and channels that is the chat they write for."""
    chat = as_dict(message.get("sender_chat"))
    if chat:
        return Sender(id=str(chat.get("id")), username=as_text(chat.get("username")), name=as_text(chat.get("title")))
    person = as_dict(message.get("from"))
    name = " ".join(part for part in (person.get("first_name"), person.get("last_name")) if isinstance(part, str))
    return Sender(id=str(person.get("id")), username=as_text(person.get("username")), name=name or None)


def reply_of(message: Json) -> str | None:
    answered = as_dict(message.get("reply_to_message"))
    # In a topic, a message that answers none refers to the topic's first message.
    if not answered or "forum_topic_created" in answered:
        return None
    return message_key(message["chat"].get("id"), answered.get("message_id"))


def text_of(message: Json) -> str | None:
    """Its text; None for service messages: members joining and leaving, pins, titles."""
    text = as_text(message.get("text")) or as_text(message.get("caption"))
    if text is not None:
        return text
    for kind, describe in (("location", _location), ("contact", _contact), ("poll", _poll), ("sticker", _sticker)):
        part = as_dict(message.get(kind))
        if part:
            return describe(part)
    return "" if media_of(message) is not None else None


def media_of(message: Json) -> TelegramFile | None:
    photos = message.get("photo")
    if isinstance(photos, list) and photos:
        largest = max(map(as_dict, photos), key=lambda photo: as_int(photo.get("file_size")))
        return _file(largest, "image/jpeg")
    for kind, mime_type in DEFAULT_MIME_TYPES.items():
        if isinstance(message.get(kind), dict):
            return _file(message[kind], mime_type)
    sticker = as_dict(message.get("sticker"))
    if sticker and not sticker.get("is_animated") and not sticker.get("is_video"):
        return _file(sticker, "image/webp")
    return None


def mentions_bot(message: Json, bot: TelegramBot) -> bool:
    """Whether it mentions the bot, is a command to it, or answers it."""
    answered = as_dict(as_dict(message.get("reply_to_message")).get("from"))
    if answered.get("id") == bot.id and reply_of(message) is not None:
        return True
    name = f"@{bot.username}".lower()
    return any(
        (kind == "mention" and text.lower() == name)
        or (kind == "bot_command" and text.lower().endswith(name))
        or (kind == "text_mention" and user == bot.id)
        for kind, text, user in _entities(message)
    )


def _entities(message: Json) -> Iterator[tuple[str, str, Any]]:
    text = as_text(message.get("text")) or as_text(message.get("caption")) or ""
    units = text.encode("utf-16-le")  # Telegram counts in these
    for key in ("entities", "caption_entities"):
        for entity in as_dicts(message.get(key)):
            start, length = entity.get("offset"), entity.get("length")
            if isinstance(start, int) and isinstance(length, int):
                marked = units[start * 2 : (start + length) * 2].decode("utf-16-le", errors="replace")
                yield str(entity.get("type")), marked, as_dict(entity.get("user")).get("id")


def _file(part: Json, mime_type: str) -> TelegramFile | None:
    id = as_text(part.get("file_id"))
    if id is None:
        return None
    kind = as_text(part.get("mime_type")) or mime_type
    size = as_int(part.get("file_size"))
    return TelegramFile(file_id=id, name=as_text(part.get("file_name")), mime_type=kind, size=size)


def _location(part: Json) -> str:
    return f"location: {part.get('latitude')}, {part.get('longitude')}"


def _contact(part: Json) -> str:
    values = [part.get("first_name"), part.get("last_name"), part.get("phone_number")]
    return "contact: " + " ".join(str(value) for value in values if value)


def _poll(part: Json) -> str:
    options = tuple(str(option.get("text")) for option in as_dicts(part.get("options")))
    return Poll(question=str(part.get("question")), options=options).text


def _sticker(part: Json) -> str:
    return as_text(part.get("emoji")) or ""
