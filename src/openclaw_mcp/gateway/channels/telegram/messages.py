"""Telegram's messages, and what we read in them. Pure."""

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from ....core.channel import ChatKind, Poll
from ....core.model import Sender

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
    """A file to fetch, as the inbox stores it."""

    file_id: str
    name: str | None
    mime_type: str
    size: int


class TelegramChat(Struct, frozen=True):
    id: int | None = None
    type: str = ""
    title: str | None = None
    username: str | None = None


class TelegramUser(Struct, frozen=True):
    id: int | None = None
    username: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    phone_number: str | None = None
    """Of a contact."""


class TelegramEntity(Struct, frozen=True, kw_only=True):
    """A marked part of a text: UTF-16 units from `offset` on."""

    offset: int
    length: int
    type: str = ""
    user: TelegramUser = TelegramUser()


class TelegramMedia(Struct, frozen=True, kw_only=True):
    """A document, recording, sticker, or one size of a picture."""

    file_id: str
    file_name: str | None = None
    mime_type: str | None = None
    file_size: int = 0
    emoji: str = ""
    is_animated: bool = False
    is_video: bool = False


class TelegramLocation(Struct, frozen=True):
    latitude: int | float | None = None
    longitude: int | float | None = None


class TelegramOption(Struct, frozen=True):
    text: str = ""


class TelegramPoll(Struct, frozen=True):
    question: str = ""
    options: list[TelegramOption] = []


class AnsweredMessage(Struct, frozen=True, rename={"user": "from"}):
    message_id: int | None = None
    user: TelegramUser = TelegramUser()
    forum_topic_created: Any = None


class TelegramMessage(Struct, frozen=True, kw_only=True, rename={"user": "from"}):
    """A message, with the fields that we read. Clients and bots fill them as they like: convert it leniently."""

    chat: TelegramChat
    message_id: int | None = None
    date: int = 0
    user: TelegramUser = TelegramUser()
    sender_chat: TelegramChat | None = None
    text: str | None = None
    caption: str | None = None
    entities: list[TelegramEntity] = []
    caption_entities: list[TelegramEntity] = []
    message_thread_id: int | None = None
    is_topic_message: bool = False
    media_group_id: str | None = None
    reply_to_message: AnsweredMessage | None = None
    photo: list[TelegramMedia] = []
    document: TelegramMedia | None = None
    video: TelegramMedia | None = None
    animation: TelegramMedia | None = None
    audio: TelegramMedia | None = None
    voice: TelegramMedia | None = None
    video_note: TelegramMedia | None = None
    sticker: TelegramMedia | None = None
    location: TelegramLocation | None = None
    contact: TelegramUser | None = None
    poll: TelegramPoll | None = None

    @property
    def key(self) -> str:
        """Our id of it. Telegram numbers the messages of each chat from one, so the chat is part of it."""
        return f"{self.chat.id}:{self.message_id}"

    @property
    def chat_kind(self) -> ChatKind:
        return CHAT_KINDS.get(self.chat.type, "group")

    @property
    def thread(self) -> str | None:
        """The topic; not the chain of replies that a plain group calls a thread."""
        return str(self.message_thread_id) if self.is_topic_message and self.message_thread_id is not None else None

    @property
    def sender(self) -> Sender:
        """Who wrote it. For anonymous administrators and channels that is the chat they write for."""
        chat, user = self.sender_chat, self.user
        if chat is not None:
            return Sender(id=_sender_id(chat), username=chat.username, name=chat.title)
        name = " ".join(filter(None, (user.first_name, user.last_name)))
        return Sender(id=_sender_id(user), username=user.username, name=name or None)

    @property
    def reply_to(self) -> str | None:
        answered = self.reply_to_message
        # In a topic, a message that answers none refers to the topic's first message.
        if answered is None or answered.forum_topic_created is not None:
            return None
        return f"{self.chat.id}:{answered.message_id}"

    @property
    def readable_text(self) -> str | None:
        """Its text; None for service messages: members joining and leaving, pins, titles."""
        if text := self.text or self.caption:
            return text
        if self.location is not None:
            return f"location: {self.location.latitude}, {self.location.longitude}"
        if self.contact is not None:
            values = self.contact.first_name, self.contact.last_name, self.contact.phone_number
            return "contact: " + " ".join(filter(None, values))
        if self.poll is not None:
            return Poll(question=self.poll.question, options=tuple(each.text for each in self.poll.options)).text
        if self.sticker is not None:
            return self.sticker.emoji
        return "" if self.file is not None else None

    @property
    def file(self) -> TelegramFile | None:
        if self.photo:
            return _file(max(self.photo, key=lambda photo: photo.file_size), "image/jpeg")
        for kind, mime_type in DEFAULT_MIME_TYPES.items():
            media: TelegramMedia | None = getattr(self, kind)
            if media is not None:
                return _file(media, mime_type)
        sticker = self.sticker
        is_picture = sticker is not None and not sticker.is_animated and not sticker.is_video
        return _file(sticker, "image/webp") if sticker is not None and is_picture else None

    def mentions(self, bot: TelegramBot) -> bool:
        """Whether it mentions the bot, is a command to it, or answers it."""
        if self.reply_to is not None and self.reply_to_message and self.reply_to_message.user.id == bot.id:
            return True
        name = f"@{bot.username}".lower()
        return any(
            (entity.type == "mention" and text.lower() == name)
            or (entity.type == "bot_command" and text.lower().endswith(name))
            or (entity.type == "text_mention" and entity.user.id == bot.id)
            for entity, text in self._marked_parts()
        )

    def _marked_parts(self) -> Iterator[tuple[TelegramEntity, str]]:
        units = (self.text or self.caption or "").encode("utf-16-le")  # Telegram counts in these
        for entity in (*self.entities, *self.caption_entities):
            part = units[entity.offset * 2 : (entity.offset + entity.length) * 2]
            yield entity, part.decode("utf-16-le", errors="replace")


class TelegramUpdate(Struct, frozen=True, kw_only=True):
    update_id: int = 0
    message: TelegramMessage | None = None
    channel_post: TelegramMessage | None = None

    @property
    def new_message(self) -> TelegramMessage | None:
        return self.message or self.channel_post

    @property
    def album(self) -> str | None:
        return None if self.new_message is None else self.new_message.media_group_id


def _sender_id(sender: TelegramChat | TelegramUser) -> str | None:
    """None if it has none: no text may stand for it, or one approval would admit all those without an id."""
    return None if sender.id is None else str(sender.id)


def _file(media: TelegramMedia, mime_type: str) -> TelegramFile:
    return TelegramFile(
        file_id=media.file_id, name=media.file_name, mime_type=media.mime_type or mime_type, size=media.file_size
    )
