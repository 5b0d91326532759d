"""The line that is typed: keys in, text and cursor out."""

import pytest

from openclaw_mcp.cli.line_editor import MAX_TYPED, EndOfInput, LineEditor, advance_column, layout_input

LEFT, RIGHT, UP, DOWN, HOME, END, DELETE = (
    b"\x1b[D", b"\x1b[C", b"\x1b[A", b"\x1b[B", b"\x1b[H", b"\x1b[F", b"\x1b[3~",
)  # fmt: skip


def typed(*keys: bytes) -> tuple[str, int]:
    editor = LineEditor()
    for key in keys:
        assert list(editor.feed(key)) == []
    return editor.text, editor.cursor


@pytest.mark.parametrize(
    ("keys", "text", "cursor"),
    [
        ((b"helo", LEFT, b"l"), "hello", 4),
        ((b"abc", b"\x7f"), "ab", 2),
        ((b"abc", HOME, DELETE, RIGHT), "bc", 1),
        ((b"abc", b"\x01", b"x", b"\x05", b"y"), "xabcy", 5),
        ((b"one two", b"\x17"), "one ", 4),
        ((b"one two", b"\x1b[1;5D", b"\x15"), "two", 0),
        ((b"one two", HOME, b"\x1b[1;5C", b"\x0b"), "one", 3),
        ((b"abc", b"\x04", LEFT, b"\x04", END), "ab", 2),
        (("é日👍".encode(), b"\x7f"), "é日", 2),
        ((b"a\x1b[99z\x1bOPb",), "ab", 2),  # keys that mean nothing here
        ((b"x" * (MAX_TYPED + 5),), "x" * MAX_TYPED, MAX_TYPED),
    ],
)
def test_keys_edit_the_line(keys: tuple[bytes, ...], text: str, cursor: int) -> None:
    assert typed(*keys) == (text, cursor)


@pytest.mark.parametrize("cut", [b"\x1b", b"\x1b[", b"\x1bO", b"\x1b[12;"])
def test_pasted_text_that_ends_within_a_key_does_not_hide_the_end_of_the_paste(cut: bytes) -> None:
    editor = LineEditor()

    (line,) = editor.feed(b"\x1b[200~pasted" + cut + b"\x1b[201~\r")

    assert isinstance(line, str)
    assert line.startswith("pasted")


def test_a_character_and_a_key_may_come_in_pieces() -> None:
    assert typed(*(bytes([each]) for each in "日".encode() + LEFT + b"!")) == ("!日", 1)


def test_enter_yields_the_line_and_begins_the_next() -> None:
    editor = LineEditor()
    assert list(editor.feed(b"one\rtwo\nthr")) == ["one", "two"]
    assert editor.text == "thr"


def test_arrows_bring_back_what_was_entered_and_then_what_was_begun() -> None:
    editor = LineEditor()
    list(editor.feed(b"one\rtwo\rdraft"))
    seen = []
    for key in (UP, UP, UP, DOWN, DOWN):
        list(editor.feed(key))
        seen.append(editor.text)
    assert seen == ["two", "one", "one", "two", "draft"]


def test_pasted_lines_are_one_message() -> None:
    editor = LineEditor()
    assert list(editor.feed(b"\x1b[200~one\r/stop\x04\x1b[201~ two\r")) == ["one\n/stop two"]


def test_ctrl_d_ends_the_input_only_on_an_empty_line() -> None:
    editor = LineEditor()
    assert list(editor.feed(b"a\x04\x7f\x04")) == [EndOfInput.END]


@pytest.mark.parametrize(
    ("column", "text", "after"),
    [(0, "abc", 3), (3, "\nx", 1), (8, "ab", 10), (9, "日", 2), (0, "e\u0301", 1), (1, "\t", 8)],
)
def test_the_column_after_a_text_is_known(column: int, text: str, after: int) -> None:
    assert advance_column(column, text, 10) == after


def test_a_long_line_is_shown_in_rows_around_the_cursor() -> None:
    assert layout_input("> ", "abcdefghij", 10, width=6, rows=8) == (["> abcd", "efghij", ""], 2, 0)
    assert layout_input("> ", "abcdefghijklmnop", 0, width=6, rows=2) == (["> abcd", "efghij"], 0, 2)
    assert layout_input("> ", "abcdefghijklmnop", 16, width=6, rows=2) == (["klmnop", ""], 1, 0)
    assert layout_input("> ", "a\nb", 3, width=20, rows=2) == (["> a↵b"], 0, 5)
