"""The telegram channel: one bot, what it sends and does in chats."""

import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any, Final, get_args

from ....core.agent import Attachment
from ....core.channel import (
    Ability,
    ChannelAbilities,
    ChannelRefused,
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
from ..json_values import as_dict
from ..markup import to_inline_html
from .api import BotApi, TelegramRefused, UploadFile
from .file_uploads import METHODS, TelegramUpload, as_document, group_albums
from .messages import message_key
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
TARGET_HINT: Final = "a Telegram target is a chat id (a number) or the @name of a public group or channel"


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
        return await self._receiver.fetch(file)

    async def status(self) -> Json:
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
        sent: list[Json] = []
        for number, group in enumerate(group_albums(message.attachments)):
            sent += await self._send_files(params, group, caption=caption if number == 0 else "")
        if message.text and not caption:
            sent.append(await self._send_text(params, message.text))
        return _receipt(sent)

    def _send_params(self, address: ChatAddress, message: OutboundMessage) -> Json:
        """The parameters of every send method."""
        params: Json = _chat_params(address) | {"disable_notification": message.silent or None}
        if message.reply_to is not None:
            # If the answered message is gone by now, ours is sent without reference to it.
            params["reply_parameters"] = {
                "message_id": _message_number(address, message.reply_to),
                "allow_sending_without_reply": True,
            }
        if message.effect is not None:
            if not _is_private(address.to):
                raise ChannelRefused("Telegram shows effects in direct chats only: send it without one here")
            params["message_effect_id"] = EFFECTS.get(message.effect, message.effect)
        if "replyMarkup" in message.extra:
            params["reply_markup"] = message.extra["replyMarkup"]
        return params

    async def _send_text(self, params: Json, text: str) -> Json:
        preview = None if self._settings.link_preview else {"is_disabled": True}
        params = params | {"link_preview_options": preview}
        return await self._call_with_markup("sendMessage", params, text, field="text")

    async def _call_with_markup(
        self, method: str, params: Json, text: str, *, field: str, files: Mapping[str, UploadFile] | None = None
    ) -> Json:
        """With markup; as plain text when Telegram can't parse the markup, or it makes the text too long."""
        html = to_inline_html(text)
        if text and _text_length(html) <= (MAX_TEXT_LENGTH if field == "text" else CAPTION_LIMIT):
            try:
                return as_dict(await self._api.call(method, params | {field: html, "parse_mode": "HTML"}, files=files))
            except TelegramRefused as exc:
                if "can't parse" not in exc.description:
                    raise
        return as_dict(await self._api.call(method, params | {field: text or None}, files=files))

    async def _send_files(self, params: Json, group: list[TelegramUpload], *, caption: str) -> list[Json]:
        try:
            if len(group) == 1:
                return [await self._send_file(params, group[0], caption=caption)]
            return await self._send_album(params, group, caption=caption)
        except TelegramRefused as exc:
            # A picture with dimensions or contents that Telegram refuses can still be sent as a file.
            is_unfit = any(part in exc.description for part in ("photo_", "image_process_failed", "photo:"))
            if not is_unfit or all(upload.kind == "document" for upload in group):
                raise
            return await self._send_files(params, [as_document(upload) for upload in group], caption=caption)

    async def _send_file(self, params: Json, upload: TelegramUpload, *, caption: str) -> Json:
        value, files = _file_param(upload, "file0")
        return await self._call_with_markup(
            METHODS[upload.kind], params | {upload.kind: value}, caption, field="caption", files=files
        )

    async def _send_album(self, params: Json, group: list[TelegramUpload], *, caption: str) -> list[Json]:
        media: list[Json] = []
        files: dict[str, UploadFile] = {}
        for number, upload in enumerate(group):
            value, file = _file_param(upload, f"file{number}")
            media.append({"type": upload.kind, "media": value})
            files |= file
        if caption:
            media[0] |= {"caption": to_inline_html(caption), "parse_mode": "HTML"}
        params = {name: value for name, value in params.items() if name != "reply_markup"}  # albums have none
        try:
            result = await self._api.call("sendMediaGroup", params | {"media": media}, files=files)
        except TelegramRefused as exc:
            if not caption or "can't parse" not in exc.description:
                raise
            media[0] = {**media[0], "caption": caption}
            del media[0]["parse_mode"]
            result = await self._api.call("sendMediaGroup", params | {"media": media}, files=files)
        return [as_dict(message) for message in result]

    async def send_poll(self, address: ChatAddress, poll: Poll, *, key: str) -> DeliveryReceipt:
        params = _chat_params(address) | {
            "question": poll.question, "options": [{"text": option} for option in poll.options],
            "is_anonymous": False, "allows_multiple_answers": poll.many,
        }  # fmt: skip
        return _receipt([as_dict(await self._api.call("sendPoll", params))])

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
            await self._api.call("sendChatAction", _chat_params(address) | {"action": "typing"})

    async def _call_on_message(self, address: ChatAddress, message_id: str, method: str, **params: Any) -> None:
        await self._api.call(method, _message_params(address, message_id) | params)


def _chat_params(address: ChatAddress) -> Json:
    thread = None if address.thread in (None, GENERAL_TOPIC) else address.thread
    topic = None if thread is None else parse_whole_number(thread)
    if thread is not None and topic is None:
        raise ChannelRefused("a Telegram topic goes by its number")
    return {"chat_id": _chat_id(address.to), "message_thread_id": topic}


def _message_params(address: ChatAddress, message_id: str) -> Json:
    return {"chat_id": _chat_id(address.to), "message_id": _message_number(address, message_id)}


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


def _receipt(sent: Sequence[Json]) -> DeliveryReceipt:
    ids = [message_key(as_dict(message.get("chat")).get("id"), message.get("message_id")) for message in sent]
    at = sent[0].get("date")
    extra: Json = {"messageIds": ids} if len(ids) > 1 else {}
    return DeliveryReceipt(message_id=ids[0], at=at * 1000 if isinstance(at, int) else now_ms(), extra=extra)


class _TextLengthCounter(HTMLParser):
    """Counts as Telegram does: UTF-16 units outside of tags."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.count = 0

    def handle_data(self, data: str) -> None:
        self.count += len(data.encode("utf-16-le")) // 2


def _text_length(html: str) -> int:
    counter = _TextLengthCounter()
    counter.feed(html)
    counter.close()
    return counter.count
