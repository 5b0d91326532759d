"""The mailroom's books, on each database: once by key, in order, taken up after a death, forgotten in time."""

import asyncio
import threading
from collections.abc import Sequence

import msgspec
import pytest

from openclaw_mcp.core.agent import Attachment
from openclaw_mcp.core.channel import ChatAddress, DeliveryReceipt, InboundMessage, OutboundMessage, Poll, StoredMessage
from openclaw_mcp.core.mail import NewLocalMessage, NewOutboxMessage, SenderApproval
from openclaw_mcp.core.model import Sender
from openclaw_mcp.core.sessions import now_ms
from openclaw_mcp.store.local_messages import SqlLocalMessageRepository
from openclaw_mcp.store.messages import SqlInbox, SqlOutbox, SqlSenderApprovalRepository
from openclaw_mcp.store.store import open_store

HERE = ChatAddress(channel="twin", account="default", to="ann", thread="t")


POLL = Poll(question="?", options=("yes", "no"))


def mail(key: str, text: str = "hi", **more: object) -> NewOutboxMessage:
    file = Attachment(mime_type="text/plain", name="a.txt", data=b"\0bytes")
    return NewOutboxMessage(key=key, address=HERE, parts=(OutboundMessage(text=text, attachments=(file,)),), **more)  # type: ignore[arg-type]


def received(id: str) -> InboundMessage:
    return InboundMessage(id=id, address=HERE, chat="direct", sender=Sender(id="ann"), text=id, at=1)


def test_a_letter_is_kept_once_and_its_bytes_until_it_is_sent(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlOutbox(store)
            stored, fresh = await repository.put(mail("k" * 1000, session="agent:main:main", origin="tool", poll=POLL))
            again, second = await repository.put(mail("k" * 1000))
            assert (fresh, second, again.uid) == (True, False, stored.uid)
            found = await repository.get(stored.uid)
            assert found is not None
            assert (found.address, found.parts, found.poll) == (HERE, stored.parts, POLL)
            sent = msgspec.structs.replace(found, status="sent", receipts=(DeliveryReceipt(message_id="1", at=2),))
            await repository.update(sent)
            found = await repository.get(stored.uid)
            assert found is not None
            assert (found.status, found.receipts) == ("sent", sent.receipts)
            assert (found.parts[0].text, found.parts[0].attachments[0].data) == ("hi", None)
            assert [one.uid for one in await repository.list_direct_sends("agent:main:main", since=0)] == [stored.uid]
            assert await repository.list_direct_sends("agent:main:main", since=now_ms() + 1000) == []
            assert not await repository.drop(stored.uid)
            assert await repository.prune(before=now_ms() + 1000) == 1

    asyncio.run(scenario())


def test_answers_of_runs_and_what_other_rooms_post_do_not_count_as_said(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            await SqlOutbox(store).put(mail("r", session="s", origin="reply"))
            await SqlOutbox(store).put(mail("p", session="s", origin="post"))
            assert await SqlOutbox(store).list_direct_sends("s", since=0) == []

    asyncio.run(scenario())


def test_what_a_dead_process_left_is_adopted_and_what_a_living_one_has_is_not(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as first:
            for number in range(5):
                await SqlOutbox(first).put(mail(str(number)))
            async with open_store(where) as second:
                assert await SqlOutbox(second).adopt() == []
        async with open_store(where) as third:
            assert [one.key for one in await SqlOutbox(third).adopt()] == ["0", "1", "2", "3", "4"]
            assert len(await SqlOutbox(third).page(status="queued", limit=3)) == 3

    asyncio.run(scenario())


def test_an_arrival_is_new_once_and_owed_until_it_is_done(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlInbox(store)
            added = await asyncio.gather(*(repository.add(received(str(n))) for n in [*range(300), *range(300)]))
            assert [one is None for one in added] == [False] * 300 + [True] * 300
            assert [one.message.id for one in added if one is not None] == [str(n) for n in range(300)]
            pending = await repository.pending(after=0)
            assert [one.message.id for one in pending] == [str(n) for n in range(300)]
            await repository.link_run(pending[0].id, run_id="r", session="s")
            assert (await repository.pending(after=0))[0].run_id == "r"
            await repository.mark_complete([one.id for one in pending[:299]])
            (last,) = await repository.pending(after=0)
            assert await repository.pending(after=last.id) == []
            assert await repository.add(received("7")) is None
            assert await repository.prune(before=now_ms() + 1000) == 299

    asyncio.run(scenario())


def test_people_wait_with_a_code_and_are_approved(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlSenderApprovalRepository(store)

            def person(name: str, at: int) -> SenderApproval:
                return SenderApproval(channel="twin", account="a", sender=name, name=None, code=f"CODE{name}", at=at)

            assert await repository.request(person("old", 1), max_pending=2, since=0) == (person("old", 1), True)
            assert (await repository.request(person("ann", 100), max_pending=2, since=50))[
                1
            ] is True  # the old request counts no more
            assert (await repository.request(person("bob", 100), max_pending=2, since=50))[1] is True
            assert await repository.request(person("eve", 100), max_pending=2, since=50) == (None, False)
            assert (await repository.request(person("ann", 120), max_pending=2, since=50))[0] == person("ann", 100)
            assert await repository.approve("twin", "CODEold", since=50) is None
            assert await repository.approve("other", "CODEann", since=50) is None
            ann = await repository.approve("twin", "CODEann", since=50)
            assert ann is not None
            assert ann.approved
            assert (await repository.request(person("eve", 100), max_pending=2, since=50))[
                1
            ] is True  # ann waits no longer
            assert await repository.remove("twin", "ann")
            assert not await repository.remove("twin", "ann")

    asyncio.run(scenario())


def test_local_conversations_are_made_at_first_use(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            repository = SqlLocalMessageRepository(store)

            def note(text: str, key: str, **more: object) -> NewLocalMessage:
                values = {"account": "a", "conversation": "c", "sender": Sender(id="x"), "mine": False} | more
                return NewLocalMessage(text=text, key=key, **values)  # type: ignore[arg-type]

            file = Attachment(mime_type="m/" + "x" * 300, name="n" * 600, data=b"\0\1")
            first, fresh = await repository.add(note("one\0", "1", attachments=(file,)))
            assert (first.text, fresh) == ("one", True)
            assert await repository.add(note("other", "1")) == (first, False)
            elsewhere, fresh = await repository.add(note("other", "1", conversation="d"))
            assert fresh
            await repository.add(note("two", "2", thread="t"))
            assert [message.text for message in await repository.read("a", "c", limit=9)] == ["one", "two"]
            assert [message.text for message in await repository.read("a", "c", limit=9, thread="t")] == ["two"]
            assert [file.data for file in await repository.files("a", "c", first.id)] == [b"\0\1"]

            def pinned(message: StoredMessage) -> StoredMessage:
                return msgspec.structs.replace(message, pinned=True)

            assert await repository.change("a", "d", first.id, pinned) is None
            changed = await repository.change("a", "c", first.id, pinned)
            assert changed is not None
            assert changed.pinned
            assert {one["name"]: one["messages"] for one in await repository.conversations("a", limit=9)} == {
                "c": 2,
                "d": 1,
            }
            assert await repository.remove("a", "c", first.id)
            assert await repository.get("a", "c", first.id) is None
            assert await repository.files("a", "c", first.id) == []
            assert await repository.get("a", "d", elsewhere.id) == elsewhere

    asyncio.run(scenario())


def test_batched_writes_fail_together_and_the_next_ones_do_not(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:

            def work(_connection: object, items: Sequence[int]) -> list[int]:
                if -1 in items:
                    raise ValueError("no")
                return [item * 2 for item in items]

            write = store.batch(work)
            assert await asyncio.gather(*(write(n) for n in range(600))) == [n * 2 for n in range(600)]
            with pytest.raises(ValueError, match="no"):
                await write(-1)
            assert await write(4) == 8

    asyncio.run(scenario())


def test_a_batched_write_is_answered_whatever_else_the_loop_cancels(where: str) -> None:
    async def scenario() -> None:
        async with open_store(where) as store:
            started, go_on = threading.Event(), threading.Event()

            def hold(_connection: object) -> None:
                started.set()
                go_on.wait(20)

            holding = asyncio.ensure_future(store.write(hold))
            await asyncio.to_thread(started.wait, 20)

            def double(_connection: object, items: Sequence[int]) -> list[int]:
                return [item * 2 for item in items]

            write = store.batch(double)
            leaving, staying = (asyncio.ensure_future(write(item)) for item in (1, 2))
            await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task(), holding, staying}:  # as at the end of a program
                task.cancel()
            await asyncio.sleep(0)
            go_on.set()
            assert await asyncio.wait_for(staying, 20) == 4
            assert leaving.cancelled()
            await holding

    asyncio.run(scenario())
