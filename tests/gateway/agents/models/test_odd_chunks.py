"""Chunks of an OpenAI-compatible server in odd forms: a hole in an answer is an error, an odd text is not."""

import msgspec
import pytest

from openclaw_mcp.gateway.agents.models.messages import ToolCallPart
from openclaw_mcp.gateway.agents.models.openai import OpenAIReader


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": "x"},
        {"choices": [5]},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {"tool_calls": "x"}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": "x"}]}}]},
    ],
)
def test_a_chunk_of_another_structure_is_an_error(chunk: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        OpenAIReader("origin").read(msgspec.json.encode(chunk))


@pytest.mark.parametrize("odd", [5, [], {}, True])
def test_a_text_of_another_type_is_passed_over(odd: object) -> None:
    reader = OpenAIReader("origin")
    for delta in ({"content": odd, "reasoning": odd}, {"content": "hello"}):
        reader.read(msgspec.json.encode({"choices": [{"delta": delta}], "usage": odd}))
    reader.read(b'{"choices": [{"delta": {}, "finish_reason": "stop"}]}')

    answer = reader.answer()
    assert answer is not None
    assert [getattr(part, "text", None) for part in answer.parts] == ["hello"]


@pytest.mark.parametrize("odd", [5, ["x"], {"x": 1}, True])
def test_a_text_of_another_type_does_not_hide_the_one_beside_it(odd: object) -> None:
    reader = OpenAIReader("origin")
    delta = {"content": odd, "refusal": "no", "reasoning_content": odd, "reasoning": "why"}

    read = list(reader.read(msgspec.json.encode({"choices": [{"delta": delta}]})))

    assert [(each.text, each.is_thinking) for each in read] == [("why", True), ("no", False)]


def test_a_text_in_parts_is_read() -> None:
    """As Mistral's models that think send it."""
    reader = OpenAIReader("origin")
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    content = [thought, {"type": "text", "text": "good "}, {"type": "text", "text": "day"}, "odd", 5]

    read = list(reader.read(msgspec.json.encode({"choices": [{"delta": {"content": content}}]})))

    assert [each.text for each in read] == ["good day"]


def test_pieces_of_a_call_belong_together_though_their_index_has_a_point() -> None:
    reader = OpenAIReader("origin")
    for id, name, arguments in (("a", "look", '{"at":'), (None, None, "1}")):
        piece = {"index": 0.0, "id": id, "function": {"name": name, "arguments": arguments}}
        reader.read(msgspec.json.encode({"choices": [{"delta": {"tool_calls": [piece]}, "finish_reason": "stop"}]}))

    answer = reader.answer()
    assert answer is not None
    assert answer.parts == (ToolCallPart("a", "look", '{"at":1}'),)


@pytest.mark.parametrize("data", [b"5", b"null", b'"x"', b"[1]"])
def test_what_is_no_object_holds_nothing_of_the_answer(data: bytes) -> None:
    assert not list(OpenAIReader("origin").read(data))
