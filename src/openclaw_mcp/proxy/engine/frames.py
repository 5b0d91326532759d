"""Bridge frames, text to values and back. Both spellings in, both spellings out. Pure."""

import re
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from ...core.errors import BadRequest
from ...protocol import bridge as wire

MAX_REASON_LENGTH: Final = 300  # characters of a reason; an app's mistake must not be echoed at length

_REQUEST_ID: Final = re.compile(rb'"request_?[iI]d"\s*:\s*"([^"\\]{1,200}:\d+)"')  # ids are ours, and end so
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")

_encode = msgspec.json.Encoder().encode


class BadFrame(BadRequest):
    """A frame that can't be used; `request_id` names the call it was about, when that much could be read."""

    def __init__(self, reason: str, request_id: str | None = None) -> None:
        super().__init__(reason)
        self.request_id = request_id


class Frame(Struct, frozen=True, omit_defaults=True):
    """A frame from an app. Which fields count depends on `type`; unknown ones are ignored."""

    type: str
    mcp_session_id: str | None = field(default=None, name="mcpSessionId")
    request_id: str | None = None
    camel_request_id: str | None = field(default=None, name="requestId")
    ok: bool | None = None
    content: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    mcp: bool | None = None
    progress: float | None = None
    total: float | None = None
    message: str | None = None
    tools: Raw | UnsetType = UNSET

    @property
    def call_id(self) -> str | None:
        return self.request_id or self.camel_request_id

    @property
    def size(self) -> int:
        """Bytes of the payload, for the audit."""
        content = len(memoryview(self.content)) if isinstance(self.content, Raw) else 0
        return content + len(memoryview(self.error)) if isinstance(self.error, Raw) else content


class _RequestIds(Struct):
    """The least that tells which call a broken frame was about."""

    request_id: Any = None
    camel_request_id: Any = field(default=None, name="requestId")


class _Invoke(Struct, tag=wire.INVOKE_TOOL, tag_field="type"):
    mcpSessionId: str  # noqa: N815  the wire's own spelling
    request_id: str
    requestId: str  # noqa: N815
    tool_name: str
    toolName: str  # noqa: N815
    arguments: Any


_decode = msgspec.json.Decoder(Frame).decode
_decode_request_ids = msgspec.json.Decoder(_RequestIds).decode


def decode_frame(message: bytes, *, is_text: bool = True) -> Frame:
    """One frame from an app. Raises BadFrame saying what is wrong with it."""
    if not is_text:
        raise BadFrame("binary frames are not used here; send JSON as text")
    try:
        # Decoded first: the codec looks for bad UTF-8 only in the fields it reads, not in what is passed on.
        text = message.decode()
        frame = _decode(text)
    except msgspec.ValidationError as exc:
        raise BadFrame(f"the frame is not what the bridge takes: {short_reason(exc)}", _read_request_id(text)) from None
    except RecursionError:
        raise BadFrame("the frame is nested too deeply", _guess_request_id(message)) from None
    except ValueError as exc:  # DecodeError and UnicodeDecodeError both are
        raise BadFrame(
            f"the frame is not JSON: {_explain_parse_error(message, exc)}", _guess_request_id(message)
        ) from None
    if frame.type == wire.INVOKE_RESULT:
        if frame.call_id is None:
            raise BadFrame("invoke_result needs `request_id`")
        if frame.ok is None:
            raise BadFrame("invoke_result needs `ok`, true or false", frame.call_id)
    elif frame.type == wire.PROGRESS and (frame.call_id is None or frame.progress is None):
        raise BadFrame("progress needs `request_id` and the number `progress`")
    return frame


def encode_invoke(session_id: str, request_id: str, tool: str, arguments: Any) -> bytes:
    return _encode(_Invoke(session_id, request_id, request_id, tool, tool, arguments))


def encode_cancel(session_id: str, request_id: str) -> bytes:
    ids = {"request_id": request_id, "requestId": request_id}
    return _encode_message(wire.CANCEL_TOOL, session_id, **ids, reason="nobody waits for it")


def encode_ping(session_id: str) -> bytes:
    return _encode_message(wire.PING, session_id)


def encode_pong(session_id: str) -> bytes:
    return _encode_message(wire.PONG, session_id)


def encode_tools_ack(session_id: str, count: int) -> bytes:
    return _encode_message(wire.TOOLS_UPDATED, session_id, tool_count=count)


def encode_error(session_id: str, reason: str, request_id: str | None) -> bytes:
    ids = {} if request_id is None else {"request_id": request_id, "requestId": request_id}
    return _encode_message(wire.ERROR, session_id, reason=reason, **ids)


def short_reason(exc: Exception) -> str:
    """The decoder's own text: it names a position and types, never the data around it."""
    return str(exc)[:MAX_REASON_LENGTH]


def _encode_message(type: str, session_id: str, **fields: Any) -> bytes:
    return _encode({"type": type, "mcpSessionId": session_id, **fields})


def _explain_parse_error(message: bytes, exc: ValueError) -> str:
    if isinstance(exc, UnicodeDecodeError):
        return "it is not UTF-8"
    hint = "; is a text cut in the middle of a character?" if _SURROGATE.search(message) else ""
    return short_reason(exc) + hint


def _guess_request_id(message: bytes) -> str | None:
    """The call that an unreadable frame is about: it must not wait for an answer that has come."""
    found = _REQUEST_ID.search(message)
    return found[1].decode("latin-1") if found is not None else None


def _read_request_id(text: str) -> str | None:
    try:
        named = _decode_request_ids(text)
    except (ValueError, RecursionError):
        return None
    for id in (named.request_id, named.camel_request_id):
        if type(id) is str:
            return id
    return None
