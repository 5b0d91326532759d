"""The Telegram Bot API over HTTP: calls a method, returns its result or raises one of the channel's errors.

The token is part of every URL, so no URL is ever logged or put into an error.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ....core.channel import ChannelBusy, ChannelError, ChannelRefused
from ....core.model import Json
from ....net.httpx_client import ResponseTooLarge, create_client, httpx, read_body

CONNECT_WAIT: Final = 10.0  # seconds until the server counts as unreachable
ANSWER_WAIT: Final = 60.0
UPLOAD_WAIT: Final = 300.0  # seconds for the largest attachment over a slow line
ANSWER_LIMIT: Final = 16 << 20  # bytes; a hundred updates of the longest kind stay far below
DEFAULT_RETRY_AFTER: Final = 5.0  # seconds, when Telegram limits our rate without naming a time
TOKEN_IN_PATH: Final = re.compile(r"/bot\d+:[^/\s]+")

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


class TelegramRefused(ChannelRefused):
    """A refusal, with Telegram's own description for callers that handle it."""

    def __init__(self, message: str, description: str, parameters: Json) -> None:
        super().__init__(message)
        self.description = description.lower()
        self.parameters = parameters


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


class BotApi:
    """One connection pool to one server of the Bot API, for one bot."""

    def __init__(self, token: str, *, url: str) -> None:
        self._token = token
        self._url = url.rstrip("/")
        for name in ("httpx", "httpcore.http11", "httpcore.connection"):
            logging.getLogger(name).addFilter(_TOKEN_REDACTOR)  # the same one again changes nothing
        # Connections for a poll, and a few sends and downloads beside it.
        self._http = create_client(timeout=ANSWER_WAIT, connect_timeout=CONNECT_WAIT, max_connections=16)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def call(
        self, method: str, params: Json, *, files: Mapping[str, UploadFile] | None = None, wait: float = ANSWER_WAIT
    ) -> Any:
        """The result. Parameters that are None are left out. A group that got a new id is called by that one."""
        params = {name: value for name, value in params.items() if value is not None}
        try:
            return await self._post(method, params, files, wait)
        except TelegramRefused as exc:
            new_id = exc.parameters.get("migrate_to_chat_id")
            if new_id is None or "chat_id" not in params:
                raise
            return await self._post(method, params | {"chat_id": new_id}, files, wait)

    async def download(self, file_path: str, *, limit: int) -> bytes:
        """Raises ChannelRefused when there are more than `limit` bytes."""
        return await self._request("GET", f"/file/bot{self._token}/{file_path}", wait=UPLOAD_WAIT, limit=limit)

    async def _post(self, method: str, params: Json, files: Mapping[str, UploadFile] | None, wait: float) -> Any:
        path = f"/bot{self._token}/{method}"
        if files:
            form = {name: _form_field(value) for name, value in params.items()}
            raw = await self._request("POST", path, wait=UPLOAD_WAIT, data=form, files=dict(files))
        else:
            headers = {"Content-Type": "application/json"}
            raw = await self._request("POST", path, wait=wait, content=msgspec.json.encode(params), headers=headers)
        return _decode_object(raw).get("result")

    async def _request(self, verb: str, path: str, *, wait: float, limit: int = ANSWER_LIMIT, **body: Any) -> bytes:
        timeout = httpx.Timeout(wait, connect=CONNECT_WAIT)
        try:
            async with self._http.stream(verb, self._url + path, timeout=timeout, **body) as response:
                raw = await read_body(response, limit)
        except ResponseTooLarge:
            raise ChannelRefused(f"Telegram's answer is larger than {limit} bytes") from None
        except httpx.HTTPError as exc:
            # Without its cause: that holds the request, whose URL holds the token.
            raise ChannelError(f"Telegram did not answer ({type(exc).__name__})") from None
        if not response.is_success:
            raise error_from_response(response.status_code, raw)
        return raw


def error_from_response(status: int, raw: bytes) -> ChannelError:
    """The channel's error for an unsuccessful answer."""
    try:
        answer = _decode_object(raw)
    except ChannelError:
        answer = {}
    description = str(answer.get("description", ""))
    parameters = answer.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    if status == 429:
        seconds = parameters.get("retry_after")
        return ChannelBusy(
            "Telegram asks us to slow down", float(seconds) if seconds is not None else DEFAULT_RETRY_AFTER
        )
    if status == 409:
        return ChannelError(_conflict_message(description))
    if status >= 500:
        return ChannelError(f"Telegram failed with status {status}")
    if status in (401, 404):
        return UnknownBot("Telegram does not know the bot token: set the one @BotFather gives")
    text = next((text for part, text in ERROR_MESSAGES.items() if part in description.lower()), None)
    return TelegramRefused(text or f"Telegram refused: {description or status}", description, parameters)


def _conflict_message(description: str) -> str:
    if "webhook" in description.lower():
        return "a webhook is set for this bot elsewhere, so it can't be polled: remove it, or set webhookUrl here"
    return "another program polls Telegram with the same bot token: stop it, or give this one a bot of its own"


def _decode_object(raw: bytes) -> Json:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        raise ChannelError("Telegram's answer is no JSON object: is channels.telegram.baseUrl right?") from None


def _form_field(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
