"""The local channel keeps what every channel promises, and its conversations survive."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from openclaw_mcp.core.agent import Attachment
from openclaw_mcp.core.channel import (
    ChannelError,
    ChannelRefused,
    ChatAddress,
    InboundMessage,
    OutboundMessage,
    StoredMessage,
)
from openclaw_mcp.core.mail import NewLocalMessage
from openclaw_mcp.core.model import Sender
from openclaw_mcp.gateway.channels.local.channel import LocalChannel, LocalEvent
from openclaw_mcp.store.local_messages import SqlLocalMessageRepository
from openclaw_mcp.store.store import open_store

from .contract import ChannelContract, HarnessFactory, key

ANN = Sender(id="ann", name="Ann")


class LocalHarness:
    effect = "confetti"

    def __init__(self, channel: LocalChannel) -> None:
        self.channel = channel
        self.address = ChatAddress(channel="local", account="default", to="kitchen")
        self.elsewhere = ChatAddress(channel="local", account="default", to="garden")
        self.received: asyncio.Queue[InboundMessage] = asyncio.Queue()
        self.typed: list[LocalEvent] = []
        channel.events.connect(lambda news: self.typed.append(news) if news.kind == "typing" else None)

    async def say(
        self, text: str, *, attachments: Sequence[Attachment] = (), reply_to: str | None = None,
        address: ChatAddress | None = None,
    ) -> str:  # fmt: skip
        place = address or self.address
        note = NewLocalMessage(
            account="default", conversation=place.to, sender=ANN, text=text, mine=False, key=key(),
            thread=place.thread, reply_to=reply_to, attachments=tuple(attachments),
        )  # fmt: skip
        return (await self.channel.receive(note)).id

    async def sees(self, address: ChatAddress | None = None) -> Sequence[StoredMessage]:
        return await self.channel.read(address or self.address, limit=100)

    async def sees_typing(self) -> bool:
        return any(news.on for news in self.typed)


@asynccontextmanager
async def local_harness(where: str) -> AsyncIterator[LocalHarness]:
    async with open_store(where) as store:
        harness = LocalHarness(LocalChannel(SqlLocalMessageRepository(store)))
        running = asyncio.create_task(harness.channel.run(harness.received.put))
        await asyncio.sleep(0)
        assert harness.channel._receiver is not None
        await harness.channel._receiver.ready.wait()  # a message sent before that would be delivered twice
        try:
            yield harness
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
def harness(tmp_path: Path) -> HarnessFactory:
    return lambda: local_harness(str(tmp_path / "openclaw.sqlite"))


class TestLocal(ChannelContract):
    """Every promise of the contract."""

    lacks = (
        "test_a_conversation_there_is_not_is_refused_for_good",
        "test_a_type_that_is_none_is_not_taken_from_a_sender",  # it is `local.send` that reads a client's words
    )


def test_conversations_are_there_after_reopening(harness: HarnessFactory) -> None:
    async def scenario() -> None:
        async with harness() as first:
            await first.say("kept", attachments=[Attachment(mime_type="text/plain", name="a.txt", data=b"abc")])
        async with harness() as again:
            (message,) = await again.sees()
            assert (message.text, message.sender.id, message.attachments[0].size) == ("kept", "ann", 3)

    asyncio.run(scenario())


def test_a_message_is_refused_while_no_channel_listens(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_store(str(tmp_path / "db.sqlite")) as store:
            channel = LocalChannel(SqlLocalMessageRepository(store))
            note = NewLocalMessage(account="default", conversation="c", sender=ANN, text="hi", mine=False, key="k")
            with pytest.raises(ChannelError, match="not running"):
                await channel.receive(note)
            assert await channel.read(ChatAddress(channel="local", account="default", to="c"), limit=1) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["", " ", "x" * 300, "a\nb"])
def test_an_unreadable_name_is_refused(name: str, harness: HarnessFactory) -> None:
    async def scenario() -> None:
        async with harness() as here:
            with pytest.raises(ChannelRefused, match="visible characters"):
                here.channel.normalize_target(name)

    asyncio.run(scenario())


def test_only_our_own_messages_can_be_edited_and_an_unknown_one_is_named(harness: HarnessFactory) -> None:
    async def scenario() -> None:
        async with harness() as here:
            theirs = await here.say("mine")
            with pytest.raises(ChannelRefused, match="our own"):
                await here.channel.edit(here.address, theirs, "changed")
            sent = await here.channel.send(here.address, OutboundMessage(text="x"), key="k")
            with pytest.raises(ChannelRefused, match="no message"):
                await here.channel.pin(here.elsewhere, sent.message_id)

    asyncio.run(scenario())
