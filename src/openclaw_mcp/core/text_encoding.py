"""Text files of any common encoding: UTF-8, UTF-16 with its mark, else Latin-1 (as Windows writes it). Pure."""

import re
from typing import Final

_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_NO_TEXT: Final = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
"""Control characters that no text holds. Of the others, some files have a bell, a form feed or an escape."""


def decode_text(data: bytes) -> str:
    """What can't be read is marked, never an error."""
    if data.startswith(_UTF16_MARKS):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def is_text(data: bytes) -> bool:
    """Whether the bytes are text in one of these encodings. Without a mark and not in UTF-8, any bytes could be
    Latin-1: those with control characters are not."""
    if b"\0" in data and not data.startswith(_UTF16_MARKS):
        return False
    try:
        text = data.decode("utf-16" if data.startswith(_UTF16_MARKS) else "utf-8")
    except UnicodeDecodeError:
        return not data.startswith(_UTF16_MARKS) and _NO_TEXT.search(data.decode("latin-1")) is None
    return "\0" not in text
