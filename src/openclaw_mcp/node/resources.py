"""What a client may read of the node: its settings, its last calls, and the last pictures, sounds and videos."""

import datetime
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from ..core.errors import ResourceNotFound
from ..core.model import (
    Audio,
    Caller,
    CallRecord,
    Contents,
    Embedded,
    Image,
    Json,
    ResourceRead,
    ResourceSpec,
    TemplateSpec,
    ToolResult,
)
from ..core.signal import Signal

ROOT: Final = "openclaw://node"
SETTINGS: Final = f"{ROOT}/settings"
ACTIVITY: Final = f"{ROOT}/activity"
CAPTURES: Final = f"{ROOT}/captures"
MAX_CAPTURES: Final = 16
MOST_CAPTURE_BYTES: Final = 64 << 20  # bytes kept in memory
MAX_ACTIVITY: Final = 200  # calls remembered

_JSON: Final = "application/json"
_TEMPLATE = TemplateSpec(
    uri_template=f"{CAPTURES}/{{id}}", name="capture", description="One recent picture, sound or film by its number."
)


class Capture(Struct, frozen=True):
    id: int
    tool: str
    at: str
    mime_type: str
    data: bytes


class NodeResources:
    """A `ResourceProvider`. Captures are kept in memory only: they are gone when the node stops."""

    def __init__(self, settings: Callable[[], Json]) -> None:
        self.changed: Signal[None] = Signal()
        self.updated: Signal[str] = Signal()
        self._settings = settings
        self._activity: deque[CallRecord] = deque(maxlen=MAX_ACTIVITY)
        self._captures: deque[Capture] = deque(maxlen=MAX_CAPTURES)
        self._last_id = 0

    def record_call(self, record: CallRecord) -> None:
        self._activity.append(record)
        self.updated.emit(ACTIVITY)

    def keep_captures(self, tool: str, result: ToolResult) -> None:
        """Keep the pictures, sounds and videos of a result."""
        fresh = [media for block in result.content if (media := _media_bytes(block)) is not None]
        for mime_type, data in fresh:
            self._last_id += 1
            self._captures.append(Capture(self._last_id, tool, _format_time(time.time()), mime_type, data))
        while sum(len(capture.data) for capture in self._captures) > MOST_CAPTURE_BYTES:
            self._captures.popleft()
        if fresh:
            self.changed.emit(None)
            self.updated.emit(CAPTURES)

    async def list(self, caller: Caller) -> Sequence[ResourceSpec]:
        fixed = (
            ResourceSpec(uri=SETTINGS, name="settings", description="How the node is set up.", mime_type=_JSON),
            ResourceSpec(
                uri=ACTIVITY, name="activity", description="The last calls, without contents.", mime_type=_JSON
            ),
            ResourceSpec(uri=CAPTURES, name="captures", description="What was captured lately.", mime_type=_JSON),
        )
        taken = (
            ResourceSpec(
                uri=f"{CAPTURES}/{capture.id}",
                name=f"{capture.tool} {capture.at}",
                mime_type=capture.mime_type,
                size=len(capture.data),
            )
            for capture in reversed(self._captures)
        )
        return (*fixed, *taken)

    async def templates(self, caller: Caller) -> Sequence[TemplateSpec]:
        return (_TEMPLATE,)

    async def read(self, read: ResourceRead) -> Sequence[Contents]:
        match read.uri:
            case "openclaw://node/settings":
                return _json_contents(read.uri, self._settings())
            case "openclaw://node/activity":
                return _json_contents(read.uri, {"calls": list(map(_call_to_json, reversed(self._activity)))})
            case "openclaw://node/captures":
                return _json_contents(read.uri, {"captures": list(map(_capture_to_json, reversed(self._captures)))})
        for capture in self._captures:
            if read.uri == f"{CAPTURES}/{capture.id}":
                return (Contents(uri=read.uri, mime_type=capture.mime_type, blob=capture.data),)
        raise ResourceNotFound(f"There is nothing at {read.uri[:200]}")


def _media_bytes(block: object) -> tuple[str, bytes] | None:
    match block:
        case Image(data=data, mime_type=mime_type) | Audio(data=data, mime_type=mime_type):
            return mime_type, data
        case Embedded(resource=Contents(blob=bytes() as data, mime_type=found)):
            return found or "application/octet-stream", data
    return None


def _call_to_json(record: CallRecord) -> dict[str, str | float]:
    return {
        "at": _format_time(record.at),
        "caller": record.caller,
        "tool": record.tool,
        "outcome": record.outcome,
        "milliseconds": round(record.milliseconds, 1),
    }


def _capture_to_json(capture: Capture) -> dict[str, str | int]:
    return {
        "uri": f"{CAPTURES}/{capture.id}",
        "tool": capture.tool,
        "at": capture.at,
        "mimeType": capture.mime_type,
        "bytes": len(capture.data),
    }


def _json_contents(uri: str, value: Any) -> Sequence[Contents]:
    return (Contents(uri=uri, mime_type=_JSON, text=msgspec.json.encode(value).decode()),)


def _format_time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")
