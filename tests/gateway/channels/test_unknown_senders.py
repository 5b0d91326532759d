"""Whatever strangers send, reading it raises nothing: one odd message must not stop a channel."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openclaw_mcp.core.channel import ChannelError
from openclaw_mcp.core.lenient import convert_lenient, decode_lenient
from openclaw_mcp.core.model import Sender
from openclaw_mcp.gateway.channels.markup import to_html, to_inline_html
from openclaw_mcp.gateway.channels.matrix.api import MatrixRefused, client_path
from openclaw_mcp.gateway.channels.matrix.events import MatrixEvent
from openclaw_mcp.gateway.channels.matrix.responses import AccountData, JoinedRoom, SyncAnswer
from openclaw_mcp.gateway.channels.matrix.rooms import MatrixRooms
from openclaw_mcp.gateway.channels.telegram.messages import TelegramBot, TelegramFile, TelegramUpdate
from openclaw_mcp.gateway.channels.telegram.settings import TelegramSettings
from openclaw_mcp.gateway.channels.telegram.updates import TelegramReceiver, _Connection, _group_albums

from .telegram_server import Entities


def odd(*names: str) -> Any:
    """JSON objects whose keys mean something and whose values need not."""
    words = st.sampled_from(names) | st.text(max_size=4)
    plain = st.none() | st.booleans() | st.integers(-5, 5) | words
    return st.dictionaries(
        st.sampled_from(names),
        st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4)),
        max_size=8,
    )


MATRIX = odd(
    "type", "content", "sender", "event_id", "state_key", "unsigned", "m.relations", "m.replace", "m.new_content",
    "m.relates_to", "rel_type", "m.thread", "m.in_reply_to", "is_falling_back", "body", "msgtype", "m.image", "m.text",
    "m.emote", "filename", "url", "file", "info", "size", "mimetype", "m.mentions", "user_ids", "m.room.message",
    "m.poll.start", "m.poll", "question", "answers", "org.matrix.msc3381.poll.start", "m.room.member", "membership",
    "m.room.name", "name", "displayname", "is_direct", "m.room.canonical_alias", "alias", "formatted_body", "@me:x.y",
)  # fmt: skip
TELEGRAM = odd(
    "message", "channel_post", "chat", "id", "type", "private", "text", "caption", "from", "sender_chat", "username",
    "reply_to_message", "message_id", "forum_topic_created", "message_thread_id", "is_topic_message", "entities",
    "offset", "length", "user", "mention", "photo", "file_id", "file_size", "document", "mime_type", "file_name",
    "sticker", "location", "contact", "poll", "options", "question", "media_group_id", "update_id", "first_name",
)  # fmt: skip


@given(event=MATRIX, content=MATRIX, place=MATRIX)
def test_any_matrix_event_can_be_read(event: Any, content: Any, place: Any) -> None:
    event = {**event, "content": {**content, "m.relates_to": place}}
    read = convert_lenient(event, MatrixEvent)
    latest, _ = read.latest_content()
    for one in (latest, read.content):
        assert isinstance(read.text_of(one), str)
        file = read.file_of(one)
        assert file is None or isinstance(file.name, str)
        assert isinstance(one.mentions_user("@me:x.y", "Me"), bool)
    for found in (read.thread, read.reply_to):
        assert found is None or isinstance(found, str)


@example(state=[{"type": "m.room.name", "state_key": "", "content": {"name": {"a": 1}}}], part={"summary": [1]})
@example(state=[{"type": "m.room.member", "state_key": "@me:x.y", "content": {"displayname": 3}}], part={})
@given(state=st.lists(MATRIX, max_size=4), part=odd("summary", "state", "timeline", "events", "m.joined_member_count"))
def test_any_room_can_be_taken_in(state: Any, part: Any) -> None:
    rooms = MatrixRooms("@me:x.y")
    direct = {"type": "m.direct", "content": {"@a:x.y": ["!r"], "@b:x.y": 7, "@c:x.y": [3]}}
    rooms.apply_account_data(convert_lenient({"events": [direct]}, AccountData))
    rooms.update("!r", convert_lenient(part, JoinedRoom))
    rooms.update("!r", convert_lenient({"state": {"events": state}, "timeline": {"events": state}}, JoinedRoom))
    room = rooms.get("!r")
    assert room is not None
    assert all(isinstance(name, str | None) for name in (room.name, room.alias, room.display_name("@me:x.y")))
    assert isinstance(room.is_direct, bool)
    assert isinstance(room.member_ids, list)
    rooms.find_direct_room("@a:x.y")


@example(message={"photo": [{"file_id": "x", "file_size": "big"}, 7], "date": "now"}, chat={"title": 3}, more={})
@example(message={"entities": [{"type": 1, "offset": 0, "length": 99}, 3], "text": "x"}, chat={}, more={})
@given(message=TELEGRAM, chat=TELEGRAM, more=TELEGRAM)
def test_any_telegram_update_can_be_read(message: Any, chat: Any, more: Any) -> None:
    update = {**more, "message": {**message, "chat": chat}}
    first, second = (convert_lenient(each, TelegramUpdate) for each in (update, more))
    found = first.new_message
    assert found is not None
    assert isinstance(found.sender, Sender)
    assert found.readable_text is None or isinstance(found.readable_text, str)
    assert found.file is None or isinstance(found.file, TelegramFile)
    assert isinstance(found.mentions(TelegramBot(id=1, username="bot")), bool)
    for place in (found.thread, found.reply_to):
        assert place is None or isinstance(place, str)
    assert isinstance(found.date, int)
    assert isinstance(found.chat.title, str | None)
    assert found.chat_kind in ("direct", "group", "channel")
    assert sum(map(len, _group_albums([first, second, first]))) == 3


@given(markdown=st.text(alphabet="ab <>&\"'*_`~[]()#-+.|!\n\\1>:/", max_size=80))
def test_any_markdown_becomes_markup_that_telegram_reads(markdown: str) -> None:
    Entities(to_inline_html(markdown))  # which raises what Telegram would say
    html = to_html(markdown)
    assert html is None or "<script" not in html


def test_a_message_of_many_wrong_fields_is_read_without_asking_for_each_what_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is read where everything else waits: a message of 64 KB that takes a second, sent often, stops the gateway."""
    kinds: list[Any] = []
    ask = msgspec.structs.fields

    def count(kind: Any) -> Any:
        kinds.append(kind)
        return ask(kind)

    monkeypatch.setattr(msgspec.structs, "fields", count)
    read = convert_lenient({"content": {"m.poll": {"answers": [{"id": 5}] * 1_000}}}, MatrixEvent)
    assert read.content.poll is not None
    assert len(read.content.poll.answers) == 1_000
    assert len(kinds) < 10


@pytest.mark.parametrize("depth", [250, 900, 1500, 3000])
def test_a_matrix_message_nested_deeply_leaves_the_others_readable(depth: int) -> None:
    """As a sync that can't be read is asked for again, one such message would end the channel for good."""
    content = '{"m.new_content":' * depth + '{"body":5}' + "}" * depth
    events = [f'{{"type":"m.room.message","event_id":"${n}","content":{c}}}' for n, c in ((1, content), (2, "{}"))]
    raw = f'{{"next_batch":"b","rooms":{{"join":{{"!r":{{"timeline":{{"events":[{",".join(events)}]}}}}}}}}}}'
    read = decode_lenient(raw.encode(), SyncAnswer)
    assert read.next_batch == "b"
    assert [event.event_id for event in read.rooms.join["!r"].timeline.events] == ["$1", "$2"]


@pytest.mark.parametrize("id", ["missing", None, "7", 7.5, True, [7], {"id": 7}])
@pytest.mark.parametrize("field", ["from", "sender_chat"])
def test_a_telegram_sender_without_an_id_has_no_identity(field: str, id: Any) -> None:
    """A text for the missing id, such as None, could be approved, and with it every sender without an id."""
    sender = {"username": "x"} if id == "missing" else {"username": "x", "id": id}
    update = {"message": {"chat": {"id": 1}, "text": "hi", field: sender}}
    message = convert_lenient(update, TelegramUpdate).new_message
    assert message is not None
    assert message.sender == Sender(username="x")


@pytest.mark.parametrize("name", [".", ".."])
def test_no_name_in_a_matrix_message_leads_to_another_method(name: str) -> None:
    """The HTTP client would resolve them: a message that answers `..` would ask for the room itself."""
    with pytest.raises(MatrixRefused):
        client_path("rooms", "!r:x.y", "event", name)
    assert (
        client_path("rooms", "!r:x.y", "event", f"{name}/x") == f"/_matrix/client/v3/rooms/%21r%3Ax.y/event/{name}%2Fx"
    )


@pytest.mark.parametrize("number", [None, "5", [], -3])
def test_an_update_without_a_number_is_not_fetched_again_at_once(number: Any) -> None:
    offsets: list[Any] = []

    class Api:
        async def call(self, method: str, kind: Any, **params: Any) -> Any:
            offsets.append(params.get("offset"))
            assert len(offsets) < 5, "it asks without a pause"
            return convert_lenient([{"update_id": number}], kind) if method == "getUpdates" else True

    async def ignore(message: Any) -> None:
        return

    receiver = TelegramReceiver(TelegramSettings(), Api(), "main")  # type: ignore[arg-type]
    with pytest.raises(ChannelError):
        asyncio.run(receiver._poll(_Connection(TelegramBot(id=1, username="bot"), ignore)))
