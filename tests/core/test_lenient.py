"""Other programs' JSON as structs: what fits is read, the rest counts as absent."""

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from openclaw_mcp.core.lenient import convert_lenient, decode_lenient, decode_struct, read_struct


class Inner(Struct, frozen=True):
    count: int = 0
    name: str | None = None


class Outer(Struct, frozen=True, rename="camel"):
    inner: Inner = Inner()
    other_inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    text: str | tuple[Inner, ...] | None = None


def test_what_fits_is_read() -> None:
    value = {"inner": {"count": 2.0, "more": []}, "otherInner": {}}
    assert read_struct(value, Outer) == Outer(inner=Inner(2), other_inner=Inner())


@pytest.mark.parametrize("value", [None, 5, "text", [1], {"inner": 7, "otherInner": "x", "items": {}, "text": 3}])
def test_what_does_not_fit_counts_as_absent(value: object) -> None:
    assert read_struct(value, Outer) == Outer()


def test_one_wrong_field_does_not_cost_the_others() -> None:
    value = {"inner": {"count": "many", "name": "a"}, "items": [{"count": 1}, 5, {"count": []}], "text": [{}, None]}
    expected = Outer(inner=Inner(name="a"), items=(Inner(1), Inner()), text=(Inner(),))
    assert read_struct(value, Outer) == expected
    assert decode_struct(msgspec.json.encode(value), Outer) == expected


def test_what_is_not_json_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_struct(b"{", Outer)


class Numbered(Struct):
    number: int
    text: str = "none"


class Holder(Struct, rename={"renamed": "m.renamed"}):
    renamed: str | None = None
    inner: Numbered | None = None
    many: list[Numbered] = []
    some: tuple[int, ...] = ()
    named: dict[str, Numbered] = {}


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({}, Holder()),
        ({"m.renamed": "x", "unknown": 1}, Holder(renamed="x")),
        ({"m.renamed": 7, "inner": {"number": 1}}, Holder(inner=Numbered(1))),
        ({"inner": {"number": 1, "text": []}}, Holder(inner=Numbered(1))),
        ({"inner": {"text": "without its number"}, "m.renamed": "x"}, Holder(renamed="x")),
        ({"many": [{"number": 1}, 3, {}, {"number": 2, "text": 0}]}, Holder(many=[Numbered(1), Numbered(2)])),
        ({"some": [1, "2", 3]}, Holder(some=(1, 3))),
        ({"named": {"a": {"number": 1}, "b": 2}}, Holder(named={"a": Numbered(1)})),
        ({"many": 3, "named": [], "some": {}}, Holder()),
    ],
)
def test_fields_and_items_of_another_type_are_left_out(value: Any, read: Holder) -> None:
    assert convert_lenient(value, Holder) == read
    assert decode_lenient(msgspec.json.encode(value), Holder) == read


@pytest.mark.parametrize("value", [None, 3, "x", [], {"text": "x"}, {"number": "x"}])
def test_what_lacks_a_field_without_a_default_is_refused(value: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        convert_lenient(value, Numbered)


class Nested(Struct, frozen=True):
    below: "Nested | None" = None
    text: str = ""


def _nest(depth: int, bottom: str) -> bytes:
    return ('{"below":' * depth + bottom + "}" * depth).encode()


@pytest.mark.parametrize("depth", [100, 300, 900, 3000])
@pytest.mark.parametrize("bottom", ["{}", '{"text":5}'])
def test_what_is_nested_deeply_does_not_cost_the_others(depth: int, bottom: str) -> None:
    deep, plain = _nest(depth, bottom), b'{"text":"}] [{ \\" kept"}'
    read = decode_lenient(b"[" + b",".join([plain, deep, plain, deep, plain]) + b"]", list[Nested])
    assert [each.text for each in read] == ['}] [{ " kept', "", '}] [{ " kept', "", '}] [{ " kept']


@pytest.mark.parametrize("data", [b"[" * 5000, _nest(3000, "{}")[:-1], b"{" * 5000 + b"}" * 5000])
def test_what_is_nested_deeply_and_no_json_is_an_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_struct(data, Nested)
