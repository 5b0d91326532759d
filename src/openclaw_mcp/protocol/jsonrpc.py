"""JSON-RPC 2.0: one message in, one message out."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from ..core.json_nesting import TOO_DEEP_MESSAGE, is_too_deep
from ..core.model import Json
from . import unencodable

JsonRpcId = str | int

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

_MAX_ID = 2**63  # ids are echoed, and the encoder writes 64-bit integers

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class JsonRpcError(Exception):
    """An error answer: the message or its parameters are at fault, not a tool."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def body(self) -> "JsonRpcErrorBody":
        return JsonRpcErrorBody(self.code, self.message, self.data)


class JsonRpcErrorBody(Struct, frozen=True, omit_defaults=True):
    """An error as it is sent."""

    code: int
    message: str
    data: Any = None


class JsonRpcNotification(Struct, frozen=True):
    method: str
    params: Json


class JsonRpcRequest(Struct, frozen=True):
    id: JsonRpcId
    method: str
    params: Json


class JsonRpcResponse(Struct, frozen=True):
    """The peer's answer to a request of ours."""

    id: Any
    result: Any
    error: Any


class MalformedMessage(Struct, frozen=True):
    """A message that can't be served; `id` is set when the answer can name the message."""

    id: JsonRpcId | None
    error: JsonRpcError


JsonRpcMessage = JsonRpcRequest | JsonRpcNotification | JsonRpcResponse | MalformedMessage


def decode_message(data: bytes | bytearray | str) -> JsonRpcMessage:
    """Read one message. Never raises: what is wrong comes back as `Malformed`."""
    try:
        value = _decode(data)
    except RecursionError:
        return MalformedMessage(None, JsonRpcError(PARSE_ERROR, f"Parse error: the JSON is {TOO_DEEP_MESSAGE}"))
    except ValueError as exc:  # DecodeError and UnicodeDecodeError both are
        return _reject_undecodable(data, exc)
    if type(value) is not dict or is_too_deep(data, value):
        return _reject_non_message(value)
    method = value.get("method")
    if type(method) is not str:
        return _read_without_method(value)
    params = value.get("params")
    if params is None:
        params = {}
    if "id" not in value:
        return JsonRpcNotification(method, params if type(params) is dict else {})
    id = value["id"]
    if not _is_id(id):
        reason = "`id` must be a string or a 64-bit integer"
        return MalformedMessage(None, JsonRpcError(INVALID_REQUEST, f"Invalid request: {reason}"))
    if value.get("jsonrpc") != "2.0":
        return MalformedMessage(id, JsonRpcError(INVALID_REQUEST, 'Invalid request: `jsonrpc` must be "2.0"'))
    if type(params) is not dict:
        return MalformedMessage(id, JsonRpcError(INVALID_PARAMS, "Invalid params: `params` must be an object"))
    return JsonRpcRequest(id, method, params)


def encode_result(id: JsonRpcId, value: Any) -> bytes:
    """The answer to request `id`. A value JSON can't hold becomes an internal error, never silence."""
    try:
        return encode({"jsonrpc": "2.0", "id": id, "result": value})
    except (TypeError, ValueError, OverflowError, RecursionError):
        return encode_error(id, JsonRpcError(INTERNAL_ERROR, "Internal error: the result can't be written as JSON"))


def encode_error(id: JsonRpcId | None, exc: JsonRpcError) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, "error": exc.body()})


def encode_request(id: JsonRpcId, method: str, params: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def encode_notification(method: str, params: Any) -> bytes:
    """`params` is a JSON object or a struct."""
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def _is_id(value: Any) -> bool:
    return type(value) is str or (type(value) is int and -_MAX_ID <= value < _MAX_ID)


def _read_without_method(value: Json) -> JsonRpcMessage:
    if "method" not in value and ("result" in value or "error" in value):
        return JsonRpcResponse(value.get("id"), value.get("result"), value.get("error"))
    id = value.get("id")
    reason = "`method` must be a string" if "method" in value else "`method` is missing"
    return MalformedMessage(id if _is_id(id) else None, JsonRpcError(INVALID_REQUEST, f"Invalid request: {reason}"))


def _reject_non_message(value: Any) -> JsonRpcMessage:
    """For a value that is no object, or nested too deeply. An answer of that kind becomes an error for its waiter."""
    if type(value) is not dict:
        reason = "batches are not supported" if type(value) is list else "a message must be a JSON object"
        return MalformedMessage(None, JsonRpcError(INVALID_REQUEST, f"Invalid request: {reason}"))
    id, reason = value.get("id"), f"Parse error: the JSON is {TOO_DEEP_MESSAGE}"
    if "method" not in value:
        return JsonRpcResponse(id, None, {"code": PARSE_ERROR, "message": reason})
    return MalformedMessage(id if _is_id(id) else None, JsonRpcError(PARSE_ERROR, reason))


def _reject_undecodable(data: bytes | bytearray | str, exc: ValueError) -> MalformedMessage:
    """Half a character (a lone surrogate) or a huge number is proper JSON all the same: the error can name the
    message by its id."""
    try:
        id = unencodable.recover_id(data)
    except ValueError:
        return MalformedMessage(None, JsonRpcError(PARSE_ERROR, f"Parse error: {_describe_decode_error(exc)}"))
    reason = "a text holds half a character (a lone surrogate); send whole ones"
    if isinstance(exc, msgspec.ValidationError):  # of a number; nothing else is asked of the types
        reason = f"{_describe_decode_error(exc)}; send it as a text"
    return MalformedMessage(id if _is_id(id) else None, JsonRpcError(PARSE_ERROR, f"Parse error: {reason}"))


def _describe_decode_error(exc: ValueError) -> str:
    """The decoder's own text names a byte position, never the text around it."""
    if isinstance(exc, UnicodeDecodeError):
        return "the message is not UTF-8"
    return str(exc)
