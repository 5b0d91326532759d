"""The commands a program that starts others may be told to start, by its words. For rules that forbid. Pure.

A guess on the safe side: of `taskset 1 rm x` both `1 rm x` and `rm x` are named, since options differ from program to
program. So nothing may be allowed by it.
"""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from .program_powers import name_of, told_from
from .shell_reader import Piece, Word, read
from .wrappers import unwrap

MOST_STARTED: Final = 64  # of one command; what is told more has to be asked about
DEEPEST: Final = 4  # texts within texts

_IS_TEXT: Final = re.compile(r"[\s;|&`$()<>]")
_NAME: Final = re.compile(r"[\w./+@-]+")
_ANYTHING: Final = Word("", open=True)


class Started(Struct, frozen=True):
    pieces: tuple[Piece, ...] = ()
    certain: bool = True
    """False when which program it is told to start is decided only when it runs, or there are too many."""
    named: frozenset[str] = frozenset()
    """The names among the words before those, and in what options are set to, in lower case."""


def may_be_started(piece: Piece, names: Sequence[str]) -> Started:
    """What `piece` may start, being a program of these names."""
    given = [word.text for word in piece.words[1:]]
    began = 1 + min(told_from(name, given) for name in names)
    finder = _Finder()
    finder.find(piece.words[began:], depth=0)
    first = next((word for word in piece.words[began:] if word.open or not word.text.startswith("-")), None)
    certain = first is None or not first.open
    few = len(finder.found) <= MOST_STARTED
    return Started(tuple(finder.found[:MOST_STARTED]), certain and few, _named(piece.words[1:began]))


def _named(words: Sequence[Word]) -> frozenset[str]:
    texts = [word.text.lower() for word in words]
    plain = [text for text in texts if not text.startswith("-")]
    values = [name for text in texts if text.startswith("-") for name in _NAME.findall(text.partition("=")[2])]
    return frozenset(each for name in (*plain, *values) for each in (name, name_of(name)))


class _Finder:
    def __init__(self) -> None:
        self.found: list[Piece] = []

    def find(self, words: Sequence[Word], depth: int) -> None:
        for at, word in enumerate(words):
            if len(self.found) > MOST_STARTED:
                return
            text = _value(word.text)
            if not text or word.open:
                continue
            if _IS_TEXT.search(text):
                self._read(text, depth)
            else:
                self.found.append(Piece((Word(text), *words[at + 1 :])))

    def _read(self, text: str, depth: int) -> None:
        """Of a text for a shell, each command; where it can't be read for certain, each name in it."""
        reading = read(text, shell="sh")  # noqa: S604  only read
        opened = unwrap(reading.pieces)
        pieces = [*opened.pieces, *opened.seen]
        self.found += pieces
        if reading.doubts or opened.doubts:
            self.found += [Piece((Word(name), _ANYTHING)) for name in dict.fromkeys(_NAME.findall(text))]
        if depth < DEEPEST:
            for piece in pieces:
                began = 1 + told_from(piece.words[0].text, [word.text for word in piece.words[1:]])
                self.find(piece.words[began:], depth + 1)


def _value(word: str) -> str:
    """A word that may name a program: itself, or what an option is set to."""
    if not word.startswith("-"):
        return word
    return word.partition("=")[2]
