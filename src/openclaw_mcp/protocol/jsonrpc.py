"""JSON-RPC 2.0: one message in, one message out."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from ..core.json_nesting import TOO_DEEP, too_deep
from . import unencodable

Id = str | int

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

_LARGEST_ID = 2**63  # ids are echoed, and the encoder writes 64-bit integers

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class RpcError(Exception):
    """An error answer: the message or its parameters are at fault, not a tool."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Request(Struct, frozen=True):
    id: Id
    method: str
    params: dict[str, Any]


class Notification(Struct, frozen=True):
    method: str
    params: dict[str, Any]


class Response(Struct, frozen=True):
    """The peer's answer to a request of ours."""

    id: Any
    result: Any
    error: Any


class Malformed(Struct, frozen=True):
    """A message that can't be served; `id` is set when the sender can be told which one it was."""

    id: Id | None
    error: RpcError


Message = Request | Notification | Response | Malformed


def decode(data: bytes | bytearray | str) -> Message:
    """Read one message. Never raises: what is wrong comes back as `Malformed`."""
    try:
        value = _decode(data)
    except RecursionError:
        return Malformed(None, RpcError(PARSE_ERROR, f"Parse error: the JSON is {TOO_DEEP}"))
    except ValueError as exc:  # DecodeError and UnicodeDecodeError both are
        return _unreadable(data, exc)
    if type(value) is not dict or too_deep(data, value):
        return _no_message(value)
    method = value.get("method")
    if type(method) is not str:
        return _without_method(value)
    params = value.get("params")
    if params is None:
        params = {}
    if "id" not in value:
        return Notification(method, params if type(params) is dict else {})
    id = value["id"]
    if not _is_id(id):
        reason = "`id` must be a string or a 64-bit integer"
        return Malformed(None, RpcError(INVALID_REQUEST, f"Invalid request: {reason}"))
    if value.get("jsonrpc") != "2.0":
        return Malformed(id, RpcError(INVALID_REQUEST, 'Invalid request: `jsonrpc` must be "2.0"'))
    if type(params) is not dict:
        return Malformed(id, RpcError(INVALID_PARAMS, "Invalid params: `params` must be an object"))
    return Request(id, method, params)


def result(id: Id, value: Any) -> bytes:
    """The answer to request `id`. A value JSON can't hold becomes an internal error, never silence."""
    try:
        return encode({"jsonrpc": "2.0", "id": id, "result": value})
    except (TypeError, ValueError, OverflowError, RecursionError):
        return error(id, RpcError(INTERNAL_ERROR, "Internal error: the result can't be written as JSON"))


def error(id: Id | None, exc: RpcError) -> bytes:
    body: dict[str, Any] = {"code": exc.code, "message": exc.message}
    if exc.data is not None:
        body["data"] = exc.data
    return encode({"jsonrpc": "2.0", "id": id, "error": body})


def request(id: Id, method: str, params: dict[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def notification(method: str, params: dict[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def _is_id(value: Any) -> bool:
    return type(value) is str or (type(value) is int and -_LARGEST_ID <= value < _LARGEST_ID)


def _without_method(value: dict[str, Any]) -> Message:
    if "method" not in value and ("result" in value or "error" in value):
        return Response(value.get("id"), value.get("result"), value.get("error"))
    id = value.get("id")
    reason = "`method` must be a string" if "method" in value else "`method` is missing"
    return Malformed(id if _is_id(id) else None, RpcError(INVALID_REQUEST, f"Invalid request: {reason}"))


def _no_message(value: Any) -> Message:
    """For what is no object, or nested too deeply; an error then stands in for the answer somebody waits for."""
    if type(value) is not dict:
        reason = "batches are not supported" if type(value) is list else "a message must be a JSON object"
        return Malformed(None, RpcError(INVALID_REQUEST, f"Invalid request: {reason}"))
    id, words = value.get("id"), f"Parse error: the JSON is {TOO_DEEP}"
    if "method" not in value:
        return Response(id, None, {"code": PARSE_ERROR, "message": words})
    return Malformed(id if _is_id(id) else None, RpcError(PARSE_ERROR, words))


def _unreadable(data: bytes | bytearray | str, exc: ValueError) -> Malformed:
    """Half a character (a lone surrogate) or a huge number is proper JSON all the same: its sender can be told which
    message it was."""
    try:
        id = unencodable.id_in(data)
    except ValueError:
        return Malformed(None, RpcError(PARSE_ERROR, f"Parse error: {_where(exc)}"))
    reason = "a text holds half a character (a lone surrogate); send whole ones"
    if isinstance(exc, msgspec.ValidationError):  # of a number; nothing else is asked of the types
        reason = f"{_where(exc)}; send it as a text"
    return Malformed(id if _is_id(id) else None, RpcError(PARSE_ERROR, f"Parse error: {reason}"))


def _where(exc: ValueError) -> str:
    """The decoder's own words name a byte position, never the text around it."""
    if isinstance(exc, UnicodeDecodeError):
        return "the message is not UTF-8"
    return str(exc)
