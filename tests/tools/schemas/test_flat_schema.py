"""The quick check of flat schemas accepts only what the schema library accepts, and leaves everything else to it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw_mcp.core.claw_catalogue import CLAW_TOOLS
from openclaw_mcp.core.errors import ToolArguments
from openclaw_mcp.order.order_tool import ORDER_TOOL
from openclaw_mcp.tools.flat_schema import FEW_VALUES, MAX_PARTS, compile_flat
from openclaw_mcp.tools.schema import validator_for
from openclaw_mcp.tools.schema_check import SchemaCheck

from .bombs import Json, fields

NOTES = {"title": st.text(max_size=3), "description": st.text(max_size=3), "default": st.integers() | st.none()}
NAMES = st.sampled_from(["a", "b", "c"])
LIMITS = {"minimum": st.integers(-2, 2) | st.floats(-2, 2), "maximum": st.integers(-2, 2)}
ITEM_LIMITS = {"minItems": st.integers(0, 2), "maxItems": st.integers(0, 3)}


def schema(kind: str, **optional: Any) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({"type": st.just(kind)}, optional={**NOTES, **optional})


def objects(below: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    return schema(
        "object",
        properties=st.dictionaries(NAMES, below, max_size=3),
        required=st.lists(NAMES, max_size=2, unique=True),
        additionalProperties=st.booleans(),
    )


leaves = st.one_of(
    schema("string", enum=st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=3, unique=True)),
    schema("boolean"),
    schema("integer", **LIMITS),
    schema("number", **LIMITS),
)
schemas = objects(
    st.recursive(leaves, lambda below: objects(below) | schema("array", items=below, **ITEM_LIMITS), max_leaves=4)
)
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.sampled_from(["x", "y", "", "é"])
values = st.recursive(
    scalars, lambda below: st.lists(below, max_size=4) | st.dictionaries(NAMES, below, max_size=3), max_leaves=6
)


def fits(given_schema: Json, arguments: Json) -> bool:
    try:
        SchemaCheck(msgspec.json.encode(given_schema)).check(arguments)
    except ToolArguments:
        return False
    return True


@given(schemas, st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), values, max_size=4))
def test_what_the_quick_check_accepts_the_library_accepts(given_schema: Json, arguments: Json) -> None:
    accepts = compile_flat(given_schema)
    if accepts is not None and accepts(arguments):
        assert fits(given_schema, arguments)


@pytest.mark.parametrize("tool", CLAW_TOOLS.values(), ids=lambda tool: tool.name)
def test_every_schema_of_the_29_tools_is_flat(tool: Any) -> None:
    assert compile_flat(tool.spec.input_schema) is not None


def test_an_order_is_accepted_without_the_library() -> None:
    accepts = compile_flat(ORDER_TOOL.input_schema)
    assert accepts is not None
    assert accepts({"message": "hi", "images": [{"data": "aGk=", "mimeType": "image/png"}]})
    assert not accepts({"message": "hi", "images": [{"data": "aGk="}]})


@pytest.mark.parametrize(
    "given_schema",
    [
        {},
        {"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"},
        {"type": ["object", "null"]},
        fields(a={"pattern": "x"}),
        fields(a={"type": "string", "maxLength": 3}),
        fields(a={"type": "string", "enum": []}),
        fields(a={"type": "string", "description": 7}),
        fields(a={"type": "integer", "minimum": "1"}),
        fields(a={"$ref": "#"}),
        {"type": "object", "required": ["a", "a"]},
        {"type": "object", "additionalProperties": {"type": "string"}},
        fields(**{f"p{number}": {"type": "string"} for number in range(MAX_PARTS + 1)}),
    ],
)
def test_any_other_schema_is_left_to_the_library(given_schema: Json) -> None:
    assert compile_flat(given_schema) is None


@pytest.mark.parametrize(
    "arguments",
    [{"a": [1] * (FEW_VALUES + 1)}, {"b": {"c": {"d": 1}}}, {f"x{number}": 1 for number in range(FEW_VALUES + 1)}],
)
def test_what_may_take_long_to_check_is_left_to_the_library(arguments: Json) -> None:
    accepts = compile_flat(fields(a={"type": "array"}, b={"type": "object"}))
    assert accepts is not None
    assert not accepts(arguments)
    validator_for(fields(a={"type": "array"}, b={"type": "object"})).check(arguments)
