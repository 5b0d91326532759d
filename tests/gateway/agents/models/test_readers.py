"""Whatever a server streams, a reader makes an answer of it or says that it can't."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_mcp.gateway.agents.models.anthropic import AnthropicReader
from openclaw_mcp.gateway.agents.models.errors import ModelError
from openclaw_mcp.gateway.agents.models.http import parse_event
from openclaw_mcp.gateway.agents.models.messages import AnswerReader, TextPart, ToolCallPart
from openclaw_mcp.gateway.agents.models.openai import OpenAIReader
from tests.effort import often

WORDS = (
    "type", "index", "delta", "content_block", "message", "usage", "choices", "tool_calls", "function", "name", "id",
    "arguments", "content", "finish_reason", "error", "text", "partial_json", "input", "reasoning",
)  # fmt: skip
KINDS = (
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "text",
    "message_stop", "error", "text_delta", "input_json_delta", "tool_use", "thinking", "stop",
)  # fmt: skip

leaves = st.none() | st.booleans() | st.integers(0, 3) | st.floats(allow_nan=False) | st.sampled_from(KINDS) | st.text()
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5)
)


@settings(max_examples=often(100, 1000))
@given(st.lists(values, max_size=6), st.binary(max_size=20))
def test_nothing_a_server_sends_surprises_us(events: list[Any], noise: bytes) -> None:
    for reader in (OpenAIReader("x/y"), AnthropicReader("x/y")):
        for data in (*(msgspec.json.encode(event) for event in events), noise):
            with suppress(ModelError):
                parse_event(reader, data)
        with suppress(ModelError):
            received: AnswerReader = reader
            received.answer()


def feed(*chunks: Any) -> OpenAIReader:
    reader = OpenAIReader("x/y")
    for chunk in chunks:
        parse_event(reader, msgspec.json.encode({"choices": [chunk]}))
    return reader


@pytest.mark.parametrize(
    "pieces",
    [
        # whole calls, all with the index 0
        [[{"index": 0, "id": "a", "function": {"name": "x", "arguments": "{}"}}],
         [{"index": 0, "id": "b", "function": {"name": "y", "arguments": {}}}]],
        # no index at all
        [[{"id": "a", "function": {"name": "x", "arguments": "{}"}},
          {"id": "b", "function": {"name": "y", "arguments": "{}"}}]],
        # the id repeated with every piece
        [[{"index": 0, "id": "a", "function": {"name": "x", "arguments": "{"}},
          {"index": 1, "id": "b", "function": {"name": "y", "arguments": "{"}}],
         [{"index": 0, "id": "a", "function": {"arguments": "}"}}, {"index": 1, "function": {"arguments": "}"}}]],
    ],
)  # fmt: skip
def test_calls_are_reported_apart_however_servers_number_them(pieces: list[Any]) -> None:
    reader = feed(*({"delta": {"tool_calls": piece}} for piece in pieces), {"delta": {}, "finish_reason": "stop"})
    answer = reader.answer()
    assert answer is not None
    assert answer.stop == "tools"
    assert [(call.id, call.name) for call in answer.calls] == [("a", "x"), ("b", "y")]
    assert all(call.arguments in ("{}", "") for call in answer.calls)


def test_an_answer_without_its_end_is_none() -> None:
    assert feed({"delta": {"content": "half"}}).answer() is None
    whole = feed({"delta": {"content": "all"}, "finish_reason": "stop"}).answer()
    assert whole is not None
    assert whole.parts == (TextPart("all"),)
    assert not any(isinstance(part, ToolCallPart) for part in whole.parts)


def test_an_answer_ends_when_its_provider_says_so() -> None:
    reader = AnthropicReader("x/y")
    events: list[Any] = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "all"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    ]
    for event in events:
        parse_event(reader, msgspec.json.encode(event))
        assert reader.answer() is None
    parse_event(reader, b'{"type": "message_stop"}')
    answer = reader.answer()
    assert answer is not None
    assert (answer.parts, answer.stop, answer.usage.input) == ((TextPart("all"),), "stop", 3)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "progress", "delta": "half", "index": None, "message": []},
        {"type": "content_block_stop", "index": None},
        {"type": None},
        None,
        [1],
        7,
    ],
)
def test_an_event_that_is_no_part_of_an_answer_is_passed_over_whatever_it_holds(event: object) -> None:
    """Anthropic's API may send new kinds of events at any time; clients have to ignore those they do not know."""
    reader = AnthropicReader("x/y")

    assert list(reader.read(msgspec.json.encode(event))) == []
    with pytest.raises(ValueError, match="index"):
        reader.read(b'{"type": "content_block_delta", "index": null, "delta": {"type": "text_delta", "text": "x"}}')
