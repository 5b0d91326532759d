"""What a client may read of the node: its settings, what happened lately, and the last pictures and sounds."""

import datetime
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

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
from ..core.signal import Bell

ROOT: Final = "openclaw://node"
SETTINGS: Final = f"{ROOT}/settings"
ACTIVITY: Final = f"{ROOT}/activity"
CAPTURES: Final = f"{ROOT}/captures"
MOST_CAPTURES: Final = 16
MOST_CAPTURED: Final = 64 << 20  # bytes kept in memory
MOST_ACTIVITY: Final = 200  # calls remembered

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


class NodeShelf:
    """A `Shelf`. Captures live in memory only: they are gone when the node stops."""

    def __init__(self, settings: Callable[[], Json]) -> None:
        self.changed: Bell[None] = Bell()
        self.updated: Bell[str] = Bell()
        self._settings = settings
        self._activity: deque[CallRecord] = deque(maxlen=MOST_ACTIVITY)
        self._captures: deque[Capture] = deque(maxlen=MOST_CAPTURES)
        self._count = 0

    def record(self, record: CallRecord) -> None:
        self._activity.append(record)
        self.updated.ring(ACTIVITY)

    def keep(self, tool: str, result: ToolResult) -> None:
        """Keep the pictures, sounds and films of a result."""
        fresh = [media for block in result.content if (media := _media(block)) is not None]
        for mime_type, data in fresh:
            self._count += 1
            self._captures.append(Capture(self._count, tool, _written(time.time()), mime_type, data))
        while sum(len(capture.data) for capture in self._captures) > MOST_CAPTURED:
            self._captures.popleft()
        if fresh:
            self.changed.ring(None)
            self.updated.ring(CAPTURES)

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
                return (_text(read.uri, self._settings()),)
            case "openclaw://node/activity":
                return (_text(read.uri, {"calls": [_told(record) for record in reversed(self._activity)]}),)
            case "openclaw://node/captures":
                return (_text(read.uri, {"captures": [_shape(capture) for capture in reversed(self._captures)]}),)
        for capture in self._captures:
            if read.uri == f"{CAPTURES}/{capture.id}":
                return (Contents(uri=read.uri, mime_type=capture.mime_type, blob=capture.data),)
        raise ResourceNotFound(f"Nothing stands at {read.uri[:200]}")


def _media(block: object) -> tuple[str, bytes] | None:
    match block:
        case Image(data=data, mime_type=mime_type) | Audio(data=data, mime_type=mime_type):
            return mime_type, data
        case Embedded(resource=Contents(blob=bytes() as data, mime_type=found)):
            return found or "application/octet-stream", data
    return None


def _told(record: CallRecord) -> Json:
    return {
        "at": _written(record.at),
        "caller": record.caller,
        "tool": record.tool,
        "outcome": record.outcome,
        "milliseconds": round(record.milliseconds, 1),
    }


def _shape(capture: Capture) -> Json:
    return {
        "uri": f"{CAPTURES}/{capture.id}",
        "tool": capture.tool,
        "at": capture.at,
        "mimeType": capture.mime_type,
        "bytes": len(capture.data),
    }


def _text(uri: str, value: Json) -> Contents:
    return Contents(uri=uri, mime_type=_JSON, text=msgspec.json.encode(value).decode())


def _written(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")
