"""Other programs' JSON as structs: what fits is read, the rest counts as absent."""

import msgspec
import pytest
from msgspec import Struct

from openclaw_mcp.core.lenient import convert_lenient, decode_lenient


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
    assert convert_lenient(value, Outer) == Outer(inner=Inner(2), other_inner=Inner())


@pytest.mark.parametrize("value", [None, 5, "text", [1], {"inner": 7, "otherInner": "x", "items": {}, "text": 3}])
def test_what_does_not_fit_counts_as_absent(value: object) -> None:
    assert convert_lenient(value, Outer) == Outer()


def test_one_wrong_field_does_not_cost_the_others() -> None:
    value = {"inner": {"count": "many", "name": "a"}, "items": [{"count": 1}, 5, {"count": []}], "text": [{}, None]}
    expected = Outer(inner=Inner(name="a"), items=(Inner(1), Inner()), text=(Inner(),))
    assert convert_lenient(value, Outer) == expected
    assert decode_lenient(msgspec.json.encode(value), Outer) == expected


def test_what_is_not_json_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_lenient(b"{", Outer)
