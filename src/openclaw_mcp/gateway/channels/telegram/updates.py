"""Receives Telegram updates, by long polling or by webhook; each is confirmed once its message is stored."""

import asyncio
import hmac
import logging
import mimetypes
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from ....core.agent import Attachment
from ....core.channel import ChannelError, ChannelRefused, ChannelStatus, ChatAddress, InboundMessage, OnMessage
from ....core.errors import OpenClawError
from ....core.lenient import decode_lenient
from ....core.mime import OCTET_STREAM
from ....core.sessions import now_ms
from ....net import asgi
from .api import BotApi, UnknownBot
from .messages import TelegramBot, TelegramChat, TelegramFile, TelegramMessage, TelegramUpdate
from .settings import TelegramSettings

POLL_WAIT: Final = 30  # seconds a poll stays open while nothing happens
POLL_GRACE: Final = 20.0  # seconds more for Telegram to answer it
BATCH_SIZE: Final = 100  # updates at once, the most Telegram returns
ALBUM_WAIT: Final = 1.0  # seconds for the rest of an album: its pictures arrive one by one
BODY_LIMIT: Final = 1 << 20  # bytes of one update; Telegram's are a few thousand
ALLOWED_UPDATES: Final = ("message", "channel_post")
MAX_CHAT_NAMES: Final = 1_000  # public names of chats that wrote to us

logger = logging.getLogger(__name__)


class _Connection(Struct, frozen=True):
    """A bot that receives: who it is, and where its messages go."""

    bot: TelegramBot
    on_message: OnMessage


class _FoundFile(Struct, frozen=True):
    """The result of `getFile`."""

    file_path: str = ""


class TelegramReceiver:
    """Receives for one bot."""

    def __init__(self, settings: TelegramSettings, api: BotApi, account: str) -> None:
        self._settings = settings
        self._api = api
        self._account = account
        self._connection: _Connection | None = None
        self._bot: TelegramBot | None = None  # as last seen, for `status`
        self._last_update_at = 0
        self._chat_ids: dict[str, str] = {}
        self._webhook_secret = settings.resolve_webhook_secret(account) if settings.webhook_url is not None else ""

    def status(self) -> ChannelStatus:
        return {
            "connected": self._connection is not None,
            "mode": "webhook" if self._settings.webhook_url else "polling",
            "username": self._bot.username if self._bot else None,
            "botId": self._bot.id if self._bot else None,
            "lastUpdateAt": self._last_update_at,
        }

    def find_chat_id(self, username: str) -> str | None:
        """The id of a public chat that wrote to us."""
        return self._chat_ids.get(username)

    async def run(self, on_message: OnMessage) -> None:
        """Until cancelled, or Telegram fails. Raises ChannelRefused when the token is wrong."""
        try:
            self._bot = await self._api.call("getMe", TelegramBot)
            connection = _Connection(self._bot, on_message)
            if self._settings.webhook_url is not None:
                await self._serve_webhook(connection)
            else:
                await self._poll(connection)
        except UnknownBot as exc:
            raise ChannelRefused(str(exc)) from None
        finally:
            self._connection = None

    # ---- polling ----

    async def _poll(self, connection: _Connection) -> None:
        await self._api.call("deleteWebhook", bool, drop_pending_updates=False)
        self._connection = connection
        offset: int | None = None  # Telegram begins with the first unconfirmed update
        asked_again = False
        while True:
            updates = await self._fetch_updates(offset)
            if _ends_in_album(updates) and not asked_again:
                asked_again = True  # nothing is confirmed yet, so the next answer has the whole album
                await asyncio.sleep(ALBUM_WAIT)
                continue
            asked_again = False
            for group in _group_albums(updates):
                await self._deliver_updates(group, connection)
                if group[-1].update_id <= 0:  # it can't be confirmed, so the next answer would have it again at once
                    raise ChannelError("Telegram sent an update without its number")
                offset = group[-1].update_id + 1

    async def _fetch_updates(self, offset: int | None) -> list[TelegramUpdate]:
        updates = await self._api.call(
            "getUpdates", list[TelegramUpdate], wait=POLL_WAIT + POLL_GRACE, offset=offset, limit=BATCH_SIZE,
            timeout=POLL_WAIT, allowed_updates=ALLOWED_UPDATES,
        )  # fmt: skip
        self._last_update_at = now_ms()
        return updates

    # ---- webhook ----

    async def _serve_webhook(self, connection: _Connection) -> None:
        await self._api.call(
            "setWebhook", bool, url=self._settings.webhook_url, secret_token=self._webhook_secret,
            allowed_updates=ALLOWED_UPDATES, max_connections=1,  # one call at a time keeps the order of the messages
        )  # fmt: skip
        self._connection = connection
        await asyncio.get_running_loop().create_future()  # updates arrive through `http`

    async def http(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers 200 when the update is on disk; after any other answer Telegram sends it again."""
        status = await self._handle_webhook(scope, receive)
        await asgi.send_status(send, status)

    async def _handle_webhook(self, scope: Any, receive: Any) -> int:
        if self._settings.webhook_url is None:
            return 404
        secret = dict(scope["headers"]).get(b"x-telegram-bot-api-secret-token", b"")
        if not hmac.compare_digest(secret, self._webhook_secret.encode()):
            return 401
        if scope["method"] != "POST":
            return 405
        try:
            body = await asgi.read_body(receive, BODY_LIMIT)
            update = decode_lenient(body, TelegramUpdate)
        except asgi.BodyRefused as exc:
            return exc.status
        except msgspec.DecodeError:
            return 400
        if self._connection is None:
            return 503
        try:
            await self._deliver_updates([update], self._connection)
        except OpenClawError as exc:
            logger.warning("telegram %s: update not stored (%s), Telegram sends it again", self._account, exc)
            return 503
        self._last_update_at = now_ms()
        return 200

    # ---- messages ----

    async def _deliver_updates(self, updates: Sequence[TelegramUpdate], connection: _Connection) -> None:
        """One message; several updates are the pictures of one album."""
        album = [update.new_message for update in updates if update.new_message is not None]
        inbound = self._build_inbound(album, connection.bot) if album else None
        if inbound is not None:
            await connection.on_message(inbound)

    def _build_inbound(self, album: Sequence[TelegramMessage], bot: TelegramBot) -> InboundMessage | None:
        message, texts = album[0], [message.readable_text for message in album]
        text = next(filter(None, texts), texts[0])
        if text is None or message.chat.id is None or message.user.id == bot.id:
            return None
        self._remember_chat(message.chat)
        to = str(message.chat.id)
        return InboundMessage(
            id=message.key,
            address=ChatAddress(channel="telegram", account=self._account, to=to, thread=message.thread),
            chat=message.chat_kind, sender=message.sender, text=text, at=message.date * 1000,
            files=tuple(msgspec.to_builtins(each.file) for each in album if each.file is not None),
            reply_to=message.reply_to, title=message.chat.title, mentioned=any(each.mentions(bot) for each in album),
        )  # fmt: skip

    def _remember_chat(self, chat: TelegramChat) -> None:
        if chat.username is not None and chat.type != "private":
            if len(self._chat_ids) >= MAX_CHAT_NAMES:
                self._chat_ids.pop(next(iter(self._chat_ids)))
            self._chat_ids[f"@{chat.username.lower()}"] = str(chat.id)

    async def fetch(self, media: TelegramFile) -> Attachment:
        """The file, or its name alone when it is too large or gone."""
        try:
            if media.size > self._settings.media_limit:
                raise ChannelRefused(f"it is larger than {self._settings.media_limit} bytes")
            path = (await self._api.call("getFile", _FoundFile, file_id=media.file_id)).file_path
            data = await self._api.download(path, limit=self._settings.media_limit)
        except ChannelRefused as exc:
            logger.warning("telegram %s: attachment not fetched (%s), its name is used alone", self._account, exc)
            return Attachment(mime_type=media.mime_type, name=media.name)
        guessed = mimetypes.guess_type(path)[0] if media.mime_type == OCTET_STREAM else None
        name = media.name or path.rpartition("/")[2] or None
        return Attachment(mime_type=guessed or media.mime_type, name=name, data=data)


def _group_albums(updates: Sequence[TelegramUpdate]) -> list[list[TelegramUpdate]]:
    """Updates in order, those of one album together."""
    groups: list[list[TelegramUpdate]] = []
    for update in updates:
        if groups and update.album is not None and groups[-1][-1].album == update.album:
            groups[-1].append(update)
        else:
            groups.append([update])
    return groups


def _ends_in_album(updates: Sequence[TelegramUpdate]) -> bool:
    """Whether the last album may be incomplete; one that fills the batch can't grow."""
    return bool(updates) and len(updates) < BATCH_SIZE and updates[-1].album is not None
