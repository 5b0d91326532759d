"""Other servers' tools and results, read without trust."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from openclaw_mcp.core.model import Audio, Contents, Embedded, Image, Link, Text
from openclaw_mcp.protocol.header_params import (
    decode_header_value,
    encode_header_value,
    find_header_params,
    has_valid_header_params,
    param_headers,
    request_headers,
)
from openclaw_mcp.protocol.mcp import SERVER_INFO
from openclaw_mcp.protocol.mcp_results import read_result, read_tool


def test_every_kind_of_block_is_read() -> None:
    result = read_result(
        {
            "content": [
                {"type": "text", "text": "t", "annotations": {"audience": ["user"]}},
                {"type": "image", "data": "aGk=", "mimeType": "image/png"},
                {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
                {"type": "resource", "resource": {"uri": "a:b", "blob": "aGk="}},
                {"type": "resource_link", "uri": "a:b", "name": "n"},
                {"type": "hologram", "beam": 1},
                {"type": "image", "data": "not base64!", "mimeType": "image/png"},
            ],
            "structuredContent": None,
            "isError": True,
            "_meta": {SERVER_INFO: {"name": "other"}, "kept": 1},
        }
    )

    assert result.content[:5] == (
        Text("t", annotations={"audience": ["user"]}),
        Image(b"hi", "image/png"),
        Audio(b"hi", "audio/wav"),
        Embedded(Contents(uri="a:b", blob=b"hi")),
        Link("a:b", "n"),
    )
    assert result.content[5] == Text('{"type":"hologram","beam":1}')
    assert isinstance(result.content[6], Text)
    assert (result.structured, result.failed, result.meta) == (None, True, {"kept": 1})
    assert read_result({}).structured is UNSET


def test_a_tool_keeps_its_schema_and_gains_no_trust() -> None:
    schema = {"$schema": "x", "type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}
    hints = {"readOnlyHint": True}

    tool = read_tool({"name": "t", "inputSchema": schema, "annotations": hints, "title": 5})

    assert tool is not None
    assert (tool.input_schema, tool.annotations, tool.title, tool.effect) == (schema, hints, None, "run")


@pytest.mark.parametrize("value", [None, [], {}, {"name": ""}, {"name": 5}, {"name": "t", "inputSchema": True}])
def test_what_is_no_tool_is_left_out(value: Any) -> None:
    assert read_tool(value) is None


@given(st.text())
def test_any_text_goes_through_a_header(value: str) -> None:
    header = encode_header_value(value.encode("utf-8", "ignore").decode())

    assert header.isascii()
    assert header.isprintable()
    assert decode_header_value(header) == value.encode("utf-8", "ignore").decode()


def test_headers_repeat_the_body() -> None:
    schema = {
        "properties": {
            "a": {"type": "string", "x-mcp-header": "A"},
            "o": {"properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
        }
    }

    assert request_headers("tools/call", {"name": "naïve"}) == {
        "mcp-method": "tools/call",
        "mcp-name": "=?base64?bmHDr3Zl?=",
    }
    assert request_headers("tools/list", {}) == {"mcp-method": "tools/list"}
    assert param_headers(find_header_params(schema), {"a": None, "o": {"n": 5}}) == {"mcp-param-n": "5"}


@pytest.mark.parametrize(
    ("properties", "well"),
    [
        ({"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "boolean", "x-mcp-header": "B"}}, True),
        ({"a": {"type": "string", "x-mcp-header": ""}}, False),
        ({"a": {"type": "string", "x-mcp-header": "A B"}}, False),
        ({"a": {"type": "string", "x-mcp-header": "Ä"}}, False),
        ({"a": {"type": "number", "x-mcp-header": "A"}}, False),
        ({"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}}, False),
        ({"o": {"properties": {"a": {"type": "object", "x-mcp-header": "A"}}}}, False),
    ],
)
def test_marks_that_are_no_headers_are_found(properties: Any, well: bool) -> None:
    assert has_valid_header_params({"properties": properties}) is well
