"""The telegram channel: one bot, what it sends and does in chats."""

import re
import time
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any, Final

from ....core.agent import Attachment
from ....core.channel import Abilities, Address, ChannelRefused, Hear, Letter, Receipt, Seen
from ....core.model import Json
from ....core.numbers import whole
from ..markup import flat
from .api import BotApi, File, TelegramRefused
from .file_uploads import METHODS, Parcel, albums, as_document
from .messages import message_name
from .settings import TelegramSettings
from .updates import Listener

NAME: Final = "telegram"
TEXT_LIMIT: Final = 4_000  # characters; Telegram takes 4,096, and bullets and bars we draw need a few
LONGEST: Final = 4_096
CAPTION_LIMIT: Final = 1_024
EFFECTS: Final[Mapping[str, str]] = {
    "fire": "5104841245755180586",
    "like": "5107584321108051014",
    "dislike": "5104858069142078462",
    "heart": "5159385139981059251",
    "confetti": "5046509860389126442",
    "poop": "5046589136895476101",
}
"""Names of those everybody has; any other goes by its number."""
UNCHANGED: Final = "message is not modified"
GENERAL: Final = "1"  # the topic that is there without being made, and must not be named when sending
USERNAME: Final = re.compile(r"@[A-Za-z][A-Za-z0-9_]{3,31}")
CHAT_ID: Final = re.compile(r"-?[1-9]\d{0,17}")
HINT: Final = "a Telegram target is a chat id (a number) or the @name of a public group or channel"


class Telegram:
    """A `Channel`. Only `read` is missing: a bot can't look back."""

    name = NAME

    def __init__(self, settings: TelegramSettings, *, account: str) -> None:
        self.account = account
        self.abilities = Abilities(
            can=frozenset(
                (
                    "send", "reply", "thread", "broadcast", "react", "delete", "attachment", "effect", "pin", "edit",
                    "typing", "poll",
                )
            ),
            text_limit=TEXT_LIMIT,
            markup="markdown",
            media=("*/*",),
            media_limit=settings.media_limit,
        )  # fmt: skip
        self._settings = settings
        self._api = BotApi(settings.token(account), url=settings.base_url)
        self._listener = Listener(settings, self._api, account)

    async def aclose(self) -> None:
        await self._api.aclose()

    def canonical(self, target: str) -> str:
        text = re.sub(r"^(telegram|tg|chat|group|channel):", "", target.strip(), flags=re.IGNORECASE).strip()
        text = re.sub(r"^(https?://)?(t|telegram)\.me/", "@", text, flags=re.IGNORECASE).rstrip("/")
        if USERNAME.fullmatch(text):
            return self._listener.chat_named(text.lower()) or text.lower()
        if not CHAT_ID.fullmatch(text):
            raise ChannelRefused(HINT)
        return text

    async def run(self, hear: Hear) -> None:
        await self._listener.listen(hear)

    async def fetch(self, file: Json) -> Attachment:
        return await self._listener.fetch(file)

    async def status(self) -> Json:
        return self._listener.status()

    async def http(self, scope: Any, receive: Any, send: Any) -> None:
        """The webhook, as an ASGI application: whoever serves HTTP here mounts it where `webhookUrl` leads."""
        await self._listener.http(scope, receive, send)

    # ---- sending ----

    async def send(self, address: Address, letter: Letter, *, key: str) -> Receipt:
        """Telegram knows no keys: after a crash between sending and noting, the message is there twice."""
        place = self._place(address, letter)
        if not letter.attachments:
            return _receipt([await self._text(place, letter.text)])
        caption = letter.text if max(len(letter.text), _length(flat(letter.text))) <= CAPTION_LIMIT else ""
        sent: list[Json] = []
        for number, group in enumerate(albums(letter.attachments)):
            sent += await self._files(place, group, caption=caption if number == 0 else "")
        if letter.text and not caption:
            sent.append(await self._text(place, letter.text))
        return _receipt(sent)

    def _place(self, address: Address, letter: Letter) -> Json:
        """The parameters every sending has."""
        place: Json = _chat(address) | {"disable_notification": letter.silent or None}
        if letter.reply_to is not None:
            # Gone by now? Then what we say stands on its own.
            place["reply_parameters"] = {
                "message_id": _number(address, letter.reply_to),
                "allow_sending_without_reply": True,
            }
        if letter.effect is not None:
            if not _private(address.to):
                raise ChannelRefused("Telegram shows effects in direct chats only: send it without one here")
            place["message_effect_id"] = EFFECTS.get(letter.effect, letter.effect)
        if "replyMarkup" in letter.extra:
            place["reply_markup"] = letter.extra["replyMarkup"]
        return place

    async def _text(self, place: Json, text: str) -> Json:
        preview = None if self._settings.link_preview else {"is_disabled": True}
        return await self._worded("sendMessage", place | {"link_preview_options": preview}, text, part="text")

    async def _worded(
        self, method: str, params: Json, text: str, *, part: str, files: Mapping[str, File] | None = None
    ) -> Json:
        """With markup; as plain text when Telegram can't read the markup, or it makes the text too long."""
        html = flat(text)
        if text and _length(html) <= (LONGEST if part == "text" else CAPTION_LIMIT):
            try:
                return _dict(await self._api.call(method, params | {part: html, "parse_mode": "HTML"}, files=files))
            except TelegramRefused as exc:
                if "can't parse" not in exc.description:
                    raise
        return _dict(await self._api.call(method, params | {part: text or None}, files=files))

    async def _files(self, place: Json, group: list[Parcel], *, caption: str) -> list[Json]:
        try:
            if len(group) == 1:
                return [await self._file(place, group[0], caption=caption)]
            return await self._album(place, group, caption=caption)
        except TelegramRefused as exc:
            # A picture too long, too thin or broken for a picture is still a file.
            unfit = any(word in exc.description for word in ("photo_", "image_process_failed", "photo:"))
            if not unfit or all(one.kind == "document" for one in group):
                raise
            return await self._files(place, [as_document(one) for one in group], caption=caption)

    async def _file(self, place: Json, one: Parcel, *, caption: str) -> Json:
        value, files = _sent(one, "file0")
        return await self._worded(METHODS[one.kind], place | {one.kind: value}, caption, part="caption", files=files)

    async def _album(self, place: Json, group: list[Parcel], *, caption: str) -> list[Json]:
        media: list[Json] = []
        files: dict[str, File] = {}
        for number, one in enumerate(group):
            value, own = _sent(one, f"file{number}")
            media.append({"type": one.kind, "media": value})
            files |= own
        if caption:
            media[0] |= {"caption": flat(caption), "parse_mode": "HTML"}
        place = {name: value for name, value in place.items() if name != "reply_markup"}  # albums have none
        try:
            result = await self._api.call("sendMediaGroup", place | {"media": media}, files=files)
        except TelegramRefused as exc:
            if not caption or "can't parse" not in exc.description:
                raise
            media[0] = {**media[0], "caption": caption}
            del media[0]["parse_mode"]
            result = await self._api.call("sendMediaGroup", place | {"media": media}, files=files)
        return [_dict(message) for message in result]

    async def poll(self, address: Address, question: str, options: Sequence[str], *, many: bool, key: str) -> Receipt:
        asked: Json = {"question": question, "options": [{"text": option} for option in options]}
        votes = {"is_anonymous": False, "allows_multiple_answers": many}
        return _receipt([_dict(await self._api.call("sendPoll", _chat(address) | asked | votes))])

    async def edit(self, address: Address, message_id: str, text: str) -> None:
        place = {"chat_id": _chat_id(address.to), "message_id": _number(address, message_id)}
        try:
            await self._worded("editMessageText", place, text, part="text")
        except TelegramRefused as exc:
            if "there is no text in the message" in exc.description:
                await self._edit_caption(place, text)
            elif UNCHANGED not in exc.description:
                raise

    async def _edit_caption(self, place: Json, text: str) -> None:
        try:
            await self._worded("editMessageCaption", place, text, part="caption")
        except TelegramRefused as exc:
            if UNCHANGED not in exc.description:
                raise

    async def react(self, address: Address, message_id: str, emoji: str, *, remove: bool = False) -> None:
        """A bot has one reaction on a message: a new one takes the old one's place, and none removes it."""
        reaction = [] if remove else [{"type": "emoji", "emoji": emoji}]
        await self._on(address, message_id, "setMessageReaction", reaction=reaction)

    async def delete(self, address: Address, message_id: str) -> None:
        await self._on(address, message_id, "deleteMessage")

    async def pin(self, address: Address, message_id: str, *, remove: bool = False) -> None:
        await self._on(address, message_id, "unpinChatMessage" if remove else "pinChatMessage")

    async def read(self, address: Address, *, limit: int, before: str | None = None) -> Sequence[Seen]:
        raise ChannelRefused("a Telegram bot can't look back in a chat")

    async def typing(self, address: Address, *, on: bool) -> None:
        """Telegram shows it for five seconds, or until we write; it can't be taken back."""
        if on:
            await self._api.call("sendChatAction", _chat(address) | {"action": "typing"})

    async def _on(self, address: Address, message_id: str, method: str, **more: Any) -> None:
        place = {"chat_id": _chat_id(address.to), "message_id": _number(address, message_id)}
        await self._api.call(method, place | more)


def _chat(address: Address) -> Json:
    thread = None if address.thread in (None, GENERAL) else address.thread
    topic = None if thread is None else whole(thread)
    if thread is not None and topic is None:
        raise ChannelRefused("a Telegram topic goes by its number")
    return {"chat_id": _chat_id(address.to), "message_thread_id": topic}


def _private(to: str) -> bool:
    """Groups and channels have numbers below zero; a name we know no number for is a public one's."""
    return not to.startswith(("-", "@"))


def _chat_id(to: str) -> int | str:
    return to if to.startswith("@") else int(to)


def _number(address: Address, message_id: str) -> int:
    """A message's number in its chat, from its name with us or as people copy it."""
    chat, _, digits = message_id.rpartition(":")
    number = whole(digits)
    if number is None or (chat and not address.to.startswith("@") and chat != address.to):
        raise ChannelRefused("there is no such message in this chat: give the id as it came")
    return number


def _sent(one: Parcel, field: str) -> tuple[str, dict[str, File]]:
    """What to put for the file, and the file itself when we have it; else Telegram fetches it."""
    data = one.attachment.data
    if data is not None:
        return f"attach://{field}", {field: (one.name, data, one.attachment.mime_type)}
    if one.attachment.url is None or not one.attachment.url.startswith("https://"):
        raise ChannelRefused("an attachment needs its bytes, or an https address for Telegram to fetch it from")
    return one.attachment.url, {}


def _receipt(sent: Sequence[Json]) -> Receipt:
    names = [message_name(_dict(message.get("chat")).get("id"), message.get("message_id")) for message in sent]
    more: Json = {"messageIds": names} if len(names) > 1 else {}
    at = sent[0].get("date")
    return Receipt(message_id=names[0], at=at * 1000 if isinstance(at, int) else int(time.time() * 1000), extra=more)


class _Words(HTMLParser):
    """Counts what Telegram counts: characters outside of tags."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.count = 0

    def handle_data(self, data: str) -> None:
        self.count += len(data.encode("utf-16-le")) // 2


def _length(html: str) -> int:
    words = _Words()
    words.feed(html)
    words.close()
    return words.count


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
