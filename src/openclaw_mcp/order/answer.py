"""All texts and media of one order as one answer: nothing twice, nothing too large, nothing hidden."""

import hashlib
import re
from typing import Final

from ..core.agent import Attachment
from ..core.model import Audio, ContentBlock, Contents, Embedded, Image, Text, ToolResult

MEGABYTE: Final = 1024 * 1024
MAX_ITEM_BYTES: Final = 20 * MEGABYTE
MAX_ANSWER_BYTES: Final = 50 * MEGABYTE
MAX_TOOL_CHARACTERS: Final = 1_000_000  # characters that tools said, in one answer; the transcript has all of it

_BLANK_LINES: Final = re.compile(r"^(?:[ \t\r]*\n)+")
EMPTY_ANSWER: Final = "(The agent finished without a reply.)"


class AnswerBuilder:
    """Takes parts as they come; `result` joins them in the order they came.

    A part that comes again, whole or as lines of another, counts once: agents stream a text, then give it whole.
    A text that merely occurs in another part is not the same: "4" is an answer even after "14 files".
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tool_texts: dict[str, int] = {}
        """What tools said, and the number of `_texts` before it."""
        self._tool_characters = 0
        self._media: dict[bytes, Attachment] = {}
        self._omissions: list[str] = []
        self._size = 0

    def add_text(self, text: str) -> None:
        text = _trim(text)
        if not text or any(_is_line_run(text, earlier) for earlier in self._texts):
            return
        kept = self._texts[: _find_streamed_tail(self._texts, text)]
        self._texts = [*(earlier for earlier in kept if not _is_line_run(earlier, text)), text]

    def add_tool_text(self, name: str, text: str) -> None:
        """What a tool said. It comes before the texts that follow it, and not at all if one of them repeats it."""
        text = _trim(text)
        if not text or text in self._tool_texts:
            return
        if self._tool_characters + len(text) > MAX_TOOL_CHARACTERS:
            limit = f"tools may say {MAX_TOOL_CHARACTERS} in one answer"
            self._omissions.append(f"what {name} said ({len(text)} characters; {limit})")
            return
        self._tool_texts[text] = len(self._texts)
        self._tool_characters += len(text)

    def add_media(self, item: Attachment) -> None:
        data = item.data
        if data is None:
            why = f"only a link: {item.url}" if item.url else "the gateway did not send it"
            omission = f"{item.name or item.mime_type} ({why})"
            self._omissions += [] if omission in self._omissions else [omission]
            return
        digest = hashlib.sha256(data).digest()
        if digest in self._media:
            return
        name = item.name or item.mime_type
        if len(data) > MAX_ITEM_BYTES:
            self._omissions.append(
                f"{name} ({_format_megabytes(len(data))}; one item may have {MAX_ITEM_BYTES // MEGABYTE} MB)"
            )
        elif self._size + len(data) > MAX_ANSWER_BYTES:
            limit = MAX_ANSWER_BYTES // MEGABYTE
            self._omissions.append(f"{name} ({_format_megabytes(len(data))}; one answer may have {limit} MB)")
        else:
            self._media[digest] = item
            self._size += len(data)

    def result(self) -> ToolResult:
        text = _truncate("\n\n".join(self._join_parts()), MAX_ANSWER_BYTES - self._size)
        blocks: list[ContentBlock] = [Text(text)] if text else []
        blocks += [_to_block(item, number) for number, item in enumerate(self._media.values(), 1)]
        if self._omissions:
            blocks.append(Text(f"Left out of this answer: {'; '.join(self._omissions)}."))
        return ToolResult(tuple(blocks) or (Text(EMPTY_ANSWER),))

    def _join_parts(self) -> list[str]:
        said = [
            (place, text)
            for text, place in self._tool_texts.items()
            if not any(_is_line_run(text, answer) for answer in self._texts)
        ]
        # Of the same place, the tool's text comes first.
        parts = [*((place, 0, text) for place, text in said), *((at, 1, text) for at, text in enumerate(self._texts))]
        return [text for _, _, text in sorted(parts, key=lambda part: part[:2])]


def _trim(text: str) -> str:
    """Without the space around it, but for that of a first line which is code."""
    first = _BLANK_LINES.sub("", text).rstrip()
    return first if first.startswith(("    ", "\t")) else first.lstrip()


def _is_line_run(part: str, whole: str) -> bool:
    """Whether `part` is a run of whole lines of `whole`."""
    return f"\n{part}\n" in f"\n{whole}\n"


def _find_streamed_tail(parts: list[str], text: str) -> int:
    """The first of the last parts that `text` begins with, one after the other, with any space between them."""
    letters = "".join(text.split())
    heads = ["".join(part.split()) for part in parts]
    return next((at for at in range(len(parts)) if letters.startswith("".join(heads[at:]))), len(parts))


def _to_block(item: Attachment, number: int) -> ContentBlock:
    assert item.data is not None
    match item.kind:
        case "image":
            return Image(item.data, item.mime_type)
        case "audio":
            return Audio(item.data, item.mime_type)
    name = item.name or f"attachment-{number}"
    return Embedded(Contents(uri=f"attachment://{name}", mime_type=item.mime_type, blob=item.data))


def _truncate(text: str, limit: int) -> str:
    """`text`, cut where it would be larger than the answer may be."""
    if len(text) * 4 <= limit or len(data := text.encode()) <= limit:
        return text
    note = "\n\n[The rest of this text was left out: the answer would be too large.]"
    return data[: max(0, limit - len(note))].decode(errors="ignore") + note


def _format_megabytes(size: int) -> str:
    return f"{size / MEGABYTE:.1f} MB"
