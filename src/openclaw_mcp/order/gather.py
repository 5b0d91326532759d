"""Everything an agent said during one order, made into one answer: nothing twice, nothing too large, nothing hidden."""

import hashlib
from typing import Final

from ..core.agent import Attachment
from ..core.model import Audio, Block, Contents, Embedded, Image, Text, ToolResult

MEGABYTE: Final = 1024 * 1024
LARGEST_ITEM: Final = 20 * MEGABYTE
LARGEST_ANSWER: Final = 50 * MEGABYTE

NOTHING_SAID: Final = "(The agent finished without a reply.)"


class Gatherer:
    """Takes parts as they come; `result` joins them in the order they came.

    A part said again, or contained in a later and longer one, is said once: agents stream a text piecemeal, then give
    it whole.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._media: dict[bytes, Attachment] = {}
        self._left_out: list[str] = []
        self._size = 0

    def say(self, text: str) -> None:
        said = text.strip()
        if not said or any(said in earlier for earlier in self._texts):
            return
        self._texts = [earlier for earlier in self._texts if earlier not in said]
        self._texts.append(said)

    def show(self, item: Attachment) -> None:
        data = item.data
        if data is None:
            self._left_out.append(f"{item.name or item.mime_type} (only a link: {item.url})")
            return
        digest = hashlib.sha256(data).digest()
        if digest in self._media:
            return
        name = item.name or item.mime_type
        if len(data) > LARGEST_ITEM:
            self._left_out.append(f"{name} ({_megabytes(len(data))}; one item may have {LARGEST_ITEM // MEGABYTE} MB)")
        elif self._size + len(data) > LARGEST_ANSWER:
            limit = LARGEST_ANSWER // MEGABYTE
            self._left_out.append(f"{name} ({_megabytes(len(data))}; one answer may have {limit} MB)")
        else:
            self._media[digest] = item
            self._size += len(data)

    def result(self) -> ToolResult:
        text = _within("\n\n".join(self._texts), LARGEST_ANSWER - self._size)
        blocks: list[Block] = [Text(text)] if text else []
        blocks += [_block(item, number) for number, item in enumerate(self._media.values(), 1)]
        if self._left_out:
            blocks.append(Text(f"Left out of this answer: {'; '.join(self._left_out)}."))
        return ToolResult(tuple(blocks) or (Text(NOTHING_SAID),))


def _block(item: Attachment, number: int) -> Block:
    assert item.data is not None
    match item.kind:
        case "image":
            return Image(item.data, item.mime_type)
        case "audio":
            return Audio(item.data, item.mime_type)
    name = item.name or f"attachment-{number}"
    return Embedded(Contents(uri=f"attachment://{name}", mime_type=item.mime_type, blob=item.data))


def _within(text: str, limit: int) -> str:
    """`text`, cut where it would be larger than the answer may be."""
    if len(text) * 4 <= limit or len(data := text.encode()) <= limit:
        return text
    note = "\n\n[The rest of this text was left out: the answer would be too large.]"
    return data[: max(0, limit - len(note))].decode(errors="ignore") + note


def _megabytes(size: int) -> str:
    return f"{size / MEGABYTE:.1f} MB"
