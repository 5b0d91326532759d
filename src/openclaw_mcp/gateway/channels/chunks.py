"""Splits a long text into parts. Pure. A code fence is closed at the end of a part and reopened in the next."""

import re
from typing import Final

from msgspec import Struct

FENCE: Final = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})(?P<rest>[^\n]*)")
MIN_CHUNK_FRACTION: Final = 0.5  # of the limit: a better place to split is not worth a smaller part


class Fence(Struct, frozen=True):
    """An open code block: its start, its marks, its whole first line."""

    start: int
    marks: str
    line: str


def split_text(text: str, limit: int) -> list[str]:
    """`text` in parts of at most `limit` characters, split at a blank line, else a line break, else a space."""
    parts = []
    rest = text.strip("\n")
    while len(rest) > limit:
        part, rest = _split_first(rest, limit)
        if part.strip():
            parts.append(part)
    return [*parts, rest] if rest.strip() else parts


def _split_first(text: str, limit: int) -> tuple[str, str]:
    at = _break_position(text, limit)
    fence = _open_fence_at(text, at)
    if fence is None:
        return text[:at].rstrip(), text[at:].lstrip("\n") if text[at : at + 1] == "\n" else text[at:].lstrip(" ")
    if text[: fence.start].strip():
        return text[: fence.start].rstrip(), text[fence.start :]
    closing = f"\n{fence.marks}"
    begin, room = fence.start + len(fence.line) + 1, limit - len(closing)
    if begin >= room * (1 - MIN_CHUNK_FRACTION):  # the fence's own line leaves no room for code
        return text[:limit], text[limit:]
    at = _break_position(text, room, lines_only=True, after=begin)
    code = text[at:].removeprefix("\n")
    return text[:at].rstrip("\n") + closing, f"{fence.line}\n{code}"


def _break_position(text: str, limit: int, *, lines_only: bool = False, after: int = 0) -> int:
    least = max(after + 1, int(limit * MIN_CHUNK_FRACTION))
    for mark in ("\n\n", "\n") if lines_only else ("\n\n", "\n", " "):
        at = text.rfind(mark, least, limit + 1)
        if at > 0:
            return at
    return limit


def _open_fence_at(text: str, end: int) -> Fence | None:
    """The code block that is open at `end`."""
    fence: Fence | None = None
    start = 0
    for line in text[:end].splitlines(keepends=True):
        found = FENCE.match(line)
        if found is not None and fence is None:
            whole = text[start : text.find("\n", start) if "\n" in text[start:] else len(text)]
            fence = Fence(start, found["marks"], whole)
        elif found is not None and fence is not None and not found["rest"].strip():
            marks = found["marks"]
            if marks[0] == fence.marks[0] and len(marks) >= len(fence.marks):
                fence = None
        start += len(line)
    return fence
