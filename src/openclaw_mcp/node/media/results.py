"""Results with a picture, sound or video: the bytes as a block, and the JSON a gateway's node answers with."""

from base64 import b64encode
from typing import Final

from msgspec import structs

from ...core.errors import ToolError
from ...core.model import Contents, Embedded, Image, Json, ToolResult
from ..capability import json_result

MAX_PAYLOAD: Final = 24 << 20  # characters of base64 in one answer; a gateway takes frames of 25 MiB
MAX_MEDIA: Final = MAX_PAYLOAD // 4 * 3  # bytes that become that much base64
MAX_SOUND: Final = 4 << 20  # bytes of speech sent back; about 90 s of it, longer ones are only played


def image_result(value: Json, data: bytes, mime_type: str, *, data_url: bool = False) -> ToolResult:
    """A picture block beside the JSON; `data_url` adds the picture to the JSON a second time, as a data URL."""
    encoded = _encode_media(data, copies=1 + data_url)
    full = {**value, "base64": encoded}
    if data_url:
        full["image"] = f"data:{mime_type};base64,{encoded}"
    # The text is without the bytes: a model would have to read them as text, and they are in the next block.
    return structs.replace(json_result(value, Image(data, mime_type)), structured=full)


def video_result(value: Json, data: bytes, *, uri: str) -> ToolResult:
    """A video as an embedded resource beside the JSON."""
    film = Embedded(Contents(uri=uri, mime_type="video/mp4", blob=data))
    return structs.replace(json_result(value, film), structured={**value, "base64": _encode_media(data, copies=1)})


def _encode_media(data: bytes, *, copies: int) -> str:
    if len(data) * copies > MAX_MEDIA:
        limit = MAX_MEDIA // copies >> 20
        raise ToolError(
            f"PAYLOAD_TOO_LARGE: the result has {len(data) >> 20} MiB and {limit} can be sent; "
            "ask for a smaller width, a lower quality or a shorter time"
        )
    return b64encode(data).decode()
