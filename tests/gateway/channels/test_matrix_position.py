"""The position file of a Matrix account."""

import msgspec

from openclaw_mcp.core.lenient import decode_lenient
from openclaw_mcp.gateway.channels.matrix.events import EventContent, MatrixEvent
from openclaw_mcp.gateway.channels.matrix.login import SyncPosition


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
