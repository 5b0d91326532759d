"""Whole lines out of any slicing of the stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_mcp.protocol.lines import LONG_LINE, TOO_LONG, LineSplitter


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b""))), st.integers(1, 7))
def test_lines_are_the_same_however_the_stream_is_cut(texts: list[bytes], size: int) -> None:
    lines = LineSplitter(limit=100)
    stream = b"".join(text + b"\n" for text in texts)

    received = [line for start in range(0, len(stream), size) for line in lines.feed(stream[start : start + size])]

    assert received == texts
    assert lines.take_rest() == b""


@given(st.integers(1, 30))
def test_a_line_over_the_limit_is_dropped_and_the_next_one_is_whole(size: int) -> None:
    lines = LineSplitter(limit=10)
    stream = b"x" * 50 + b"\nshort\n" + b"y" * 10 + b"\n"

    received = [line for start in range(0, len(stream), size) for line in lines.feed(stream[start : start + size])]

    assert received == [TOO_LONG, b"short", b"y" * 10]


def test_what_follows_the_last_newline_is_kept_for_the_end() -> None:
    lines = LineSplitter(limit=100)

    assert lines.feed(b"one\ntwo") == [b"one"]
    assert lines.take_rest() == b"two"


@pytest.mark.parametrize("piece", [1 << 10, 1 << 16, 3 << 20])
def test_a_long_line_comes_whole_and_the_next_one_after_it(piece: int) -> None:
    lines, long = LineSplitter(limit=8 << 20), bytes(range(11, 251)) * (LONG_LINE // 100)
    data = b"first\n" + long + b"\nlast\n"

    found = [line for begin in range(0, len(data), piece) for line in lines.feed(data[begin : begin + piece])]

    assert found == [b"first", long, b"last"]


def test_a_long_line_beyond_the_limit_is_dropped() -> None:
    lines, data = LineSplitter(limit=2 * LONG_LINE), b"x" * (3 * LONG_LINE) + b"\nnext\n"

    found = [line for begin in range(0, len(data), 1 << 16) for line in lines.feed(data[begin : begin + (1 << 16)])]

    assert found == [TOO_LONG, b"next"]
