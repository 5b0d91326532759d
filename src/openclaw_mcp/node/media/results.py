"""Results with a picture, sound or video: the bytes as a block, and the JSON a gateway's node answers with."""

from base64 import b64encode
from typing import Final

import msgspec

from ...core.errors import ToolError
from ...core.model import Audio, Contents, Embedded, Image, Json, Text, ToolResult

MAX_PAYLOAD: Final = 24 << 20  # characters of base64 in one answer; a gateway takes frames of 25 MiB
MAX_MEDIA: Final = MAX_PAYLOAD // 4 * 3  # bytes that become that much base64
MAX_SOUND: Final = 4 << 20  # bytes of speech sent back; about 90 s of it, longer ones are only played


def image_result(value: Json, data: bytes, mime_type: str, *, data_url: bool = False) -> ToolResult:
    """A picture block beside the JSON; `data_url` adds the picture to the JSON a second time, as a data URL."""
    _check_size(data, copies=1 + data_url)
    encoded = b64encode(data).decode()
    full = {**value, "base64": encoded}
    if data_url:
        full["image"] = f"data:{mime_type};base64,{encoded}"
    return ToolResult((_json_text(value), Image(data, mime_type)), structured=full)


def video_result(value: Json, data: bytes, *, uri: str) -> ToolResult:
    """A video as an embedded resource beside the JSON."""
    _check_size(data, copies=1)
    film = Embedded(Contents(uri=uri, mime_type="video/mp4", blob=data))
    return ToolResult((_json_text(value), film), structured={**value, "base64": b64encode(data).decode()})


def audio_result(value: Json, data: bytes | None, mime_type: str) -> ToolResult:
    """Speech beside the JSON, unless it is too long to be sent."""
    sound = () if data is None or len(data) > MAX_SOUND else (Audio(data, mime_type),)
    return ToolResult((_json_text(value), *sound), structured=value)


def _json_text(value: Json) -> Text:
    # Without the bytes: a model would have to read them as text, and they are in the next block.
    return Text(msgspec.json.encode(value).decode())


def _check_size(data: bytes, *, copies: int) -> None:
    if len(data) * copies > MAX_MEDIA:
        limit = MAX_MEDIA // copies >> 20
        raise ToolError(
            f"PAYLOAD_TOO_LARGE: the result has {len(data) >> 20} MiB and {limit} can be sent; "
            "ask for a smaller width, a lower quality or a shorter time"
        )
