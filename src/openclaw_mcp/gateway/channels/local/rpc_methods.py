"""The local channel over the intercom: a person's side of every conversation, and its events."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from ....core.agent import Attachment
from ....core.channel import OWNER, Address, ChannelError, ChannelRefused
from ....core.ids import new_id
from ....core.mail import LocalBook, LocalNote
from ....core.model import Json, Sender
from ....core.owner import looks_like_owner
from ....core.rpc import ADMIN, READ, WRITE, Event, Fault, Method, Publish, RpcCall, read_params
from ..inbox import run_id_of
from ..message_actions import shown
from .channel import MEDIA_LIMIT, LocalChannel, LocalNews

HOME: Final = "main"
MOST_READ: Final = 500
MOST_FILES: Final = 10  # attachments of one message

Text = Annotated[str, Meta(min_length=1)]


class SayParams(Struct, frozen=True, kw_only=True, rename="camel"):
    conversation: str = HOME
    text: str = ""
    sender: Json | None = None
    """`{id, name?, username?}`: for whom the client speaks; without it, the owner, if its credential is the owner's."""
    attachments: Annotated[list[Json], Meta(max_length=MOST_FILES)] = []
    reply_to: str | None = None
    thread_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    mentioned: bool = False
    account_id: str = "default"
    idempotency_key: str | None = None


class ReadParams(Struct, frozen=True, kw_only=True, rename="camel"):
    conversation: str = HOME
    limit: Annotated[int, Meta(ge=1, le=MOST_READ)] = 50
    before: str | None = None
    thread_id: str | None = None
    account_id: str = "default"


class FileParams(Struct, frozen=True, kw_only=True, rename="camel"):
    message_id: Text
    conversation: str = HOME
    account_id: str = "default"


class PlaceParams(Struct, frozen=True, kw_only=True, rename="camel"):
    conversation: str = HOME
    account_id: str = "default"


def topic(account: str, conversation: str) -> str:
    return f"local:{account}:{conversation}"


class LocalRoom:
    """A `Room`. It makes the channel of each local account, so that it hears what happens in them."""

    def __init__(self, book: LocalBook, publish: Publish) -> None:
        self._book = book
        self._publish = publish
        self._channels: dict[str, LocalChannel] = {}
        self._quiet: dict[str, Callable[[], None]] = {}

    def make(self, account: str, settings: Json, folder: Any) -> LocalChannel:
        """A `Maker`."""
        if account in self._quiet:
            self._quiet.pop(account)()
        channel = self._channels[account] = LocalChannel(self._book, account=account)
        self._quiet[account] = channel.news.listen(lambda news: self._tell(account, news))
        return channel

    def methods(self) -> Sequence[Method]:
        return (
            Method("local.send", WRITE, self._say),
            Method("local.read", READ, self._read),
            Method("local.file", READ, self._file),
            Method("local.conversations", READ, self._conversations),
            Method("local.subscribe", READ, self._subscribe),
            Method("local.unsubscribe", READ, self._unsubscribe),
        )

    def _channel(self, account: str) -> LocalChannel:
        channel = self._channels.get(account)
        if channel is None:
            raise Fault(f"the local channel has no account {account}; see channels.status")
        return channel

    def _named(self, account: str, conversation: str) -> str:
        try:
            return self._channel(account).canonical(conversation)
        except ChannelRefused as exc:
            raise Fault(str(exc)) from None

    async def _say(self, call: RpcCall) -> Json:
        asked = read_params(call.params, SayParams, call.method)
        conversation = self._named(asked.account_id, asked.conversation)
        files = tuple(_file(given) for given in asked.attachments)
        if not asked.text.strip() and not files:
            raise Fault("text or attachment required")
        vouched = call.caller.owner
        sender = _sender(asked.sender, vouched=vouched)
        note = LocalNote(
            account=asked.account_id, conversation=conversation, sender=sender, text=asked.text, mine=False,
            key=f"{'in' if vouched else 'for'}:{sender.id}:{asked.idempotency_key or new_id()}",
            thread=asked.thread_id, reply_to=asked.reply_to, attachments=files,
        )  # fmt: skip
        try:
            heard = await self._channel(asked.account_id).say(note, mentioned=asked.mentioned, vouched=vouched)
        except ChannelError as exc:
            raise Fault(str(exc), kind="UNAVAILABLE", retryable=True) from None
        return {"conversation": conversation, "messageId": heard.id, "at": heard.at, "runId": run_id_of(heard)}

    async def _read(self, call: RpcCall) -> Json:
        asked = read_params(call.params, ReadParams, call.method)
        name = self._named(asked.account_id, asked.conversation)
        where = Address(channel="local", account=asked.account_id, to=name, thread=asked.thread_id)
        seen = await self._channel(asked.account_id).read(where, limit=asked.limit, before=asked.before)
        return {"conversation": name, "messages": [shown(message) for message in seen]}

    async def _file(self, call: RpcCall) -> Json:
        asked = read_params(call.params, FileParams, call.method)
        name = self._named(asked.account_id, asked.conversation)
        files = await self._book.files(asked.account_id, name, asked.message_id)
        shaped = [
            {"name": f.name, "mimeType": f.mime_type, "url": f.url, "content": base64.b64encode(f.data or b"").decode()}
            for f in files
        ]
        return {"messageId": asked.message_id, "files": shaped}

    async def _conversations(self, call: RpcCall) -> Json:
        asked = read_params(call.params, PlaceParams, call.method)
        return {"conversations": list(await self._book.conversations(asked.account_id, limit=MOST_READ))}

    async def _subscribe(self, call: RpcCall) -> Json:
        asked = read_params(call.params, PlaceParams, call.method)
        name = self._named(asked.account_id, asked.conversation)
        call.link.interests().add(topic(asked.account_id, name))
        return {"subscribed": True, "conversation": name}

    async def _unsubscribe(self, call: RpcCall) -> Json:
        asked = read_params(call.params, PlaceParams, call.method)
        call.link.interests().discard(topic(asked.account_id, self._named(asked.account_id, asked.conversation)))
        return {"subscribed": False}

    def _tell(self, account: str, news: LocalNews) -> None:
        payload: Json = {"conversation": news.conversation, "accountId": account, "kind": news.kind}
        if news.message is not None:
            payload["message"] = shown(news.message)
        if news.message_id is not None:
            payload["messageId"] = news.message_id
        if news.thread is not None:
            payload["threadId"] = news.thread
        if news.kind == "typing":
            payload["on"] = news.on
        self._publish(Event(name="local.message", payload=payload, topic=topic(account, news.conversation)))


def _sender(given: Json | None, *, vouched: bool) -> Sender:
    """Whoever may write to the gateway may speak for others, and as the owner with the owner's credential alone."""
    if given is None:
        if not vouched:
            raise _not_the_owner()
        return Sender(id=OWNER, name="owner")
    values = {name: given[name] for name in ("id", "name", "username", "e164") if isinstance(given.get(name), str)}
    if not values.get("id"):
        raise Fault("invalid local.send params: at /sender/id: must be string")
    if not vouched and looks_like_owner(values["id"]):
        raise _not_the_owner()
    return Sender(**values)


def _not_the_owner() -> Fault:
    words = "speaking as the owner needs operator.admin; give `sender` the id of the person you speak for"
    details = {"code": "MISSING_SCOPE", "missingScope": ADMIN, "requiredScopes": [ADMIN]}
    return Fault(words, kind="FORBIDDEN", details=details)


def _file(given: Json) -> Attachment:
    content, kind = given.get("content"), given.get("mimeType")
    if not isinstance(content, str) or not isinstance(kind, str):
        raise Fault("an attachment has mimeType and content, its bytes in base64")
    try:
        data = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise Fault("an attachment's content must be base64") from None
    if len(data) > MEDIA_LIMIT:
        raise Fault(f"an attachment may hold {MEDIA_LIMIT} bytes")
    name = given.get("fileName") or given.get("name")
    return Attachment(mime_type=kind, name=name if isinstance(name, str) else None, data=data)
