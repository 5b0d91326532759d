"""Messages out: on disk first, in order, tried again, delivered once, taken up after a crash, bounded."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.channel import (
    ChannelBusy,
    ChannelError,
    ChannelRefused,
    ChatAddress,
    DeliveryReceipt,
    OutboundMessage,
)
from openclaw_mcp.core.config.config import read_config
from openclaw_mcp.core.mail import NewOutboxMessage, OutboxMessage
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.gateway.channels import outbox
from openclaw_mcp.gateway.channels.accounts import ChannelAccounts
from openclaw_mcp.store import messages as mail_book
from openclaw_mcp.store.messages import SqlOutbox
from openclaw_mcp.store.store import open_store

from .gateways import WAIT, Twin, open_channels, within


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "RETRY_DELAYS", (0.01, 0.02, 0.02, 0.02))


def test_it_is_on_disk_before_the_channel_hears_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            here.twin.gate = asyncio.Event()
            posted = await here.service.post(here.at("ann"), OutboundMessage(text="hi"), key="k")
            assert posted.status == "queued"
            await asyncio.wait_for(here.twin.entered.wait(), WAIT)
            stored = await here.books.outbox.get(posted.id)
            assert stored is not None
            assert (stored.status, stored.parts[0].text) == ("queued", "hi")
            here.twin.gate.set()
            again = await here.service.post(here.at("ann"), OutboundMessage(text="hi"), key="k", wait=WAIT)
            assert (again.id, again.status, again.receipts[0].message_id) == (posted.id, "sent", "1")
            assert here.twin.taken == [("ann", "hi")]

    within(scenario())


def test_one_key_is_one_message_and_belongs_to_one_conversation(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            first = await here.service.post(here.at("ann"), OutboundMessage(text="one"), key="k", wait=WAIT)
            second = await here.service.post(here.at("ann"), OutboundMessage(text="other words"), key="k", wait=WAIT)
            assert first == second
            with pytest.raises(ChannelRefused, match="another conversation"):
                await here.service.post(here.at("bob"), OutboundMessage(text="one"), key="k")
        async with open_channels(tmp_path) as again:
            assert await again.service.post(again.at("ann"), OutboundMessage(text="one"), key="k", wait=WAIT) == first
            assert again.twin.taken == []

    within(scenario())


def test_a_failure_is_tried_again_and_nothing_overtakes_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            here.twin.script = [ChannelError("no network"), ChannelError("no network")]
            for number in range(3):
                await here.service.post(here.at("ann"), OutboundMessage(text=str(number)), key=f"k{number}")
            assert await here.twin.has(3) == [("ann", "0"), ("ann", "1"), ("ann", "2")]
            assert len(set(here.twin.keys)) == 3  # every attempt of a message has the same key

    within(scenario())


def test_one_conversations_trouble_is_not_anothers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            here.twin.script = [ChannelError("no network")] * 3
            await here.service.post(here.at("ann"), OutboundMessage(text="a"), key="a")
            await asyncio.wait_for(here.twin.entered.wait(), WAIT)
            here.twin.script = []
            await here.service.post(here.at("bob"), OutboundMessage(text="b"), key="b")
            assert sorted(await here.twin.has(2)) == [("ann", "a"), ("bob", "b")]

    within(scenario())


def test_a_refusal_is_final_visible_and_can_be_tried_again_by_hand(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            here.twin.script = [ChannelRefused("you were blocked")]
            posted = await here.service.post(here.at("ann"), OutboundMessage(text="a"), key="a", wait=WAIT)
            assert (posted.status, posted.error) == ("failed", "you were blocked")
            (row,) = (await here.call("outbox.list", status="failed"))["items"]
            assert (row["id"], row["error"], row["to"]) == (posted.id, "you were blocked", "ann")
            await here.call("outbox.retry", id=posted.id)
            assert await here.twin.has(1) == [("ann", "a")]
            with pytest.raises(RpcError, match="no message"):
                await here.call("outbox.drop", id=posted.id)

    within(scenario())


def test_tries_are_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            here.twin.script = [ChannelError("no network")] * 20
            posted = await here.service.post(here.at("ann"), OutboundMessage(text="a"), key="a")
            async with asyncio.timeout(WAIT):
                while (stored := await here.books.outbox.get(posted.id)) is None or stored.status == "queued":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert (stored.status, stored.tries, len(here.twin.keys)) == ("failed", 5, 5)
            assert "tried 5 times" in str(stored.error)
            assert (await here.call("outbox.drop", id=posted.id))["dropped"] is True
            assert (await here.call("outbox.list"))["items"] == []

    within(scenario())


def test_a_busy_server_is_given_the_time_it_asks_for_and_that_is_no_try(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            here.twin.script = [ChannelBusy("slow down", 0.05)] * 8
            loop = asyncio.get_running_loop()
            start = loop.time()
            posted = await here.service.post(here.at("ann"), OutboundMessage(text="a"), key="a")
            await here.twin.has(1)
            assert loop.time() - start >= 0.05 * 8
            stored = await here.books.outbox.get(posted.id)
            assert stored is not None
            assert stored.tries == 0

    within(scenario())


def test_a_bug_of_a_channel_is_one_messages_trouble(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            here.twin.script = [RuntimeError("a secret inside")]
            await here.service.post(here.at("ann"), OutboundMessage(text="a"), key="a")
            await here.twin.has(1)
            here.twin.script = [RuntimeError("a secret inside")] * 9
            posted = await here.service.post(here.at("ann"), OutboundMessage(text="b"), key="b")
            outcome: Any = await here.service.outbox.wait_for_outcome(await _mail(here, posted.id), seconds=WAIT)
            assert "secret" not in str(outcome.error)

    async def _mail(here: Any, uid: str) -> Any:
        return await here.books.outbox.get(uid)

    within(scenario())


def test_a_long_text_goes_in_parts_and_a_crash_between_them_repeats_none(tmp_path: Path) -> None:
    text = " ".join(f"word{n:03}" for n in range(40))

    async def scenario() -> None:
        first = Twin(limit=100)
        async with open_channels(tmp_path, twin=first) as here:
            first.script = [None, None, ChannelBusy("wait", 1000.0)]
            posted = await here.service.post(here.at("ann"), OutboundMessage(text=text), key="a")
            await first.has(2)
            async with asyncio.timeout(WAIT):
                while len((await here.books.outbox.get(posted.id)).receipts) < 2:  # type: ignore[union-attr]  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        second = Twin(limit=100)
        async with open_channels(tmp_path, twin=second) as again:
            await second.has(2)
            result = await again.service.post(again.at("ann"), OutboundMessage(text=text), key="a", wait=WAIT)
            assert (result.status, len(result.receipts)) == ("sent", 4)
        parts = [part for _, part in first.taken + second.taken]
        assert " ".join(parts) == text
        assert all(len(part) <= 100 for part in parts)

    within(scenario())


def test_what_waits_is_taken_up_in_order_by_the_next_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            here.twin.gate = asyncio.Event()
            for number in range(50):
                await here.service.post(here.at(f"c{number % 3}"), OutboundMessage(text=str(number)), key=str(number))
        async with open_channels(tmp_path) as again:
            deliveries = await again.twin.has(50)
            for lane in range(3):
                assert [text for to, text in deliveries if to == f"c{lane}"] == [str(n) for n in range(lane, 50, 3)]
            assert len(deliveries) == 50

    within(scenario())


def test_a_letter_for_a_channel_that_is_gone_waits_and_is_dropped_by_hand(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            gone = ChatAddress(channel="gone", account="default", to="x")
            mail = await here.service.outbox.put(
                NewOutboxMessage(key="k", address=gone, parts=(OutboundMessage(text="a"),))
            )
            outcome = await here.service.outbox.wait_for_outcome(mail, seconds=WAIT)
            assert "is not running" in str(outcome.error)
            with pytest.raises(ChannelRefused, match="Unknown channel: gone; configured are local, twin"):
                await here.service.post(gone, OutboundMessage(text="a"), key="other")

    within(scenario())


def test_what_an_operator_sends_for_a_session_is_in_its_transcript(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            await here.call("local.send", text="!say hi")
            await here.until(lambda messages: len(messages) == 2)
            key = "agent:main:main"
            await here.service.post(here.at("ann"), OutboundMessage(text="mirrored"), key="k", wait=WAIT, session=key)
            page = await here.memory.sessions.history(key, limit=10)
            assert [message.body["content"] for message in page.messages][-1] == [{"type": "text", "text": "mirrored"}]

    within(scenario())


def test_while_a_channel_is_down_no_try_is_used_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_mcp.gateway.channels.account_runner.FIRST_WAIT", 0.01)

    async def scenario() -> None:
        twin = Twin()
        twin.runs = [ChannelError("no network")]
        async with open_channels(tmp_path, twin=twin) as here:
            async with asyncio.timeout(WAIT):
                while twin.run_count < 2:  # noqa: ASYNC110  (another task's state)
                    await asyncio.sleep(0.01)
            twin.script = [ChannelError("no network")] * 12
            posted = await here.service.post(here.at("ann"), OutboundMessage(text="a"), key="a")
            assert await twin.has(1) == [("ann", "a")]
            stored = await here.books.outbox.get(posted.id)
            assert stored is not None
            assert stored.tries == 0

    within(scenario())


class Turnstile(Twin):
    """Takes as many messages as the test allows."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Semaphore(0)

    async def send(self, address: ChatAddress, message: OutboundMessage, *, key: str) -> DeliveryReceipt:
        await self.open.acquire()
        return await super().send(address, message, key=key)

    def let(self, count: int) -> None:
        for _ in range(count):
            self.open.release()


def test_a_new_letter_does_not_overtake_older_ones_that_are_still_on_disk_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stored_message(number: int, to: str = "ann") -> NewOutboxMessage:
        address = ChatAddress(channel="twin", account="default", to=to)
        return NewOutboxMessage(
            key=f"{to}{number}", address=address, parts=(OutboundMessage(text=str(number)),), origin="post"
        )

    async def scenario() -> None:
        where = str(tmp_path / "mail.db")
        async with open_store(where) as store:
            for number in range(30):
                await SqlOutbox(store).put(stored_message(number))
        monkeypatch.setattr(mail_book, "MAX_CLAIMED", 4)
        monkeypatch.setattr(outbox, "MAX_QUEUED", 8)
        monkeypatch.setattr(outbox, "REFILL_THRESHOLD", 3)
        twin = Turnstile()
        ended: asyncio.Queue[OutboxMessage] = asyncio.Queue()
        config = read_config({"channels": {"twin": {}}})
        accounts = ChannelAccounts({"twin": lambda *_: twin}, tmp_path, lambda: config)
        accounts.load()
        async with (
            open_store(where) as store,
            outbox.OutboxSender(SqlOutbox(store), accounts, on_sent=ended.put) as out,
        ):
            assert out.queue_length == 8
            with pytest.raises(ChannelError, match="wait to be sent"):
                await out.put(stored_message(30))
            for number in (30, 31):  # there is room in memory, yet older ones are not read
                twin.let(1)
                await asyncio.wait_for(ended.get(), WAIT)
                await out.put(stored_message(number))
            twin.let(100)
            assert await twin.has(32) == [("ann", str(number)) for number in range(32)]
            await out.put(stored_message(0, "bob"))
            assert (await twin.has(33))[-1] == ("bob", "0")

    within(scenario())
