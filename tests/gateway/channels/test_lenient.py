"""JSON from outside: what does not fit is left out, and the rest is read."""

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from openclaw_mcp.gateway.channels.lenient import convert_lenient, decode_lenient
from openclaw_mcp.gateway.channels.matrix.events import EventContent, MatrixEvent
from openclaw_mcp.gateway.channels.matrix.login import SyncPosition


class Inner(Struct):
    number: int
    text: str = "none"


class Outer(Struct, rename={"renamed": "m.renamed"}):
    renamed: str | None = None
    inner: Inner | None = None
    many: list[Inner] = []
    some: tuple[int, ...] = ()
    named: dict[str, Inner] = {}


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({}, Outer()),
        ({"m.renamed": "x", "unknown": 1}, Outer(renamed="x")),
        ({"m.renamed": 7, "inner": {"number": 1}}, Outer(inner=Inner(1))),
        ({"inner": {"number": 1, "text": []}}, Outer(inner=Inner(1))),
        ({"inner": {"text": "without its number"}, "m.renamed": "x"}, Outer(renamed="x")),
        ({"many": [{"number": 1}, 3, {}, {"number": 2, "text": 0}]}, Outer(many=[Inner(1), Inner(2)])),
        ({"some": [1, "2", 3]}, Outer(some=(1, 3))),
        ({"named": {"a": {"number": 1}, "b": 2}}, Outer(named={"a": Inner(1)})),
        ({"many": 3, "named": [], "some": {}}, Outer()),
    ],
)
def test_fields_and_items_of_another_type_are_left_out(value: Any, read: Outer) -> None:
    assert convert_lenient(value, Outer) == read
    assert decode_lenient(msgspec.json.encode(value), Outer) == read


@pytest.mark.parametrize("value", [None, 3, "x", [], {"text": "x"}, {"number": "x"}])
def test_what_lacks_a_field_without_a_default_is_refused(value: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        convert_lenient(value, Inner)


def test_an_encrypted_event_that_an_earlier_version_stored_is_read_with_all_that_decrypts_it() -> None:
    content = {
        "algorithm": "m.megolm.v1.aes-sha2", "sender_key": "k", "device_id": "D", "session_id": "S", "ciphertext": "c",
        "m.relates_to": {"rel_type": "m.thread", "event_id": "$1", "m.in_reply_to": {"event_id": "$2"}},
    }  # fmt: skip
    event = {
        "type": "m.room.encrypted",
        "event_id": "$3",
        "sender": "@a:x.y",
        "origin_server_ts": 5,
        "content": content,
    }
    stored = {**event, "unsigned": {"age": 3, "m.relations": 7}, "room_id": "!r"}
    raw = msgspec.json.encode(
        {"user": "@me:x.y", "since": "s", "waiting": [{"room": "!r", "event": stored, "until": 9}]}
    )
    (waiting,) = decode_lenient(raw, SyncPosition).waiting
    assert isinstance(waiting.event, MatrixEvent)
    assert isinstance(waiting.event.content, EventContent)
    assert msgspec.to_builtins(waiting.event) | {"unsigned": None} == event | {"unsigned": None}
