"""The local channel over the intercom: a person's side of every conversation, and its events."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from ....core.agent import Attachment
from ....core.channel import OWNER_SENDER_ID, ChannelError, ChannelRefused, ChatAddress
from ....core.fields import NonEmptyStr
from ....core.ids import new_id
from ....core.mail import LocalMessageRepository, NewLocalMessage
from ....core.model import Json, Sender
from ....core.owner import looks_like_owner
from ....core.rpc import ADMIN, READ, WRITE, Publish, RpcCall, RpcError, RpcEvent, RpcMethod, read_params
from ..inbox import run_id_of
from ..message_actions import message_view
from .channel import MEDIA_LIMIT, LocalChannel, LocalEvent

MAIN_CONVERSATION: Final = "main"
MAX_READ: Final = 500
MAX_FILES: Final = 10  # attachments of one message


class LocalSendParams(Struct, frozen=True, kw_only=True, rename="camel"):
    conversation: str = MAIN_CONVERSATION
    text: str = ""
    sender: Json | None = None
    """`{id, name?, username?}`: for whom the client speaks; without it, the owner, if its credential is the owner's."""
    attachments: Annotated[list[Json], Meta(max_length=MAX_FILES)] = []
    reply_to: str | None = None
    thread_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    mentioned: bool = False
    account_id: str = "default"
    idempotency_key: str | None = None


class LocalReadParams(Struct, frozen=True, kw_only=True, rename="camel"):
    conversation: str = MAIN_CONVERSATION
    limit: Annotated[int, Meta(ge=1, le=MAX_READ)] = 50
    before: str | None = None
    thread_id: str | None = None
    account_id: str = "default"


class LocalFileParams(Struct, frozen=True, kw_only=True, rename="camel"):
    message_id: NonEmptyStr
    conversation: str = MAIN_CONVERSATION
    account_id: str = "default"


class ConversationParams(Struct, frozen=True, kw_only=True, rename="camel"):
    conversation: str = MAIN_CONVERSATION
    account_id: str = "default"


def topic(account: str, conversation: str) -> str:
    return f"local:{account}:{conversation}"


class LocalMethods:
    """A `Room`. It makes the channel of each local account, so that it hears what happens in them."""

    def __init__(self, repository: LocalMessageRepository, publish: Publish) -> None:
        self._repository = repository
        self._publish = publish
        self._channels: dict[str, LocalChannel] = {}
        self._disconnects: dict[str, Callable[[], None]] = {}

    def create_channel(self, account: str, settings: Json, folder: Any) -> LocalChannel:
        """A `Maker`."""
        if account in self._disconnects:
            self._disconnects.pop(account)()
        channel = self._channels[account] = LocalChannel(self._repository, account=account)
        self._disconnects[account] = channel.events.connect(lambda news: self._publish_event(account, news))
        return channel

    def methods(self) -> Sequence[RpcMethod]:
        return (
            RpcMethod("local.send", WRITE, self._send),
            RpcMethod("local.read", READ, self._read),
            RpcMethod("local.file", READ, self._file),
            RpcMethod("local.conversations", READ, self._conversations),
            RpcMethod("local.subscribe", READ, self._subscribe),
            RpcMethod("local.unsubscribe", READ, self._unsubscribe),
        )

    def _channel(self, account: str) -> LocalChannel:
        channel = self._channels.get(account)
        if channel is None:
            raise RpcError(f"the local channel has no account {account}; see channels.status")
        return channel

    def _canonical_name(self, account: str, conversation: str) -> str:
        try:
            return self._channel(account).normalize_target(conversation)
        except ChannelRefused as exc:
            raise RpcError(str(exc)) from None

    async def _send(self, call: RpcCall) -> Json:
        asked = read_params(call.params, LocalSendParams, call.method)
        conversation = self._canonical_name(asked.account_id, asked.conversation)
        files = tuple(_parse_attachment(given) for given in asked.attachments)
        if not asked.text.strip() and not files:
            raise RpcError("text or attachment required")
        vouched = call.caller.is_owner
        sender = _parse_sender(asked.sender, vouched=vouched)
        note = NewLocalMessage(
            account=asked.account_id, conversation=conversation, sender=sender, text=asked.text, mine=False,
            key=f"{'in' if vouched else 'for'}:{sender.id}:{asked.idempotency_key or new_id()}",
            thread=asked.thread_id, reply_to=asked.reply_to, attachments=files,
        )  # fmt: skip
        try:
            heard = await self._channel(asked.account_id).receive(note, mentioned=asked.mentioned, vouched=vouched)
        except ChannelError as exc:
            raise RpcError(str(exc), kind="UNAVAILABLE", retryable=True) from None
        return {"conversation": conversation, "messageId": heard.id, "at": heard.at, "runId": run_id_of(heard)}

    async def _read(self, call: RpcCall) -> Json:
        asked = read_params(call.params, LocalReadParams, call.method)
        name = self._canonical_name(asked.account_id, asked.conversation)
        where = ChatAddress(channel="local", account=asked.account_id, to=name, thread=asked.thread_id)
        seen = await self._channel(asked.account_id).read(where, limit=asked.limit, before=asked.before)
        return {"conversation": name, "messages": [message_view(message) for message in seen]}

    async def _file(self, call: RpcCall) -> Json:
        asked = read_params(call.params, LocalFileParams, call.method)
        name = self._canonical_name(asked.account_id, asked.conversation)
        files = await self._repository.files(asked.account_id, name, asked.message_id)
        shaped = [
            {"name": f.name, "mimeType": f.mime_type, "url": f.url, "content": base64.b64encode(f.data or b"").decode()}
            for f in files
        ]
        return {"messageId": asked.message_id, "files": shaped}

    async def _conversations(self, call: RpcCall) -> Json:
        asked = read_params(call.params, ConversationParams, call.method)
        return {"conversations": list(await self._repository.conversations(asked.account_id, limit=MAX_READ))}

    async def _subscribe(self, call: RpcCall) -> Json:
        asked = read_params(call.params, ConversationParams, call.method)
        name = self._canonical_name(asked.account_id, asked.conversation)
        call.peer.subscriptions().add(topic(asked.account_id, name))
        return {"subscribed": True, "conversation": name}

    async def _unsubscribe(self, call: RpcCall) -> Json:
        asked = read_params(call.params, ConversationParams, call.method)
        call.peer.subscriptions().discard(
            topic(asked.account_id, self._canonical_name(asked.account_id, asked.conversation))
        )
        return {"subscribed": False}

    def _publish_event(self, account: str, event: LocalEvent) -> None:
        payload: Json = {"conversation": event.conversation, "accountId": account, "kind": event.kind}
        if event.message is not None:
            payload["message"] = message_view(event.message)
        if event.message_id is not None:
            payload["messageId"] = event.message_id
        if event.thread is not None:
            payload["threadId"] = event.thread
        if event.kind == "typing":
            payload["on"] = event.on
        self._publish(RpcEvent(name="local.message", payload=payload, topic=topic(account, event.conversation)))


def _parse_sender(params: Json | None, *, vouched: bool) -> Sender:
    """Whoever may write to the gateway may speak for others, and as the owner with the owner's credential alone."""
    if params is None:
        if not vouched:
            raise _owner_scope_error()
        return Sender(id=OWNER_SENDER_ID, name="owner")
    values = {name: params[name] for name in ("id", "name", "username", "e164") if isinstance(params.get(name), str)}
    if not values.get("id"):
        raise RpcError("invalid local.send params: at /sender/id: must be string")
    if not vouched and looks_like_owner(values["id"]):
        raise _owner_scope_error()
    return Sender(**values)


def _owner_scope_error() -> RpcError:
    words = "speaking as the owner needs operator.admin; give `sender` the id of the person you speak for"
    details = {"code": "MISSING_SCOPE", "missingScope": ADMIN, "requiredScopes": [ADMIN]}
    return RpcError(words, kind="FORBIDDEN", details=details)


def _parse_attachment(params: Json) -> Attachment:
    content, kind = params.get("content"), params.get("mimeType")
    if not isinstance(content, str) or not isinstance(kind, str):
        raise RpcError("an attachment has mimeType and content, its bytes in base64")
    try:
        data = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise RpcError("an attachment's content must be base64") from None
    if len(data) > MEDIA_LIMIT:
        raise RpcError(f"an attachment may hold {MEDIA_LIMIT} bytes")
    name = params.get("fileName") or params.get("name")
    return Attachment(mime_type=kind, name=name if isinstance(name, str) else None, data=data)
