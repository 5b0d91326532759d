"""Messages in: taken once, judged, answered in order, nothing lost between two processes, nothing sent twice."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw_mcp.core.agent import AgentEvent, Attachment, EffectsReported, Turn, TurnCompleted
from openclaw_mcp.core.channel import ChannelError, ChannelRefused, ChatAddress, InboundMessage
from openclaw_mcp.core.effects import RunEffects, SentMessage
from openclaw_mcp.core.mail import InboxEntry, NewLocalMessage
from openclaw_mcp.core.model import Sender
from openclaw_mcp.core.rpc import RpcError
from openclaw_mcp.core.sessions import NewSession, RunRequest
from openclaw_mcp.gateway.channels import attachments
from openclaw_mcp.gateway.channels.inbound_handler import message_grant
from openclaw_mcp.store.local_messages import SqlLocalMessageRepository
from openclaw_mcp.store.messages import SqlInbox

from .gateways import WAIT, ChannelHarness, Twin, open_channels, within

NOBODY: dict[str, Any] = {"channels": {"twin": {}}}


async def receive(here: ChannelHarness, text: str, *, id: str, **more: Any) -> None:
    assert here.twin.hear is not None
    await here.twin.hear(here.twin.build_message(text, id=id, **more))


async def settled(here: ChannelHarness) -> None:
    """Until nothing is owed for anything that arrived."""
    async with asyncio.timeout(WAIT):
        while await here.books.inbox.pending(after=0):  # noqa: ASYNC110  (the store's state)
            await asyncio.sleep(0.01)


def test_a_message_is_answered_where_it_came_from_while_we_type(tmp_path: Path) -> None:
    async def scenario() -> None:
        twin = Twin(can=("send", "thread", "typing"))
        async with open_channels(tmp_path, twin=twin) as here:
            await receive(here, "!say hello Ann", id="1", address=here.at("ann", "t1"))
            assert await twin.has(1) == [("ann", "hello Ann")]
            assert twin.typed > 0
            assert await here.service.find_address("agent:main:twin:direct:ann:thread:t1") == here.at("ann", "t1")

    within(scenario())


def test_the_same_message_delivered_again_is_answered_once_even_by_another_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            await receive(here, "!say once", id="1")
            await receive(here, "!say once", id="1")
            await settled(here)
        async with open_channels(tmp_path) as again:
            await receive(again, "!say once", id="1")
            await receive(again, "!say another", id="2")
            assert await again.twin.has(1) == [("ann", "another")]

    within(scenario())


def test_what_was_received_before_a_crash_is_answered_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, asleep=True) as here:
            received = here.twin.build_message("!say late but here", id="1")
            assert await here.books.inbox.add(received) is not None  # on disk, and then the process died
        async with open_channels(tmp_path) as again:
            assert await again.twin.has(1) == [("ann", "late but here")]
            await settled(again)

    within(scenario())


def test_an_answer_that_was_ready_when_we_died_is_sent_by_the_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, asleep=True) as here:
            received = here.twin.build_message("!say ready", id="1")
            arrival = await here.books.inbox.add(received)
            assert arrival is not None
            session = NewSession(key="agent:main:twin:direct:ann", agent_id="main", classification="main")
            await here.memory.runs.submit(RunRequest(run_id="twin:default:1", session=session, message="!say ready"))
            assert await here.memory.runs.wait("twin:default:1", seconds=WAIT)
            await here.books.inbox.link_run(arrival.id, run_id="twin:default:1", session=session.key)
        async with open_channels(tmp_path) as again:
            assert await again.twin.has(1) == [("ann", "ready")]
            await settled(again)
        async with open_channels(tmp_path) as third:
            await receive(third, "!say more", id="2")
            assert await third.twin.has(1) == [("ann", "more")]

    within(scenario())


def test_an_agent_that_was_cut_short_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            await receive(here, "!sleep 600", id="1")
            async with asyncio.timeout(WAIT):
                while (await here.books.inbox.pending(after=0))[0].status != "asked":  # noqa: ASYNC110  (the store's)
                    await asyncio.sleep(0.01)
        async with open_channels(tmp_path) as again:
            ((to, text),) = await again.twin.has(1)
            assert to == "ann"
            assert text == "⚠️ The gateway restarted before the answer was ready. Please ask again."

    within(scenario())


def test_more_messages_than_a_session_queues_are_all_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = {
            "channels": {"twin": {"allowFrom": ["*"], "dmPolicy": "open"}},
            "messages": {"queue": {"mode": "followup"}},
        }
        async with open_channels(tmp_path, config=config) as here:
            for number in range(60):
                await receive(here, f"!say answer {number}", id=str(number))
            deliveries = await here.twin.has(60)
            assert [text for _, text in deliveries] == [f"answer {number}" for number in range(60)]

    within(scenario())


def test_messages_that_come_together_are_answered_together_by_default(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            await receive(here, "!sleep 3\n!say first", id="0")
            for number in range(1, 5):
                await receive(here, f"!say part {number}", id=str(number))
            assert await here.twin.has(2) == [("ann", "first"), ("ann", "part 1part 2part 3part 4")]
            await settled(here)

    within(scenario())


def test_stop_does_not_wait_behind_what_it_stops(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            await receive(here, "!sleep 600", id="1")
            async with asyncio.timeout(WAIT):
                while here.memory.runs.is_idle:  # noqa: ASYNC110  (another room's state)
                    await asyncio.sleep(0.01)
            await receive(here, "/stop", id="2")
            assert await here.twin.has(1) == [("ann", "Stopped.")]
            await settled(here)
            assert len(here.twin.taken) == 1  # what was stopped does not answer

    within(scenario())


def test_new_starts_a_new_session_and_carries_words_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            await receive(here, "!say one", id="1")
            await here.twin.has(1)
            await receive(here, "/new !say two", id="2")
            assert await here.twin.has(3) == [("ann", "one"), ("ann", "A new conversation begins."), ("ann", "two")]
            page = await here.memory.sessions.history("agent:main:twin:direct:ann", limit=10)
            assert page.messages[0].body["content"] == "!say two"

    within(scenario())


def test_strangers_get_a_code_once_and_nothing_else_until_they_are_approved(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=NOBODY) as here:
            await receive(here, "!say secret", id="1")
            await receive(here, "!say secret", id="2")
            ((_, words),) = await here.twin.has(1)
            await settled(here)
            assert len(here.twin.taken) == 1
            (person,) = (await here.call("channels.pairing.list"))["requests"]
            assert (person["sender"], person["code"] in words) == ("ann", True)
            await here.call("channels.pairing.approve", channel="twin", code=person["code"].lower())
            await receive(here, "!say welcome", id="3")
            assert (await here.twin.has(2))[1] == ("ann", "welcome")
        async with open_channels(tmp_path, config=NOBODY) as again:
            await receive(again, "!say still known", id="4")
            assert await again.twin.has(1) == [("ann", "still known")]
            await again.call("channels.pairing.remove", channel="twin", sender="ann")
            await receive(again, "!say no longer", id="5")
            assert "pairing code" in (await again.twin.has(2))[1][1]

    within(scenario())


def test_codes_are_not_handed_out_without_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=NOBODY) as here:
            for number in range(10):
                await receive(here, "let me in", id=str(number), to=f"unknown{number}")
            await settled(here)
            await here.twin.has(3)
            assert len((await here.call("channels.pairing.list"))["requests"]) == 3
            with pytest.raises(RpcError, match="unknown pairing channel: nowhere"):
                await here.call("channels.pairing.list", channel="nowhere")
            assert len(here.twin.taken) == 3
            with pytest.raises(Exception, match="no sender on twin waits with this code"):
                await here.call("channels.pairing.approve", channel="twin", code="AAAAAAAA")

    within(scenario())


def test_a_group_is_answered_only_when_it_speaks_to_us(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = {"channels": {"twin": {"groupPolicy": "open"}}}
        async with open_channels(tmp_path, config=config) as here:
            ann = Sender(id="ann", name="Ann")
            await receive(here, "!say no", id="1", to="team", chat="group", sender=ann)
            await receive(here, "please\n!say yes", id="2", to="team", chat="group", sender=ann, mentioned=True)
            assert await here.twin.has(1) == [("team", "yes")]
            await settled(here)
            page = await here.memory.sessions.history("agent:main:twin:group:team", limit=10)
            assert page.messages[0].body["content"] == "Ann: please\n!say yes"

    within(scenario())


def test_what_the_tool_sent_to_this_conversation_is_the_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            order = json.dumps({"action": "send", "message": "from the tool"})
            await receive(here, f"!tool message {order}\n!say from the tool, again", id="1")
            await settled(here)
            assert here.twin.taken == [("ann", "from the tool")]
            elsewhere = json.dumps({"action": "send", "target": "bob", "message": "for Bob"})
            await receive(here, f"!tool message {elsewhere}\n!say told Bob", id="2")
            await settled(here)
            deliveries = await here.twin.has(3)
            assert deliveries[1] == ("bob", "for Bob")
            assert deliveries[2][0] == "ann"
            assert deliveries[2][1].endswith("told Bob")

    within(scenario())


class Starter:
    """An agent whose program sent the answer before it ended."""

    id = "starter"
    media_types: tuple[str, ...] = ()

    async def run(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        sent = SentMessage(tool="message_send", provider="twin", to="ann", text="said by a program")
        yield EffectsReported(RunEffects(sent=(sent,)))
        yield TurnCompleted(text="said by a program")


def test_a_program_the_run_started_may_have_answered_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, runtime=Starter()) as here:
            await receive(here, "hello", id="1")
            await settled(here)
            assert here.twin.taken == []

    within(scenario())


def test_silence_tags_and_promises(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            await receive(here, "!say NO_REPLY", id="1")
            await settled(here)
            await receive(here, "!say I'll remind you tomorrow.", id="2")
            ((_, text),) = await here.twin.has(1)
            assert "no reminder was scheduled" in text

    within(scenario())


def test_files_come_back_whole_over_the_local_channel(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            file = {"mimeType": "image/png", "fileName": "a.png", "content": "aGVsbG8="}
            await here.call("local.send", text="!return", attachments=[file])
            received = await here.until(lambda messages: len(messages) == 2)
            assert received[1]["attachments"] == [{"name": "a.png", "mimeType": "image/png", "size": 5}]
            files = await here.call("local.file", messageId=received[1]["id"])
            assert files["files"][0]["content"] == "aGVsbG8="

    within(scenario())


def test_what_a_channel_can_not_carry_is_named_and_the_answer_still_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            picture = Attachment(mime_type="image/png", name="a.png", data=b"x")
            await receive(here, "!say look\n!return", id="1", attachments=(picture,))
            assert await here.twin.has(1) == [("ann", "look\n[a.png: this channel can't carry it]")]

    within(scenario())


def quickly(debounce: int = 300, **inbound: Any) -> Any:
    rules = {"allowFrom": ["*"], "dmPolicy": "open", "groupPolicy": "open"}
    messages = {"inbound": {"debounceMs": debounce, **inbound}, "queue": {"mode": "followup"}}
    return {"channels": {"twin": rules}, "messages": messages}


def test_what_one_person_writes_quickly_is_one_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=quickly(debounce=60_000)) as here:
            await receive(here, "one", id="1")
            await receive(here, "two", id="2", files=lying("b.png"))
            await receive(here, "three", id="3")
            await receive(here, "/whoami", id="4")  # an order: nothing more is waited for
            ((to, text),) = [each for each in await here.twin.has(2) if "You said: " in each[1]]
            assert (to, text.partition("You said: ")[2]) == (
                "ann", "one\ntwo\nthree\nAttached: b.png (image/png, 0 bytes)",
            )  # fmt: skip
            await settled(here)
        async with open_channels(tmp_path, config=quickly()) as here:
            await receive(here, "two", id="2")  # delivered again: known
            await receive(here, "!say five", id="5")  # and a pause
            assert await here.twin.has(1) == [("ann", "five")]

    within(scenario())


def test_what_is_written_while_a_start_reads_back_older_messages_is_one_turn_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_received = asyncio.Event()
    read_back = SqlInbox.pending

    async def read_back_late(inbox: SqlInbox, *, after: int) -> Sequence[InboxEntry]:
        await all_received.wait()
        return await read_back(inbox, after=after)

    monkeypatch.setattr(SqlInbox, "pending", read_back_late)

    async def scenario() -> None:
        async with open_channels(tmp_path, config=quickly(debounce=60_000)) as here:
            for id, text in enumerate(("one", "two", "/whoami")):
                await receive(here, text, id=str(id))
            all_received.set()
            prompts = [text.partition("You said: ")[2] for _, text in await here.twin.has(2) if "You said: " in text]
            assert prompts == ["one\ntwo"]

    within(scenario())


def test_others_orders_and_channels_without_patience_are_not_joined(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, config=quickly()) as here:
            group: Any = {"chat": "group", "address": here.at("family"), "mentioned": True}
            await receive(here, "for me", id="1", sender=Sender(id="ann"), **group)
            await receive(here, "and for me", id="2", sender=Sender(id="bob"), **group)
            prompts = [text.partition("You said: ")[2] for _, text in await here.twin.has(2)]
            assert prompts == ["ann: for me", "bob: and for me"]
            await receive(here, "/status", id="3")
            await receive(here, "!say five", id="4")
            texts = [text for _, text in await here.twin.has(4)]
            assert [text.startswith("Session ") for text in texts].count(True) == 1
            assert "five" in texts
        async with open_channels(tmp_path, config=quickly(byChannel={"twin": 0})) as here:
            for number in range(5, 8):
                await receive(here, f"!say {number}", id=str(number))
            assert [text for _, text in await here.twin.has(3)] == ["5", "6", "7"]

    within(scenario())


def test_joined_messages_survive_a_crash_whole_and_nothing_is_added_to_what_was_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path, asleep=True) as here:
            first = await here.books.inbox.add(here.twin.build_message("one", id="1"))
            second = await here.books.inbox.add(here.twin.build_message("two", id="2"))
            assert first is not None
            assert second is not None
            whole = here.twin.build_message("one\ntwo", id="1")
            await here.books.inbox.merge(first.id, whole, others=[second.id])  # and then the process died
        async with open_channels(tmp_path, config=quickly()) as again:
            await receive(again, "three", id="3")
            prompts = [text.partition("You said: ")[2] for _, text in await again.twin.has(2)]
            assert prompts == ["one\ntwo", "three"]

    within(scenario())


class Shelf(Twin):
    """A twin whose messages name files that lie on its server."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.trouble: list[ChannelError] = []

    async def fetch(self, file: Any) -> Attachment:
        self.asked.append(file["name"])
        if self.trouble:
            raise self.trouble.pop(0)
        return Attachment(mime_type=file["mime_type"], name=file["name"], data=b"x")


def lying(name: str) -> Any:
    return ({"name": name, "mime_type": "image/png"},)


def test_a_file_is_fetched_only_once_its_sender_may_write_and_speaks_to_us(tmp_path: Path) -> None:
    async def scenario() -> None:
        shelf = Shelf()
        config = {"channels": {"twin": {"allowFrom": ["ann"], "dmPolicy": "pairing"}}}
        async with open_channels(tmp_path, config=config, twin=shelf) as here:
            await receive(here, "open this", id="1", to="mallory", files=lying("trap.png"))
            group = {"chat": "group", "address": here.at("family"), "sender": Sender(id="ann")}
            await receive(here, "for the others", id="2", files=lying("family.png"), **group)
            await receive(here, "!say look\n!return", id="3", files=lying("mine.png"))
            deliveries = await shelf.has(2)
            await settled(here)
            assert ("ann", "look\n[mine.png: this channel can't carry it]") in deliveries
            assert shelf.asked == ["mine.png"]

    within(scenario())


def test_a_file_is_fetched_after_a_crash_too_and_one_that_can_not_be_had_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachments, "FIRST_WAIT", 0.0)

    async def scenario() -> None:
        async with open_channels(tmp_path, asleep=True) as here:
            received = here.twin.build_message("!say both\n!return", id="1", files=lying("a.png") + lying("b.png"))
            assert await here.books.inbox.add(received) is not None  # on disk, and then the process died
        shelf = Shelf()
        shelf.trouble = [ChannelError("a moment"), ChannelRefused("gone")]
        async with open_channels(tmp_path, twin=shelf):
            ((_, text),) = await shelf.has(1)
            assert shelf.asked == ["a.png", "a.png", "b.png"]
            assert text == "both\n[a.png: this channel can't carry it]\n[b.png: this channel can't carry it]"

    within(scenario())


def test_an_account_that_is_gone_owes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            lost = here.twin.build_message("hello", id="1", address=ChatAddress(channel="gone", account="x", to="y"))
            await here.service.inbound.receive(lost)
            await settled(here)

    within(scenario())


def test_a_channel_that_breaks_is_started_again_and_one_that_is_refused_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        twin = Twin()
        twin.runs = [ChannelError("connection lost"), RuntimeError("a bug")]
        async with open_channels(tmp_path, twin=twin) as here:
            async with asyncio.timeout(WAIT):
                while twin.run_count < 3:  # noqa: ASYNC110  (another task's state)
                    await asyncio.sleep(0.01)
            await receive(here, "!say back", id="1")
            assert await twin.has(1) == [("ann", "back")]

    monkeypatch.setattr("openclaw_mcp.gateway.channels.account_runner.FIRST_WAIT", 0.01)
    within(scenario())


class Slow(Twin):
    """A channel that takes its time to let go."""

    def __init__(self) -> None:
        super().__init__()
        self.closing, self.go = asyncio.Event(), asyncio.Event()

    async def aclose(self) -> None:
        self.closing.set()
        await self.go.wait()


def test_a_message_that_comes_while_its_account_restarts_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        twin = Slow()
        async with open_channels(tmp_path, twin=twin) as here:
            here.config = {"channels": {"twin": {"allowFrom": ["*"], "dmPolicy": "open", "replyToMode": "off"}}}
            applying = asyncio.create_task(here.service.runner.apply_config())
            await asyncio.wait_for(twin.closing.wait(), WAIT)
            await here.service.inbound.receive(twin.build_message("!say in between", id="1"))
            assert await twin.has(1) == [("ann", "in between")]
            twin.go.set()
            await applying

    within(scenario())


def test_a_local_message_not_announced_before_the_crash_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        key = "agent:main:local:group:#team"
        async with open_channels(tmp_path) as here:
            owner = Sender(id="owner")
            note = NewLocalMessage(
                account="default", conversation="#team", sender=owner, text="do\n!say heard you", mine=False, key="k",
                extra={"mentioned": True},
            )  # fmt: skip
            await SqlLocalMessageRepository(here.memory.store).add(note)  # and then the process died
        config = {"channels": {"local": {"groupPolicy": "open"}}}
        async with open_channels(tmp_path, config=config) as again:
            await again.until(
                lambda messages: [m["text"] for m in messages] == ["do\n!say heard you", "heard you"], "#team"
            )
        async with open_channels(tmp_path, config=config) as third:
            await third.call("local.send", conversation="#team", text="do\n!say and you", mentioned=True)
            await third.until(lambda messages: len(messages) == 4, "#team")
            page = await third.memory.sessions.history(key, limit=10)
            assert len(page.messages) == 4

    within(scenario())


def test_what_is_received_while_the_gateway_closes_is_kept_for_the_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_channels(tmp_path) as here:
            twin, hear = here.twin, here.service.inbound.receive
            await here.service.inbound.__aexit__()
            await hear(twin.build_message("!say kept for later", id="1"))
        async with open_channels(tmp_path) as again:
            assert await again.twin.has(1) == [("ann", "kept for later")]

    within(scenario())


def test_a_run_knows_the_group_it_answers_in_and_a_direct_chat_is_no_group() -> None:
    where = ChatAddress(channel="twin", account="default", to="team", thread="7")
    received = InboundMessage(id="1", address=where, chat="group", sender=Sender(id="ann"), text="hi", at=1)

    assert message_grant(received, owner=False).group == "team"
    assert message_grant(received, owner=False).thread == "7"
    assert message_grant(msgspec.structs.replace(received, chat="direct"), owner=False).group is None
