"""The types an order may carry, and how to tell whether bytes are what they claim."""

from collections.abc import Callable
from typing import Final

import msgspec

from ..core.mime import SUFFIXES

Test = Callable[[bytes], bool]


def looks_like(mime_type: str, data: bytes) -> bool:
    """Whether the first bytes (for text and JSON: all of them) are of this type."""
    return _TESTS[mime_type](data)


def _starts(*heads: bytes) -> Test:
    return lambda data: data.startswith(heads)


def _riff(kind: bytes) -> Test:
    return lambda data: data[:4] == b"RIFF" and data[8:12] == kind


def _iso_media(data: bytes) -> bool:
    return data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")


def _mpeg_audio(data: bytes) -> bool:
    return data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 in (0xE2, 0xE4, 0xE6))


def _adts(data: bytes) -> bool:
    return data[:4] == b"ADIF" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xF6 == 0xF0)


def _tar(data: bytes) -> bool:
    if data[257:262] == b"ustar":
        return True
    # Before `ustar` there was only the header's checksum.
    head, stored = data[:512], data[148:156].strip(b"\0 ")
    if len(head) < 512 or not stored.isdigit():
        return False
    return int(stored, 8) == sum(head[:148]) + 8 * 0x20 + sum(head[156:]) if stored.strip(b"01234567") == b"" else False


def _text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        return False
    return True


_TESTS: Final[dict[str, Test]] = {
    "image/jpeg": _starts(b"\xff\xd8\xff"),
    "image/png": _starts(b"\x89PNG\r\n\x1a\n"),
    "image/gif": _starts(b"GIF87a", b"GIF89a"),
    "image/webp": _riff(b"WEBP"),
    "application/pdf": lambda data: b"%PDF-" in data[:1024],
    "text/plain": _text,
    "text/markdown": _text,
    "text/html": _text,
    "text/csv": _text,
    "application/json": _json,
    "audio/mpeg": _mpeg_audio,
    "audio/wav": _riff(b"WAVE"),
    "audio/ogg": _starts(b"OggS"),
    "audio/mp4": _iso_media,
    "audio/aac": _adts,
    "audio/flac": _starts(b"fLaC"),
    "audio/opus": _starts(b"OggS"),
    "video/mp4": _iso_media,
    "video/webm": _starts(b"\x1a\x45\xdf\xa3"),
    "video/quicktime": _iso_media,
    "video/x-msvideo": _riff(b"AVI "),
    "application/zip": _starts(b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08"),
    "application/gzip": _starts(b"\x1f\x8b"),
    "application/x-tar": _tar,
    "application/x-compressed-tar": _starts(b"\x1f\x8b"),
}
EXTENSIONS: Final = {kind: SUFFIXES[kind] for kind in _TESTS}
IMAGES: Final = frozenset(kind for kind in EXTENSIONS if kind.startswith("image/"))
FILES: Final = frozenset(EXTENSIONS) - IMAGES
