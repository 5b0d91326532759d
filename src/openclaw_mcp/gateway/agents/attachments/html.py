"""A web page as its reader sees it: words, headings and links, without the machinery."""

import re
from html.parser import HTMLParser
from typing import Final

from .plain_text import decoded

BLOCKS: Final = frozenset(
    (
        "address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset", "figure", "footer",
        "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section",
        "table", "tr", "ul",
    )
)  # fmt: skip
HEADINGS: Final = {f"h{depth}": "#" * depth + " " for depth in range(1, 7)}
UNSEEN: Final = frozenset(("script", "style", "template", "noscript", "svg", "iframe", "object"))
WHITE: Final = re.compile(r"\s+")
RUNS: Final = re.compile(r" {2,}")
CELLS: Final = frozenset(("td", "th"))


def text(data: bytes) -> str:
    """Never an error: what is broken is read as well as it goes."""
    reader = _Page()
    reader.feed(decoded(data))
    reader.close()
    return reader.text()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._hidden = 0
        self._links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in UNSEEN:
            self._hidden += 1
        elif tag in BLOCKS:
            self._parts.append("\n" + HEADINGS.get(tag, "- " if tag == "li" else ""))
        elif tag in CELLS:
            self._parts.append("\t")
        elif tag == "a":
            self._links.append(dict(attrs).get("href") or "")
        elif tag == "img" and (seen := dict(attrs).get("alt")):
            self._parts.append(f"[{seen}]")

    def handle_endtag(self, tag: str) -> None:
        if tag in UNSEEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag in BLOCKS:
            self._parts.append("\n")
        elif tag == "a" and self._links:
            target = self._links.pop()
            if target.startswith(("http://", "https://")):
                self._parts.append(f" ({target})")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._parts.append(WHITE.sub(" ", data))

    def text(self) -> str:
        lines = (RUNS.sub(" ", line).strip() for line in "".join(self._parts).split("\n"))
        return "\n".join(line for line in lines if line)
