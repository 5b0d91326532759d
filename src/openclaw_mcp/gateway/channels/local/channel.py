"""The local channel: it can do everything, and its conversations come into being when somebody names them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ....core.agent import Attachment
from ....core.channel import (
    ChannelAbilities,
    ChannelError,
    ChannelRefused,
    ChatAddress,
    ChatKind,
    DeliveryReceipt,
    InboundMessage,
    OnMessage,
    OutboundMessage,
    StoredMessage,
)
from ....core.mail import LocalMessageRepository, NewLocalMessage
from ....core.model import Json, Sender
from ....core.sessions import now_ms
from ....core.signal import Signal

NAME: Final = "local"
TEXT_LIMIT: Final = 32_000  # characters: a screenful of screens; longer answers read better in parts
MEDIA_LIMIT: Final = 25 << 20  # bytes; the database holds them
MAX_NAME_LENGTH: Final = 200  # characters of a conversation's name
MAX_REPLAY: Final = 1000  # messages told again at a start: more than can be under way between two writes
REPLAY_WINDOW_MS: Final = 3600 * 1000  # how old they may be; an answer to older ones would surprise
REPLAY_TIMEOUT: Final = 30.0  # seconds that may take at a start
VOUCHED: Final = "vouched"
"""The mark of a message that came with the owner's credential; it stays with it, for when it is told again."""
AGENT: Final = Sender(id="agent", name="agent")
ABILITIES: Final = ChannelAbilities(
    can=frozenset(
        (
            "send", "reply", "thread", "broadcast", "react", "delete", "attachment", "effect", "pin", "read", "edit",
            "typing", "poll",
        )
    ),
    text_limit=TEXT_LIMIT,
    markup="markdown",
    media=("*/*",),
    media_limit=MEDIA_LIMIT,
    once=True,
)  # fmt: skip


class LocalEvent(Struct, frozen=True, kw_only=True):
    """Something happened in a conversation; whoever looks at it wants to know."""

    conversation: str
    kind: Literal["added", "changed", "removed", "typing"]
    message: StoredMessage | None = None
    message_id: str | None = None
    thread: str | None = None
    on: bool = False


def chat_kind(conversation: str) -> ChatKind:
    """A name that begins with `#` is a group's; every other is a talk between two."""
    return "group" if conversation.startswith("#") else "direct"


class LocalChannel:
    """A `Channel`. `say` is the person's side of it; `news` is what a person's screen shows."""

    name = NAME
    abilities = ABILITIES

    def __init__(self, repository: LocalMessageRepository, *, account: str = "default") -> None:
        self.account = account
        self.events: Signal[LocalEvent] = Signal()
        self._repository = repository
        self._on_message: OnMessage | None = None
        self._replay_done = asyncio.Event()

    def normalize_target(self, target: str) -> str:
        name = target.strip().removeprefix("local:").strip()
        if not name or len(name) > MAX_NAME_LENGTH or any(ord(letter) < 32 for letter in name):
            raise ChannelRefused(f"a local conversation's name has 1 to {MAX_NAME_LENGTH} visible characters")
        return name

    async def run(self, on_message: OnMessage) -> None:
        self._on_message = on_message
        try:
            await self._replay_recent(on_message)
            self._replay_done.set()
            await asyncio.get_running_loop().create_future()  # messages come in through `say`
        finally:
            self._on_message = None
            self._replay_done.clear()

    async def _replay_recent(self, on_message: OnMessage) -> None:
        """A crash may have come between a message's joining its conversation and our handing it over. The mailroom
        knows what it has heard."""
        since = now_ms() - REPLAY_WINDOW_MS
        for conversation, seen in await self._repository.list_recent(self.account, since=since, limit=MAX_REPLAY):
            files = await self._repository.files(self.account, conversation, seen.id) if seen.attachments else ()
            await on_message(await self._build_inbound(conversation, seen, tuple(files)))

    async def status(self) -> Json:
        return {"connected": self._on_message is not None}

    # ---- the agent's side ----------------------------------------------------------------------------------------

    async def send(self, address: ChatAddress, message: OutboundMessage, *, key: str) -> DeliveryReceipt:
        extra = dict(message.extra) | ({"effect": message.effect} if message.effect else {})
        return await self._add_message(address, message, key=key, extra=extra)

    async def send_poll(
        self, address: ChatAddress, question: str, options: Sequence[str], *, many: bool, key: str
    ) -> DeliveryReceipt:
        poll = {"question": question, "options": list(options), "many": many}
        text = "\n".join([question, *(f"{n}. {option}" for n, option in enumerate(options, 1))])
        return await self._add_message(address, OutboundMessage(text=text), key=key, extra={"poll": poll})

    async def _add_message(
        self, address: ChatAddress, message: OutboundMessage, *, key: str, extra: Json
    ) -> DeliveryReceipt:
        note = NewLocalMessage(
            account=self.account, conversation=address.to, sender=AGENT, text=message.text, mine=True,
            key=f"out:{key}", thread=address.thread, reply_to=message.reply_to, attachments=message.attachments,
            extra=extra,
        )  # fmt: skip
        seen, fresh = await self._repository.add(note)
        if fresh:
            self._emit_change(address, seen, "added")
        return DeliveryReceipt(message_id=seen.id, at=seen.at)

    async def react(self, address: ChatAddress, message_id: str, emoji: str, *, remove: bool = False) -> None:
        mark = {"emoji": emoji, "sender": AGENT.id}

        def marked(seen: StoredMessage) -> StoredMessage:
            others = tuple(reaction for reaction in seen.reactions if reaction != mark)
            return msgspec.structs.replace(seen, reactions=others if remove else (*others, mark))

        await self._change(address, message_id, marked)

    async def edit(self, address: ChatAddress, message_id: str, text: str) -> None:
        seen = await self._repository.get(self.account, address.to, message_id)
        if seen is not None and not seen.mine:
            raise ChannelRefused("only messages of our own can be edited")
        await self._change(address, message_id, lambda seen: msgspec.structs.replace(seen, text=text, edited=True))

    async def pin(self, address: ChatAddress, message_id: str, *, remove: bool = False) -> None:
        await self._change(address, message_id, lambda seen: msgspec.structs.replace(seen, pinned=not remove))

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
        """A person writes. Returns when the message is in the conversation and the mailroom has it, on disk.

        `vouched`: the credential of the client that hands it in is the owner's."""
        if self._on_message is None:
            raise ChannelError("the local channel is not running; enable channels.local, or try again in a moment")
        marks = {name: True for name, so in (("mentioned", mentioned), (VOUCHED, vouched)) if so}
        extra = {**message.extra, **marks}
        seen, fresh = await self._repository.add(msgspec.structs.replace(message, extra=extra))
        heard = await self._build_inbound(message.conversation, seen, message.attachments)
        if fresh:
            self._emit_change(heard.address, seen, "added")
        await self._deliver_in_order(heard)
        return heard

    async def _deliver_in_order(self, message: InboundMessage) -> None:
        """After those of before a crash; they were first."""
        try:
            async with asyncio.timeout(REPLAY_TIMEOUT):
                await self._replay_done.wait()
        except TimeoutError:
            raise ChannelError("the local channel is still taking up what it was told before; try again") from None
        if self._on_message is None:
            raise ChannelError("the local channel has just been stopped; send it again under the same key")
        await self._on_message(message)

    async def _build_inbound(
        self, conversation: str, message: StoredMessage, files: tuple[Attachment, ...]
    ) -> InboundMessage:
        answers_us = False
        if message.reply_to is not None:
            answered = await self._repository.get(self.account, conversation, message.reply_to)
            answers_us = answered is not None and answered.mine
        address = ChatAddress(channel=NAME, account=self.account, to=conversation, thread=message.thread)
        return InboundMessage(
            id=message.id,
            address=address,
            chat=chat_kind(conversation),
            sender=message.sender,
            text=message.text,
            at=message.at,
            attachments=files,
            reply_to=message.reply_to,
            mentioned=answers_us or message.extra.get("mentioned") is True,
            title=conversation,
            vouched=message.extra.get(VOUCHED) is True,
        )

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
