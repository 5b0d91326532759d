"""RPC methods of the local channel: the person's side of every conversation, and its events."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct

from ....core.agent import Attachment
from ....core.channel import LOCAL_CHANNEL, OWNER_SENDER_ID, ChannelError, ChannelRefused, ChatAddress
from ....core.ids import new_id
from ....core.json_values import drop_none
from ....core.lenient import convert_lenient
from ....core.mail import LocalMessageRepository, NewLocalMessage
from ....core.model import Json, Sender
from ....core.owner import looks_like_owner
from ....core.rpc import ADMIN, READ, WRITE, Publish, RpcCall, RpcError, RpcEvent, RpcMethod, read_params
from ....core.sessions import QueueMode
from ..inbound_handler import run_id_for
from ..inbound_rules import MAIN_CONVERSATION
from ..message_actions import message_view
from .channel import MEDIA_LIMIT, LocalChannel, LocalEvent

MAX_READ: Final = 500
MAX_FILES: Final = 10  # attachments of one message


class ConversationParams(Struct, frozen=True, kw_only=True, rename="camel"):
    conversation: str = MAIN_CONVERSATION
    account_id: str = "default"


class LocalSendParams(ConversationParams, frozen=True, kw_only=True, rename="camel"):
    text: str = ""
    sender: Json | None = None
    """`{id, name?, username?}` of the person the client writes for; without it the owner, whose credential it needs."""
    attachments: Annotated[list[Json], Meta(max_length=MAX_FILES)] = []
    reply_to: str | None = None
    thread_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    mentioned: bool = False
    idempotency_key: str | None = None


class LocalAttachment(Struct, frozen=True, kw_only=True, rename="camel"):
    content: str | None = None
    mime_type: str | None = None
    file_name: str | None = None
    name: str | None = None


class LocalReadParams(ConversationParams, frozen=True, kw_only=True, rename="camel"):
    limit: Annotated[int, Meta(ge=1, le=MAX_READ)] = 50
    before: str | None = None
    thread_id: str | None = None


class LocalFileParams(ConversationParams, frozen=True, kw_only=True, rename="camel"):
    message_id: Annotated[str, Meta(min_length=1)]


def topic_of(account: str, conversation: str) -> str:
    return f"local:{account}:{conversation}"


class LocalMethods:
    """An `RpcModule`. It creates the channel of each local account, and publishes the channels' events.

    `queue_mode` is what a message does that comes while the agent works.
    """

    def __init__(
        self, repository: LocalMessageRepository, publish: Publish, *, queue_mode: Callable[[], QueueMode]
    ) -> None:
        self._repository = repository
        self._publish = publish
        self._queue_mode = queue_mode
        self._channels: dict[str, LocalChannel] = {}
        self._disconnects: dict[str, Callable[[], None]] = {}

    def create_channel(self, account: str, *_: object) -> LocalChannel:
        """A `ChannelFactory`."""
        if account in self._disconnects:
            self._disconnects.pop(account)()
        channel = self._channels[account] = LocalChannel(self._repository, account=account)
        self._disconnects[account] = channel.events.connect(lambda event: self._publish_event(account, event))
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

    def _find(self, params: ConversationParams) -> tuple[LocalChannel, str]:
        """The account's channel, and the conversation's name."""
        channel = self._channels.get(params.account_id)
        if channel is None:
            raise RpcError(f"the local channel has no account {params.account_id}; see channels.status")
        try:
            return channel, channel.normalize_target(params.conversation)
        except ChannelRefused as exc:
            raise RpcError(str(exc)) from None

    async def _send(self, call: RpcCall) -> dict[str, str | int]:
        params = read_params(call.params, LocalSendParams, call.method)
        channel, conversation = self._find(params)
        files = tuple(_read_attachment(convert_lenient(each, LocalAttachment)) for each in params.attachments)
        if not params.text.strip() and not files:
            raise RpcError("text or attachment required")
        vouched = call.caller.is_owner
        person = None if params.sender is None else convert_lenient(params.sender, Sender)
        sender = _authorize_sender(person, vouched=vouched)
        new = NewLocalMessage(
            account=params.account_id, conversation=conversation, sender=sender, text=params.text, mine=False,
            key=f"{'in' if vouched else 'for'}:{sender.id}:{params.idempotency_key or new_id()}",
            thread=params.thread_id, reply_to=params.reply_to, attachments=files,
        )  # fmt: skip
        try:
            message = await channel.receive(new, mentioned=params.mentioned, vouched=vouched)
        except ChannelError as exc:
            raise RpcError(str(exc), kind="UNAVAILABLE", retryable=True) from None
        return {
            "conversation": conversation, "messageId": message.id, "at": message.at,
            "runId": _run_id(params.account_id, message.id), "queueMode": self._queue_mode(),
        }  # fmt: skip

    async def _read(self, call: RpcCall) -> Json:
        params = read_params(call.params, LocalReadParams, call.method)
        channel, name = self._find(params)
        address = ChatAddress(channel=LOCAL_CHANNEL, account=params.account_id, to=name, thread=params.thread_id)
        found = await channel.read(address, limit=params.limit, before=params.before)
        return {"conversation": name, "messages": [message_view(message) for message in found]}

    async def _file(self, call: RpcCall) -> Json:
        params = read_params(call.params, LocalFileParams, call.method)
        _, name = self._find(params)
        files = await self._repository.files(params.account_id, name, params.message_id)
        views = [
            {"name": f.name, "mimeType": f.mime_type, "url": f.url, "content": base64.b64encode(f.data or b"").decode()}
            for f in files
        ]
        return {"messageId": params.message_id, "files": views}

    async def _conversations(self, call: RpcCall) -> Json:
        params = read_params(call.params, ConversationParams, call.method)
        return {"conversations": list(await self._repository.conversations(params.account_id, limit=MAX_READ))}

    async def _subscribe(self, call: RpcCall) -> dict[str, bool | str]:
        name, topic = self._find_topic(call)
        call.peer.subscriptions().add(topic)
        return {"subscribed": True, "conversation": name}

    async def _unsubscribe(self, call: RpcCall) -> dict[str, bool]:
        call.peer.subscriptions().discard(self._find_topic(call)[1])
        return {"subscribed": False}

    def _find_topic(self, call: RpcCall) -> tuple[str, str]:
        """The conversation's name, and the topic of its events."""
        params = read_params(call.params, ConversationParams, call.method)
        _, name = self._find(params)
        return name, topic_of(params.account_id, name)

    def _publish_event(self, account: str, event: LocalEvent) -> None:
        fields = {
            "conversation": event.conversation, "accountId": account, "kind": event.kind,
            "message": None if event.message is None else message_view(event.message),
            "messageId": event.message_id, "threadId": event.thread, "on": event.on if event.kind == "typing" else None,
        }  # fmt: skip
        if event.kind == "added" and event.message is not None and not event.message.mine:
            fields["runId"] = _run_id(account, event.message.id)
        topic = topic_of(account, event.conversation)
        self._publish(RpcEvent(name="local.message", payload=drop_none(fields), topic=topic))


def _run_id(account: str, message_id: str) -> str:
    return run_id_for(LOCAL_CHANNEL, account, message_id)


def _authorize_sender(sender: Sender | None, *, vouched: bool) -> Sender:
    """A client that may write to the gateway may write for others; as the owner only with the owner's credential."""
    if sender is not None and not sender.id:
        raise RpcError("invalid local.send params: at /sender/id: must be string")
    if not vouched and (sender is None or looks_like_owner(sender.id or "")):
        text = "speaking as the owner needs operator.admin; give `sender` the id of the person you speak for"
        details = {"code": "MISSING_SCOPE", "missingScope": ADMIN, "requiredScopes": [ADMIN]}
        raise RpcError(text, kind="FORBIDDEN", details=details)
    return sender or Sender(id=OWNER_SENDER_ID, name="owner")


def _read_attachment(params: LocalAttachment) -> Attachment:
    if params.content is None or params.mime_type is None:
        raise RpcError("an attachment has mimeType and content, its bytes in base64")
    try:
        data = base64.b64decode(params.content, validate=True)
    except (binascii.Error, ValueError):
        raise RpcError("an attachment's content must be base64") from None
    if len(data) > MEDIA_LIMIT:
        raise RpcError(f"an attachment may hold {MEDIA_LIMIT} bytes")
    return Attachment(mime_type=params.mime_type, name=params.file_name or params.name, data=data)
