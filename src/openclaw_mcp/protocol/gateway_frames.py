"""The gateway's frames: requests, responses and events as bytes. Shared by client, server and node; pure."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ..core.json_nesting import TOO_DEEP, too_deep
from ..core.rpc import Fault, in_schema_words
from . import unencodable

PROTOCOL: Final = 4
OLDEST_PROBE: Final = 3  # probes and nodes of the previous protocol are still let in

LARGEST_OPENING: Final = 65_536  # bytes of a frame before hello: nobody unknown makes us hold more
LARGEST_FRAME: Final = 26_214_400  # bytes of a frame after hello, as announced in `policy.maxPayload`
ROOM: Final = 1 << 20  # bytes of a frame kept free for what is beside its pictures and files
MERE_TEXT: Final = 4096  # characters; base64 up to this length is worth no lightening
LARGEST_BACKLOG: Final = 52_428_800  # bytes waiting for one reader before it counts as a slow consumer
TICK_EVERY: Final = 30.0  # seconds between `tick` events; clients give up after two without a word

BAD_FRAME_ID: Final = "invalid"
"""The id under which a frame without a usable one is refused."""

Name = Annotated[str, Meta(min_length=1)]


class Request(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, tag_field="type", tag="req"):
    """A closed object: an unknown key in it is refused, so that a mistyped one is noticed."""

    id: Name
    method: Name
    params: Any = None
    traceparent: Annotated[str, Meta(max_length=128)] | None = None
    expected_profile_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class Refused(Struct, frozen=True):
    """JSON, but no request: to be answered under `id` with `message`."""

    id: str
    message: str


class ErrorBody(Struct, frozen=True, rename="camel", omit_defaults=True):
    code: str
    message: str
    details: Any | UnsetType = UNSET
    retryable: bool | None = None
    retry_after_ms: int | None = None

    def fault(self) -> Fault:
        """The error as the caller of the method gets it raised."""
        details = None if self.details is UNSET else self.details
        return Fault(
            self.message,
            kind=self.code,
            details=details,
            retryable=self.retryable,
            retry_after_ms=self.retry_after_ms,
        )


class Response(Struct, frozen=True, tag_field="type", tag="res"):
    """What a gateway answers. Unknown keys are ignored: gateways newer than us may send some."""

    id: str
    ok: bool
    payload: Any = None
    error: ErrorBody | None = None


class News(Struct, frozen=True, rename="camel", tag_field="type", tag="event"):
    """An event as a client receives it."""

    event: str
    payload: Any = None
    seq: int | None = None
    state_version: dict[str, int] | None = None


class _Nothing(Struct, frozen=True, tag_field="type", tag=""):
    """Never sent. A choice of two makes the decoder insist on the `type` key."""


_encode = msgspec.json.Encoder().encode
_request: msgspec.json.Decoder[Request | _Nothing] = msgspec.json.Decoder(Request | _Nothing)
_answer: msgspec.json.Decoder[Response | News] = msgspec.json.Decoder(Response | News)
_any = msgspec.json.Decoder()


# ---- reading -----------------------------------------------------------------------------------------------------


def read_request(data: bytes | bytearray) -> Request | Refused | None:
    """What a peer asked. None: no JSON, to be dropped without a word. Never raises."""
    try:
        frame = _request.decode(data)
        if isinstance(frame, Request) and too_deep(data, frame.params):
            return Refused(frame.id, f"invalid request frame: params are {TOO_DEEP}")
        return frame if isinstance(frame, Request) else _refused(data)
    except msgspec.ValidationError:
        return _refused(data)
    except (ValueError, RecursionError):  # DecodeError and UnicodeDecodeError both are ValueErrors
        return _unreadable(data)


def read_answer(data: bytes | bytearray) -> Response | News | None:
    """What a gateway said. None: nothing we understand, to be passed over. Never raises."""
    try:
        return _answer.decode(data)
    except (ValueError, RecursionError):
        return None


def _refused(data: bytes | bytearray) -> Refused | None:
    try:
        value = _any.decode(data)
    except (ValueError, RecursionError):
        return _unreadable(data)
    if not isinstance(value, dict):
        return Refused(BAD_FRAME_ID, "invalid request frame: must be object")
    id = value.get("id")
    return Refused(id if isinstance(id, str) and id else BAD_FRAME_ID, f"invalid request frame: {_complaint(value)}")


def _unreadable(data: bytes | bytearray) -> Refused | None:
    try:
        id = unencodable.id_in(data)
    except ValueError:
        return None
    words = "a text holds half a character (a lone surrogate), or a number is too large; send neither"
    return Refused(id if isinstance(id, str) and id else BAD_FRAME_ID, f"invalid request frame: {words}")


def _complaint(value: dict[str, Any]) -> str:
    missing = [name for name in ("type", "id", "method") if name not in value]
    if missing:
        return f"must have required property '{missing[0]}'"
    if value["type"] != "req":
        return "at /type: must be equal to constant"
    try:
        msgspec.convert(value, Request)
    except msgspec.ValidationError as exc:
        return in_schema_words(str(exc))
    return "must be object"  # pragma: no cover - the decoder refused it, so must the converter


# ---- writing -----------------------------------------------------------------------------------------------------


def request(id: str, method: str, params: Any) -> bytes:
    """Raises TypeError, ValueError or OverflowError for what JSON can't hold."""
    return _encode({"type": "req", "id": id, "method": method, "params": params})


def answer(id: str, payload: Any) -> bytes:
    """The answer to request `id`. A payload JSON or a frame can't hold becomes an error, never silence."""
    try:
        frame = _encode({"type": "res", "id": id, "ok": True, "payload": payload})
    except (TypeError, ValueError, OverflowError, RecursionError):
        return refusal(id, Fault("response serialization failed", kind="UNAVAILABLE"))
    if len(frame) > LARGEST_FRAME:
        words = f"the answer has {len(frame)} bytes, and one message at most {LARGEST_FRAME}; ask for less"
        return refusal(id, Fault(words, kind="UNAVAILABLE", retryable=False))
    return frame


def refusal(id: str, fault: Fault) -> bytes:
    body: dict[str, Any] = {"code": fault.kind, "message": str(fault) or "failed"}
    if fault.details is not None:
        body["details"] = fault.details
    if fault.retryable is not None:
        body["retryable"] = fault.retryable
    if fault.retry_after_ms is not None:
        body["retryAfterMs"] = fault.retry_after_ms
    return _encode({"type": "res", "id": id, "ok": False, "error": body})


class Announcement:
    """An event written once and numbered for each connection it goes to.

    Pictures and files for which a frame has no room are `omitted`, and their size in `bytes` is told instead.
    """

    __slots__ = ("_head", "_tail")

    def __init__(self, event: str, payload: Any, *, state_version: dict[str, int] | None = None) -> None:
        """Raises TypeError, ValueError or OverflowError for a payload JSON can't hold."""
        self._head = _encode({"type": "event", "event": event, "payload": payload})[:-1]
        if len(self._head) > LARGEST_FRAME:  # a reader would hang up on it
            lighter = _lighter(payload, [LARGEST_FRAME - ROOM])
            self._head = _encode({"type": "event", "event": event, "payload": lighter})[:-1]
        self._tail = b"}" if state_version is None else b',"stateVersion":%b}' % _encode(state_version)

    def numbered(self, seq: int) -> bytes:
        return b'%b,"seq":%d%b' % (self._head, seq, self._tail)

    def plain(self) -> bytes:
        """Without a number, as nodes and single connections get it."""
        return self._head + self._tail


def _lighter(value: Any, room: list[int]) -> Any:
    """The same without the bytes of what does not fit into the `room` left, which shrinks as things are put in."""
    if isinstance(value, list | tuple):
        return [_lighter(item, room) for item in value]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for name, item in value.items():
        encoded = isinstance(item, str) and name in ("data", "blob") and len(item) > MERE_TEXT
        if not encoded:
            kept[name] = _lighter(item, room)
        elif len(item) <= room[0]:
            kept[name] = item
            room[0] -= len(item)
        else:
            kept |= {"omitted": True, "bytes": len(item) * 3 // 4 - item.count("=", -2)}
    return kept
