"""What arrives on Telegram: fetched by long polling, or brought to our webhook; confirmed once handed over."""

import asyncio
import hmac
import logging
import mimetypes
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ....core.agent import Attachment
from ....core.channel import Address, ChannelRefused, Hear, Heard
from ....core.errors import OpenClawError
from ....core.model import Json
from . import messages
from .api import BotApi, UnknownBot
from .messages import Me, Media
from .settings import TelegramSettings

POLL_WAIT: Final = 30  # seconds a poll stays open while nothing happens
POLL_GRACE: Final = 20.0  # seconds more for Telegram to answer it
BATCH: Final = 100  # updates at once; Telegram gives no more
ALBUM_WAIT: Final = 1.0  # seconds for the rest of an album: its pictures arrive one by one
BODY_LIMIT: Final = 1 << 20  # bytes of one update; Telegram's are a few thousand
UPDATES: Final = ("message", "channel_post")
NAMES_KEPT: Final = 1_000  # public names of chats we have heard from

logger = logging.getLogger(__name__)


class Listener:
    """The ear of one bot."""

    def __init__(self, settings: TelegramSettings, api: BotApi, account: str) -> None:
        self._settings = settings
        self._api = api
        self._account = account
        self._hear: Hear | None = None
        self._me: Me | None = None
        self._beat = 0
        self._chats: dict[str, str] = {}
        self._secret = settings.hook_secret(account) if settings.webhook_url is not None else ""

    def status(self) -> Json:
        return {
            "connected": self._hear is not None,
            "mode": "webhook" if self._settings.webhook_url else "polling",
            "username": self._me.username if self._me else None,
            "botId": self._me.id if self._me else None,
            "lastUpdateAt": self._beat,
        }

    def chat_named(self, username: str) -> str | None:
        """The id of a public chat we have heard from."""
        return self._chats.get(username)

    async def listen(self, hear: Hear) -> None:
        """Until cancelled, or Telegram fails. Raises ChannelRefused when the token is wrong."""
        try:
            self._me = msgspec.convert(await self._api.call("getMe", {}), Me)
            if self._settings.webhook_url is not None:
                await self._be_called(hear)
            else:
                await self._poll(hear)
        except UnknownBot as exc:
            raise ChannelRefused(str(exc)) from None
        finally:
            self._hear = None

    # ---- polling ----

    async def _poll(self, hear: Hear) -> None:
        await self._api.call("deleteWebhook", {"drop_pending_updates": False})
        self._hear = hear
        offset: int | None = None  # Telegram begins with the first it has no confirmation for
        asked_again = False
        while True:
            updates = await self._fetch(offset)
            if _album_at_end(updates) and not asked_again:
                asked_again = True  # nothing is confirmed yet, so the next answer has the whole album
                await asyncio.sleep(ALBUM_WAIT)
                continue
            asked_again = False
            for told in _albums(updates):
                await self._tell(told)
                offset = int(told[-1]["update_id"]) + 1

    async def _fetch(self, offset: int | None) -> list[Json]:
        params = {"offset": offset, "limit": BATCH, "timeout": POLL_WAIT, "allowed_updates": UPDATES}
        updates = await self._api.call("getUpdates", params, wait=POLL_WAIT + POLL_GRACE)
        self._beat = int(time.time() * 1000)
        return [update for update in updates if isinstance(update, dict)]

    # ---- webhook ----

    async def _be_called(self, hear: Hear) -> None:
        hook = {"url": self._settings.webhook_url, "secret_token": self._secret, "allowed_updates": UPDATES}
        # One call at a time keeps the order of what people write.
        await self._api.call("setWebhook", hook | {"max_connections": 1})
        self._hear = hear
        await asyncio.get_running_loop().create_future()  # updates come in through `http`

    async def http(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers 200 when the update is on disk; anything else has Telegram bring it again."""
        status = await self._called(scope, receive)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def _called(self, scope: Any, receive: Any) -> int:
        if self._settings.webhook_url is None:
            return 404
        given = dict(scope["headers"]).get(b"x-telegram-bot-api-secret-token", b"")
        if not hmac.compare_digest(given, self._secret.encode()):
            return 401
        if scope["method"] != "POST":
            return 405
        body = await _body(receive)
        if body is None:
            return 413
        try:
            update = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError:
            return 400
        if self._hear is None:
            return 503
        try:
            await self._tell([update])
        except OpenClawError as exc:
            logger.warning("telegram %s: an update could not be taken: %s", self._account, exc)
            return 503
        self._beat = int(time.time() * 1000)
        return 200

    # ---- handing over ----

    async def _tell(self, updates: Sequence[Json]) -> None:
        """One message; several updates are the pictures of one album."""
        found = [message for message in map(messages.message_of, updates) if message is not None]
        heard = self._heard(found) if found else None
        if heard is not None:
            assert self._hear is not None
            await self._hear(heard)

    def _heard(self, album: Sequence[Json]) -> Heard | None:
        assert self._me is not None
        message = album[0]
        text = next(filter(None, map(messages.text_of, album)), messages.text_of(message))
        person = message.get("from")
        if text is None or (isinstance(person, dict) and person.get("id") == self._me.id):
            return None
        chat = message["chat"]
        self._remember(chat)
        files = [media for media in map(messages.media_of, album) if media is not None]
        return Heard(
            id=messages.message_name(chat.get("id"), message.get("message_id")),
            address=Address(
                channel="telegram", account=self._account, to=str(chat.get("id")), thread=messages.thread_of(message)
            ),
            chat=messages.chat_kind(message),
            sender=messages.sender_of(message),
            text=text,
            at=messages.moment(message),
            files=tuple(map(msgspec.to_builtins, files)),
            reply_to=messages.reply_of(message),
            mentioned=any(messages.speaks_to(one, self._me) for one in album),
            title=messages.title_of(message),
        )

    def _remember(self, chat: Json) -> None:
        if isinstance(chat.get("username"), str) and chat.get("type") != "private":
            if len(self._chats) >= NAMES_KEPT:
                self._chats.pop(next(iter(self._chats)))
            self._chats[f"@{chat['username'].lower()}"] = str(chat.get("id"))

    async def fetch(self, file: Json) -> Attachment:
        """The file, or its name alone when it is too large or gone."""
        media = msgspec.convert(file, Media)
        try:
            if media.size > self._settings.media_limit:
                raise ChannelRefused(f"it is larger than {self._settings.media_limit} bytes")
            found = await self._api.call("getFile", {"file_id": media.file_id})
            path = str(found.get("file_path", ""))
            data = await self._api.download(path, limit=self._settings.media_limit)
        except ChannelRefused as exc:
            logger.warning("telegram %s: an attachment was not taken: %s", self._account, exc)
            return Attachment(mime_type=media.mime_type, name=media.name)
        guessed = mimetypes.guess_type(path)[0] if media.mime_type == "application/octet-stream" else None
        name = media.name or path.rpartition("/")[2] or None
        return Attachment(mime_type=guessed or media.mime_type, name=name, data=data)


def _album(update: Json) -> str | None:
    message = messages.message_of(update)
    group = None if message is None else message.get("media_group_id")
    return group if isinstance(group, str) else None


def _albums(updates: Sequence[Json]) -> list[list[Json]]:
    """Updates in order, those of one album together."""
    groups: list[list[Json]] = []
    for update in updates:
        if groups and _album(update) is not None and _album(groups[-1][-1]) == _album(update):
            groups[-1].append(update)
        else:
            groups.append([update])
    return groups


def _album_at_end(updates: Sequence[Json]) -> bool:
    """Whether the last album may not be whole; one that fills the batch can't grow."""
    return bool(updates) and len(updates) < BATCH and _album(updates[-1]) is not None


async def _body(receive: Any) -> bytes | None:
    """None when it is too large, or never came whole."""
    parts, size = [], 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return None
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > BODY_LIMIT:
            return None
        if not event.get("more_body"):
            return b"".join(parts)
