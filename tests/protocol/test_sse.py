"""Server-sent events, however the bytes are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_mcp.protocol.sse import SseEvent, SseEventTooLong, SseParser

STREAM = (
    b": hello\r\n\r\nid: 7\r\nretry: 500\r\ndata: \r\n\r\n"
    b'event: message\ndata: {"a":\ndata: 1}\n\nignored: x\n\ndata:last\n\n'
)
WHOLE = [SseEvent(b"", "7", 500), SseEvent(b'{"a":\n1}'), SseEvent(b"last")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_events_do_not_depend_on_where_the_stream_is_cut(cuts: list[int]) -> None:
    events = SseParser(limit=100)
    edges = [0, *sorted(cuts), len(STREAM)]

    found = [event for start, end in itertools.pairwise(edges) for event in events.feed(STREAM[start:end])]

    assert found == WHOLE


@pytest.mark.parametrize("data", [b"data: " + b"x" * 200 + b"\n\n", b"data: xxxxxxxxxxxxxxxx\n" * 10 + b"\n"])
def test_an_event_over_the_limit_is_refused(data: bytes) -> None:
    with pytest.raises(SseEventTooLong):
        SseParser(limit=100).feed(data)
