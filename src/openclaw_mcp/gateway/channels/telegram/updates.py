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
from ....core.channel import ChannelRefused, ChatAddress, InboundMessage, OnMessage
from ....core.errors import OpenClawError
from ....core.mime import OCTET_STREAM
from ....core.model import Json
from ....core.sessions import now_ms
from ....net import asgi
from ..json_values import as_dict
from . import messages
from .api import BotApi, UnknownBot
from .messages import TelegramBot, TelegramFile
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

    def status(self) -> Json:
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
            self._bot = msgspec.convert(await self._api.call("getMe", {}), TelegramBot)
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
        await self._api.call("deleteWebhook", {"drop_pending_updates": False})
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
                offset = int(group[-1]["update_id"]) + 1

    async def _fetch_updates(self, offset: int | None) -> list[Json]:
        params = {"offset": offset, "limit": BATCH_SIZE, "timeout": POLL_WAIT, "allowed_updates": ALLOWED_UPDATES}
        updates = await self._api.call("getUpdates", params, wait=POLL_WAIT + POLL_GRACE)
        self._last_update_at = now_ms()
        return [update for update in updates if isinstance(update, dict)]

    # ---- webhook ----

    async def _serve_webhook(self, connection: _Connection) -> None:
        params = {
            "url": self._settings.webhook_url,
            "secret_token": self._webhook_secret,
            "allowed_updates": ALLOWED_UPDATES,
            "max_connections": 1,  # one call at a time keeps the order of the messages
        }
        await self._api.call("setWebhook", params)
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
            update = msgspec.json.decode(body, type=dict[str, Any])
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

    async def _deliver_updates(self, updates: Sequence[Json], connection: _Connection) -> None:
        """One message; several updates are the pictures of one album."""
        found = [message for message in map(messages.message_of, updates) if message is not None]
        inbound = self._parse_messages(found, connection.bot) if found else None
        if inbound is not None:
            await connection.on_message(inbound)

    def _parse_messages(self, album: Sequence[Json], bot: TelegramBot) -> InboundMessage | None:
        message = album[0]
        text = next(filter(None, map(messages.text_of, album)), messages.text_of(message))
        if text is None or as_dict(message.get("from")).get("id") == bot.id:
            return None
        chat = message["chat"]
        self._remember_chat(chat)
        files = [media for media in map(messages.media_of, album) if media is not None]
        id, thread = str(chat.get("id")), messages.thread_of(message)
        return InboundMessage(
            id=messages.message_key(id, message.get("message_id")),
            address=ChatAddress(channel="telegram", account=self._account, to=id, thread=thread),
            chat=messages.chat_kind(message), sender=messages.sender_of(message), text=text,
            at=messages.timestamp_ms(message), files=tuple(map(msgspec.to_builtins, files)),
            reply_to=messages.reply_of(message), title=messages.title_of(message),
            mentioned=any(messages.mentions_bot(each, bot) for each in album),
        )  # fmt: skip

    def _remember_chat(self, chat: Json) -> None:
        if isinstance(chat.get("username"), str) and chat.get("type") != "private":
            if len(self._chat_ids) >= MAX_CHAT_NAMES:
                self._chat_ids.pop(next(iter(self._chat_ids)))
            self._chat_ids[f"@{chat['username'].lower()}"] = str(chat.get("id"))

    async def fetch(self, file: Json) -> Attachment:
        """The file, or its name alone when it is too large or gone."""
        media = msgspec.convert(file, TelegramFile)
        try:
            if media.size > self._settings.media_limit:
                raise ChannelRefused(f"it is larger than {self._settings.media_limit} bytes")
            found = await self._api.call("getFile", {"file_id": media.file_id})
            path = str(found.get("file_path", ""))
            data = await self._api.download(path, limit=self._settings.media_limit)
        except ChannelRefused as exc:
            logger.warning("telegram %s: attachment not fetched (%s), its name is used alone", self._account, exc)
            return Attachment(mime_type=media.mime_type, name=media.name)
        guessed = mimetypes.guess_type(path)[0] if media.mime_type == OCTET_STREAM else None
        name = media.name or path.rpartition("/")[2] or None
        return Attachment(mime_type=guessed or media.mime_type, name=name, data=data)


def _album_id(update: Json) -> str | None:
    message = messages.message_of(update)
    group = None if message is None else message.get("media_group_id")
    return group if isinstance(group, str) else None


def _group_albums(updates: Sequence[Json]) -> list[list[Json]]:
    """Updates in order, those of one album together."""
    groups: list[list[Json]] = []
    for update in updates:
        if groups and _album_id(update) is not None and _album_id(groups[-1][-1]) == _album_id(update):
            groups[-1].append(update)
        else:
            groups.append([update])
    return groups


def _ends_in_album(updates: Sequence[Json]) -> bool:
    """Whether the last album may be incomplete; one that fills the batch can't grow."""
    return bool(updates) and len(updates) < BATCH_SIZE and _album_id(updates[-1]) is not None
