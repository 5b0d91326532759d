"""Telegram's Bot API on loopback, as a stand-in: its requests, answers and error bodies; and the people behind it."""

import asyncio
import contextlib
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from html.parser import HTMLParser
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from openclaw_mcp.core.agent import Attachment
from openclaw_mcp.core.channel import FileSummary, Reaction, StoredMessage
from openclaw_mcp.core.model import Sender
from openclaw_mcp.net.listen import serve_in_background

TOKEN = "123456:for-tests-alone_0123456789"
ANN = {"id": 4242, "is_bot": False, "first_name": "Ann", "last_name": "Lee", "username": "ann"}
REACTIONS = {"👍", "👎", "❤", "🔥", "🎉", "👀", "😢"}
TAGS = {"b", "strong", "i", "em", "u", "ins", "s", "strike", "del", "a", "code", "pre", "blockquote", "tg-spoiler"}
KINDS = ("photo", "document", "video", "audio", "voice", "animation")
MESSAGE_LIMIT, CAPTION_LIMIT = 4096, 1024


class Refusal(Exception):
    def __init__(self, status: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.status = status
        self.body = {"ok": False, "error_code": status, "description": description}
        if parameters:
            self.body["parameters"] = parameters


class Entities(HTMLParser):
    """Telegram's HTML: a few tags, closed in order, and nothing else."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.open: list[tuple[str, int]] = []
        self.found: list[dict[str, Any]] = []
        self.feed(html)
        self.close()
        if self.open:
            tag = self.open[-1][0]
            raise Refusal(
                400, f"Bad Request: can't parse entities: Can't find end tag corresponding to start tag {tag}"
            )

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in TAGS:
            offset = len(self.text)
            raise Refusal(
                400, f'Bad Request: can\'t parse entities: Unsupported start tag "{tag}" at byte offset {offset}'
            )
        self.open.append((tag, len(self.text)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1][0] != tag:
            raise Refusal(400, "Bad Request: can't parse entities: Unexpected end tag at byte offset 0")
        name, start = self.open.pop()
        self.found.append({"type": name, "offset": start, "length": len(self.text) - start})

    def handle_data(self, data: str) -> None:
        self.text += data


class Chat:
    def __init__(self, id: int, type: str, **more: Any) -> None:
        self.shape = {"id": id, "type": type, **more}
        self.messages: dict[int, dict[str, Any]] = {}
        self.pinned: list[int] = []
        self.actions: list[str] = []
        self.topics: set[int] = set()
        self.blocked: str | None = None
        self.moved_to: int | None = None
        self.admin = True


class TelegramServer:
    """One bot's harness. `trouble` holds refusals for the next calls of a method."""

    def __init__(self) -> None:
        self.me = {"id": 123456, "is_bot": True, "first_name": "Bot", "username": "the_test_bot"}
        self.chats: dict[int, Chat] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.trouble: dict[str, list[Refusal]] = {}
        self.updates: list[dict[str, Any]] = []
        self.confirmed = 0
        self.hook: dict[str, Any] | None = None
        self.files: dict[str, bytes] = {}
        self.url = ""
        self.arrived = asyncio.Event()
        self.polls = 0
        self.closed = False
        self.taken: Callable[[str], None] = lambda text: None
        """What happens once a text is in its chat, before the bot has its answer."""
        self._update_ids = itertools.count(1000)
        self._message_ids = itertools.count(1)

    def chat(self, id: int, type: str = "private", **more: Any) -> Chat:
        self.chats[id] = Chat(id, type, **more)
        return self.chats[id]

    # ---- the people's side ----

    def say(self, chat: int, text: str = "", *, person: dict[str, Any] = ANN, **more: Any) -> dict[str, Any]:
        """A person writes; `more` is what else a Telegram message may hold."""
        place = self.chats[chat]
        content = {"caption": text} if any(kind in more for kind in KINDS) else {"text": text}
        message = self._message(place, person, **({} if not text else content), **more)
        self._tell({"message" if place.shape["type"] != "channel" else "channel_post": message})
        return message

    def file(self, attachment: Attachment) -> dict[str, Any]:
        """A file as part of a message."""
        id = f"file-{len(self.files)}"
        assert attachment.data is not None
        self.files[id] = attachment.data
        shape = {"file_id": id, "file_unique_id": id, "file_size": len(attachment.data)}
        return {**shape, "file_name": attachment.name, "mime_type": attachment.mime_type}

    def sees(self, chat: int) -> Sequence[StoredMessage]:
        place = self.chats[chat]
        return [_stored_message(place, message) for message in place.messages.values()]

    def _message(self, place: Chat, person: dict[str, Any], **more: Any) -> dict[str, Any]:
        id = next(self._message_ids)
        message = {"message_id": id, "from": person, "chat": place.shape, "date": int(time.time()), **more}
        place.messages[id] = message
        return message

    def _tell(self, update: dict[str, Any]) -> None:
        self.updates.append({"update_id": next(self._update_ids), **update})
        self.arrived.set()

    # ---- the bot's side ----

    async def method(self, request: Request) -> Response:
        if request.path_params["token"] != TOKEN:
            return JSONResponse({"ok": False, "error_code": 401, "description": "Unauthorized"}, 401)
        name = request.path_params["method"]
        params = await _params(request)
        self.calls.append((name, params))
        try:
            if self.trouble.get(name):
                raise self.trouble[name].pop(0)
            handler = getattr(self, f"do_{name}", None)
            if handler is None:
                raise Refusal(404, "Not Found: method not found")
            return JSONResponse({"ok": True, "result": await handler(params)})
        except Refusal as exc:
            return JSONResponse(exc.body, exc.status)

    async def download(self, request: Request) -> Response:
        if request.path_params["token"] != TOKEN:
            return JSONResponse({"ok": False, "error_code": 401, "description": "Unauthorized"}, 401)
        return Response(self.files[request.path_params["path"].rpartition("/")[2].partition(".")[0]])

    async def do_getMe(self, params: Any) -> Any:  # noqa: N802  (Telegram's name; so are those below)
        return self.me

    async def do_getUpdates(self, params: Any) -> Any:  # noqa: N802
        if self.hook:
            text = "can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
            raise Refusal(409, f"Conflict: {text}")
        self.polls += 1
        mine = self.polls
        if params.get("offset"):
            self.confirmed = max(self.confirmed, int(params["offset"]))
            self.updates = [update for update in self.updates if update["update_id"] >= self.confirmed]
        allowed = params.get("allowed_updates") or []
        end = time.monotonic() + float(params.get("timeout", 0))
        while not self.updates and not self.closed and time.monotonic() < end:
            self.arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(0.5, max(0, end - time.monotonic()))):
                    await self.arrived.wait()
            if mine != self.polls:
                text = "terminated by other getUpdates request; make sure that only one bot instance is running"
                raise Refusal(409, f"Conflict: {text}")
        return [u for u in self.updates if not allowed or set(u) & set(allowed)][: int(params.get("limit", 100))]

    async def do_deleteWebhook(self, params: Any) -> Any:  # noqa: N802
        self.hook = None
        return True

    async def do_setWebhook(self, params: Any) -> Any:  # noqa: N802
        self.hook = params
        return True

    async def bring(self) -> list[int]:
        """Bring what waits to the webhook, in order, as often as it takes; the statuses seen."""
        assert self.hook is not None
        statuses = []
        headers = {"X-Telegram-Bot-Api-Secret-Token": self.hook["secret_token"]}
        async with httpx.AsyncClient(timeout=30) as client:
            while self.updates:
                answer = await client.post(self.hook["url"], json=self.updates[0], headers=headers)
                statuses.append(answer.status_code)
                if answer.is_success:
                    self.updates.pop(0)
                assert len(statuses) < 100
        return statuses

    async def do_sendMessage(self, params: Any) -> Any:  # noqa: N802
        place = self._place(params)
        text, entities = _parsed(params, "text", MESSAGE_LIMIT)
        if not text.strip():
            raise Refusal(400, "Bad Request: message text is empty")
        sent = self._sent(place, params, text=text, entities=entities)
        self.taken(text)
        return sent

    async def _send_file(self, kind: str, params: Any) -> Any:
        place = self._place(params)
        text, entities = _parsed(params, "caption", CAPTION_LIMIT)
        part = self._stored(params, params[kind])
        return self._sent(place, params, **{kind: _as(kind, part)}, caption=text, caption_entities=entities)

    async def do_sendPhoto(self, params: Any) -> Any:  # noqa: N802
        return await self._send_file("photo", params)

    async def do_sendDocument(self, params: Any) -> Any:  # noqa: N802
        return await self._send_file("document", params)

    async def do_sendVideo(self, params: Any) -> Any:  # noqa: N802
        return await self._send_file("video", params)

    async def do_sendVoice(self, params: Any) -> Any:  # noqa: N802
        return await self._send_file("voice", params)

    async def do_sendMediaGroup(self, params: Any) -> Any:  # noqa: N802
        place, media = self._place(params), params["media"]
        if not 2 <= len(media) <= 10:
            raise Refusal(400, "Bad Request: wrong number of media")
        families = {"pictures" if one["type"] in ("photo", "video") else one["type"] for one in media}
        if len(families) > 1:
            raise Refusal(400, "Bad Request: Can't use the media of the specified type in the album")
        group = f"album-{len(self.calls)}"
        sent = []
        for one in media:
            text, entities = _parsed(one, "caption", CAPTION_LIMIT)
            part = _as(one["type"], self._stored(params, one["media"]))
            more = {one["type"]: part, "caption": text, "caption_entities": entities, "media_group_id": group}
            sent.append(self._sent(place, params, **more))
        return sent

    async def do_sendPoll(self, params: Any) -> Any:  # noqa: N802
        place = self._place(params)
        options = [{"text": option["text"], "voter_count": 0} for option in params["options"]]
        return self._sent(place, params, poll={"id": "1", "question": params["question"], "options": options})

    async def do_sendChatAction(self, params: Any) -> Any:  # noqa: N802
        self._place(params).actions.append(params["action"])
        return True

    async def do_editMessageText(self, params: Any) -> Any:  # noqa: N802
        return self._edited(params, "text", MESSAGE_LIMIT, "Bad Request: there is no text in the message to edit")

    async def do_editMessageCaption(self, params: Any) -> Any:  # noqa: N802
        return self._edited(params, "caption", CAPTION_LIMIT, "Bad Request: there is no caption in the message to edit")

    async def do_deleteMessage(self, params: Any) -> Any:  # noqa: N802
        place, id = self._place(params), int(params["message_id"])
        if id not in place.messages:
            raise Refusal(400, "Bad Request: message to delete not found")
        del place.messages[id]
        return True

    async def do_setMessageReaction(self, params: Any) -> Any:  # noqa: N802
        message = self._found(params, "Bad Request: message to react not found")
        emoji = [one["emoji"] for one in params.get("reaction", [])]
        if set(emoji) - REACTIONS:
            raise Refusal(400, "Bad Request: REACTION_INVALID")
        message["reactions"] = emoji
        return True

    async def do_pinChatMessage(self, params: Any) -> Any:  # noqa: N802
        place, message = self._place(params), self._found(params, "Bad Request: message to pin not found")
        if not place.admin:
            raise Refusal(400, "Bad Request: not enough rights to manage pinned messages in the chat")
        place.pinned.append(message["message_id"])
        return True

    async def do_unpinChatMessage(self, params: Any) -> Any:  # noqa: N802
        place, message = self._place(params), self._found(params, "Bad Request: message to unpin not found")
        place.pinned.remove(message["message_id"])
        return True

    async def do_getFile(self, params: Any) -> Any:  # noqa: N802
        id = params["file_id"]
        if len(self.files[id]) > 20 << 20:
            raise Refusal(400, "Bad Request: file is too big")
        return {"file_id": id, "file_unique_id": id, "file_path": f"documents/{id}.png"}

    def _place(self, params: Any) -> Chat:
        chat_id = params.get("chat_id")
        place = next((chat for chat in self.chats.values() if f"@{chat.shape.get('username')}" == chat_id), None)
        if place is None:
            place = self.chats.get(int(chat_id)) if str(chat_id).lstrip("-").isdecimal() else None
        if place is None:
            raise Refusal(400, "Bad Request: chat not found")
        if place.moved_to is not None:
            text = "Bad Request: group chat was upgraded to a supergroup chat"
            raise Refusal(400, text, migrate_to_chat_id=place.moved_to)
        if place.blocked is not None:
            raise Refusal(403, place.blocked)
        thread = params.get("message_thread_id")
        if thread is not None and int(thread) not in place.topics:
            raise Refusal(400, "Bad Request: message thread not found")
        if params.get("message_effect_id") and place.shape["type"] != "private":
            raise Refusal(400, "Bad Request: EFFECT_ID_INVALID")
        return place

    def _found(self, params: Any, words: str) -> dict[str, Any]:
        message = self._place(params).messages.get(int(params["message_id"]))
        if message is None:
            raise Refusal(400, words)
        return message

    def _sent(self, place: Chat, params: Any, **more: Any) -> dict[str, Any]:
        if params.get("message_thread_id") is not None:
            more |= {"message_thread_id": int(params["message_thread_id"]), "is_topic_message": True}
        answered = place.messages.get((params.get("reply_parameters") or {}).get("message_id", 0))
        if answered is not None:
            more["reply_to_message"] = answered
        if params.get("message_effect_id"):
            more["effect_id"] = params["message_effect_id"]
        if params.get("disable_notification"):
            more["silent"] = True
        return self._message(place, self.me, **more)

    def _edited(self, params: Any, part: str, limit: int, words: str) -> Any:
        message = self._found(params, "Bad Request: message to edit not found")
        if message["from"]["id"] != self.me["id"]:
            raise Refusal(400, "Bad Request: message can't be edited")
        if part == "text" and "text" not in message:
            raise Refusal(400, words)
        text, _ = _parsed(params, part, limit)
        if message.get(part) == text:
            raise Refusal(
                400,
                "Bad Request: message is not modified: specified new message content and reply markup are exactly "
                "the same as a current content and reply markup of the message",
            )
        message[part] = text
        message["edit_date"] = int(time.time())
        return message

    def _stored(self, params: Any, place: str) -> dict[str, Any]:
        if not place.startswith("attach://"):
            return {"file_id": place, "file_unique_id": place, "file_size": 0}
        name, data, mime_type = params[place.removeprefix("attach://")]
        return self.file(Attachment(mime_type=mime_type, name=name, data=data))


def _as(kind: str, part: dict[str, Any]) -> Any:
    return [part] if kind == "photo" else part


def _parsed(params: Any, part: str, limit: int) -> tuple[str, list[Any]]:
    text, entities = params.get(part) or "", []
    if params.get("parse_mode") == "HTML":
        read = Entities(text)
        text, entities = read.text, read.found
    if len(text) > limit:
        raise Refusal(400, f"Bad Request: message {'caption ' if part == 'caption' else ''}is too long")
    return text, entities


async def _params(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").startswith("application/json"):
        return dict(await request.json())
    params: dict[str, Any] = {}
    async with request.form() as form:
        for name, value in form.items():
            if isinstance(value, UploadFile):
                params[name] = (value.filename, await value.read(), value.content_type)
            else:
                params[name] = value
                with contextlib.suppress(ValueError):
                    params[name] = json.loads(value)
    return params


def _stored_message(place: Chat, message: dict[str, Any]) -> StoredMessage:
    chat, id = place.shape["id"], message["message_id"]
    part = next((message[kind] for kind in KINDS if kind in message), None)
    part = part[0] if isinstance(part, list) else part
    files: tuple[FileSummary, ...] = ()
    if part:
        mime_type = part.get("mime_type", "image/jpeg")
        files = (FileSummary(name=part.get("file_name"), mime_type=mime_type, size=part["file_size"]),)
    extra: dict[str, Any] = {"raw": message}
    if "poll" in message:
        poll = message["poll"]
        extra["poll"] = {"question": poll["question"], "options": [option["text"] for option in poll["options"]]}
    if "effect_id" in message:
        extra["effect"] = message["effect_id"]
    answered = message.get("reply_to_message")
    return StoredMessage(
        id=f"{chat}:{id}",
        sender=Sender(id=str(message["from"]["id"])),
        text=message.get("text") or message.get("caption") or "",
        at=message["date"] * 1000,
        thread=str(message["message_thread_id"]) if message.get("is_topic_message") else None,
        reply_to=f"{chat}:{answered['message_id']}" if answered else None,
        attachments=files,
        reactions=tuple(Reaction(emoji=emoji, sender="bot") for emoji in message.get("reactions", ())),
        pinned=id in place.pinned,
        edited="edit_date" in message,
        extra=extra,
    )


@contextlib.asynccontextmanager
async def telegram_server() -> AsyncIterator[TelegramServer]:
    """The stand-in, listening, in this loop."""
    server = TelegramServer()
    routes = [
        Route("/bot{token}/{method}", server.method, methods=["GET", "POST"]),
        Route("/file/bot{token}/{path:path}", server.download),
    ]
    async with served(Starlette(routes=routes)) as url:
        server.url = url
        try:
            yield server
        finally:
            server.closed = True
            server.arrived.set()


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """An ASGI app on a port of its own; its address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    async with serve_in_background(app, listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
