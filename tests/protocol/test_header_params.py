"""Headers that repeat the body are compared with it."""

import pytest

from openclaw_mcp.protocol import header_params
from openclaw_mcp.protocol.jsonrpc import JsonRpcError, JsonRpcRequest
from openclaw_mcp.protocol.mcp import HEADER_MISMATCH, PROTOCOL_VERSION

BODY = {"name": "echo", "_meta": {PROTOCOL_VERSION: "2026-07-28"}}
HEADERS = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "echo"}


def test_headers_that_agree_pass() -> None:
    header_params.check_headers(HEADERS, JsonRpcRequest(1, "tools/call", BODY))


@pytest.mark.parametrize("lost", HEADERS)
def test_a_missing_header_is_named(lost: str) -> None:
    headers = {key: value for key, value in HEADERS.items() if key != lost}

    with pytest.raises(JsonRpcError, match="(?i)" + lost) as refused:
        header_params.check_headers(headers, JsonRpcRequest(1, "tools/call", BODY))
    assert refused.value.code == HEADER_MISMATCH


@pytest.mark.parametrize("key", HEADERS)
def test_a_header_that_says_otherwise_is_refused(key: str) -> None:
    with pytest.raises(JsonRpcError):
        header_params.check_headers({**HEADERS, key: "OTHER"}, JsonRpcRequest(1, "tools/call", BODY))


@pytest.mark.parametrize(
    ("schema", "header", "value", "fits"),
    [
        ("string", "abc", "abc", True),
        ("string", "=?base64?SGVsbG8=?=", "Hello", True),
        ("string", "=?base64?SGVsbG8?=", "Hello", False),
        ("string", "=?base64?SGVs!!!bG8=?=", "Hello", False),
        ("string", "=?base64?SGVsbG8=", "=?base64?SGVsbG8=", True),
        ("integer", "42.0", 42, True),
        ("integer", "43", 42, False),
        ("integer", "many", 42, False),
        ("boolean", "true", True, True),
        ("boolean", "True", True, False),
        ("string", None, "abc", False),
        ("string", "abc", None, False),
        ("string", None, None, True),
    ],
)
def test_a_mirrored_argument_must_equal_its_header(schema: str, header: str | None, value: object, fits: bool) -> None:
    deep = {"type": "object", "properties": {"region": {"type": schema, "x-mcp-header": "Region"}}}
    mirrored = header_params.find_header_params({"type": "object", "properties": {"where": deep}})
    headers = {} if header is None else {"mcp-param-region": header}

    try:
        header_params.check_param_headers(headers, mirrored, {"where": {"region": value}})
    except JsonRpcError:
        assert not fits
    else:
        assert fits
