"""The text of a web page: words, headings and links."""

import re
from html.parser import HTMLParser
from typing import Final

from ....core.text_encoding import decode_text

BLOCK_TAGS: Final = frozenset(
    (
        "address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset", "figure", "footer",
        "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section",
        "table", "tr", "ul",
    )
)  # fmt: skip
HEADING_MARKS: Final = {f"h{depth}": "#" * depth + " " for depth in range(1, 7)}
HIDDEN_TAGS: Final = frozenset(("script", "style", "template", "noscript", "svg", "iframe", "object"))
WHITESPACE: Final = re.compile(r"\s+")
SPACE_RUNS: Final = re.compile(r" {2,}")
CELL_TAGS: Final = frozenset(("td", "th"))


def extract_text(data: bytes) -> str:
    """Never an error: broken HTML is read as far as possible."""
    reader = _TextParser()
    reader.feed(decode_text(data))
    reader.close()
    return reader.text()


class _TextParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._hidden_depth = 0
        self._links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in HIDDEN_TAGS:
            self._hidden_depth += 1
        elif tag in BLOCK_TAGS:
            self._parts.append("\n" + HEADING_MARKS.get(tag, "- " if tag == "li" else ""))
        elif tag in CELL_TAGS:
            self._parts.append("\t")
        elif tag == "a":
            self._links.append(dict(attrs).get("href") or "")
        elif tag == "img" and (seen := dict(attrs).get("alt")):
            self._parts.append(f"[{seen}]")

    def handle_endtag(self, tag: str) -> None:
        if tag in HIDDEN_TAGS:
            self._hidden_depth = max(0, self._hidden_depth - 1)
        elif tag in BLOCK_TAGS:
            self._parts.append("\n")
        elif tag == "a" and self._links:
            target = self._links.pop()
            if target.startswith(("http://", "https://")):
                self._parts.append(f" ({target})")

    def handle_data(self, data: str) -> None:
        if not self._hidden_depth:
            self._parts.append(WHITESPACE.sub(" ", data))

    def text(self) -> str:
        lines = (SPACE_RUNS.sub(" ", line).strip() for line in "".join(self._parts).split("\n"))
        return "\n".join(line for line in lines if line)
