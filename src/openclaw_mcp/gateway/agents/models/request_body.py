"""A request's body in pieces: pictures become base64 while they are sent, and are never whole in memory. Pure."""

import binascii
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from .messages import ImagePart, MessagePart, ModelMessage, ToolCallPart, ToolResultPart

PLACEHOLDER: Final = secrets.token_hex(16)
"""The place of a picture. Random, so that no message can hold it."""
CHUNK_SIZE: Final = 3 << 14  # bytes of a picture written at a time; of three, so that the pieces join without padding

_PLACEHOLDER_PATTERN = re.compile(f"{PLACEHOLDER}-([0-9]+)-".encode())


def encode_image(image: ImagePart) -> str:
    """A picture's base64, or a placeholder for it until the body is sent."""
    return image.data if isinstance(image.data, str) else f"{PLACEHOLDER}-{id(image.data)}-"


def valid_arguments(call: ToolCallPart) -> str:
    """The arguments as the model wrote them; an empty object where they are nothing a server would read back to it. The
    model learns of that by the call's result."""
    try:
        return call.arguments if isinstance(msgspec.json.decode(call.arguments), dict) else "{}"
    except (msgspec.DecodeError, RecursionError):
        return "{}"


class RequestBody:
    """Iterates over the body's bytes, any number of times."""

    def __init__(self, text: bytes, messages: Sequence[ModelMessage]) -> None:
        """`text` is JSON in which the pictures of `messages` are as `encode_image` writes them."""
        pictures = {id(data): data for message in messages for data in _image_bytes(message.parts)}
        self._texts: list[bytes] = []
        self._images: list[bytes] = []
        for number, piece in enumerate(_PLACEHOLDER_PATTERN.split(text) if pictures else (text,)):
            if number % 2:
                self._images.append(pictures[int(piece)])
            else:
                self._texts.append(piece)

    @property
    def size(self) -> int:
        return sum(map(len, self._texts)) + sum((len(data) + 2) // 3 * 4 for data in self._images)

    def __iter__(self) -> Iterator[bytes]:
        yield self._texts[0]
        for data, text in zip(self._images, self._texts[1:], strict=True):
            view = memoryview(data)
            for begin in range(0, len(data), CHUNK_SIZE):
                yield binascii.b2a_base64(view[begin : begin + CHUNK_SIZE], newline=False)
            yield text


def _image_bytes(parts: Sequence[MessagePart]) -> Iterator[bytes]:
    for part in parts:
        if isinstance(part, ImagePart) and isinstance(part.data, bytes):
            yield part.data
        elif isinstance(part, ToolResultPart):
            yield from _image_bytes(part.parts)
