"""The matrix channel against a real Synapse, watched by a second account."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from openclaw_mcp.core.agent import Attachment
from openclaw_mcp.core.channel import (
    Channel,
    ChannelBusy,
    ChannelError,
    ChannelRefused,
    ChatAddress,
    InboundMessage,
    OutboundMessage,
    Poll,
    StoredMessage,
)
from openclaw_mcp.core.model import Sender
from openclaw_mcp.gateway.channels.matrix import MatrixChannel, MatrixSettings

from .contract import PIXEL, WAIT, ChannelContract, HarnessFactory, files_of, has, key, one, receive_next, until
from .synapse import Person, Synapse


class MatrixHarness:
    effect: str | None = None
    channel: Channel

    def __init__(self, channel: MatrixChannel, ann: Person, bot: str) -> None:
        self.channel = channel
        self.ann = ann
        self.bot = bot
        self.received: asyncio.Queue[InboundMessage] = asyncio.Queue()
        self.address = self.elsewhere = self.nowhere = self.at("!nowhere:matrix.test")

    def at(self, room: str, thread: str | None = None) -> ChatAddress:
        return ChatAddress(channel="matrix", account="default", to=room, thread=thread)

    async def meet(self, **room: Any) -> str:
        """A new room with both in it."""
        powers = {"events": {"m.room.pinned_events": 0}}
        id = await self.ann.room(self.bot, power_level_content_override=powers, **room)
        await self.ann.until_member(id, self.bot)
        return id

    async def say(
        self, text: str, *, attachments: Sequence[Attachment] = (), reply_to: str | None = None,
        address: ChatAddress | None = None,
    ) -> str:  # fmt: skip
        place = address or self.address
        related: dict[str, Any] = {}
        if place.thread is not None:
            inside = {"rel_type": "m.thread", "event_id": place.thread, "is_falling_back": True}
            related = {"m.relates_to": {**inside, "m.in_reply_to": {"event_id": place.thread}}}
        elif reply_to is not None:
            related = {"m.relates_to": {"m.in_reply_to": {"event_id": reply_to}}}
        if not attachments:
            return await self.ann.send(place.to, {"msgtype": "m.text", "body": text, **related})
        file = attachments[0]
        info = {"mimetype": file.mime_type, "size": len(file.data or b"")}
        uri = await self.ann.upload(file)
        content = {"msgtype": "m.image", "body": text, "filename": file.name, "url": uri, "info": info}
        return await self.ann.send(place.to, content | related)

    async def sees(self, address: ChatAddress | None = None) -> Sequence[StoredMessage]:
        return await self.ann.sees((address or self.address).to)

    async def sees_typing(self) -> bool:
        return self.bot in await self.ann.typing(self.address.to)


@asynccontextmanager
async def running(channel: MatrixChannel, on_message: Any) -> AsyncIterator[None]:
    """The channel at work, connected."""
    task = asyncio.create_task(channel.run(on_message))
    try:
        async with asyncio.timeout(WAIT):
            while not (await channel.status())["connected"]:
                assert not task.done(), task.exception()
                await asyncio.sleep(0.02)
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def matrix_harness(synapse: Synapse, folder: Path, **settings: Any) -> AsyncIterator[MatrixHarness]:
    ann, bot = synapse.register("ann"), synapse.register("bot")
    config = {"homeserver": synapse.url, "accessToken": bot.token, "autoJoin": "always", **settings}
    channel = MatrixChannel(MatrixSettings.read(config), account="default", folder=folder)
    harness = MatrixHarness(channel, ann, bot.user)
    try:
        async with running(channel, harness.received.put):
            harness.address = harness.at(await harness.meet(name="kitchen"))
            harness.elsewhere = harness.at(await harness.meet(name="garden"))
            yield harness
    finally:
        await channel.aclose()
        await ann.http.aclose()
        await bot.http.aclose()


@pytest.fixture
def harness(synapse: Synapse, tmp_path: Path) -> HarnessFactory:
    return lambda: matrix_harness(synapse, tmp_path)


class TestMatrix(ChannelContract):
    """Every promise of the contract."""

    lacks = ("test_an_effect_goes_along",)


def run_scenario(harness: HarnessFactory, scenario: Any) -> None:
    ChannelContract().run_scenario(harness, scenario)


def channel_of(synapse: Synapse, person: Person, folder: Path, **settings: Any) -> MatrixChannel:
    config = {"homeserver": synapse.url, "accessToken": person.token, "autoJoin": "always", **settings}
    return MatrixChannel(MatrixSettings.read(config), account="default", folder=folder)


@asynccontextmanager
async def pair(synapse: Synapse) -> AsyncIterator[tuple[Person, Person]]:
    ann, bot = synapse.register("ann"), synapse.register("bot")
    try:
        yield ann, bot
    finally:
        await ann.http.aclose()
        await bot.http.aclose()


# ---- nothing lost ----


def test_what_was_said_while_we_were_away_is_heard_in_order_and_nothing_before_it(
    synapse: Synapse, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with pair(synapse) as (ann, bot):
            room = await ann.room(bot.user)
            await ann.send(room, {"msgtype": "m.text", "body": "long ago"})
            await bot.join(room)
            first: asyncio.Queue[InboundMessage] = asyncio.Queue()
            channel = channel_of(synapse, bot, tmp_path)
            async with running(channel, first.put):
                await ann.send(room, {"msgtype": "m.text", "body": "now"})
                assert (await first.get()).text == "now"
            await channel.aclose()
            count = 130  # more than one sync brings
            for number in range(count):
                await ann.send(room, {"msgtype": "m.text", "body": str(number)})
            again: asyncio.Queue[InboundMessage] = asyncio.Queue()
            channel = channel_of(synapse, bot, tmp_path)
            texts: list[str] = []
            async with running(channel, again.put):
                while texts[-1:] != [str(count - 1)]:
                    texts.append((await again.get()).text)
            await channel.aclose()
            # The last may be delivered again: we were stopped before we had noted that we have it.
            assert [text for text in texts if text != "now"] == [str(number) for number in range(count)]
            assert first.empty()
            assert again.empty()

    bounded(scenario)


def test_a_message_that_could_not_be_stored_is_delivered_again(synapse: Synapse, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(synapse) as (ann, bot):
            room = await ann.room(bot.user)
            await bot.join(room)
            tries: list[str] = []

            async def full(message: InboundMessage) -> None:
                tries.append(message.id)
                raise ChannelError("the disk is full")

            channel = channel_of(synapse, bot, tmp_path)
            async with running(channel, asyncio.Queue[InboundMessage]().put):
                pass  # from here on we listen
            id = await ann.send(room, {"msgtype": "m.text", "body": "keep me"})
            with pytest.raises(ChannelError, match="disk is full"):
                await channel.run(full)
            received: asyncio.Queue[InboundMessage] = asyncio.Queue()
            async with running(channel, received.put):
                assert (await received.get()).id == id == tries[0]
            await channel.aclose()

    bounded(scenario)


# ---- who we are ----


def test_a_password_logs_in_once_and_keeps_its_device(synapse: Synapse, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(synapse) as (_, bot):
            devices = []
            for _round in range(2):
                channel = channel_of(synapse, bot, tmp_path, accessToken="", userId=bot.user, password="correct horse")
                async with running(channel, asyncio.Queue[InboundMessage]().put):
                    devices.append((await channel.status())["deviceId"])
                await channel.aclose()
            await bot.call("POST", "/logout/all", {})
            channel = channel_of(synapse, bot, tmp_path, accessToken="", userId=bot.user, password="correct horse")
            async with running(channel, asyncio.Queue[InboundMessage]().put):
                devices.append((await channel.status())["deviceId"])
            await channel.aclose()
            assert len(set(devices)) == 1

    bounded(scenario)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"accessToken": "wrong"}, "no longer valid"),
        ({"accessToken": "", "userId": "@nobody:matrix.test", "password": "wrong"}, "refused user and password"),
        ({"accessToken": ""}, "needs an accessToken"),
        ({"accessTokenFile": "/nowhere/token", "accessToken": ""}, "can't be read"),
        ({"userId": "@other:matrix.test"}, "belongs to"),
    ],
)
def test_a_login_that_can_not_work_is_refused_in_clear_words(
    settings: dict[str, str], words: str, synapse: Synapse, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with pair(synapse) as (_, bot):
            channel = channel_of(synapse, bot, tmp_path, **settings)
            with pytest.raises(ChannelRefused, match=words):
                await channel.run(asyncio.Queue[InboundMessage]().put)
            await channel.aclose()

    bounded(scenario)


def test_a_login_that_ends_while_we_listen_is_for_a_person_and_messages_wait(synapse: Synapse, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(synapse) as (ann, bot):
            room = await ann.room(bot.user)
            await bot.join(room)
            channel = channel_of(synapse, bot, tmp_path)
            async with running(channel, asyncio.Queue[InboundMessage]().put):
                pass
            listening = asyncio.create_task(channel.run(asyncio.Queue[InboundMessage]().put))
            await bot.call("POST", "/logout", {})
            with pytest.raises(ChannelRefused, match="no longer valid"):
                await listening
            place = ChatAddress(channel="matrix", account="default", to=room)
            with pytest.raises(ChannelError, match="no longer valid"):
                await channel.send(place, OutboundMessage(text="later"), key=key())
            await channel.aclose()

    bounded(scenario)


def test_a_homeserver_that_is_away_is_tried_again_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = MatrixSettings.read({"homeserver": "http://127.0.0.1:9", "accessToken": "x"})
        channel = MatrixChannel(settings, account="default", folder=tmp_path)
        with pytest.raises(ChannelError, match="did not answer") as caught:
            await channel.run(asyncio.Queue[InboundMessage]().put)
        assert not isinstance(caught.value, ChannelRefused)
        await channel.aclose()

    bounded(scenario)


# ---- invitations and direct chats ----


def test_invitations_are_accepted_only_as_the_settings_say(synapse: Synapse, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(synapse) as (ann, bot), pair(synapse) as (eve, _):
            channel = channel_of(synapse, bot, tmp_path, autoJoin="allowlist", autoJoinAllowlist=[ann.user])
            async with running(channel, asyncio.Queue[InboundMessage]().put):
                refused = await eve.room(bot.user)
                wanted = await ann.room(bot.user)
                await ann.until_member(wanted, bot.user)
                members = await eve.call("GET", f"/rooms/{refused}/joined_members")
                assert bot.user not in members["joined"]
            await channel.aclose()

    bounded(scenario)


def test_no_invitation_is_accepted_unless_the_config_says_so() -> None:
    assert MatrixSettings.read({"homeserver": "https://matrix.test"}).auto_join == "off"


def test_a_direct_chat_is_known_as_one_and_its_first_words_are_heard(harness: HarnessFactory) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        room = await harness.ann.room(is_direct=True)
        await harness.ann.call("POST", f"/rooms/{room}/invite", {"user_id": harness.bot})
        await harness.ann.send(room, {"msgtype": "m.text", "body": "psst"})
        message = await receive_next(harness)
        assert (message.chat, message.text, message.address.to) == ("direct", "psst", room)
        assert message.sender == Sender(
            id=harness.ann.user, name="Ann"
        )  # a name without its server identifies no person
        assert harness.channel.normalize_target(harness.ann.user.upper()) == room

    run_scenario(harness, scenario)


def test_a_third_in_the_room_makes_a_group_of_a_direct_chat(harness: HarnessFactory, synapse: Synapse) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        eve = synapse.register("eve")
        room = await harness.ann.room(harness.bot, is_direct=True)
        await harness.ann.until_member(room, harness.bot)
        await harness.ann.call("POST", f"/rooms/{room}/invite", {"user_id": eve.user})
        await eve.join(room)
        await eve.send(room, {"msgtype": "m.text", "body": "hello you two"})
        assert (await receive_next(harness)).chat == "group"
        await eve.http.aclose()

    run_scenario(harness, scenario)


def test_writing_to_a_person_opens_one_room_with_them(harness: HarnessFactory) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        to = harness.at(harness.channel.normalize_target(f"user:{harness.ann.user}"))
        messages = [harness.channel.send(to, OutboundMessage(text=text), key=key()) for text in ("one", "two")]
        await asyncio.gather(*messages)
        sync = await harness.ann.call("GET", "/sync", timeout=0)
        (room,) = sync["rooms"]["invite"]
        await harness.ann.join(room)
        texts = {message.text for message in await harness.ann.sees(room)}
        assert texts == {"one", "two"}

    run_scenario(harness, scenario)


def test_an_alias_names_a_room(harness: HarnessFactory) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        name = f"hall-{key()[:8]}"
        room = await harness.meet(room_alias_name=name)
        receipt = await harness.channel.send(
            harness.at(f"#{name}:matrix.test"), OutboundMessage(text="by name"), key=key()
        )
        assert has(receipt.message_id)(await harness.ann.sees(room))
        with pytest.raises(ChannelRefused, match="no such room"):
            await harness.channel.send(harness.at("#nothing-here:matrix.test"), OutboundMessage(text="x"), key=key())

    run_scenario(harness, scenario)


@pytest.mark.parametrize("target", ["kitchen", "#kitchen", "@ann", "!", "!a b", "12"])
def test_a_target_that_can_be_none_is_refused_with_a_hint(target: str, tmp_path: Path) -> None:
    settings = MatrixSettings.read({"homeserver": "https://matrix.test"})
    with pytest.raises(ChannelRefused, match="room id"):
        MatrixChannel(settings, account="default", folder=tmp_path).normalize_target(target)


def test_targets_have_one_spelling(tmp_path: Path) -> None:
    settings = MatrixSettings.read({"homeserver": "https://matrix.test"})
    canonical = MatrixChannel(settings, account="default", folder=tmp_path).normalize_target
    assert canonical("matrix:@Ann:Matrix.Test") == "@ann:matrix.test"
    assert canonical("https://matrix.to/#/%23Hall:Matrix.test?via=x") == "#Hall:matrix.test"
    assert canonical("room:!AbC:matrix.test") == "!AbC:matrix.test"
    assert canonical("!roomOfVersionTwelve") == "!roomOfVersionTwelve"


# ---- received messages ----


def test_speaking_to_us_is_noticed_as_declared_or_by_name(harness: HarnessFactory) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        room, bot = harness.address.to, harness.bot
        declared = {"msgtype": "m.text", "body": "hey", "m.mentions": {"user_ids": [bot]}}
        other = {"msgtype": "m.text", "body": f"not {bot}", "m.mentions": {"user_ids": [harness.ann.user]}}
        older = {"msgtype": "m.text", "body": "Bot: are you there?"}
        unaddressed = {"msgtype": "m.text", "body": "robots are fine"}
        for content in (declared, other, older, unaddressed):
            await harness.ann.send(room, content)
        assert [(await receive_next(harness)).mentioned for _ in range(4)] == [True, False, True, False]

    run_scenario(harness, scenario)


def test_notices_edits_and_reactions_start_nothing_and_a_quoted_fallback_is_cut(harness: HarnessFactory) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        room = harness.address.to
        id = await harness.say("first")
        await harness.ann.send(room, {"msgtype": "m.notice", "body": "I am a program"})
        new = {"msgtype": "m.text", "body": "changed"}
        place = {"rel_type": "m.replace", "event_id": id}
        await harness.ann.send(room, {**new, "m.new_content": new, "m.relates_to": place})
        mark = {"m.relates_to": {"rel_type": "m.annotation", "event_id": id, "key": "👀"}}
        await harness.ann.send(room, mark, kind="m.reaction")
        await harness.ann.send(room, {"msgtype": "m.image", "body": "odd", "url": 7, "m.relates_to": "nonsense"})
        answer = {"msgtype": "m.text", "body": "> <@ann:matrix.test> first\n\nsecond"}
        await harness.ann.send(room, {**answer, "m.relates_to": {"m.in_reply_to": {"event_id": id}}})
        assert [(await receive_next(harness)).text for _ in range(3)] == ["first", "", "second"]
        assert harness.received.empty()

    run_scenario(harness, scenario)


def test_a_file_larger_than_we_take_is_named_and_the_message_is_heard(synapse: Synapse, tmp_path: Path) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        large = Attachment(mime_type="image/png", name="big.png", data=b"\x89" * 2_000_000)
        await harness.say("see this", attachments=[large])
        message = await receive_next(harness)
        (file,) = await files_of(harness, message)
        assert (message.text, file.name, file.data) == ("see this", "big.png", None)

    run_scenario(lambda: matrix_harness(synapse, tmp_path, mediaMaxMb=1), scenario)


# ---- what is sent ----


def test_markdown_is_shown_as_html_and_people_named_are_mentioned(harness: HarnessFactory) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        text = f"**Look**, {harness.ann.user}: <script>"
        receipt = await harness.channel.send(harness.address, OutboundMessage(text=text), key=key())
        content = one(await until(harness, has(receipt.message_id)), receipt.message_id).extra["content"]
        assert content["formatted_body"] == f"<strong>Look</strong>, {harness.ann.user}: &lt;script&gt;"
        assert content["m.mentions"] == {"user_ids": [harness.ann.user]}
        quiet = await harness.channel.send(harness.address, OutboundMessage(text="shh", silent=True), key=key())
        content = one(await until(harness, has(quiet.message_id)), quiet.message_id).extra["content"]
        assert (content["msgtype"], "formatted_body" in content) == ("m.notice", False)

    run_scenario(harness, scenario)


def test_several_files_go_out_in_order_and_once(harness: HarnessFactory) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        files = (
            Attachment(mime_type="image/png", name="a.png", data=PIXEL),
            Attachment(mime_type="text/plain", name="b.txt", data=b"bee"),
        )
        same = key()
        for _ in range(2):
            receipt = await harness.channel.send(
                harness.address, OutboundMessage(text="both", attachments=files), key=same
            )
        end = await harness.channel.send(harness.address, OutboundMessage(text="end"), key=key())
        messages = await until(harness, has(end.message_id))
        assert [message.text for message in messages] == ["both", "b.txt", "end"]
        assert receipt.extra["messageIds"] == [message.id for message in messages[:2]]
        assert await harness.ann.download(messages[1].extra["content"]["url"]) == b"bee"

    run_scenario(harness, scenario)


def test_a_server_that_asks_us_to_slow_down_is_told_apart(harness: HarnessFactory, synapse: Synapse) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        admin = synapse.register("admin", admin=True)
        path = f"{synapse.url}/_synapse/admin/v1/users/{harness.bot}/override_ratelimit"
        await admin.call("POST", path, {"messages_per_second": 1, "burst_count": 1})
        await admin.http.aclose()
        with pytest.raises(ChannelBusy) as caught:
            for _ in range(20):
                await harness.channel.send(harness.address, OutboundMessage(text="again"), key=key())
        assert 0 < caught.value.retry_after < 60

    run_scenario(harness, scenario)


def test_a_room_we_may_not_pin_in_says_so(harness: HarnessFactory) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        room = await harness.ann.room(harness.bot)
        await harness.ann.until_member(room, harness.bot)
        id = await harness.ann.send(room, {"msgtype": "m.text", "body": "pin me"})
        with pytest.raises(ChannelRefused, match="power"):
            await harness.channel.pin(harness.at(room), id)

    run_scenario(harness, scenario)


def test_reading_a_thread_gives_that_thread_with_its_root_and_a_poll_its_options(harness: HarnessFactory) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        root = await harness.say("root")
        inside = harness.at(harness.address.to, root)
        await harness.channel.send(inside, OutboundMessage(text="inside"), key=key())
        await harness.channel.send(harness.address, OutboundMessage(text="outside"), key=key())
        assert [message.text for message in await harness.channel.read(inside, limit=10)] == ["root", "inside"]
        await harness.channel.send_poll(harness.address, Poll(question="Tea?", options=("yes", "no")), key=key())
        (last,) = await harness.channel.read(harness.address, limit=1)
        assert last.extra["poll"] == {"question": "Tea?", "options": ["yes", "no"]}

    run_scenario(harness, scenario)


def test_nothing_goes_into_an_encrypted_room_in_the_open(harness: HarnessFactory) -> None:
    async def scenario(harness: MatrixHarness) -> None:
        rule = {"type": "m.room.encryption", "state_key": "", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
        room = await harness.meet(initial_state=[rule])
        with pytest.raises(ChannelRefused, match="encrypted"):
            await harness.channel.send(harness.at(room), OutboundMessage(text="secret"), key=key())

    run_scenario(harness, scenario)


def test_encryption_without_its_library_says_what_to_install(
    synapse: Synapse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "openclaw_mcp.gateway.channels.matrix.encryption", raising=False)
    monkeypatch.setitem(sys.modules, "nio.crypto", None)

    async def scenario() -> None:
        async with pair(synapse) as (_, bot):
            channel = channel_of(synapse, bot, tmp_path, encryption=True)
            with pytest.raises(ChannelRefused, match=r"openclaw-mcp\[matrix\]"):
                await channel.run(asyncio.Queue[InboundMessage]().put)
            await channel.aclose()

    bounded(scenario)


def bounded(scenario: Any) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(WAIT * 4):
            await scenario()

    asyncio.run(in_time())
