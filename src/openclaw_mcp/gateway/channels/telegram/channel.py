"""The telegram channel: one bot, what it sends and does in chats."""

import re
from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ....core.agent import Attachment
from ....core.channel import (
    Ability,
    ChannelAbilities,
    ChannelRefused,
    ChannelStatus,
    ChatAddress,
    DeliveryReceipt,
    OnMessage,
    OutboundMessage,
    Poll,
    StoredMessage,
)
from ....core.model import Json
from ....core.numbers import parse_whole_number
from ....core.sessions import now_ms
from ..markup import to_inline_html
from .api import BotApi, ChatParams, TelegramRefused, UploadFile
from .file_uploads import Album, TelegramUpload, group_albums
from .messages import TelegramFile, TelegramMessage
from .settings import TelegramSettings
from .updates import TelegramReceiver

NAME: Final = "telegram"
TEXT_LIMIT: Final = 4_000  # characters; Telegram accepts 4,096, and the bullets and bars of our markup need a few
MAX_TEXT_LENGTH: Final = 4_096
CAPTION_LIMIT: Final = 1_024
EFFECTS: Final[Mapping[str, str]] = {
    "fire": "5104841245755180586", "like": "5107584321108051014", "dislike": "5104858069142078462",
    "heart": "5159385139981059251", "confetti": "5046509860389126442", "poop": "5046589136895476101",
}  # fmt: skip
"""Effects that every account has, by name; any other is named by its number."""
NOT_MODIFIED: Final = "message is not modified"
GENERAL_TOPIC: Final = "1"  # the topic that every forum has, and that must not be named when sending
USERNAME: Final = re.compile(r"@[A-Za-z][A-Za-z0-9_]{3,31}")
CHAT_ID: Final = re.compile(r"-?[1-9]\d{0,17}")
HTML_TAG: Final = re.compile("<[^>]*>")
TARGET_HINT: Final = "a Telegram target is a chat id (a number) or the @name of a public group or channel"


class _AlbumItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    media: str
    caption: str | None = None
    parse_mode: str | None = None


class TelegramChannel:
    """A `Channel`. Only `read` is missing: a bot can't read earlier messages."""

    name = NAME

    def __init__(self, settings: TelegramSettings, *, account: str) -> None:
        self.account = account
        self.abilities = ChannelAbilities(
            can=frozenset(get_args(Ability)) - {"read"},
            text_limit=TEXT_LIMIT,
            markup="markdown",
            media=("*/*",),
            media_limit=settings.media_limit,
        )
        self._settings = settings
        self._api = BotApi(settings.resolve_token(account), url=settings.base_url)
        self._receiver = TelegramReceiver(settings, self._api, account)

    async def aclose(self) -> None:
        await self._api.aclose()

    def normalize_target(self, target: str) -> str:
        text = re.sub(r"^(telegram|tg|chat|group|channel):", "", target.strip(), flags=re.IGNORECASE).strip()
        text = re.sub(r"^(https?://)?(t|telegram)\.me/", "@", text, flags=re.IGNORECASE).rstrip("/")
        if USERNAME.fullmatch(text):
            return self._receiver.find_chat_id(text.lower()) or text.lower()
        if not CHAT_ID.fullmatch(text):
            raise ChannelRefused(TARGET_HINT)
        return text

    async def run(self, on_message: OnMessage) -> None:
        await self._receiver.run(on_message)

    async def fetch(self, file: Json) -> Attachment:
        return await self._receiver.fetch(msgspec.convert(file, TelegramFile))

    async def status(self) -> ChannelStatus:
        return self._receiver.status()

    async def http(self, scope: Any, receive: Any, send: Any) -> None:
        """The webhook, as an ASGI application, to be served where `webhookUrl` points to."""
        await self._receiver.http(scope, receive, send)

    # ---- sending ----

    async def send(self, address: ChatAddress, message: OutboundMessage, *, key: str) -> DeliveryReceipt:
        """Telegram has no keys: a crash after the send and before its receipt is stored sends the message twice."""
        params = self._send_params(address, message)
        if not message.attachments:
            return _receipt([await self._send_text(params, message.text)])
        length = max(len(message.text), _text_length(to_inline_html(message.text)))
        caption = message.text if length <= CAPTION_LIMIT else ""
        sent: list[TelegramMessage] = []
        for number, group in enumerate(group_albums(message.attachments)):
            sent += await self._send_files(params, group, caption=caption if number == 0 else "")
        if message.text and not caption:
            sent.append(await self._send_text(params, message.text))
        return _receipt(sent)

    def _send_params(self, address: ChatAddress, message: OutboundMessage) -> ChatParams:
        reply, effect = None, None
        if message.reply_to is not None:
            # If the answered message is gone by now, ours is sent without reference to it.
            number = _message_number(address, message.reply_to)
            reply = {"message_id": number, "allow_sending_without_reply": True}
        if message.effect is not None:
            if not _is_private(address.to):
                raise ChannelRefused("Telegram shows effects in direct chats only: send it without one here")
            effect = EFFECTS.get(message.effect, message.effect)
        return replace(
            _chat_params(address), disable_notification=message.silent, reply_parameters=reply,
            message_effect_id=effect, reply_markup=message.extra.get("replyMarkup"),
        )  # fmt: skip

    async def _send_text(self, chat: ChatParams, text: str) -> TelegramMessage:
        preview = None if self._settings.link_preview else {"is_disabled": True}
        return await self._call_with_markup("sendMessage", chat, text, field="text", link_preview_options=preview)

    async def _call_with_markup(
        self, method: str, chat: ChatParams, text: str, *, field: str,
        files: Mapping[str, UploadFile] | None = None, **params: Any,
    ) -> TelegramMessage:  # fmt: skip
        """With markup; as plain text when Telegram can't parse the markup, or it makes the text too long."""
        html = to_inline_html(text)
        if text and _text_length(html) <= (MAX_TEXT_LENGTH if field == "text" else CAPTION_LIMIT):
            marked = {**params, field: html, "parse_mode": "HTML"}
            try:
                return await self._api.call(method, TelegramMessage, chat, files=files, **marked)
            except TelegramRefused as exc:
                if "can't parse" not in exc.description:
                    raise
        return await self._api.call(method, TelegramMessage, chat, files=files, **{**params, field: text or None})

    async def _send_files(self, chat: ChatParams, group: Album, *, caption: str) -> list[TelegramMessage]:
        try:
            if len(group) > 1:
                return await self._send_album(chat, group, caption=caption)
            (upload,) = group
            value, files = _file_param(upload, "file0")
            method, param = f"send{upload.kind.capitalize()}", {upload.kind: value}
            return [await self._call_with_markup(method, chat, caption, field="caption", files=files, **param)]
        except TelegramRefused as exc:
            # A picture with dimensions or contents that Telegram refuses can still be sent as a file.
            is_unfit = any(part in exc.description for part in ("photo_", "image_process_failed", "photo:"))
            if not is_unfit or all(upload.kind == "document" for upload in group):
                raise
            documents = [replace(upload, kind="document") for upload in group]
            return await self._send_files(chat, documents, caption=caption)

    async def _send_album(self, chat: ChatParams, group: Album, *, caption: str) -> list[TelegramMessage]:
        chat = replace(chat, reply_markup=None)  # albums have none
        media: list[_AlbumItem] = []
        files: dict[str, UploadFile] = {}
        for number, upload in enumerate(group):
            value, file = _file_param(upload, f"file{number}")
            media.append(_AlbumItem(type=upload.kind, media=value))
            files |= file
        marked = replace(media[0], caption=to_inline_html(caption) or None, parse_mode="HTML" if caption else None)
        kind = list[TelegramMessage]
        try:
            return await self._api.call("sendMediaGroup", kind, chat, media=[marked, *media[1:]], files=files)
        except TelegramRefused as exc:
            if not caption or "can't parse" not in exc.description:
                raise
            media[0] = replace(media[0], caption=caption)
            return await self._api.call("sendMediaGroup", kind, chat, media=media, files=files)

    async def send_poll(self, address: ChatAddress, poll: Poll, *, key: str) -> DeliveryReceipt:
        sent = await self._api.call(
            "sendPoll", TelegramMessage, _chat_params(address), question=poll.question, is_anonymous=False,
            options=[{"text": option} for option in poll.options], allows_multiple_answers=poll.many,
        )  # fmt: skip
        return _receipt([sent])

    async def edit(self, address: ChatAddress, message_id: str, text: str) -> None:
        params = _message_params(address, message_id)
        try:
            try:
                await self._call_with_markup("editMessageText", params, text, field="text")
            except TelegramRefused as exc:
                if "there is no text in the message" not in exc.description:
                    raise
                await self._call_with_markup("editMessageCaption", params, text, field="caption")
        except TelegramRefused as exc:
            if NOT_MODIFIED not in exc.description:
                raise

    async def react(self, address: ChatAddress, message_id: str, emoji: str, *, remove: bool = False) -> None:
        """A bot has one reaction on a message: a new one replaces it, an empty list removes it."""
        reaction = [] if remove else [{"type": "emoji", "emoji": emoji}]
        await self._call_on_message(address, message_id, "setMessageReaction", reaction=reaction)

    async def delete(self, address: ChatAddress, message_id: str) -> None:
        await self._call_on_message(address, message_id, "deleteMessage")

    async def pin(self, address: ChatAddress, message_id: str, *, remove: bool = False) -> None:
        await self._call_on_message(address, message_id, "unpinChatMessage" if remove else "pinChatMessage")

    async def read(self, address: ChatAddress, *, limit: int, before: str | None = None) -> Sequence[StoredMessage]:
        raise ChannelRefused("a Telegram bot can't read a chat's earlier messages")

    async def set_typing(self, address: ChatAddress, *, on: bool) -> None:
        """Telegram shows it for five seconds, or until we write; it can't be removed."""
        if on:
            await self._api.call("sendChatAction", bool, _chat_params(address), action="typing")

    async def _call_on_message(self, address: ChatAddress, message_id: str, method: str, **params: Any) -> None:
        await self._api.call(method, bool, _message_params(address, message_id), **params)


def _chat_params(address: ChatAddress) -> ChatParams:
    thread = None if address.thread in (None, GENERAL_TOPIC) else address.thread
    topic = None if thread is None else parse_whole_number(thread)
    if thread is not None and topic is None:
        raise ChannelRefused("a Telegram topic is named by its number")
    return ChatParams(chat_id=_chat_id(address.to), message_thread_id=topic)


def _message_params(address: ChatAddress, message_id: str) -> ChatParams:
    return ChatParams(chat_id=_chat_id(address.to), message_id=_message_number(address, message_id))


def _is_private(to: str) -> bool:
    """Groups and channels have negative numbers; a name without a known number is a public chat's."""
    return not to.startswith(("-", "@"))


def _chat_id(to: str) -> int | str:
    return to if to.startswith("@") else int(to)


def _message_number(address: ChatAddress, message_id: str) -> int:
    """A message's number in its chat, from our id of it or as people copy it."""
    chat, _, digits = message_id.rpartition(":")
    number = parse_whole_number(digits)
    if number is None or (chat and not address.to.startswith("@") and chat != address.to):
        raise ChannelRefused("there is no such message in this chat: give the id as it came")
    return number


def _file_param(upload: TelegramUpload, field: str) -> tuple[str, dict[str, UploadFile]]:
    """The parameter for the file, and the file itself when we have it; else Telegram downloads it."""
    data = upload.attachment.data
    if data is not None:
        return f"attach://{field}", {field: (upload.name, data, upload.attachment.mime_type)}
    if upload.attachment.url is None or not upload.attachment.url.startswith("https://"):
        raise ChannelRefused("an attachment needs its bytes, or an https address for Telegram to fetch it from")
    return upload.attachment.url, {}


def _receipt(sent: Sequence[TelegramMessage]) -> DeliveryReceipt:
    ids = [message.key for message in sent]
    extra = {"messageIds": ids} if len(ids) > 1 else {}
    return DeliveryReceipt(message_id=ids[0], at=sent[0].date * 1000 or now_ms(), extra=extra)


def _text_length(html: str) -> int:
    """As Telegram counts: UTF-16 units outside of tags."""
    return len(unescape(HTML_TAG.sub("", html)).encode("utf-16-le")) // 2
