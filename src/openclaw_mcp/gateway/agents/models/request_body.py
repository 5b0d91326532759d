"""A request's body in pieces: pictures become base64 while they are sent, and are never whole in memory. Pure."""

import binascii
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Final

from .messages import Part, Picture, Result, Said

MARK: Final = secrets.token_hex(16)
"""Where a picture goes. Random, so that no message can hold it."""
PIECE: Final = 3 << 14  # bytes of a picture written at a time; of three, so that the pieces join without padding

_MARKED = re.compile(f"{MARK}-([0-9]+)-".encode())


def written(picture: Picture) -> str:
    """A picture's base64, or what stands for it until the body is sent."""
    return picture.data if isinstance(picture.data, str) else f"{MARK}-{id(picture.data)}-"


class Body:
    """Iterates over the body's bytes, any number of times."""

    def __init__(self, text: bytes, talk: Sequence[Said]) -> None:
        """`text` is JSON in which the pictures of `talk` are as `written` says."""
        pictures = {id(data): data for said in talk for data in _pictures(said.parts)}
        self._texts: list[bytes] = []
        self._between: list[bytes] = []
        for number, piece in enumerate(_MARKED.split(text) if pictures else (text,)):
            if number % 2:
                self._between.append(pictures[int(piece)])
            else:
                self._texts.append(piece)

    @property
    def size(self) -> int:
        return sum(map(len, self._texts)) + sum((len(data) + 2) // 3 * 4 for data in self._between)

    def __iter__(self) -> Iterator[bytes]:
        yield self._texts[0]
        for data, text in zip(self._between, self._texts[1:], strict=True):
            view = memoryview(data)
            for begin in range(0, len(data), PIECE):
                yield binascii.b2a_base64(view[begin : begin + PIECE], newline=False)
            yield text


def _pictures(parts: Sequence[Part]) -> Iterator[bytes]:
    for part in parts:
        if isinstance(part, Picture) and isinstance(part.data, bytes):
            yield part.data
        elif isinstance(part, Result):
            yield from _pictures(part.parts)
