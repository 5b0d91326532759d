"""The local channel: it has every ability, and a conversation exists once it is named."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Literal, get_args

import msgspec
from msgspec import Struct

from ....core.agent import Attachment
from ....core.channel import (
    LOCAL_CHANNEL,
    Ability,
    ChannelAbilities,
    ChannelError,
    ChannelRefused,
    ChannelStatus,
    ChatAddress,
    ChatKind,
    DeliveryReceipt,
    InboundMessage,
    OnMessage,
    OutboundMessage,
    Poll,
    Reaction,
    StoredMessage,
)
from ....core.mail import LocalMessageRepository, NewLocalMessage
from ....core.model import Json, Sender
from ....core.sessions import now_ms
from ....core.signal import Signal

TEXT_LIMIT: Final = 32_000  # characters; longer answers read better in parts
MEDIA_LIMIT: Final = 25 << 20  # bytes; the database holds them
MAX_NAME_LENGTH: Final = 200  # characters of a conversation's name
MAX_REPLAY: Final = 1000  # messages delivered again at a start: more than can be in progress between two writes
REPLAY_WINDOW_MS: Final = 3600 * 1000  # milliseconds of their age; an answer to older ones would surprise
REPLAY_TIMEOUT: Final = 30.0  # seconds a new message waits for that
VOUCHED: Final = "vouched"
"""Stored in the `extra` of a message that came with the owner's credential, for when it is delivered again."""
AGENT_ID: Final = "agent"
AGENT: Final = Sender(id=AGENT_ID, name="agent")
ABILITIES: Final = ChannelAbilities(
    can=frozenset(get_args(Ability)),
    text_limit=TEXT_LIMIT,
    markup="markdown",
    media=("*/*",),
    media_limit=MEDIA_LIMIT,
    once=True,
)


class LocalEvent(Struct, frozen=True, kw_only=True):
    """A change in a conversation, for the clients that show it."""

    conversation: str
    kind: Literal["added", "changed", "removed", "typing"]
    message: StoredMessage | None = None
    message_id: str | None = None
    thread: str | None = None
    on: bool = False


def chat_kind(conversation: str) -> ChatKind:
    """A name that begins with `#` is a group's; every other is a direct chat."""
    return "group" if conversation.startswith("#") else "direct"


class _Receiver:
    """The running channel: where messages go, once those from before a crash are delivered."""

    def __init__(self, on_message: OnMessage) -> None:
        self.on_message = on_message
        self.ready = asyncio.Event()


class LocalChannel:
    """A `Channel`. `receive` and `events` are the person's side of it."""

    name = LOCAL_CHANNEL
    abilities = ABILITIES

    def __init__(self, repository: LocalMessageRepository, *, account: str = "default") -> None:
        self.account = account
        self.events: Signal[LocalEvent] = Signal()
        self._repository = repository
        self._receiver: _Receiver | None = None  # while `run` is running

    def normalize_target(self, target: str) -> str:
        name = target.strip().removeprefix("local:").strip()
        if not name or len(name) > MAX_NAME_LENGTH or any(ord(letter) < 32 for letter in name):
            raise ChannelRefused(f"a local conversation's name has 1 to {MAX_NAME_LENGTH} visible characters")
        return name

    async def run(self, on_message: OnMessage) -> None:
        receiver = self._receiver = _Receiver(on_message)
        try:
            await self._replay_recent(on_message)
            receiver.ready.set()
            await asyncio.get_running_loop().create_future()  # messages arrive through `receive`
        finally:
            self._receiver = None

    async def _replay_recent(self, on_message: OnMessage) -> None:
        """After a crash a message may be in its conversation and not delivered. The inbox ignores those it has."""
        since = now_ms() - REPLAY_WINDOW_MS
        for conversation, stored in await self._repository.list_recent(self.account, since=since, limit=MAX_REPLAY):
            files = await self._repository.files(self.account, conversation, stored.id) if stored.attachments else ()
            await on_message(await self._build_inbound(conversation, stored, tuple(files)))

    async def status(self) -> ChannelStatus:
        return {"connected": self._receiver is not None}

    # ---- the agent's side ----------------------------------------------------------------------------------------

    async def send(self, address: ChatAddress, message: OutboundMessage, *, key: str) -> DeliveryReceipt:
        extra = dict(message.extra) | ({"effect": message.effect} if message.effect else {})
        return await self._add_message(address, message, key=key, extra=extra)

    async def send_poll(self, address: ChatAddress, poll: Poll, *, key: str) -> DeliveryReceipt:
        extra = {"poll": msgspec.to_builtins(poll)}
        return await self._add_message(address, OutboundMessage(text=poll.text), key=key, extra=extra)

    async def _add_message(
        self, address: ChatAddress, message: OutboundMessage, *, key: str, extra: Json
    ) -> DeliveryReceipt:
        new = NewLocalMessage(
            account=self.account, conversation=address.to, sender=AGENT, text=message.text, mine=True,
            key=f"out:{key}", thread=address.thread, reply_to=message.reply_to, attachments=message.attachments,
            extra=extra,
        )  # fmt: skip
        stored, is_new = await self._repository.add(new)
        if is_new:
            self._emit_change(address, stored, "added")
        return DeliveryReceipt(message_id=stored.id, at=stored.at)

    async def react(self, address: ChatAddress, message_id: str, emoji: str, *, remove: bool = False) -> None:
        own = Reaction(emoji=emoji, sender=AGENT_ID)

        def change(message: StoredMessage) -> StoredMessage:
            others = tuple(reaction for reaction in message.reactions if reaction != own)
            return msgspec.structs.replace(message, reactions=others if remove else (*others, own))

        await self._change(address, message_id, change)

    async def edit(self, address: ChatAddress, message_id: str, text: str) -> None:
        stored = await self._repository.get(self.account, address.to, message_id)
        if stored is not None and not stored.mine:
            raise ChannelRefused("only messages of our own can be edited")
        await self._change(address, message_id, lambda old: msgspec.structs.replace(old, text=text, edited=True))

    async def pin(self, address: ChatAddress, message_id: str, *, remove: bool = False) -> None:
        await self._change(address, message_id, lambda old: msgspec.structs.replace(old, pinned=not remove))

    async def delete(self, address: ChatAddress, message_id: str) -> None:
        if not await self._repository.remove(self.account, address.to, message_id):
            raise _unknown_message_error(message_id)
        self.events.emit(LocalEvent(conversation=address.to, kind="removed", message_id=message_id))

    async def read(self, address: ChatAddress, *, limit: int, before: str | None = None) -> Sequence[StoredMessage]:
        return await self._repository.read(self.account, address.to, limit=limit, thread=address.thread, before=before)

    async def set_typing(self, address: ChatAddress, *, on: bool) -> None:
        self.events.emit(LocalEvent(conversation=address.to, kind="typing", thread=address.thread, on=on))

    # ---- the person's side ---------------------------------------------------------------------------------------

    async def receive(
        self, message: NewLocalMessage, *, mentioned: bool = False, vouched: bool = False
    ) -> InboundMessage:
        """A person writes. Returns when the message is in the conversation and in the inbox, on disk.

        `vouched`: the credential of the client that submits it is the owner's."""
        receiver = self._receiver
        if receiver is None:
            raise ChannelError("the local channel is not running; enable channels.local, or try again in a moment")
        flags = {name: True for name, is_set in (("mentioned", mentioned), (VOUCHED, vouched)) if is_set}
        extra = {**message.extra, **flags}
        stored, is_new = await self._repository.add(msgspec.structs.replace(message, extra=extra))
        inbound = await self._build_inbound(message.conversation, stored, message.attachments)
        if is_new:
            self._emit_change(inbound.address, stored, "added")
        await self._deliver(inbound, receiver)
        return inbound

    async def _deliver(self, message: InboundMessage, receiver: _Receiver) -> None:
        """After the messages from before a crash: they were first."""
        try:
            async with asyncio.timeout(REPLAY_TIMEOUT):
                await receiver.ready.wait()
        except TimeoutError:
            raise ChannelError("the local channel is still delivering earlier messages; try again") from None
        if self._receiver is not receiver:
            raise ChannelError("the local channel has just been stopped; send it again under the same key")
        await receiver.on_message(message)

    async def _build_inbound(
        self, conversation: str, message: StoredMessage, files: tuple[Attachment, ...]
    ) -> InboundMessage:
        answers_us = False
        if message.reply_to is not None:
            answered = await self._repository.get(self.account, conversation, message.reply_to)
            answers_us = answered is not None and answered.mine
        address = ChatAddress(channel=LOCAL_CHANNEL, account=self.account, to=conversation, thread=message.thread)
        return InboundMessage(
            id=message.id, address=address, chat=chat_kind(conversation), sender=message.sender, text=message.text,
            at=message.at, attachments=files, reply_to=message.reply_to, title=conversation,
            mentioned=answers_us or message.extra.get("mentioned") is True, vouched=message.extra.get(VOUCHED) is True,
        )  # fmt: skip

    # ---- both ----------------------------------------------------------------------------------------------------

    async def _change(
        self, address: ChatAddress, message_id: str, edit: Callable[[StoredMessage], StoredMessage]
    ) -> None:
        changed = await self._repository.change(self.account, address.to, message_id, edit)
        if changed is None:
            raise _unknown_message_error(message_id)
        self._emit_change(address, changed, "changed")

    def _emit_change(self, address: ChatAddress, message: StoredMessage, kind: Literal["added", "changed"]) -> None:
        self.events.emit(
            LocalEvent(
                conversation=address.to, kind=kind, message=message, message_id=message.id, thread=message.thread
            )
        )


def _unknown_message_error(message_id: str) -> ChannelRefused:
    return ChannelRefused(f"there is no message {message_id} in this conversation")
