"""One message in, one message out."""

import json

import pytest

from openclaw_mcp.protocol import jsonrpc
from openclaw_mcp.protocol.jsonrpc import JsonRpcNotification, JsonRpcRequest, JsonRpcResponse, MalformedMessage


def test_a_request_keeps_its_id_and_params() -> None:
    message = jsonrpc.decode_message(b'{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1}}')

    assert message == JsonRpcRequest("a", "m", {"x": 1})


def test_params_may_be_left_out_or_null() -> None:
    assert jsonrpc.decode_message(b'{"jsonrpc":"2.0","id":1,"method":"m"}') == JsonRpcRequest(1, "m", {})
    assert jsonrpc.decode_message(b'{"jsonrpc":"2.0","id":1,"method":"m","params":null}') == JsonRpcRequest(1, "m", {})


def test_a_message_without_id_is_a_notification() -> None:
    assert jsonrpc.decode_message(b'{"jsonrpc":"2.0","method":"n"}') == JsonRpcNotification("n", {})


def test_an_answer_to_us_is_a_response() -> None:
    assert jsonrpc.decode_message(b'{"jsonrpc":"2.0","id":4,"result":{}}') == JsonRpcResponse(4, {}, None)


@pytest.mark.parametrize("levels", [127, 500, 900])
def test_an_answer_to_us_that_is_nested_too_deeply_is_an_error_to_whoever_waits(levels: int) -> None:
    answer = jsonrpc.decode_message(b'{"jsonrpc":"2.0","id":4,"result":{"a":' + b"[" * levels + b"]" * levels + b"}}")

    assert isinstance(answer, JsonRpcResponse)
    assert (answer.id, answer.result, answer.error["code"]) == (4, None, -32700)


def test_what_is_nested_less_deeply_is_read_whatever_its_texts_hold() -> None:
    deep = b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":%b,"b":"%b"}}' % (b"[" * 126 + b"]" * 126, b"[{" * 500)

    assert isinstance(jsonrpc.decode_message(deep), JsonRpcRequest)
    assert isinstance(jsonrpc.decode_message(deep.decode()), JsonRpcRequest)


@pytest.mark.parametrize(
    ("data", "code", "names"),
    [
        (b"", -32700, "truncated"),
        (b'{"jsonrpc":"2.0","id":1', -32700, "truncated"),
        (b"\xff\xfe", -32700, "Parse error"),
        (b'{"a":NaN}', -32700, "Parse error"),
        (b'{"a":"\\ud800"}', -32700, "Parse error"),
        (b"[" * 100_000, -32700, "nested too deeply"),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":' + b"[" * 127 + b"]" * 127 + b"}}",
            -32700,
            "nested too",
        ),
        (b"[]", -32600, "batches"),
        (b"17", -32600, "object"),
        (b"{}", -32600, "`method` is missing"),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600, "`method` must be a string"),
        (b'{"jsonrpc":"2.0","id":null,"method":"m"}', -32600, "`id`"),
        (b'{"jsonrpc":"2.0","id":true,"method":"m"}', -32600, "`id`"),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"m"}', -32600, "`id`"),
        (b'{"jsonrpc":"2.0","id":1180591620717411303424,"method":"m"}', -32600, "`id`"),
        (b'{"jsonrpc":"2.0","id":[],"method":"m"}', -32600, "`id`"),
        (b'{"jsonrpc":"1.0","id":1,"method":"m"}', -32600, "jsonrpc"),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}', -32602, "`params`"),
    ],
)
def test_a_broken_message_says_what_is_wrong(data: bytes, code: int, names: str) -> None:
    message = jsonrpc.decode_message(data)

    assert isinstance(message, MalformedMessage)
    assert message.error.code == code
    assert names in message.error.message


def test_a_result_that_is_no_json_becomes_an_error_under_the_same_id() -> None:
    for impossible in ({"x": "\ud800"}, {"x": object()}):
        answer = json.loads(jsonrpc.encode_result(9, impossible))

        assert answer["id"] == 9
        assert answer["error"]["code"] == -32603
