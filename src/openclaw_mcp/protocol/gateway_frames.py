"""The gateway's frames: requests, responses and events as bytes. Shared by client, server and node; pure."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ..core.fields import NonEmptyStr
from ..core.json_nesting import TOO_DEEP_MESSAGE, is_too_deep
from ..core.rpc import RpcError, schema_message
from . import unencodable

PROTOCOL: Final = 4
MIN_PROBE_PROTOCOL: Final = 3  # probes and nodes of the previous protocol are still let in

MAX_HANDSHAKE_FRAME: Final = 65_536  # bytes of a frame before hello: an unknown peer must not make us hold more
MAX_FRAME: Final = 26_214_400  # bytes of a frame after hello, as announced in `policy.maxPayload`
FRAME_RESERVE: Final = 1 << 20  # bytes of a frame kept free for what is beside its pictures and files
MAX_INLINE_BASE64: Final = 4096  # characters; base64 up to this length is worth no lightening
MAX_BACKLOG: Final = 52_428_800  # bytes waiting for one reader before it counts as a slow consumer
TICK_INTERVAL: Final = 30.0  # seconds between `tick` events; clients give up after two without a message

BAD_FRAME_ID: Final = "invalid"
"""The id under which a frame without a usable one is refused."""


class RequestFrame(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, tag_field="type", tag="req"):
    """A closed object: an unknown key in it is refused, so that a mistyped one is noticed."""

    id: NonEmptyStr
    method: NonEmptyStr
    params: Any = None
    traceparent: Annotated[str, Meta(max_length=128)] | None = None
    expected_profile_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class InvalidFrame(Struct, frozen=True):
    """JSON, but no request: to be answered under `id` with `message`."""

    id: str
    message: str


class ErrorBody(Struct, frozen=True, rename="camel", omit_defaults=True):
    code: str
    message: str
    details: Any | UnsetType = UNSET
    retryable: bool | None = None
    retry_after_ms: int | None = None

    def to_error(self) -> RpcError:
        """The error as the caller of the method gets it raised."""
        details = None if self.details is UNSET else self.details
        return RpcError(
            self.message, kind=self.code, details=details, retryable=self.retryable, retry_after_ms=self.retry_after_ms
        )


class ResponseFrame(Struct, frozen=True, tag_field="type", tag="res"):
    """What a gateway answers. Unknown keys are ignored: gateways newer than us may send some."""

    id: str
    ok: bool
    payload: Any = None
    error: ErrorBody | None = None


class EventFrame(Struct, frozen=True, rename="camel", tag_field="type", tag="event"):
    """An event as a client receives it."""

    event: str
    payload: Any = None
    seq: int | None = None
    state_version: dict[str, int] | None = None


class _NoFrame(Struct, frozen=True, tag_field="type", tag=""):
    """Never sent. A choice of two makes the decoder insist on the `type` key."""


_encode = msgspec.json.Encoder().encode
_request_decoder: msgspec.json.Decoder[RequestFrame | _NoFrame] = msgspec.json.Decoder(RequestFrame | _NoFrame)
_server_decoder: msgspec.json.Decoder[ResponseFrame | EventFrame] = msgspec.json.Decoder(ResponseFrame | EventFrame)
_json_decoder = msgspec.json.Decoder()


# ---- reading -----------------------------------------------------------------------------------------------------


def read_request(data: bytes | bytearray) -> RequestFrame | InvalidFrame | None:
    """What a peer asked; None for what is no JSON and is dropped without an answer. Never raises."""
    try:
        frame = _request_decoder.decode(data)
        if isinstance(frame, RequestFrame) and is_too_deep(data, frame.params):
            return InvalidFrame(frame.id, f"invalid request frame: params are {TOO_DEEP_MESSAGE}")
        return frame if isinstance(frame, RequestFrame) else _explain_invalid(data)
    except msgspec.ValidationError:
        return _explain_invalid(data)
    except (ValueError, RecursionError):  # DecodeError and UnicodeDecodeError both are ValueErrors
        return _explain_undecodable(data)


def read_server_frame(data: bytes | bytearray) -> ResponseFrame | EventFrame | None:
    """A frame from a gateway; None for one we do not understand, which is ignored. Never raises."""
    try:
        return _server_decoder.decode(data)
    except (ValueError, RecursionError):
        return None


def _explain_invalid(data: bytes | bytearray) -> InvalidFrame | None:
    try:
        value = _json_decoder.decode(data)
    except (ValueError, RecursionError):
        return _explain_undecodable(data)
    if not isinstance(value, dict):
        return InvalidFrame(BAD_FRAME_ID, "invalid request frame: must be object")
    id = value.get("id")
    return InvalidFrame(
        id if isinstance(id, str) and id else BAD_FRAME_ID, f"invalid request frame: {_schema_complaint(value)}"
    )


def _explain_undecodable(data: bytes | bytearray) -> InvalidFrame | None:
    try:
        id = unencodable.recover_id(data)
    except ValueError:
        return None
    reason = "a text holds half a character (a lone surrogate), or a number is too large; send neither"
    return InvalidFrame(id if isinstance(id, str) and id else BAD_FRAME_ID, f"invalid request frame: {reason}")


def _schema_complaint(value: dict[str, Any]) -> str:
    missing = [name for name in ("type", "id", "method") if name not in value]
    if missing:
        return f"must have required property '{missing[0]}'"
    if value["type"] != "req":
        return "at /type: must be equal to constant"
    try:
        msgspec.convert(value, RequestFrame)
    except msgspec.ValidationError as exc:
        return schema_message(str(exc))
    return "must be object"  # pragma: no cover - the decoder refused it, so must the converter


# ---- writing -----------------------------------------------------------------------------------------------------


def encode_request(id: str, method: str, params: Any) -> bytes:
    """Raises TypeError, ValueError or OverflowError for what JSON can't hold."""
    return _encode({"type": "req", "id": id, "method": method, "params": params})


def encode_response(id: str, payload: Any) -> bytes:
    """The answer to request `id`. A payload JSON or a frame can't hold becomes an error, never silence."""
    try:
        frame = _encode({"type": "res", "id": id, "ok": True, "payload": payload})
    except (TypeError, ValueError, OverflowError, RecursionError):
        return encode_error(id, RpcError("response serialization failed", kind="UNAVAILABLE"))
    if len(frame) > MAX_FRAME:
        reason = f"the answer has {len(frame)} bytes, and one message at most {MAX_FRAME}; ask for less"
        return encode_error(id, RpcError(reason, kind="UNAVAILABLE", retryable=False))
    return frame


def encode_error(id: str, error: RpcError) -> bytes:
    details = UNSET if error.details is None else error.details
    body = ErrorBody(error.kind, str(error) or "failed", details, error.retryable, error.retry_after_ms)
    return _encode({"type": "res", "id": id, "ok": False, "error": body})


class EncodedEvent:
    """An event written once and numbered for each connection it is sent to.

    Pictures and files that do not fit into a frame are `omitted`, and their size is given in `bytes` instead.
    """

    __slots__ = ("_head", "_tail")

    def __init__(self, event: str, payload: Any, *, state_version: dict[str, int] | None = None) -> None:
        """Raises TypeError, ValueError or OverflowError for a payload JSON can't hold."""
        self._head = _encode({"type": "event", "event": event, "payload": payload})[:-1]
        if len(self._head) > MAX_FRAME:  # a reader would hang up on it
            lighter = _omit_large_data(payload, [MAX_FRAME - FRAME_RESERVE])
            self._head = _encode({"type": "event", "event": event, "payload": lighter})[:-1]
        self._tail = b"}" if state_version is None else b',"stateVersion":%b}' % _encode(state_version)

    def with_seq(self, seq: int) -> bytes:
        return b'%b,"seq":%d%b' % (self._head, seq, self._tail)

    def without_seq(self) -> bytes:
        """Without a number, as nodes and single connections get it."""
        return self._head + self._tail


def _omit_large_data(value: Any, budget: list[int]) -> Any:
    """The same without data that does not fit into what is left of the `budget`, which each kept part reduces."""
    if isinstance(value, list | tuple):
        return [_omit_large_data(item, budget) for item in value]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for name, item in value.items():
        encoded = isinstance(item, str) and name in ("data", "blob") and len(item) > MAX_INLINE_BASE64
        if not encoded:
            kept[name] = _omit_large_data(item, budget)
        elif len(item) <= budget[0]:
            kept[name] = item
            budget[0] -= len(item)
        else:
            kept |= {"omitted": True, "bytes": len(item) * 3 // 4 - item.count("=", -2)}
    return kept
