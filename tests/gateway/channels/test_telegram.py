"""The telegram channel against a stand-in of the Bot API that answers as Telegram does."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
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
    StoredMessage,
)
from openclaw_mcp.gateway.channels.telegram import TelegramChannel, TelegramSettings

from .contract import PIXEL, WAIT, ChannelContract, HarnessFactory, files_of, key, one, receive_next
from .telegram_server import ANN, TOKEN, Refusal, TelegramServer, served, telegram_server

DIRECT, OTHER, GROUP, FORUM = 4242, 4343, -100777, -100888
TOPIC = 7


class TelegramHarness:
    effect: str | None = "5104841245755180586"
    channel: Channel

    def __init__(self, channel: TelegramChannel, server: TelegramServer) -> None:
        self.channel = channel
        self.server = server
        self.received: asyncio.Queue[InboundMessage] = asyncio.Queue()
        self.address, self.elsewhere, self.nowhere = self.at(DIRECT), self.at(OTHER), self.at(99)
        self.thread = str(TOPIC)

    def at(self, chat: int, thread: str | None = None) -> ChatAddress:
        return ChatAddress(channel="telegram", account="default", to=str(chat), thread=thread)

    async def say(
        self, text: str, *, attachments: Sequence[Attachment] = (), reply_to: str | None = None,
        address: ChatAddress | None = None,
    ) -> str:  # fmt: skip
        place = address or self.address
        chat = self.server.chats[int(place.to)]
        more: dict[str, Any] = {}
        if place.thread is not None:
            more = {"message_thread_id": int(place.thread), "is_topic_message": True}
        if reply_to is not None:
            more["reply_to_message"] = chat.messages[int(reply_to.rpartition(":")[2])]
        if attachments:
            more["document"] = self.server.file(attachments[0])
        return f"{place.to}:{self.server.say(int(place.to), text, **more)['message_id']}"

    async def sees(self, address: ChatAddress | None = None) -> Sequence[StoredMessage]:
        return self.server.sees(int((address or self.address).to))

    async def sees_typing(self) -> bool:
        return "typing" in self.server.chats[int(self.address.to)].actions


def people(server: TelegramServer) -> None:
    for id in (DIRECT, OTHER):
        server.chat(id, "private", first_name="Ann", username="ann").topics = {TOPIC}
    server.chat(GROUP, "supergroup", title="Kitchen", username="the_kitchen")
    server.chat(FORUM, "supergroup", title="Forum", is_forum=True).topics = {TOPIC}


def bot(server: TelegramServer, **settings: Any) -> TelegramChannel:
    config = {"botToken": TOKEN, "baseUrl": server.url, **settings}
    return TelegramChannel(TelegramSettings.read(config), account="default")


@asynccontextmanager
async def running(channel: TelegramChannel, hear: Any) -> AsyncIterator[None]:
    """The channel at work, connected."""
    task = asyncio.create_task(channel.run(hear))
    try:
        async with asyncio.timeout(WAIT):
            while not (await channel.status())["connected"]:
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def telegram_harness(**settings: Any) -> AsyncIterator[TelegramHarness]:
    async with telegram_server() as server:
        people(server)
        channel = bot(server, **settings)
        harness = TelegramHarness(channel, server)
        try:
            async with running(channel, harness.received.put):
                yield harness
        finally:
            await channel.aclose()


@pytest.fixture
def harness() -> HarnessFactory:
    return telegram_harness


class TestTelegram(ChannelContract):
    """Every promise of the contract."""

    lacks = (
        "test_reading_gives_the_newest_oldest_first_and_pages_back",
        "test_one_key_delivers_once_where_that_is_promised",
    )


def run_scenario(harness: HarnessFactory, scenario: Any) -> None:
    ChannelContract().run_scenario(harness, scenario)


def bounded(scenario: Any) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(WAIT * 2), telegram_server() as server:
            people(server)
            await scenario(server)

    asyncio.run(in_time())


# ---- nothing lost ----


def test_an_update_is_confirmed_only_when_it_has_been_kept(harness: HarnessFactory) -> None:
    async def scenario(server: TelegramServer) -> None:
        channel = bot(server)
        server.say(DIRECT, "keep me")

        async def full(message: InboundMessage) -> None:
            raise ChannelError("the disk is full")

        with pytest.raises(ChannelError, match="disk is full"):
            await channel.run(full)
        assert server.confirmed == 0
        received: asyncio.Queue[InboundMessage] = asyncio.Queue()
        async with running(channel, received.put):
            assert (await received.get()).text == "keep me"
            server.say(DIRECT, "and me")
            assert (await received.get()).text == "and me"
        assert server.confirmed > 0
        await channel.aclose()

    bounded(scenario)


def test_what_was_written_while_we_were_away_is_heard(harness: HarnessFactory) -> None:
    async def scenario(server: TelegramServer) -> None:
        for number in range(150):
            server.say(DIRECT, str(number))
        received: asyncio.Queue[InboundMessage] = asyncio.Queue()
        channel = bot(server)
        async with running(channel, received.put):
            assert [(await received.get()).text for _ in range(150)] == [str(number) for number in range(150)]
        await channel.aclose()

    bounded(scenario)


# ---- webhook ----


@asynccontextmanager
async def hooked(server: TelegramServer, hear: Any, **settings: Any) -> AsyncIterator[tuple[TelegramChannel, str]]:
    """A bot behind a webhook that is really served."""
    place: dict[str, TelegramChannel] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await place["bot"].http(scope, receive, send)

    async with served(app) as url:
        channel = place["bot"] = bot(server, webhookUrl=f"{url}/channels/telegram/default", **settings)
        async with running(channel, hear):
            yield channel, url
        await channel.aclose()


def test_a_webhook_brings_messages_and_keeps_what_can_not_be_taken(harness: HarnessFactory) -> None:
    async def scenario(server: TelegramServer) -> None:
        texts: list[str] = []
        refuse = [True]

        async def hear(message: InboundMessage) -> None:
            if refuse.pop() if refuse else False:
                raise ChannelError("not now")
            texts.append(message.text)

        async with hooked(server, hear) as (channel, _):
            assert (await channel.status())["mode"] == "webhook"
            server.say(DIRECT, "one")
            server.say(DIRECT, "two")
            assert await server.bring() == [503, 200, 200]
            assert texts == ["one", "two"]

    bounded(scenario)


def test_a_webhook_takes_no_update_without_the_secret(harness: HarnessFactory) -> None:
    async def scenario(server: TelegramServer) -> None:
        received: asyncio.Queue[InboundMessage] = asyncio.Queue()
        async with hooked(server, received.put, webhookSecret="so_secret-1") as (_, url), httpx.AsyncClient() as client:
            assert server.hook is not None
            assert server.hook["secret_token"] == "so_secret-1"
            header = "X-Telegram-Bot-Api-Secret-Token"
            update = {"update_id": 1, "message": {"message_id": 1, "chat": {"id": 1, "type": "private"}, "text": "x"}}
            for headers in ({}, {header: ""}, {header: "so_secret-2"}, {header: TOKEN}):
                assert (await client.post(url, json=update, headers=headers)).status_code == 401
            right = {header: "so_secret-1"}
            assert (await client.get(url, headers=right)).status_code == 405
            assert (await client.post(url, content=b"{", headers=right)).status_code == 400
            assert (await client.post(url, content=b" " * 2_000_000, headers=right)).status_code == 413
            assert received.empty()

    bounded(scenario)


def test_a_webhook_has_a_secret_even_if_none_is_set(harness: HarnessFactory) -> None:
    async def scenario(server: TelegramServer) -> None:
        async with hooked(server, asyncio.Queue[InboundMessage]().put):
            assert server.hook is not None
            assert len(server.hook["secret_token"]) == 64
            assert TOKEN not in server.hook["secret_token"]

    bounded(scenario)


# ---- failures ----


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (Refusal(403, "Forbidden: bot was blocked by the user"), "blocked the bot"),
        (Refusal(403, "Forbidden: bot was kicked from the supergroup chat"), "removed from the chat"),
        (Refusal(403, "Forbidden: bot can't initiate conversation with a user"), "can't write first"),
        (Refusal(400, "Bad Request: chat not found"), "no such chat"),
        (Refusal(400, "Bad Request: message thread not found"), "no such topic"),
        (Refusal(400, "Bad Request: something new"), "Telegram refused: Bad Request: something new"),
        (Refusal(413, "Request Entity Too Large"), "larger than Telegram takes"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_is_final(refusal: Refusal, words: str, harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        harness.server.trouble["sendMessage"] = [refusal]
        with pytest.raises(ChannelRefused, match=words):
            await harness.channel.send(harness.address, OutboundMessage(text="x"), key=key())

    run_scenario(harness, scenario)


def test_too_much_at_once_says_how_long_to_wait_and_a_failing_server_is_tried_again(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        busy = Refusal(429, "Too Many Requests: retry after 17", retry_after=17)
        harness.server.trouble["sendMessage"] = [busy, Refusal(502, "Bad Gateway")]
        with pytest.raises(ChannelBusy) as caught:
            await harness.channel.send(harness.address, OutboundMessage(text="x"), key=key())
        assert caught.value.retry_after == 17
        with pytest.raises(ChannelError, match="502") as failed:
            await harness.channel.send(harness.address, OutboundMessage(text="x"), key=key())
        assert not isinstance(failed.value, ChannelRefused)

    run_scenario(harness, scenario)


def test_two_programs_with_one_token_are_reported(harness: HarnessFactory) -> None:
    async def scenario(server: TelegramServer) -> None:
        text = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
        hook = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete it first"
        server.trouble["getUpdates"] = [Refusal(409, text), Refusal(409, hook)]
        channel = bot(server)
        for words in ("another program polls", "a webhook is set"):
            with pytest.raises(ChannelError, match=words) as caught:
                await channel.run(asyncio.Queue[InboundMessage]().put)
            assert not isinstance(caught.value, ChannelRefused)
        await channel.aclose()

    bounded(scenario)


def test_a_wrong_token_is_for_a_person_to_put_right(harness: HarnessFactory) -> None:
    async def scenario(server: TelegramServer) -> None:
        channel = bot(server, botToken="99:not-the-one-0123456789")
        with pytest.raises(ChannelRefused, match="does not know the bot token"):
            await channel.run(asyncio.Queue[InboundMessage]().put)
        place = ChatAddress(channel="telegram", account="default", to=str(DIRECT))
        with pytest.raises(ChannelError, match="token") as caught:
            await channel.send(place, OutboundMessage(text="later"), key=key())
        assert not isinstance(caught.value, ChannelRefused)  # it waits until the token is right
        await channel.aclose()

    bounded(scenario)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "needs a botToken"),
        ({"botToken": "nonsense"}, "123456:ABC"),
        ({"tokenFile": "/nowhere/token"}, "can't be read"),
        ({"botToken": TOKEN, "webhookUrl": "http://example.org"}, "https://"),
        ({"botToken": TOKEN, "webhookUrl": "https://example.org", "webhookSecret": "with space"}, "letters, digits"),
    ],
)
def test_settings_that_can_not_work_are_refused(
    config: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TELEGRAM_BOT_TOKEN", raising=False)
    with pytest.raises(ChannelRefused, match=words):
        TelegramChannel(TelegramSettings.read(config), account="default")


def test_the_token_may_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert TelegramSettings.read({"tokenFile": str(tmp_path / "token")}).resolve_token("default") == TOKEN
    monkeypatch.setenv("TELEGRAM_BOT_TOKEN", "77:from-the-environment")
    assert TelegramSettings.read({}).resolve_token("default") == "77:from-the-environment"
    with pytest.raises(ChannelRefused, match="needs a botToken"):
        TelegramSettings.read({}).resolve_token("second")  # or two would poll with one token


def test_the_token_is_in_no_log_and_in_no_error(harness: HarnessFactory, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        await harness.channel.send(harness.address, OutboundMessage(text="hello"), key=key())
        await harness.say("a file", attachments=[Attachment(mime_type="image/png", name="a.png", data=PIXEL)])
        await files_of(harness, await receive_next(harness))

    async def away() -> None:
        channel = TelegramChannel(
            TelegramSettings.read({"botToken": TOKEN, "baseUrl": "http://127.0.0.1:9"}), account="x"
        )
        with pytest.raises(ChannelError) as caught:
            await channel.run(asyncio.Queue[InboundMessage]().put)
        assert TOKEN not in repr(caught.value)
        assert caught.value.__suppress_context__
        await channel.aclose()

    with contextlib.ExitStack() as talkative:
        for name in (None, "httpx", "httpcore"):
            talkative.enter_context(caplog.at_level(logging.DEBUG, logger=name))
        run_scenario(harness, scenario)
        asyncio.run(away())
    assert "sendMessage" in caplog.text
    assert TOKEN.partition(":")[2] not in caplog.text


# ---- received messages ----


def test_speaking_to_us_is_noticed_by_name_command_and_answer(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        say = harness.server.say
        name = "@The_Test_Bot"
        mention = {"type": "mention", "offset": 3, "length": len(name)}
        say(GROUP, f"😀 {name} hi", entities=[mention])  # the face counts as two
        say(GROUP, "@somebody hi", entities=[{"type": "mention", "offset": 0, "length": 9}])
        say(GROUP, "/go@the_test_bot", entities=[{"type": "bot_command", "offset": 0, "length": 16}])
        say(GROUP, "you", entities=[{"type": "text_mention", "offset": 0, "length": 3, "user": harness.server.me}])
        say(GROUP, f"no entity {name}")
        found = [await receive_next(harness) for _ in range(5)]
        assert [message.mentioned for message in found] == [True, False, True, True, False]
        assert {(message.chat, message.title) for message in found} == {("group", "Kitchen")}
        assert found[0].sender.name == "Ann Lee"
        assert harness.channel.normalize_target("https://t.me/The_Kitchen") == str(GROUP)

    run_scenario(harness, scenario)


def test_a_topic_is_a_thread_and_its_first_message_is_not_what_is_answered(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        created = {"message_id": TOPIC, "forum_topic_created": {"name": "News"}, "from": harness.server.me}
        place: dict[str, Any] = {"message_thread_id": TOPIC, "is_topic_message": True, "reply_to_message": created}
        harness.server.say(FORUM, "in it", **place)
        harness.server.say(GROUP, "a reply tree", message_thread_id=3)
        first, second = await receive_next(harness), await receive_next(harness)
        assert (first.address, first.reply_to, first.mentioned) == (harness.at(FORUM, str(TOPIC)), None, False)
        assert second.address.thread is None
        await harness.channel.send(harness.at(FORUM, "1"), OutboundMessage(text="in General"), key=key())
        (params,) = [params for name, params in harness.server.calls if name == "sendMessage"]
        assert "message_thread_id" not in params

    run_scenario(harness, scenario)


def test_an_administrator_in_disguise_is_the_group_and_a_channel_is_itself(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        disguise = {"id": 1087968824, "is_bot": True, "first_name": "Group", "username": "GroupAnonymousBot"}
        harness.server.say(GROUP, "incognito", person=disguise, sender_chat={"id": GROUP, "title": "Kitchen"})
        harness.server.chat(-100999, "channel", title="News")
        harness.server.say(-100999, "breaking", sender_chat={"id": -100999, "title": "News"})
        first, second = await receive_next(harness), await receive_next(harness)
        assert first.sender.id == str(GROUP)
        assert (second.chat, second.sender.id) == ("channel", "-100999")

    run_scenario(harness, scenario)


def test_an_album_is_one_message(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        def picture(name: str) -> Any:
            return [harness.server.file(Attachment(mime_type="image/jpeg", name=name, data=name.encode()))]

        first = harness.server.say(DIRECT, "the three", photo=picture("a"), media_group_id="g")["message_id"]
        await asyncio.sleep(0.2)  # it arrives piece by piece
        for name in "bc":
            harness.server.say(DIRECT, photo=picture(name), media_group_id="g")
        harness.server.say(DIRECT, "after")
        album, after = await receive_next(harness), await receive_next(harness)
        assert [file.data for file in await files_of(harness, album)] == [b"a", b"b", b"c"]
        assert (album.text, album.id, after.text) == ("the three", f"{DIRECT}:{first}", "after")

    run_scenario(harness, scenario)


def test_places_contacts_polls_and_stickers_are_put_into_words_and_comings_are_not(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        say = harness.server.say
        say(GROUP, new_chat_members=[ANN])
        say(DIRECT, location={"latitude": 1.5, "longitude": 2.5})
        say(DIRECT, contact={"first_name": "Bob", "phone_number": "+1"})
        say(DIRECT, poll={"question": "Tea?", "options": [{"text": "yes"}, {"text": "no"}]})
        say(DIRECT, sticker={"file_id": "s", "emoji": "🐱", "is_animated": True})
        texts = [(await receive_next(harness)).text for _ in range(4)]
        assert texts == ["location: 1.5, 2.5", "contact: Bob +1", "Tea?\n1. yes\n2. no", "🐱"]

    run_scenario(harness, scenario)


def test_a_file_larger_than_we_take_is_named_and_the_message_is_heard(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        large = Attachment(mime_type="video/mp4", name="film.mp4", data=b"0" * 2_000_000)
        await harness.say("see this", attachments=[large])
        message = await receive_next(harness)
        (file,) = await files_of(harness, message)
        assert (message.text, file.name, file.data) == ("see this", "film.mp4", None)

    run_scenario(lambda: telegram_harness(mediaMaxMb=1), scenario)


# ---- what is sent ----


def test_markup_is_shown_and_what_telegram_can_not_read_goes_plain(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        sent = await harness.channel.send(harness.address, OutboundMessage(text="**bold** <script> `a<b`"), key=key())
        message = one(await harness.sees(), sent.message_id)
        assert message.text == "bold <script> a<b"
        assert [entity["type"] for entity in message.extra["raw"]["entities"]] == ["b", "code"]
        cannot = Refusal(400, "Bad Request: can't parse entities: Unsupported start tag at byte offset 3")
        harness.server.trouble["sendMessage"] = [cannot]
        sent = await harness.channel.send(harness.address, OutboundMessage(text="**bold**"), key=key())
        assert one(await harness.sees(), sent.message_id).text == "**bold**"

    run_scenario(harness, scenario)


def test_silence_buttons_and_a_lost_answer(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        keyboard = {"inline_keyboard": [[{"text": "site", "url": "https://example.org"}]]}
        message = OutboundMessage(text="psst", silent=True, reply_to="4242:99999", extra={"replyMarkup": keyboard})
        sent = await harness.channel.send(harness.address, message, key=key())
        assert one(await harness.sees(), sent.message_id).extra["raw"]["silent"] is True
        assert (
            next(params for name, params in harness.server.calls if name == "sendMessage")["reply_markup"] == keyboard
        )

    run_scenario(harness, scenario)


def test_files_go_in_albums_of_their_kind(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        pictures = [Attachment(mime_type="image/png", name=f"{n}.png", data=PIXEL) for n in range(12)]
        texts = [Attachment(mime_type="text/plain", name=f"{n}.txt", data=b"x") for n in range(2)]
        voice = Attachment(mime_type="audio/ogg", name="v.ogg", data=b"ogg")
        message = OutboundMessage(text="all of it", attachments=(*pictures, *texts, voice))
        sent = await harness.channel.send(harness.address, message, key=key())
        methods = [name for name, _ in harness.server.calls if name.startswith("send")]
        assert methods == ["sendMediaGroup", "sendMediaGroup", "sendMediaGroup", "sendVoice"]
        messages = await harness.sees()
        assert [message.id for message in messages] == sent.extra["messageIds"]
        assert [message.text for message in messages if message.text] == ["all of it"]

    run_scenario(harness, scenario)


def test_a_caption_too_long_follows_as_a_message(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        picture = Attachment(mime_type="image/png", name="dot.png", data=PIXEL)
        await harness.channel.send(harness.address, OutboundMessage(text="x" * 1500, attachments=(picture,)), key=key())
        assert [(len(message.text), len(message.attachments)) for message in await harness.sees()] == [
            (0, 1),
            (1500, 0),
        ]

    run_scenario(harness, scenario)


def test_a_picture_that_is_none_for_telegram_goes_as_a_file(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        harness.server.trouble["sendPhoto"] = [Refusal(400, "Bad Request: PHOTO_INVALID_DIMENSIONS")]
        picture = Attachment(mime_type="image/png", name="line.png", data=PIXEL)
        sent = await harness.channel.send(
            harness.address, OutboundMessage(text="thin", attachments=(picture,)), key=key()
        )
        assert "document" in one(await harness.sees(), sent.message_id).extra["raw"]

    run_scenario(harness, scenario)


def test_a_caption_is_edited_too_and_an_edit_without_change_is_fine(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        picture = Attachment(mime_type="image/png", name="dot.png", data=PIXEL)
        sent = await harness.channel.send(
            harness.address, OutboundMessage(text="old", attachments=(picture,)), key=key()
        )
        for _ in range(2):
            await harness.channel.edit(harness.address, sent.message_id, "new")
        assert one(await harness.sees(), sent.message_id).text == "new"

    run_scenario(harness, scenario)


def test_a_group_that_became_a_supergroup_is_followed(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        harness.server.chat(-55, "group", title="old").moved_to = GROUP
        receipt = await harness.channel.send(harness.at(-55), OutboundMessage(text="found you"), key=key())
        assert receipt.message_id.startswith(f"{GROUP}:")

    run_scenario(harness, scenario)


def test_what_a_chat_does_not_allow_is_said(harness: HarnessFactory) -> None:
    async def scenario(harness: TelegramHarness) -> None:
        harness.server.chats[GROUP].admin = False
        id = f"{GROUP}:{harness.server.say(GROUP, 'pin me')['message_id']}"
        with pytest.raises(ChannelRefused, match="administrator"):
            await harness.channel.pin(harness.at(GROUP), id)
        with pytest.raises(ChannelRefused, match="as a reaction"):
            await harness.channel.react(harness.at(GROUP), id, "🦖")
        for group in (harness.at(GROUP), ChatAddress(channel="telegram", account="default", to="@somewhere_public")):
            with pytest.raises(ChannelRefused, match="effects in direct chats only"):
                await harness.channel.send(group, OutboundMessage(text="x", effect="fire"), key=key())
        with pytest.raises(ChannelRefused, match="no such message"):
            await harness.channel.delete(harness.address, id)

    run_scenario(harness, scenario)


def test_targets_have_one_spelling() -> None:
    channel = TelegramChannel(TelegramSettings.read({"botToken": TOKEN}), account="default")
    assert channel.normalize_target("tg:-100777") == "-100777"
    assert (
        channel.normalize_target("t.me/Some_Channel/") == channel.normalize_target("@some_channel") == "@some_channel"
    )
    for target in ("", "kitchen", "@a", "+49123", "12 34"):
        with pytest.raises(ChannelRefused, match="chat id"):
            channel.normalize_target(target)
    assert "read" not in channel.abilities.can
