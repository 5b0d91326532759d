"""Markdown of agents as HTML of messengers. Pure."""

from collections.abc import Sequence
from html import escape
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

PARSER: Final = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
"""Raw HTML is treated as text: what an agent quotes must not become markup. `javascript:` links stay text too."""


def to_html(markdown: str) -> str | None:
    """HTML with paragraphs, lists and tables; None when it has no markup beyond the plain text."""
    html = PARSER.render(markdown).strip()
    inner = html.removeprefix("<p>").removesuffix("</p>")
    if html.count("<p>") == 1 and html.startswith("<p>") and html.endswith("</p>"):
        html = inner
    plain = escape(markdown.strip(), quote=False)
    return None if html.replace("&quot;", '"').replace("<br />\n", "\n").replace("<br>\n", "\n") == plain else html


def to_inline_html(markdown: str) -> str:
    """HTML of inline tags only, blocks separated by line breaks: what Telegram accepts."""
    out: list[str] = []
    lists: list[int | None] = []
    for token in PARSER.parse(markdown):
        _render_block(token, out, lists)
    return "".join(out).strip("\n")


INLINE_TAGS: Final = {"strong": "b", "em": "i", "s": "s"}
BOUNDARIES: Final = {
    "heading_open": "<b>", "heading_close": "</b>\n\n", "blockquote_open": "<blockquote>", "td_close": " | ",
    "th_close": " | ",
}  # fmt: skip


def _render_block(token: Token, out: list[str], lists: list[int | None]) -> None:
    match token.type:
        case "inline":
            out.append(_render_inline(token.children or ()))
        case "fence" | "code_block":
            language = token.info.split()[0] if token.info.split() else ""
            name = f' class="language-{escape(language)}"' if language else ""
            out.append(f"<pre><code{name}>{escape(token.content.removesuffix(chr(10)), quote=False)}</code></pre>\n")
        case "hr":
            out.append("———\n")
        case "bullet_list_open" | "ordered_list_open":
            lists.append(int(token.attrs.get("start", 1)) if token.type.startswith("ordered") else None)
        case "bullet_list_close" | "ordered_list_close":
            lists.pop()
            if not lists:
                _ensure_blank_line(out)
        case "list_item_open":
            out.append(_bullet(lists))
        case _:
            _render_boundary(token, out, in_list=bool(lists))


def _render_boundary(token: Token, out: list[str], *, in_list: bool) -> None:
    """The start or end of a paragraph, heading, quotation or table."""
    match token.type:
        case "paragraph_close":
            out.append("\n" if in_list or token.hidden else "\n\n")
        case "blockquote_close":
            while out and out[-1].strip("\n") == "":
                out.pop()
            out.append("</blockquote>\n")
        case "tr_close":
            out[-1] = "\n"
        case "table_close":
            _ensure_blank_line(out)
        case kind if kind in BOUNDARIES:
            out.append(BOUNDARIES[kind])


def _ensure_blank_line(out: list[str]) -> None:
    if out and not out[-1].endswith("\n\n"):
        out.append("\n")


def _bullet(lists: list[int | None]) -> str:
    indent, number = "  " * (len(lists) - 1), lists[-1]
    if number is None:
        return f"{indent}• "
    lists[-1] = number + 1
    return f"{indent}{number}. "


def _render_inline(tokens: Sequence[Token]) -> str:
    out: list[str] = []
    for token in tokens:
        kind, _, edge = token.type.rpartition("_")
        if kind in INLINE_TAGS:
            out.append(f"<{'/' if edge == 'close' else ''}{INLINE_TAGS[kind]}>")
        elif token.type == "link_open":
            out.append(f'<a href="{escape(str(token.attrs.get("href", "")))}">')
        elif token.type == "link_close":
            out.append("</a>")
        elif token.type == "code_inline":
            out.append(f"<code>{escape(token.content, quote=False)}</code>")
        elif token.type in ("softbreak", "hardbreak"):
            out.append("\n")
        elif token.type == "image":
            out.append(f'<a href="{escape(str(token.attrs.get("src", "")))}">{escape(token.content) or "image"}</a>')
        else:
            out.append(escape(token.content, quote=False))
    return "".join(out)
