"""Real pictures, and those a model was shown, in whichever API it was asked."""

import base64
import zlib
from collections.abc import Iterator
from typing import Any


def png(width: int) -> bytes:
    """A real picture: a grey line of so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + (1).to_bytes(4, "big") + bytes((8, 0, 0, 0, 0))
    line = zlib.compress(b"\0" + (bytes(range(256)) * (width // 256 + 1))[:width])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", line) + chunk(b"IEND", b"")


def pictures(body: Any) -> list[bytes]:
    """What a request shows the model as pictures, in order; base64 in mere text is none."""
    return [base64.b64decode(text, validate=True) for text in _encoded(body)]


def _encoded(value: Any) -> Iterator[str]:
    match value:
        case {"type": "image", "source": {"type": "base64", "data": str(data)}}:  # Anthropic
            yield data
        case {"type": "input_image", "image_url": str(url)}:  # OpenAI's responses
            yield url.partition("base64,")[2]
        case {"type": "image_url", "image_url": {"url": str(url)}}:  # OpenAI's chat completions
            yield url.partition("base64,")[2]
        case {"inlineData": {"mimeType": str(kind), "data": str(data)}} if kind.startswith("image/"):  # Gemini
            yield data
        case dict():
            for inner in value.values():
                yield from _encoded(inner)
        case list():
            for inner in value:
                yield from _encoded(inner)
