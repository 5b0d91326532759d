"""Bridge frames, text to values and back. Both spellings in, both spellings out. Pure."""

import re
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from ...core.errors import BadRequest

LONGEST_REASON: Final = 300  # characters of a reason; an app's mistake must not be echoed at length

Json = dict[str, Any]

NOT_CONNECTED: Final = "Bridge is not connected"
"""How every failure for want of the app begins: callers know it by these words."""
AWAY: Final = f"{NOT_CONNECTED}: the app is away; call again when it is back"
"""The app never saw the call."""

_CALL: Final = re.compile(rb'"request_?[iI]d"\s*:\s*"([^"\\]{1,200}:\d+)"')  # ids are ours, and end so
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")

_encode = msgspec.json.Encoder().encode


class BadFrame(BadRequest):
    """A frame that can't be used; `request_id` names the call it was about, when that much could be read."""

    def __init__(self, reason: str, request_id: str | None = None) -> None:
        super().__init__(reason)
        self.request_id = request_id


class Frame(Struct, frozen=True, omit_defaults=True):
    """What an app said. Which fields count depends on `type`; unknown ones are ignored."""

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
    def request(self) -> str | None:
        return self.request_id or self.camel_request_id

    @property
    def size(self) -> int:
        """Bytes of the payload, for the audit."""
        content = len(memoryview(self.content)) if isinstance(self.content, Raw) else 0
        return content + len(memoryview(self.error)) if isinstance(self.error, Raw) else content


class _Named(Struct):
    """The least that tells which call a broken frame was about."""

    request_id: Any = None
    camel_request_id: Any = field(default=None, name="requestId")


class _Invoke(Struct, tag="invoke_tool", tag_field="type"):
    mcpSessionId: str  # noqa: N815  the wire's own spelling
    request_id: str
    requestId: str  # noqa: N815
    tool_name: str
    toolName: str  # noqa: N815
    arguments: Any


_frame = msgspec.json.Decoder(Frame).decode
_named = msgspec.json.Decoder(_Named).decode


def read(message: bytes, *, text: bool = True) -> Frame:
    """One frame from an app. Raises BadFrame saying what is wrong with it."""
    if not text:
        raise BadFrame("binary frames are not used here; send JSON as text")
    try:
        # Decoded first: the codec looks for bad UTF-8 only in the fields it reads, not in what is passed on.
        said = message.decode()
        frame = _frame(said)
    except msgspec.ValidationError as exc:
        raise BadFrame(f"the frame is not what the bridge takes: {short(exc)}", _call_in(said)) from None
    except RecursionError:
        raise BadFrame("the frame is nested too deeply", _call_near(message)) from None
    except ValueError as exc:  # DecodeError and UnicodeDecodeError both are
        raise BadFrame(f"the frame is not JSON: {_why(message, exc)}", _call_near(message)) from None
    if frame.type == "invoke_result":
        if frame.request is None:
            raise BadFrame("invoke_result needs `request_id`")
        if frame.ok is None:
            raise BadFrame("invoke_result needs `ok`, true or false", frame.request)
    elif frame.type == "progress" and (frame.request is None or frame.progress is None):
        raise BadFrame("progress needs `request_id` and the number `progress`")
    return frame


def invoke(session: str, request_id: str, tool: str, arguments: Any) -> bytes:
    return _encode(_Invoke(session, request_id, request_id, tool, tool, arguments))


def cancel(session: str, request_id: str) -> bytes:
    return _say("cancel_tool", session, request_id=request_id, requestId=request_id, reason="nobody waits for it")


def ping(session: str) -> bytes:
    return _say("ping", session)


def pong(session: str) -> bytes:
    return _say("pong", session)


def tools_updated(session: str, count: int) -> bytes:
    return _say("tools_updated", session, tool_count=count)


def error(session: str, reason: str, request_id: str | None) -> bytes:
    if request_id is None:
        return _say("error", session, reason=reason)
    return _say("error", session, reason=reason, request_id=request_id, requestId=request_id)


def short(exc: Exception) -> str:
    """The decoder's own words: they name a position and types, never the text around it."""
    return str(exc)[:LONGEST_REASON]


def _say(type: str, session: str, **fields: Any) -> bytes:
    return _encode({"type": type, "mcpSessionId": session, **fields})


def _why(message: bytes, exc: ValueError) -> str:
    if isinstance(exc, UnicodeDecodeError):
        return "it is not UTF-8"
    return f"{short(exc)}; is a text cut in the middle of a character?" if _HALF.search(message) else short(exc)


def _call_near(message: bytes) -> str | None:
    """The call that a frame nobody can parse speaks of: it must not wait for an answer that has come."""
    found = _CALL.search(message)
    return found[1].decode("latin-1") if found is not None else None


def _call_in(text: str) -> str | None:
    try:
        named = _named(text)
    except (ValueError, RecursionError):
        return None
    for id in (named.request_id, named.camel_request_id):
        if type(id) is str:
            return id
    return None
