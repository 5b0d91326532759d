"""The types an order may carry, and how to tell whether bytes are what they claim."""

from collections.abc import Callable
from typing import Final

import msgspec

from ..core.mime import SUFFIX_BY_MIME_TYPE
from ..core.text_encoding import decode_text, is_text

ByteTest = Callable[[bytes], bool]

MAX_JSON5_DEPTH: Final = 500  # objects and lists in one another; no settings file has as many


def looks_like(mime_type: str, data: bytes) -> bool:
    """Whether the first bytes (for text and JSON: all of them) are of this type."""
    return _TESTS[mime_type](data)


def _starts_with(*prefixes: bytes) -> ByteTest:
    return lambda data: data.startswith(prefixes)


def _is_riff(kind: bytes) -> ByteTest:
    return lambda data: data[:4] == b"RIFF" and data[8:12] == kind


def _is_iso_media(data: bytes) -> bool:
    return data[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")


def _is_mpeg_audio(data: bytes) -> bool:
    return data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 in (0xE2, 0xE4, 0xE6))


def _is_adts(data: bytes) -> bool:
    return data[:4] == b"ADIF" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xF6 == 0xF0)


def _is_tar(data: bytes) -> bool:
    if data[257:262] == b"ustar":
        return True
    # Before `ustar` there was only the header's checksum.
    head, stored = data[:512], data[148:156].strip(b"\0 ")
    if len(head) < 512 or not stored.isdigit():
        return False
    return int(stored, 8) == sum(head[:148]) + 8 * 0x20 + sum(head[156:]) if stored.strip(b"01234567") == b"" else False


def _is_json(data: bytes) -> bool:
    """Whether it is JSON, or JSON5: settings files often have comments and trailing commas."""
    try:
        msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        return is_text(data) and _is_json5(decode_text(data))
    return True


def _is_json5(text: str) -> bool:
    import pyjson5  # here for start-up: most orders carry none

    try:
        pyjson5.decode(text, maxdepth=MAX_JSON5_DEPTH)
    except (ValueError, RecursionError, pyjson5.Json5Exception):
        return False
    return True


_TESTS: Final[dict[str, ByteTest]] = {
    "image/jpeg": _starts_with(b"\xff\xd8\xff"),
    "image/png": _starts_with(b"\x89PNG\r\n\x1a\n"),
    "image/gif": _starts_with(b"GIF87a", b"GIF89a"),
    "image/webp": _is_riff(b"WEBP"),
    "application/pdf": lambda data: b"%PDF-" in data[:1024],
    "text/plain": is_text,
    "text/markdown": is_text,
    "text/html": is_text,
    "text/csv": is_text,
    "application/json": _is_json,
    "audio/mpeg": _is_mpeg_audio,
    "audio/wav": _is_riff(b"WAVE"),
    "audio/ogg": _starts_with(b"OggS"),
    "audio/mp4": _is_iso_media,
    "audio/aac": _is_adts,
    "audio/flac": _starts_with(b"fLaC"),
    "audio/opus": _starts_with(b"OggS"),
    "video/mp4": _is_iso_media,
    "video/webm": _starts_with(b"\x1a\x45\xdf\xa3"),
    "video/quicktime": _is_iso_media,
    "video/x-msvideo": _is_riff(b"AVI "),
    "application/zip": _starts_with(b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08"),
    "application/gzip": _starts_with(b"\x1f\x8b"),
    "application/x-tar": _is_tar,
    "application/x-compressed-tar": _starts_with(b"\x1f\x8b"),
}
EXTENSIONS: Final = {kind: SUFFIX_BY_MIME_TYPE[kind] for kind in _TESTS}
IMAGE_TYPES: Final = frozenset(kind for kind in EXTENSIONS if kind.startswith("image/"))
FILE_TYPES: Final = frozenset(EXTENSIONS) - IMAGE_TYPES
