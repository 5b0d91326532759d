"""The Telegram Bot API over HTTP: calls a method, returns its result or raises one of the channel's errors.

The token is part of every URL, so no URL is ever logged or put into an error.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from ....core.channel import ChannelBusy, ChannelError, ChannelRefused
from ....core.json_values import drop_none
from ....net.httpx_client import httpx
from ..http_api import ANSWER_WAIT, DEFAULT_RETRY_AFTER, UPLOAD_WAIT, HttpApi

TOKEN_IN_PATH: Final = re.compile(r"/bot\d+:[^/\s]+")

T = TypeVar("T")
UploadFile = tuple[str, bytes, str]
"""Name, bytes, MIME type."""

ERROR_MESSAGES: Final[Mapping[str, str]] = {
    "chat not found": "there is no such chat, or the bot was never in it: the person must write to the bot first",
    "bot was blocked by the user": "the person has blocked the bot",
    "user is deactivated": "the person's account is gone",
    "bot was kicked": "the bot was removed from the chat: add it again",
    "bot is not a member": "the bot is not in the chat: add it",
    "bot can't initiate conversation": "a bot can't write first: the person must send it a message",
    "bots can't send messages to bots": "that is another bot, and bots can't write to each other",
    "message thread not found": "there is no such topic in the chat",
    "topic_closed": "the topic is closed",
    "message to be replied not found": "the message to answer is gone",
    "message to edit not found": "the message to edit is gone",
    "message can't be edited": "Telegram lets a bot edit its own messages only",
    "message can't be deleted": "the bot may not delete that message: it is too old, or the bot is no administrator",
    "message to delete not found": "the message is gone already",
    "message to pin not found": "the message to pin is gone",
    "message to react not found": "the message to react to is gone",
    "not enough rights": "the bot lacks the right in this chat: make it an administrator with that right",
    "chat_admin_required": "the bot must be an administrator of the chat for that",
    "reaction_invalid": "Telegram does not have that emoji as a reaction",
    "effect_id_invalid": "Telegram does not know that effect",
    "message is too long": "the text is longer than Telegram takes",
    "request entity too large": "the file is larger than Telegram takes",
    "file is too big": "the file is larger than Telegram gives out to bots",
}
"""Part of Telegram's description, in lower case, to an error text for people."""


class ChatParams(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parameters that the methods for a chat share."""

    chat_id: int | str
    message_id: int | None = None
    message_thread_id: int | None = None
    disable_notification: bool = False
    reply_parameters: Mapping[str, int] | None = None
    message_effect_id: str | None = None
    reply_markup: Any = None


class ErrorParameters(Struct, frozen=True):
    """How to succeed after all."""

    retry_after: float | None = None
    migrate_to_chat_id: int | None = None


class _ErrorAnswer(Struct, frozen=True):
    description: str = ""
    parameters: ErrorParameters = ErrorParameters()


class _Answer(Struct, frozen=True):
    result: Raw = Raw(b"null")


class TelegramRefused(ChannelRefused):
    """A refusal, with Telegram's own description for callers that handle it."""

    def __init__(self, message: str, answer: _ErrorAnswer) -> None:
        super().__init__(message)
        self.description = answer.description.lower()
        self.new_chat_id = answer.parameters.migrate_to_chat_id


class UnknownBot(ChannelError):
    """Telegram does not know the token. Messages wait until it is corrected."""


class TokenRedactor(logging.Filter):
    """Removes bot tokens from httpx's log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if TOKEN_IN_PATH.search(text):
            record.msg, record.args = TOKEN_IN_PATH.sub("/bot…", text), None
        return True


_TOKEN_REDACTOR: Final = TokenRedactor()


class BotApi(HttpApi):
    """One connection pool to one server of the Bot API, for one bot."""

    server_name = "Telegram"
    url_setting = "channels.telegram.baseUrl"
    answer_limit = 16 << 20  # bytes; a hundred updates of the longest kind stay far below

    def __init__(self, token: str, *, url: str) -> None:
        super().__init__(url)
        self._token = token
        for name in ("httpx", "httpcore.http11", "httpcore.connection"):
            logging.getLogger(name).addFilter(_TOKEN_REDACTOR)  # the same one again changes nothing

    async def call(
        self, method: str, kind: type[T], chat: ChatParams | None = None, *,
        files: Mapping[str, UploadFile] | None = None, wait: float = ANSWER_WAIT, **params: Any,
    ) -> T:  # fmt: skip
        """The result. Parameters that are None are left out. A group that got a new id is called by that one."""
        try:
            raw = await self._post(method, chat, files, wait, **params)
        except TelegramRefused as exc:
            if exc.new_chat_id is None or chat is None:
                raise
            raw = await self._post(method, replace(chat, chat_id=exc.new_chat_id), files, wait, **params)
        return self.decode(self.decode(raw, _Answer).result, kind)

    async def download(self, file_path: str, *, limit: int) -> bytes:
        """Raises ChannelRefused when there are more than `limit` bytes."""
        return await self.request("GET", f"/file/bot{self._token}/{file_path}", wait=UPLOAD_WAIT, limit=limit)

    async def _post(
        self, method: str, chat: ChatParams | None, files: Mapping[str, UploadFile] | None, wait: float, **params: Any
    ) -> bytes:
        path = f"/bot{self._token}/{method}"
        body = drop_none(params) | (msgspec.to_builtins(chat) if chat is not None else {})
        if files:
            form = {name: _form_field(value) for name, value in body.items()}
            return await self.request("POST", path, wait=UPLOAD_WAIT, data=form, files=dict(files))
        headers = {"Content-Type": "application/json"}
        return await self.request("POST", path, wait=wait, content=msgspec.json.encode(body), headers=headers)

    def error_from_response(self, response: httpx.Response, raw: bytes) -> ChannelError:
        status, answer = response.status_code, self.decode_error(raw, _ErrorAnswer)
        description = answer.description
        if status == 429:
            seconds = answer.parameters.retry_after
            return ChannelBusy("Telegram asks us to slow down", DEFAULT_RETRY_AFTER if seconds is None else seconds)
        if status == 409:
            return ChannelError(_conflict_message(description))
        if status >= 500:
            return ChannelError(f"Telegram failed with status {status}")
        if status in (401, 404):
            return UnknownBot("Telegram does not know the bot token: set the one @BotFather gives")
        text = next((text for part, text in ERROR_MESSAGES.items() if part in description.lower()), None)
        return TelegramRefused(text or f"Telegram refused: {description or status}", answer)


def _conflict_message(description: str) -> str:
    if "webhook" in description.lower():
        return "a webhook is set for this bot elsewhere, so it can't be polled: remove it, or set webhookUrl here"
    return "another program polls Telegram with the same bot token: stop it, or give this one a bot of its own"


def _form_field(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
