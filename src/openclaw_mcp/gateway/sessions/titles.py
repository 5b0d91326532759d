"""The title of a session that no one has named: made of its first message. Pure."""

import re
from typing import Final

TITLE_LENGTH: Final = 60  # characters; the protocol's own limit
SHORTEST_CUT: Final = 36  # characters that a cut at a space must leave; a shorter title is cut within the word
TASK_VERBS: Final = frozenset(
    {"add", "analyze", "build", "check", "compare", "create", "debug", "design", "draft", "explain", "find", "fix"}
    | {"give", "help", "implement", "investigate", "list", "make", "plan", "prepare", "recommend", "recover", "rename"}
    | {"resume", "review", "summarize", "test", "update", "write"}
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")


def derive_title(first_message: str) -> str | None:
    """The first sentence that asks for something, or the message itself; None for a command and for no words."""
    text = " ".join(first_message.split())
    if not text or text.startswith("/"):
        return None
    sentences = _SENTENCE_END.split(text)
    chosen = next((each for each in sentences if _first_word(each) in TASK_VERBS), text)
    return _cut(chosen[:1].upper() + chosen[1:])


def _first_word(sentence: str) -> str:
    return sentence.lstrip("\"'`([{").partition(" ")[0].lower()


def _cut(text: str) -> str:
    if len(text) <= TITLE_LENGTH:
        return text
    kept = text[: TITLE_LENGTH - 1]
    space = kept.rfind(" ")
    return f"{kept[:space] if space > SHORTEST_CUT else kept}…"
