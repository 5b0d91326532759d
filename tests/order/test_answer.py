"""One answer out of many parts."""

from openclaw_mcp.core.agent import Attachment
from openclaw_mcp.core.model import Audio, Embedded, Image, Text
from openclaw_mcp.order import answer
from openclaw_mcp.order.answer import AnswerBuilder


def texts(*parts: str) -> str:
    gatherer = AnswerBuilder()
    for part in parts:
        gatherer.add_text(part)
    (block,) = gatherer.result().content
    assert isinstance(block, Text)
    return block.text


def test_parts_are_joined_in_order_and_said_once() -> None:
    assert texts("one", "two", "one", " two ") == "one\n\ntwo"


def test_a_text_that_grew_is_said_whole() -> None:
    assert texts("Hello", "Hello wor", "Hello world") == "Hello world"
    assert texts("Looking.", "Found it.", "Looking.\n\nFound it.") == "Looking.\n\nFound it."
    assert texts("Looking.", "Found it.", "Looking.Found it. Done.") == "Looking.Found it. Done."
    assert texts("First line\nsecond line", "second line") == "First line\nsecond line"
    assert texts("Found it.", "I looked.\n\nFound it.") == "I looked.\n\nFound it."


def test_a_short_answer_is_not_lost_in_a_longer_text() -> None:
    assert texts("I count 14 files.", "4") == "I count 14 files.\n\n4"
    assert texts("yes", "It says so; no.", "no") == "yes\n\nIt says so; no.\n\nno"


def test_code_keeps_its_indentation() -> None:
    assert texts("\n \n    if x:\n        y()\n") == "    if x:\n        y()"
    assert texts("  plainly ") == "plainly"


def test_an_agent_that_says_nothing_is_said_to_have() -> None:
    assert texts() == answer.EMPTY_ANSWER
    assert texts("", "  ") == answer.EMPTY_ANSWER


def test_media_become_blocks_of_their_kind_once() -> None:
    gatherer = AnswerBuilder()
    gatherer.add_text("see")
    for mime_type in ("image/png", "image/png", "audio/mpeg", "application/pdf", "video/mp4"):
        gatherer.add_media(Attachment(mime_type=mime_type, name="x", data=mime_type.encode()))

    text, image, audio, document, film = gatherer.result().content

    assert isinstance(text, Text)
    assert isinstance(image, Image)
    assert isinstance(audio, Audio)
    assert isinstance(document, Embedded)
    assert isinstance(film, Embedded)
    assert document.resource.uri == "attachment://x"
    assert document.resource.blob == b"application/pdf"


def test_what_is_too_large_is_left_out_and_named() -> None:
    gatherer = AnswerBuilder()
    gatherer.add_media(Attachment(mime_type="image/png", name="huge.png", data=bytes(answer.MAX_ITEM_BYTES + 1)))
    for number in range(3):
        data = bytes([number]) * answer.MAX_ITEM_BYTES
        gatherer.add_media(Attachment(mime_type="image/png", name=f"{number}.png", data=data))

    *images, note = gatherer.result().content

    assert len(images) == 2
    assert isinstance(note, Text)
    assert "huge.png (20.0 MB; one item may have 20 MB)" in note.text
    assert "2.png" in note.text


def test_a_text_too_large_is_cut_and_says_so() -> None:
    text = texts("ä" * (answer.MAX_ANSWER_BYTES // 2 + 10))

    assert text.endswith("too large.]")
    assert len(text.encode()) <= answer.MAX_ANSWER_BYTES
