"""What every channel promises. A channel's tests subclass `ChannelContract` and give it a fixture `world`.

`world` returns an async context manager that yields a `World`: the channel at work (its `run` goes, what it hears is
kept in `heard`), a conversation both sides are in, and the other person's eyes and hands in it. Tests of abilities the
channel does not declare are skipped.
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import pytest
from msgspec import structs

from openclaw_mcp.core.agent import Attachment
from openclaw_mcp.core.channel import (
    Channel,
    ChannelRefused,
    ChatAddress,
    InboundMessage,
    OutboundMessage,
    Poll,
    StoredMessage,
)
from openclaw_mcp.gateway.channels.attachments import fetch_attachments

WAIT = 30.0  # seconds; a real server far slower than ours is still in time
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001"
    "e221bc330000000049454e44ae426082"
)


class World(Protocol):
    """A channel and a second person."""

    channel: Channel
    address: ChatAddress
    """A conversation both are in."""
    elsewhere: ChatAddress
    """Another one."""
    heard: "asyncio.Queue[InboundMessage]"
    """What the channel handed over, in order."""
    effect: str | None
    """An effect this channel knows."""

    async def say(
        self, text: str, *, attachments: Sequence[Attachment] = (), reply_to: str | None = None,
        address: ChatAddress | None = None,
    ) -> str:  # fmt: skip
        """The person writes; the message's id as the channel tells it."""

    async def sees(self, address: ChatAddress | None = None) -> Sequence[StoredMessage]:
        """What the person sees there, oldest first."""

    async def sees_typing(self) -> bool:
        """Whether the person sees, or has seen, us type."""


Worlds = Callable[[], AbstractAsyncContextManager[Any]]


def key() -> str:
    return uuid.uuid4().hex


async def heard(world: World) -> InboundMessage:
    async with asyncio.timeout(WAIT):
        return await world.heard.get()


async def files_of(world: World, message: InboundMessage) -> Sequence[Attachment]:
    """As the mailroom has them once it let the sender in."""
    return (*message.attachments, *await fetch_attachments(world.channel, message.files))


async def until(
    world: World, fits: Callable[[Sequence[StoredMessage]], bool], address: ChatAddress | None = None
) -> Sequence[StoredMessage]:
    """What the person sees once it fits; a server may take a moment to show what it took."""
    async with asyncio.timeout(WAIT):
        while not fits(seen := await world.sees(address)):  # noqa: ASYNC110  (another program's state)
            await asyncio.sleep(0.05)
    return seen


def one(seen: Sequence[StoredMessage], id: str) -> StoredMessage:
    return next(message for message in seen if message.id == id)


def has(id: str) -> Callable[[Sequence[StoredMessage]], bool]:
    return lambda seen: any(message.id == id for message in seen)


class ChannelContract:
    """The promises, one a test."""

    def told(self, worlds: Worlds, story: Callable[[Any], Any], *needed: str) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(WAIT * 4), worlds() as world:
                missing = set(needed) - world.channel.abilities.can
                if missing:
                    pytest.skip(f"{world.channel.name} does not claim to {', '.join(sorted(missing))}")
                await story(world)

        asyncio.run(bounded())

    def test_its_abilities_make_sense(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            abilities = world.channel.abilities
            assert "send" in abilities.can
            assert abilities.text_limit > 0
            assert ("attachment" in abilities.can) == bool(abilities.media and abilities.media_limit)
            assert world.address.channel == world.channel.name
            assert world.address.account == world.channel.account

        self.told(world, story)

    def test_a_target_has_one_spelling(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            canonical = world.channel.normalize_target(world.address.to)
            assert canonical == world.address.to
            assert world.channel.normalize_target(f" {canonical} ") == canonical
            assert world.channel.normalize_target(f"{world.channel.name}:{canonical}") == canonical
            with pytest.raises(ChannelRefused, match=r"\w"):
                world.channel.normalize_target("   ")

        self.told(world, story)

    def test_its_status_says_that_it_is_connected(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            assert (await world.channel.status())["connected"] is True

        self.told(world, story)

    def test_what_a_person_writes_is_heard_once_with_who_and_where(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            id = await world.say("good morning ☀️")
            message = await heard(world)
            assert (message.id, message.text, message.address) == (id, "good morning ☀️", world.address)
            assert message.sender.id
            assert message.at > 1_500_000_000_000
            assert message.chat in ("direct", "group", "channel")

        self.told(world, story)

    def test_messages_are_heard_in_the_order_they_were_written(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            for number in range(10):
                await world.say(f"number {number}")
            assert [(await heard(world)).text for _ in range(10)] == [f"number {n}" for n in range(10)]
            assert world.heard.empty()

        self.told(world, story)

    def test_our_own_messages_are_not_heard(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            await world.channel.send(world.address, OutboundMessage(text="ours"), key=key())
            await world.say("theirs")
            assert (await heard(world)).text == "theirs"

        self.told(world, story)

    def test_what_is_sent_is_seen(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            receipt = await world.channel.send(world.address, OutboundMessage(text="hello, **you**"), key=key())
            assert receipt.at > 1_500_000_000_000
            seen = one(await until(world, has(receipt.message_id)), receipt.message_id)
            assert "hello" in seen.text

        self.told(world, story)

    def test_a_text_as_long_as_the_limit_is_taken_whole(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            text = "word " * (world.channel.abilities.text_limit // 5)
            receipt = await world.channel.send(world.address, OutboundMessage(text=text.strip()), key=key())
            seen = one(await until(world, has(receipt.message_id)), receipt.message_id)
            assert seen.text.split() == text.split()

        self.told(world, story)

    def test_one_key_delivers_once_where_that_is_promised(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            if not world.channel.abilities.once:
                pytest.skip(f"{world.channel.name} may deliver twice after a crash, and says so")
            same = key()
            first = await world.channel.send(world.address, OutboundMessage(text="just once"), key=same)
            again = await world.channel.send(world.address, OutboundMessage(text="just once"), key=same)
            other = await world.channel.send(world.address, OutboundMessage(text="the end"), key=key())
            assert again.message_id == first.message_id
            seen = await until(world, has(other.message_id))
            assert sum(message.text == "just once" for message in seen) == 1

        self.told(world, story)

    def test_a_conversation_there_is_not_is_refused_for_good(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            nowhere = getattr(world, "nowhere", None)
            if nowhere is None:
                pytest.skip(f"{world.channel.name} makes conversations as they are named")
            with pytest.raises(ChannelRefused):
                await world.channel.send(nowhere, OutboundMessage(text="anybody?"), key=key())

        self.told(world, story)

    def test_a_reply_names_what_it_answers(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            asked = await world.say("what time is it?")
            await heard(world)
            receipt = await world.channel.send(world.address, OutboundMessage(text="noon", reply_to=asked), key=key())
            assert one(await until(world, has(receipt.message_id)), receipt.message_id).reply_to == asked

        self.told(world, story, "reply")

    def test_an_answer_to_us_counts_as_speaking_to_us(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            ours = await world.channel.send(world.address, OutboundMessage(text="a question"), key=key())
            await until(world, has(ours.message_id))
            await world.say("an answer", reply_to=ours.message_id)
            message = await heard(world)
            assert (message.reply_to, message.mentioned) == (ours.message_id, True)

        self.told(world, story, "reply")

    def test_a_thread_is_kept(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            thread = getattr(world, "thread", None) or (await world.say("the root"))
            address = ChatAddress(
                channel=world.address.channel, account=world.address.account, to=world.address.to, thread=thread
            )
            receipt = await world.channel.send(address, OutboundMessage(text="in the thread"), key=key())
            assert one(await until(world, has(receipt.message_id)), receipt.message_id).thread == thread
            await world.say("also in it", address=address)
            message = await heard(world)
            while message.text != "also in it":
                message = await heard(world)
            assert message.address.thread == thread

        self.told(world, story, "thread")

    def test_two_conversations_do_not_mix(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            here = await world.channel.send(world.address, OutboundMessage(text="here"), key=key())
            there = await world.channel.send(world.elsewhere, OutboundMessage(text="there"), key=key())
            await until(world, has(here.message_id))
            seen = await until(world, has(there.message_id), world.elsewhere)
            assert not any(message.text == "here" for message in seen)

        self.told(world, story)

    def test_a_reaction_comes_and_goes(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            id = await world.say("react to me")
            await heard(world)

            def reacted(seen: Sequence[StoredMessage]) -> bool:
                return any(reaction["emoji"] == "👍" for reaction in one(seen, id).reactions)

            await world.channel.react(world.address, id, "👍")
            await until(world, reacted)
            await world.channel.react(world.address, id, "👍", remove=True)
            await until(world, lambda seen: not reacted(seen))

        self.told(world, story, "react")

    def test_a_message_of_ours_can_be_taken_back(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            receipt = await world.channel.send(world.address, OutboundMessage(text="forget this"), key=key())
            await until(world, has(receipt.message_id))
            await world.channel.delete(world.address, receipt.message_id)
            await until(world, lambda seen: not any("forget this" in message.text for message in seen))

        self.told(world, story, "delete")

    def test_an_edit_replaces_the_text(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            receipt = await world.channel.send(world.address, OutboundMessage(text="frist"), key=key())
            await until(world, has(receipt.message_id))
            await world.channel.edit(world.address, receipt.message_id, "first")

            def edited(seen: Sequence[StoredMessage]) -> bool:
                message = one(seen, receipt.message_id)
                return message.text == "first" and message.edited

            assert not any(message.text == "frist" for message in await until(world, edited))

        self.told(world, story, "edit")

    def test_a_pin_comes_and_goes(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            receipt = await world.channel.send(world.address, OutboundMessage(text="keep in sight"), key=key())
            await until(world, has(receipt.message_id))
            await world.channel.pin(world.address, receipt.message_id)
            await until(world, lambda seen: one(seen, receipt.message_id).pinned)
            await world.channel.pin(world.address, receipt.message_id, remove=True)
            await until(world, lambda seen: not one(seen, receipt.message_id).pinned)

        self.told(world, story, "pin")

    def test_reading_gives_the_newest_oldest_first_and_pages_back(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            for number in range(5):
                await world.say(f"line {number}")
                await heard(world)
            ours = await world.channel.send(world.address, OutboundMessage(text="line 5"), key=key())
            await until(world, has(ours.message_id))
            newest = await world.channel.read(world.address, limit=3)
            assert [message.text for message in newest] == ["line 3", "line 4", "line 5"]
            assert [message.mine for message in newest] == [False, False, True]
            before = await world.channel.read(world.address, limit=2, before=newest[0].id)
            assert [message.text for message in before] == ["line 1", "line 2"]

        self.told(world, story, "read")

    def test_a_file_goes_out_whole(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            picture = Attachment(mime_type="image/png", name="dot.png", data=PIXEL)
            letter = OutboundMessage(text="look", attachments=(picture,))
            receipt = await world.channel.send(world.address, letter, key=key())
            shown = one(await until(world, has(receipt.message_id)), receipt.message_id)
            assert shown.attachments[0]["size"] == len(PIXEL)
            assert shown.attachments[0]["mimeType"].startswith("image/")

        self.told(world, story, "attachment")

    def test_a_file_comes_in_whole(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            await world.say("what is this?", attachments=[Attachment(mime_type="image/png", name="a.png", data=PIXEL)])
            message = await heard(world)
            while not (files := await files_of(world, message)):  # some carry text and file one after the other
                message = await heard(world)
            assert (files[0].data, files[0].mime_type) == (PIXEL, "image/png")

        self.told(world, story, "attachment")

    @pytest.mark.parametrize("kind", ["audio/a/b", "audio/ogg'; id; '", "audio/" + "a" * 300, "voice", "audio/$(id)"])
    def test_a_type_that_is_none_is_not_taken_from_a_sender(self, world: Worlds, kind: str) -> None:
        async def story(world: World) -> None:
            file = Attachment(mime_type="audio/ogg", name="a.ogg", data=PIXEL)
            structs.force_setattr(file, "mime_type", kind)  # as a client of the sender's may write it
            await world.say("listen", attachments=[file])
            message = await heard(world)
            while not (files := await files_of(world, message)):
                message = await heard(world)
            assert [(file.data, file.mime_type) for file in files] == [(PIXEL, "application/octet-stream")]

        self.told(world, story, "attachment")

    def test_an_effect_goes_along(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            letter = OutboundMessage(text="hooray", effect=world.effect)
            receipt = await world.channel.send(world.address, letter, key=key())
            shown = one(await until(world, has(receipt.message_id)), receipt.message_id)
            assert shown.extra.get("effect") == world.effect

        self.told(world, story, "effect")

    def test_a_poll_shows_its_question_and_options(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            poll = Poll(question="Lunch?", options=("soup", "salad"))
            receipt = await world.channel.send_poll(world.address, poll, key=key())
            shown = one(await until(world, has(receipt.message_id)), receipt.message_id)
            assert shown.extra["poll"]["question"] == "Lunch?"
            assert list(shown.extra["poll"]["options"]) == ["soup", "salad"]

        self.told(world, story, "poll")

    def test_the_person_sees_us_type(self, world: Worlds) -> None:
        async def story(world: World) -> None:
            await world.channel.set_typing(world.address, on=True)
            async with asyncio.timeout(WAIT):
                while not await world.sees_typing():  # noqa: ASYNC110  (as above)
                    await asyncio.sleep(0.05)
            await world.channel.set_typing(world.address, on=False)

        self.told(world, story, "typing")
