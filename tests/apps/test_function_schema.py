"""What an MCP client is shown of a Python function, and what the function is handed."""

import enum
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_mcp.apps.client import Call
from openclaw_mcp.apps.function_schema import make_tool
from openclaw_mcp.core.errors import BadRequest, ToolArguments


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: float = 2.0


@dataclass
class Node:
    name: str
    below: list["Node"] = field(default_factory=list)


class Pair(msgspec.Struct, array_like=True):
    first: int
    second: Node | None = None


class Person(TypedDict):
    name: str
    age: NotRequired[int]


def everything(
    word: str,
    count: int,
    colour: Colour,
    at: Point,
    *,
    who: Person | None = None,
    size: Literal["s", "m"] = "s",
    words: list[str] = ["a"],  # noqa: B006  a default the schema must show
    limits: dict[str, int] | None = None,
    sure: Annotated[bool, "whether you are"] = False,
    ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5,
    anything: Any = None,
) -> None:
    """Show everything."""


def schema_of(function: Any) -> Any:
    return make_tool(function, {}).definition["input_schema"]


def test_each_kind_of_hint_has_its_schema() -> None:
    schema = schema_of(everything)
    properties = schema["properties"]

    assert schema["type"] == "object"
    assert schema["required"] == ["word", "count", "colour", "at"]
    assert schema["additionalProperties"] is False
    assert properties["word"] == {"type": "string"}
    assert properties["count"] == {"type": "integer"}
    assert schema["$defs"]["Colour"]["enum"] == ["blue", "red"]
    assert schema["$defs"]["Point"]["required"] == ["x"]
    assert schema["$defs"]["Person"]["required"] == ["name"]
    assert properties["size"] == {"enum": ["m", "s"], "default": "s"}
    assert properties["words"] == {"type": "array", "items": {"type": "string"}, "default": ["a"]}
    assert properties["sure"] == {"type": "boolean", "description": "whether you are", "default": False}
    assert properties["ratio"] == {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5}
    assert properties["anything"] == {"default": None}
    jsonschema_rs.meta.validate(schema)


def test_the_function_is_handed_its_own_types_and_its_own_defaults() -> None:
    arguments = make_tool(everything, {}).decode_arguments(b'{"word":"w","count":1,"colour":"red","at":{"x":1}}')

    assert arguments == {"word": "w", "count": 1, "colour": Colour.RED, "at": Point(1)}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (b'{"word":1}', "Expected `str`, got `int`"),
        (b'{"word":"w","count":1,"colour":"green","at":{"x":1}}', "Invalid enum value 'green'"),
        (b'{"word":"w","count":1,"colour":"red","at":{"x":1},"more":1}', "unknown field `more`"),
        (b'{"word":"w"}', "missing required field `count`"),
        (b"[]", "Expected `object`"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_the_place(arguments: bytes, reason: str) -> None:
    with pytest.raises(ToolArguments, match=reason):
        make_tool(everything, {}).decode_arguments(arguments)


def test_the_call_is_no_argument() -> None:
    async def work(call: Call, n: int) -> None: ...

    tool = make_tool(work, {})

    assert list(tool.definition["input_schema"]["properties"]) == ["n"]
    assert tool.call_parameter == "call"
    assert tool.is_async


def test_descriptions_come_from_either_style_of_docstring() -> None:
    def google(a: int, b: int) -> None:
        """Add.

        Slowly.

        Args:
            a (int): the first,
                whatever it is
            b: the second

        Returns:
            nothing
        """

    def sphinx(a: int, b: int) -> None:
        """Add.

        :param a: the first
        :param int b: the second
        """

    properties = schema_of(google)["properties"]
    assert (properties["a"]["description"], properties["b"]["description"]) == (
        "the first, whatever it is",
        "the second",
    )
    assert make_tool(google, {}).definition["description"] == "Add.\n\nSlowly.\n\nReturns:\n    nothing"
    properties = schema_of(sphinx)["properties"]
    assert (properties["a"]["description"], properties["b"]["description"]) == ("the first", "the second")
    assert make_tool(sphinx, {}).definition["description"] == "Add."


def test_a_record_that_is_returned_is_promised() -> None:
    def where() -> Point:
        return Point(1)

    def plain() -> dict[str, int]:
        return {}

    assert make_tool(where, {}).definition["output_schema"]["properties"].keys() == {"x", "y"}
    assert "output_schema" not in make_tool(plain, {}).definition


def test_a_record_that_holds_its_own_kind_is_described_and_promised() -> None:
    def prune(tree: Node) -> Node:
        return tree

    definition = make_tool(prune, {}).definition
    tree = {"name": "a", "below": [{"name": "b", "below": []}]}
    for schema, value, wrong in (
        (definition["input_schema"], {"tree": tree}, {"tree": {"name": "a", "below": [{}]}}),
        (definition["output_schema"], tree, {"name": "a", "below": [{}]}),
    ):
        assert schema["type"] == "object"
        assert jsonschema_rs.is_valid(schema, value)
        assert not jsonschema_rs.is_valid(schema, wrong)


def test_a_record_written_as_an_array_is_taken_but_not_promised() -> None:
    def swap(pair: Pair) -> Pair:
        return pair

    tool = make_tool(swap, {})

    assert "output_schema" not in tool.definition
    assert jsonschema_rs.is_valid(tool.definition["input_schema"], {"pair": [1, {"name": "a"}]})
    assert tool.decode_arguments(b'{"pair":[1,{"name":"a"}]}') == {"pair": Pair(1, Node("a"))}


@pytest.mark.parametrize(
    ("hint", "hint_text"),
    [
        (Path, "Path"),
        (Call | None, "Call | None"),
        (Iterable[int], "Iterable[int]"),
        (list[Path], "list[pathlib.Path]"),
    ],
)
def test_a_hint_json_cannot_carry_is_named_with_its_parameter(hint: Any, hint_text: str) -> None:
    def walk(where: Any) -> None: ...

    walk.__annotations__["where"] = hint
    with pytest.raises(BadRequest) as refused:
        make_tool(walk, {})
    assert str(refused.value).startswith("walk: `where` is of type ")
    assert f"{hint_text}, which JSON can't carry" in str(refused.value)


def test_a_record_to_return_that_json_cannot_carry_is_named() -> None:
    @dataclass
    class Place:
        path: Path

    def find() -> Place:
        return Place(Path())

    find.__annotations__["return"] = Place
    with pytest.raises(BadRequest, match=r"find: what it returns is of type .*Place, which JSON can't carry"):
        make_tool(find, {})


def test_an_integer_may_be_written_as_a_float() -> None:
    def some(count: int, more: dict[str, list[int]], ratio: float = 1.0, note: Any = None) -> None: ...

    tool = make_tool(some, {})

    arguments = tool.decode_arguments(b'{"count":1.0,"more":{"a":[-2e0]},"ratio":0.1,"note":"1.0"}')
    assert arguments == {"count": 1, "more": {"a": [-2]}, "ratio": 0.1, "note": "1.0"}
    assert type(arguments["count"]) is int
    for refused in (b"1.5", b'"1"', b"1e300"):
        with pytest.raises(ToolArguments, match="Expected `int`"):
            tool.decode_arguments(b'{"count":' + refused + b',"more":{}}')


def test_a_hint_from_nowhere_is_named() -> None:
    def odd(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821  the mistake under test

    with pytest.raises(BadRequest, match="odd: the type hint 'Nowhere' is not known"):
        make_tool(odd, {})


VALUES = st.one_of(st.integers(-9, 9), st.text("ab", max_size=2), st.none(), st.floats(-9, 9))


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["word", "count", "ratio", "more"]), VALUES))
def test_what_the_schema_refuses_the_function_never_sees(arguments: dict[str, Any]) -> None:
    def some(word: str, count: int = 1, ratio: float = 1.0) -> None: ...

    tool = make_tool(some, {})
    fits = jsonschema_rs.is_valid(tool.definition["input_schema"], arguments)
    try:
        tool.decode_arguments(msgspec.json.encode(arguments))
    except ToolArguments:
        return
    assert fits


def test_partials_and_objects_that_can_be_called_are_tools_too() -> None:
    class Adder:
        def __call__(self, a: int, b: int = 1) -> int:
            """Add."""
            return a + b

    def add(a: int, b: int) -> int:
        return a + b

    for function in (Adder(), functools.partial(add, b=1)):
        schema = make_tool(function, {"name": "add"}).definition["input_schema"]
        assert schema["required"] == ["a"]
        assert schema["properties"]["a"] == {"type": "integer"}
    with pytest.raises(BadRequest, match="has no name of its own"):
        make_tool(functools.partial(add, b=1), {})
