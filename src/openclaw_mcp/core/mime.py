"""MIME types from outside, parsed in one place; and the file name suffix of each. Pure."""

import re
from typing import Final

OCTET_STREAM: Final = "application/octet-stream"
"""The type of a file whose type is missing or malformed."""
SUFFIX_BY_MIME_TYPE: Final = {
    "image/jpeg": ".jpg", "image/png": ".png", "image/gif": ".gif", "image/webp": ".webp", "image/bmp": ".bmp",
    "image/tiff": ".tiff", "image/heic": ".heic", "image/avif": ".avif", "image/svg+xml": ".svg",
    "application/pdf": ".pdf", "text/plain": ".txt", "text/markdown": ".md", "text/html": ".html",
    "text/csv": ".csv", "application/json": ".json", "audio/mpeg": ".mp3", "audio/mp3": ".mp3", "audio/wav": ".wav",
    "audio/x-wav": ".wav", "audio/wave": ".wav", "audio/vnd.wave": ".wav", "audio/ogg": ".ogg", "audio/mp4": ".m4a",
    "audio/m4a": ".m4a", "audio/x-m4a": ".m4a", "audio/aac": ".aac", "audio/flac": ".flac", "audio/x-flac": ".flac",
    "audio/opus": ".opus", "audio/webm": ".webm", "audio/amr": ".amr", "audio/3gpp": ".3gp", "audio/aiff": ".aiff",
    "audio/x-aiff": ".aiff", "video/mp4": ".mp4", "video/webm": ".webm", "video/quicktime": ".mov",
    "video/x-msvideo": ".avi", "application/zip": ".zip", "application/gzip": ".gz", "application/x-tar": ".tar",
    "application/x-compressed-tar": ".tar.gz",
}  # fmt: skip
_NAME: Final = r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}"  # RFC 6838, 4.2
_TYPE: Final = re.compile(f"{_NAME}/{_NAME}")


def normalize_mime_type(text: object) -> str:
    """A MIME type in lower case and without parameters; `application/octet-stream` when it is malformed."""
    kind = text.partition(";")[0].strip().lower() if isinstance(text, str) else ""
    return kind if _TYPE.fullmatch(kind) else OCTET_STREAM


def suffix_of(mime_type: str) -> str:
    """The suffix for a file of this type, always one of the table's or `.bin`."""
    return SUFFIX_BY_MIME_TYPE.get(mime_type, ".bin")
