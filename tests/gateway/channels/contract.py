"""What every channel promises. A channel's tests subclass `ChannelContract` and give it a fixture `harness`.

`harness` returns an async context manager that yields a `Harness`: the running channel (what it receives is in
`received`), a conversation both sides are in, and what the other person does and sees there. Tests of abilities the
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


class Harness(Protocol):
    """A channel and a second person."""

    channel: Channel
    address: ChatAddress
    """A conversation both are in."""
    elsewhere: ChatAddress
    """Another one."""
    received: "asyncio.Queue[InboundMessage]"
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


HarnessFactory = Callable[[], AbstractAsyncContextManager[Any]]


def key() -> str:
    return uuid.uuid4().hex


async def receive_next(harness: Harness) -> InboundMessage:
    async with asyncio.timeout(WAIT):
        return await harness.received.get()


async def files_of(harness: Harness, message: InboundMessage) -> Sequence[Attachment]:
    """As the inbox has them once the sender is allowed."""
    return (*message.attachments, *await fetch_attachments(harness.channel, message.files))


async def until(
    harness: Harness, fits: Callable[[Sequence[StoredMessage]], bool], address: ChatAddress | None = None
) -> Sequence[StoredMessage]:
    """What the person sees once it fits; a server may take a moment to show what it took."""
    async with asyncio.timeout(WAIT):
        while not fits(messages := await harness.sees(address)):  # noqa: ASYNC110  (another program's state)
            await asyncio.sleep(0.05)
    return messages


def one(messages: Sequence[StoredMessage], id: str) -> StoredMessage:
    return next(message for message in messages if message.id == id)


def has(id: str) -> Callable[[Sequence[StoredMessage]], bool]:
    return lambda messages: any(message.id == id for message in messages)


class ChannelContract:
    """The promises, one a test."""

    def run_scenario(self, harnesses: HarnessFactory, scenario: Callable[[Any], Any], *needed: str) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(WAIT * 4), harnesses() as harness:
                missing = set(needed) - harness.channel.abilities.can
                if missing:
                    pytest.skip(f"{harness.channel.name} does not claim to {', '.join(sorted(missing))}")
                await scenario(harness)

        asyncio.run(bounded())

    def test_its_abilities_make_sense(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            abilities = harness.channel.abilities
            assert "send" in abilities.can
            assert abilities.text_limit > 0
            assert ("attachment" in abilities.can) == bool(abilities.media and abilities.media_limit)
            assert harness.address.channel == harness.channel.name
            assert harness.address.account == harness.channel.account

        self.run_scenario(harness, scenario)

    def test_a_target_has_one_spelling(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            canonical = harness.channel.normalize_target(harness.address.to)
            assert canonical == harness.address.to
            assert harness.channel.normalize_target(f" {canonical} ") == canonical
            assert harness.channel.normalize_target(f"{harness.channel.name}:{canonical}") == canonical
            with pytest.raises(ChannelRefused, match=r"\w"):
                harness.channel.normalize_target("   ")

        self.run_scenario(harness, scenario)

    def test_its_status_says_that_it_is_connected(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            assert (await harness.channel.status())["connected"] is True

        self.run_scenario(harness, scenario)

    def test_what_a_person_writes_is_heard_once_with_who_and_where(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            id = await harness.say("good morning ☀️")
            message = await receive_next(harness)
            assert (message.id, message.text, message.address) == (id, "good morning ☀️", harness.address)
            assert message.sender.id
            assert message.at > 1_500_000_000_000
            assert message.chat in ("direct", "group", "channel")

        self.run_scenario(harness, scenario)

    def test_messages_are_heard_in_the_order_they_were_written(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            for number in range(10):
                await harness.say(f"number {number}")
            assert [(await receive_next(harness)).text for _ in range(10)] == [f"number {n}" for n in range(10)]
            assert harness.received.empty()

        self.run_scenario(harness, scenario)

    def test_our_own_messages_are_not_heard(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            await harness.channel.send(harness.address, OutboundMessage(text="ours"), key=key())
            await harness.say("theirs")
            assert (await receive_next(harness)).text == "theirs"

        self.run_scenario(harness, scenario)

    def test_what_is_sent_is_seen(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            receipt = await harness.channel.send(harness.address, OutboundMessage(text="hello, **you**"), key=key())
            assert receipt.at > 1_500_000_000_000
            message = one(await until(harness, has(receipt.message_id)), receipt.message_id)
            assert "hello" in message.text

        self.run_scenario(harness, scenario)

    def test_a_text_as_long_as_the_limit_is_taken_whole(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            text = "word " * (harness.channel.abilities.text_limit // 5)
            receipt = await harness.channel.send(harness.address, OutboundMessage(text=text.strip()), key=key())
            message = one(await until(harness, has(receipt.message_id)), receipt.message_id)
            assert message.text.split() == text.split()

        self.run_scenario(harness, scenario)

    def test_one_key_delivers_once_where_that_is_promised(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            if not harness.channel.abilities.once:
                pytest.skip(f"{harness.channel.name} may deliver twice after a crash, and says so")
            same = key()
            first = await harness.channel.send(harness.address, OutboundMessage(text="just once"), key=same)
            again = await harness.channel.send(harness.address, OutboundMessage(text="just once"), key=same)
            other = await harness.channel.send(harness.address, OutboundMessage(text="the end"), key=key())
            assert again.message_id == first.message_id
            messages = await until(harness, has(other.message_id))
            assert sum(message.text == "just once" for message in messages) == 1

        self.run_scenario(harness, scenario)

    def test_a_conversation_there_is_not_is_refused_for_good(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            nowhere = getattr(harness, "nowhere", None)
            if nowhere is None:
                pytest.skip(f"{harness.channel.name} makes conversations as they are named")
            with pytest.raises(ChannelRefused):
                await harness.channel.send(nowhere, OutboundMessage(text="anybody?"), key=key())

        self.run_scenario(harness, scenario)

    def test_a_reply_names_what_it_answers(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            question = await harness.say("what time is it?")
            await receive_next(harness)
            receipt = await harness.channel.send(
                harness.address, OutboundMessage(text="noon", reply_to=question), key=key()
            )
            assert one(await until(harness, has(receipt.message_id)), receipt.message_id).reply_to == question

        self.run_scenario(harness, scenario, "reply")

    def test_an_answer_to_us_counts_as_speaking_to_us(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            ours = await harness.channel.send(harness.address, OutboundMessage(text="a question"), key=key())
            await until(harness, has(ours.message_id))
            await harness.say("an answer", reply_to=ours.message_id)
            message = await receive_next(harness)
            assert (message.reply_to, message.mentioned) == (ours.message_id, True)

        self.run_scenario(harness, scenario, "reply")

    def test_a_thread_is_kept(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            thread = getattr(harness, "thread", None) or (await harness.say("the root"))
            address = ChatAddress(
                channel=harness.address.channel, account=harness.address.account, to=harness.address.to, thread=thread
            )
            receipt = await harness.channel.send(address, OutboundMessage(text="in the thread"), key=key())
            assert one(await until(harness, has(receipt.message_id)), receipt.message_id).thread == thread
            await harness.say("also in it", address=address)
            message = await receive_next(harness)
            while message.text != "also in it":
                message = await receive_next(harness)
            assert message.address.thread == thread

        self.run_scenario(harness, scenario, "thread")

    def test_two_conversations_do_not_mix(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            here = await harness.channel.send(harness.address, OutboundMessage(text="here"), key=key())
            there = await harness.channel.send(harness.elsewhere, OutboundMessage(text="there"), key=key())
            await until(harness, has(here.message_id))
            messages = await until(harness, has(there.message_id), harness.elsewhere)
            assert not any(message.text == "here" for message in messages)

        self.run_scenario(harness, scenario)

    def test_a_reaction_comes_and_goes(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            id = await harness.say("react to me")
            await receive_next(harness)

            def reacted(messages: Sequence[StoredMessage]) -> bool:
                return any(reaction.emoji == "👍" for reaction in one(messages, id).reactions)

            await harness.channel.react(harness.address, id, "👍")
            await until(harness, reacted)
            await harness.channel.react(harness.address, id, "👍", remove=True)
            await until(harness, lambda messages: not reacted(messages))

        self.run_scenario(harness, scenario, "react")

    def test_a_message_of_ours_can_be_taken_back(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            receipt = await harness.channel.send(harness.address, OutboundMessage(text="forget this"), key=key())
            await until(harness, has(receipt.message_id))
            await harness.channel.delete(harness.address, receipt.message_id)
            await until(harness, lambda messages: not any("forget this" in message.text for message in messages))

        self.run_scenario(harness, scenario, "delete")

    def test_an_edit_replaces_the_text(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            receipt = await harness.channel.send(harness.address, OutboundMessage(text="frist"), key=key())
            await until(harness, has(receipt.message_id))
            await harness.channel.edit(harness.address, receipt.message_id, "first")

            def edited(messages: Sequence[StoredMessage]) -> bool:
                message = one(messages, receipt.message_id)
                return message.text == "first" and message.edited

            assert not any(message.text == "frist" for message in await until(harness, edited))

        self.run_scenario(harness, scenario, "edit")

    def test_a_pin_comes_and_goes(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            receipt = await harness.channel.send(harness.address, OutboundMessage(text="keep in sight"), key=key())
            await until(harness, has(receipt.message_id))
            await harness.channel.pin(harness.address, receipt.message_id)
            await until(harness, lambda messages: one(messages, receipt.message_id).pinned)
            await harness.channel.pin(harness.address, receipt.message_id, remove=True)
            await until(harness, lambda messages: not one(messages, receipt.message_id).pinned)

        self.run_scenario(harness, scenario, "pin")

    def test_reading_gives_the_newest_oldest_first_and_pages_back(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            for number in range(5):
                await harness.say(f"line {number}")
                await receive_next(harness)
            ours = await harness.channel.send(harness.address, OutboundMessage(text="line 5"), key=key())
            await until(harness, has(ours.message_id))
            newest = await harness.channel.read(harness.address, limit=3)
            assert [message.text for message in newest] == ["line 3", "line 4", "line 5"]
            assert [message.mine for message in newest] == [False, False, True]
            before = await harness.channel.read(harness.address, limit=2, before=newest[0].id)
            assert [message.text for message in before] == ["line 1", "line 2"]

        self.run_scenario(harness, scenario, "read")

    def test_a_file_goes_out_whole(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            picture = Attachment(mime_type="image/png", name="dot.png", data=PIXEL)
            message = OutboundMessage(text="look", attachments=(picture,))
            receipt = await harness.channel.send(harness.address, message, key=key())
            stored = one(await until(harness, has(receipt.message_id)), receipt.message_id)
            assert stored.attachments[0].size == len(PIXEL)
            assert stored.attachments[0].mime_type.startswith("image/")

        self.run_scenario(harness, scenario, "attachment")

    def test_a_file_comes_in_whole(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            await harness.say(
                "what is this?", attachments=[Attachment(mime_type="image/png", name="a.png", data=PIXEL)]
            )
            message = await receive_next(harness)
            while not (files := await files_of(harness, message)):  # some carry text and file one after the other
                message = await receive_next(harness)
            assert (files[0].data, files[0].mime_type) == (PIXEL, "image/png")

        self.run_scenario(harness, scenario, "attachment")

    @pytest.mark.parametrize("kind", ["audio/a/b", "audio/ogg'; id; '", "audio/" + "a" * 300, "voice", "audio/$(id)"])
    def test_a_type_that_is_none_is_not_taken_from_a_sender(self, harness: HarnessFactory, kind: str) -> None:
        async def scenario(harness: Harness) -> None:
            file = Attachment(mime_type="audio/ogg", name="a.ogg", data=PIXEL)
            structs.force_setattr(file, "mime_type", kind)  # as a client of the sender's may write it
            await harness.say("listen", attachments=[file])
            message = await receive_next(harness)
            while not (files := await files_of(harness, message)):
                message = await receive_next(harness)
            assert [(file.data, file.mime_type) for file in files] == [(PIXEL, "application/octet-stream")]

        self.run_scenario(harness, scenario, "attachment")

    def test_an_effect_goes_along(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            message = OutboundMessage(text="hooray", effect=harness.effect)
            receipt = await harness.channel.send(harness.address, message, key=key())
            stored = one(await until(harness, has(receipt.message_id)), receipt.message_id)
            assert stored.extra.get("effect") == harness.effect

        self.run_scenario(harness, scenario, "effect")

    def test_a_poll_shows_its_question_and_options(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            poll = Poll(question="Lunch?", options=("soup", "salad"))
            receipt = await harness.channel.send_poll(harness.address, poll, key=key())
            message = one(await until(harness, has(receipt.message_id)), receipt.message_id)
            assert message.extra["poll"]["question"] == "Lunch?"
            assert list(message.extra["poll"]["options"]) == ["soup", "salad"]

        self.run_scenario(harness, scenario, "poll")

    def test_the_person_sees_us_type(self, harness: HarnessFactory) -> None:
        async def scenario(harness: Harness) -> None:
            await harness.channel.set_typing(harness.address, on=True)
            async with asyncio.timeout(WAIT):
                while not await harness.sees_typing():  # noqa: ASYNC110  (as above)
                    await asyncio.sleep(0.05)
            await harness.channel.set_typing(harness.address, on=False)

        self.run_scenario(harness, scenario, "typing")
