"""The local channel: it can do everything, and its conversations come into being when somebody names them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ....core.agent import Attachment
from ....core.channel import (
    Abilities,
    Address,
    ChannelError,
    ChannelRefused,
    ChatKind,
    Hear,
    Heard,
    Letter,
    Receipt,
    Seen,
)
from ....core.mail import LocalBook, LocalNote
from ....core.model import Json, Sender
from ....core.sessions import now_ms
from ....core.signal import Bell

NAME: Final = "local"
TEXT_LIMIT: Final = 32_000  # characters: a screenful of screens; longer answers read better in parts
MEDIA_LIMIT: Final = 25 << 20  # bytes; the database holds them
LONGEST_NAME: Final = 200  # characters of a conversation's name
TOLD_AGAIN: Final = 1000  # messages told again at a start: more than can be under way between two writes
TOLD_AGAIN_MS: Final = 3600 * 1000  # how old they may be; an answer to older ones would surprise
CATCH_UP: Final = 30.0  # seconds that may take at a start
VOUCHED: Final = "vouched"
"""The mark of a message that came with the owner's credential; it stays with it, for when it is told again."""
AGENT: Final = Sender(id="agent", name="agent")
ABILITIES: Final = Abilities(
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


class LocalNews(Struct, frozen=True, kw_only=True):
    """Something happened in a conversation; whoever looks at it wants to know."""

    conversation: str
    kind: Literal["added", "changed", "removed", "typing"]
    message: Seen | None = None
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

    def __init__(self, book: LocalBook, *, account: str = "default") -> None:
        self.account = account
        self.news: Bell[LocalNews] = Bell()
        self._book = book
        self._hear: Hear | None = None
        self._caught_up = asyncio.Event()

    def canonical(self, target: str) -> str:
        name = target.strip().removeprefix("local:").strip()
        if not name or len(name) > LONGEST_NAME or any(ord(letter) < 32 for letter in name):
            raise ChannelRefused(f"a local conversation's name has 1 to {LONGEST_NAME} visible characters")
        return name

    async def run(self, hear: Hear) -> None:
        self._hear = hear
        try:
            await self._tell_again(hear)
            self._caught_up.set()
            await asyncio.get_running_loop().create_future()  # messages come in through `say`
        finally:
            self._hear = None
            self._caught_up.clear()

    async def _tell_again(self, hear: Hear) -> None:
        """A crash may have come between a message's joining its conversation and our handing it over. The mailroom
        knows what it has heard."""
        since = now_ms() - TOLD_AGAIN_MS
        for conversation, seen in await self._book.lately(self.account, since=since, limit=TOLD_AGAIN):
            files = await self._book.files(self.account, conversation, seen.id) if seen.attachments else ()
            await hear(await self._heard(conversation, seen, tuple(files)))

    async def status(self) -> Json:
        return {"connected": self._hear is not None}

    # ---- the agent's side ----------------------------------------------------------------------------------------

    async def send(self, address: Address, letter: Letter, *, key: str) -> Receipt:
        extra = dict(letter.extra) | ({"effect": letter.effect} if letter.effect else {})
        return await self._put(address, letter, key=key, extra=extra)

    async def poll(self, address: Address, question: str, options: Sequence[str], *, many: bool, key: str) -> Receipt:
        poll = {"question": question, "options": list(options), "many": many}
        text = "\n".join([question, *(f"{n}. {option}" for n, option in enumerate(options, 1))])
        return await self._put(address, Letter(text=text), key=key, extra={"poll": poll})

    async def _put(self, address: Address, letter: Letter, *, key: str, extra: Json) -> Receipt:
        note = LocalNote(
            account=self.account, conversation=address.to, sender=AGENT, text=letter.text, mine=True,
            key=f"out:{key}", thread=address.thread, reply_to=letter.reply_to, attachments=letter.attachments,
            extra=extra,
        )  # fmt: skip
        seen, fresh = await self._book.add(note)
        if fresh:
            self._tell(address, seen, "added")
        return Receipt(message_id=seen.id, at=seen.at)

    async def react(self, address: Address, message_id: str, emoji: str, *, remove: bool = False) -> None:
        mark = {"emoji": emoji, "sender": AGENT.id}

        def marked(seen: Seen) -> Seen:
            others = tuple(reaction for reaction in seen.reactions if reaction != mark)
            return msgspec.structs.replace(seen, reactions=others if remove else (*others, mark))

        await self._change(address, message_id, marked)

    async def edit(self, address: Address, message_id: str, text: str) -> None:
        seen = await self._book.get(self.account, address.to, message_id)
        if seen is not None and not seen.mine:
            raise ChannelRefused("only messages of our own can be edited")
        await self._change(address, message_id, lambda seen: msgspec.structs.replace(seen, text=text, edited=True))

    async def pin(self, address: Address, message_id: str, *, remove: bool = False) -> None:
        await self._change(address, message_id, lambda seen: msgspec.structs.replace(seen, pinned=not remove))

    async def delete(self, address: Address, message_id: str) -> None:
        if not await self._book.remove(self.account, address.to, message_id):
            raise _unknown(message_id)
        self.news.ring(LocalNews(conversation=address.to, kind="removed", message_id=message_id))

    async def read(self, address: Address, *, limit: int, before: str | None = None) -> Sequence[Seen]:
        return await self._book.read(self.account, address.to, limit=limit, thread=address.thread, before=before)

    async def typing(self, address: Address, *, on: bool) -> None:
        self.news.ring(LocalNews(conversation=address.to, kind="typing", thread=address.thread, on=on))

    # ---- the person's side ---------------------------------------------------------------------------------------

    async def say(self, note: LocalNote, *, mentioned: bool = False, vouched: bool = False) -> Heard:
        """A person writes. Returns when the message is in the conversation and the mailroom has it, on disk.

        `vouched`: the credential of the client that hands it in is the owner's."""
        if self._hear is None:
            raise ChannelError("the local channel is not running; enable channels.local, or try again in a moment")
        marks = {name: True for name, so in (("mentioned", mentioned), (VOUCHED, vouched)) if so}
        extra = {**note.extra, **marks}
        seen, fresh = await self._book.add(msgspec.structs.replace(note, extra=extra))
        heard = await self._heard(note.conversation, seen, note.attachments)
        if fresh:
            self._tell(heard.address, seen, "added")
        await self._in_turn(heard)
        return heard

    async def _in_turn(self, heard: Heard) -> None:
        """After those of before a crash; they were first."""
        try:
            async with asyncio.timeout(CATCH_UP):
                await self._caught_up.wait()
        except TimeoutError:
            raise ChannelError("the local channel is still taking up what it was told before; try again") from None
        if self._hear is None:
            raise ChannelError("the local channel has just been stopped; send it again under the same key")
        await self._hear(heard)

    async def _heard(self, conversation: str, seen: Seen, files: tuple[Attachment, ...]) -> Heard:
        answers_us = False
        if seen.reply_to is not None:
            answered = await self._book.get(self.account, conversation, seen.reply_to)
            answers_us = answered is not None and answered.mine
        address = Address(channel=NAME, account=self.account, to=conversation, thread=seen.thread)
        return Heard(
            id=seen.id, address=address, chat=chat_kind(conversation), sender=seen.sender, text=seen.text, at=seen.at,
            attachments=files, reply_to=seen.reply_to, mentioned=answers_us or seen.extra.get("mentioned") is True,
            title=conversation, vouched=seen.extra.get(VOUCHED) is True,
        )  # fmt: skip

    # ---- both ----------------------------------------------------------------------------------------------------

    async def _change(self, address: Address, message_id: str, edit: Callable[[Seen], Seen]) -> None:
        changed = await self._book.change(self.account, address.to, message_id, edit)
        if changed is None:
            raise _unknown(message_id)
        self._tell(address, changed, "changed")

    def _tell(self, address: Address, seen: Seen, kind: Literal["added", "changed"]) -> None:
        self.news.ring(
            LocalNews(conversation=address.to, kind=kind, message=seen, message_id=seen.id, thread=seen.thread)
        )


def _unknown(message_id: str) -> ChannelRefused:
    return ChannelRefused(f"there is no message {message_id} in this conversation")
