"""The gateway's frames, byte for byte as OpenClaw's own clients and gateway write them."""

import base64
import json
import string
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from openclaw_mcp.core.rpc import RpcError, read_params
from openclaw_mcp.protocol import gateway_frames
from openclaw_mcp.protocol.gateway_frames import EncodedEvent, EventFrame, InvalidFrame, RequestFrame, ResponseFrame

ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def test_a_request_is_read_with_and_without_params() -> None:
    assert gateway_frames.read_request(b'{"type":"req","id":"1","method":"health"}') == RequestFrame("1", "health")
    with_null = gateway_frames.read_request(b'{"type":"req","id":"1","method":"health","params":null}')
    assert with_null == RequestFrame("1", "health")
    assert gateway_frames.read_request(gateway_frames.encode_request("1", "chat.send", {"a": 1})) == RequestFrame(
        "1", "chat.send", {"a": 1}
    )


def test_optional_request_keys_are_known() -> None:
    frame = gateway_frames.read_request(
        b'{"type":"req","id":"1","method":"m","traceparent":"00-a","expectedProfileId":"p"}'
    )
    assert isinstance(frame, RequestFrame)
    assert (frame.traceparent, frame.expected_profile_id) == ("00-a", "p")


@pytest.mark.parametrize("data", [b"", b"hello", b"{", b"\xff\xfe", b'{"type":"req","id":"\xff"}', b"NaN", b"[" * 5000])
def test_what_is_not_json_is_dropped(data: bytes) -> None:
    assert gateway_frames.read_request(data) is None
    assert gateway_frames.read_server_frame(data) is None


@pytest.mark.parametrize("levels", [128, 500, 900])
def test_params_that_are_nested_too_deeply_are_refused(levels: int) -> None:
    request = '{"type":"req","id":"4","method":"chat.send","params":{"x":%s}}'
    frame = gateway_frames.read_request((request % ("[" * levels + "]" * levels)).encode())
    assert isinstance(frame, InvalidFrame)
    assert frame.id == "4"
    assert "nested too deeply" in frame.message
    assert isinstance(gateway_frames.read_request((request % ("[" * 127 + "]" * 127)).encode()), RequestFrame)


@pytest.mark.parametrize("value", [r'"cut \ud83d"', "1e400"])
def test_a_request_with_what_can_not_be_represented_is_answered(value: str) -> None:
    frame = gateway_frames.read_request(
        f'{{"type":"req","id":"4","method":"chat.send","params":{{"x":{value}}}}}'.encode()
    )
    assert isinstance(frame, InvalidFrame)
    assert frame.id == "4"
    assert "half a character" in frame.message


@pytest.mark.parametrize(
    ("data", "id", "words"),
    [
        ("[]", "invalid", "must be object"),
        ("null", "invalid", "must be object"),
        ("3", "invalid", "must be object"),
        ('{"type":"req","id":"5","method":"health","x":1}', "5", "at root: unexpected property 'x'"),
        ('{"type":"req","id":7,"method":"health"}', "invalid", "at /id: must be string"),
        ('{"type":"req","method":"health"}', "invalid", "must have required property 'id'"),
        ('{"type":"req","id":"8"}', "8", "must have required property 'method'"),
        ('{"id":"8","method":"health"}', "8", "must have required property 'type'"),
        ('{"type":"req","id":"9","method":""}', "9", "at /method: must not have fewer than 1 characters"),
        ('{"type":"req","id":"","method":"m"}', "invalid", "at /id: must not have fewer than 1 characters"),
        ('{"type":"res","id":"13","method":"m"}', "13", "at /type: must be equal to constant"),
        ('{"type":3,"id":"13","method":"m"}', "13", "at /type: must be equal to constant"),
    ],
)
def test_json_that_is_no_request_is_refused_in_the_words_clients_know(data: str, id: str, words: str) -> None:
    assert gateway_frames.read_request(data.encode()) == InvalidFrame(id, f"invalid request frame: {words}")


class Bounded(Struct):
    few: Annotated[list[int], Meta(min_length=2, max_length=3)] | None = None
    named: Annotated[dict[str, int], Meta(max_length=1)] = {}
    word: Annotated[str, Meta(pattern=r"^[^/\\]+$")] = "x"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"few": [1]}, "at /few: must not have fewer than 2 items"),
        ({"few": [1, 2, 3, 4]}, "at /few: must not have more than 3 items"),
        ({"named": {"a": 1, "b": 2}}, "at /named: must not have more than 1 properties"),
        ({"word": "a/b"}, r'at /word: must match pattern "^[^/\\]+$"'),
    ],
)
def test_params_out_of_bounds_are_refused_in_the_words_clients_know(params: dict[str, Any], words: str) -> None:
    with pytest.raises(RpcError) as refused:
        read_params(params, Bounded, "m")
    assert str(refused.value) == f"invalid m params: {words}"


def test_answers_and_events_come_through_with_keys_we_do_not_know() -> None:
    response = gateway_frames.read_server_frame(b'{"type":"res","id":"1","ok":true,"payload":{"a":1},"newer":2}')
    assert response == ResponseFrame("1", True, {"a": 1})
    news = gateway_frames.read_server_frame(
        b'{"type":"event","event":"tick","payload":{},"seq":4,"recipientProfileId":"x"}'
    )
    assert news == EventFrame("tick", {}, 4)
    assert gateway_frames.read_server_frame(b'{"type":"other"}') is None


def test_an_error_crosses_the_wire_whole() -> None:
    fault = RpcError("no", kind="UNAVAILABLE", details={"code": "X"}, retryable=True, retry_after_ms=500)
    frame = gateway_frames.read_server_frame(gateway_frames.encode_error("1", fault))
    assert isinstance(frame, ResponseFrame)
    assert frame.error is not None
    back = frame.error.to_error()
    assert (str(back), back.kind, back.details, back.retryable, back.retry_after_ms) == (
        "no",
        "UNAVAILABLE",
        {"code": "X"},
        True,
        500,
    )
    bare = json.loads(gateway_frames.encode_error("1", RpcError("no")))
    assert bare["error"] == {"code": "INVALID_REQUEST", "message": "no"}


@pytest.mark.parametrize("payload", [{"a": object()}, {"a": {1: {2j: 3}}}])
def test_an_answer_json_cannot_hold_is_an_error_not_silence(payload: Any) -> None:
    frame = gateway_frames.read_server_frame(gateway_frames.encode_response("1", payload))
    assert isinstance(frame, ResponseFrame)
    assert frame.error is not None
    assert frame.error.message == "response serialization failed"


def test_an_event_is_written_once_and_numbered_per_connection() -> None:
    event = EncodedEvent("health", {"ok": True}, state_version={"presence": 1, "health": 4})
    assert json.loads(event.with_seq(7)) == {
        "type": "event",
        "event": "health",
        "payload": {"ok": True},
        "seq": 7,
        "stateVersion": {"presence": 1, "health": 4},
    }
    assert json.loads(EncodedEvent("tick", {"ts": 1}).without_seq()) == {
        "type": "event",
        "event": "tick",
        "payload": {"ts": 1},
    }


def test_an_event_too_large_for_a_frame_leaves_out_the_pictures_that_do_not_fit() -> None:
    picture = base64.b64encode(bytes(10 << 20)).decode()
    blocks = [{"type": "image", "data": picture, "mimeType": "image/png"} for _ in range(3)]
    file = {"type": "resource", "resource": {"uri": "file:///a.pdf", "blob": picture}}

    frame = EncodedEvent("agent", {"content": [{"type": "text", "text": "see"}, *blocks, file]}).without_seq()

    assert len(frame) <= gateway_frames.MAX_FRAME
    text, one, two, three, last = json.loads(frame)["payload"]["content"]
    assert text["text"] == "see"
    assert one["data"] == picture
    assert (two["omitted"], two["bytes"]) == (three["omitted"], three["bytes"]) == (True, 10 << 20)
    assert "data" not in two
    assert last["resource"] == {"uri": "file:///a.pdf", "omitted": True, "bytes": 10 << 20}


def test_an_answer_too_large_for_a_frame_says_so() -> None:
    frame = gateway_frames.read_server_frame(
        gateway_frames.encode_response("1", {"text": "x" * gateway_frames.MAX_FRAME})
    )
    assert isinstance(frame, ResponseFrame)
    assert frame.error is not None
    assert "ask for less" in frame.error.message


@given(st.binary(max_size=200) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_make_the_reader_raise(data: bytes) -> None:
    read = gateway_frames.read_request(data)
    assert read is None or isinstance(read, RequestFrame | InvalidFrame)
    answer = gateway_frames.read_server_frame(data)
    assert answer is None or isinstance(answer, ResponseFrame | EventFrame)


@given(
    st.text(string.printable, min_size=1, max_size=20),
    st.text(string.printable, min_size=1, max_size=20),
    st.dictionaries(st.text(max_size=8), ANY_JSON, max_size=4),
)
def test_what_is_written_is_read_back(id: str, method: str, params: dict[str, Any]) -> None:
    assert gateway_frames.read_request(gateway_frames.encode_request(id, method, params)) == RequestFrame(
        id, method, params
    )
    assert gateway_frames.read_server_frame(gateway_frames.encode_response(id, params)) == ResponseFrame(
        id, True, params
    )
    assert gateway_frames.read_server_frame(EncodedEvent(method, params).with_seq(3)) == EventFrame(method, params, 3)
