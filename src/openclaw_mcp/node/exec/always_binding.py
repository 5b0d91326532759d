"""What *always* binds a command to besides its words: the folder it runs in and the files it names, by their digests.

A rule remembered from an answer holds while all of that is as it was. What those files read in turn is not looked at.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from msgspec import Struct

from .always_offer import (
    READS_OR_NAMES,
    SORTING,
    first_line_agrees,
    looks_with_git,
    reads_first_lines,
    script_of,
    starts_nothing,
    with_its_interpreter,
)
from .digests import FOLDER, UNREAD, Digests
from .file_operands import Named, Naming, Program, TooMuch
from .implicit_files import runs_what_it_finds
from .program_locator import Locator
from .program_powers import name_of
from .rules import Bound
from .shell_reader import Piece, Word, words

MOST_FILES: Final = 64  # named by one command

_TAKES_INPUT_AS_DATA: Final = READS_OR_NAMES - words("uniq xxd")
"""Programs that neither run what another command feeds them nor write it to a file."""
_SORTS: Final = words("sort uniq")
_MOVES: Final = words("cd pushd popd chdir")
_MOVING_FIND: Final = words("-execdir -okdir")


def _moves(piece: Piece) -> bool:
    """Whether it may make itself or others run in another folder."""
    name = name_of(piece.words[0].text)
    return name in _MOVES or (name == "find" and any(word.text in _MOVING_FIND for word in piece.words))


def _moves_as_written(piece: Piece) -> bool:
    """Whether the folder it moves to stands there."""
    given = piece.words[1:]
    return name_of(piece.words[0].text) != "find" and len(given) == 1 and not given[0].open and given[0].text != "-"


class Found(Struct, frozen=True):
    """The files of a command, for a person who says yes to it."""

    files: dict[str, str]
    """By path and digest."""
    all: bool
    """What it loads and starts is known by its form: these files, and what they read in turn."""


class Files:
    """The files that the commands of one decision name, seen from one folder. Each is read once, all within bounds."""

    def __init__(self, cwd: Path | None, locate: Locator, pieces: Sequence[Piece]) -> None:
        self._given = cwd
        self._locate = locate
        self._pieces = pieces
        self._digests = Digests()
        self._naming = Naming(self._digests)

    @cached_property
    def folder(self) -> str:
        """Links followed."""
        return os.path.realpath(self._given or Path.cwd())

    @cached_property
    def _movers(self) -> list[Piece]:
        return [piece for piece in self._pieces if _moves(piece)]

    def bound(self, piece: Piece) -> Bound | None:
        """What `piece` is bound to when it runs now; None when even the folder, or what it is fed, can't be told."""
        texts = tuple(word.text for word in piece.words)
        if piece.fed and not self._takes_input_as_data(texts):
            return None
        by_name = "/" not in texts[0] and self._locate.is_on_path(texts[0])
        program = None if by_name else self._locate.started(texts[0])
        if self._only_reads(piece):
            return Bound(self.folder, {}, program)
        return None if self._movers else Bound(self.folder, self._bound_files(piece), program)

    def look(self, asked: Sequence[Piece], whole: Piece | None) -> Found:
        """Every file the commands name, in each folder they may run in. `asked`: those a person is to say yes to.
        `whole`: all the words, where text can't be read for certain."""
        open_whole = [Piece(tuple(Word(word.text, open=True) for word in whole.words))] if whole else []
        pieces = (*self._pieces, *open_whole)
        named = {piece: [self._named(piece, self.folder)] for piece in pieces}
        moving = [word for piece in (*self._movers, *open_whole) for word in piece.words[1:]]
        folders, sure = self._naming.folders(self.folder, moving) if moving else ([self.folder], True)
        for piece in pieces:
            named[piece] += [self._named(piece, folder) for folder in folders[1:]]
        files = {path: self._digests.of(path) for each in named.values() for found in each for path in found.paths}
        running = [piece for piece in asked if not self._only_reads(piece)]
        known = whole is None and (not running or (sure and all(map(_moves_as_written, self._movers))))
        plain = known and all(self._is_plain(piece) for piece in running)
        return Found(files, plain and all(_is_known(piece, named[piece], files) for piece in running))

    # ---- of one command ----------------------------------------------------------------------------------------

    def _named(self, piece: Piece, folder: str) -> Named:
        given = piece.words[0].text
        own = None if self._locate.is_on_path(given) else self._locate.started(given)
        return self._naming.named(folder, piece.words, Program(self._locate.path(given), own))

    def _only_reads(self, piece: Piece) -> bool:
        given = piece.words[0].text
        return name_of(given) in READS_OR_NAMES and self._locate.is_itself(given)

    def _is_plain(self, piece: Piece) -> bool:
        """Whether the form of a command says what it loads and starts. The one question that *always* depends on."""
        argv = [word.text for word in piece.words]
        if self._locate.is_itself(argv[0]):
            return starts_nothing(argv) or looks_with_git(argv) or self._runs_a_script(argv)
        file = None if self._locate.is_on_path(argv[0]) else self._locate.path(argv[0])
        content = self._digests.content(file) if file else None
        started = with_its_interpreter(content, [file, *argv[1:]]) if file and content else None
        return started is not None and self._locate.is_itself(started[0]) and self._runs_a_script(started)

    def _runs_a_script(self, argv: Sequence[str]) -> bool:
        """Whether this is an interpreter with a script that is there, and not a builder's or a test runner's."""
        script = script_of(argv)
        if script is None or runs_what_it_finds(script):
            return False
        try:
            found = list(self._naming.there(self.folder, script))
        except TooMuch:
            return False
        if not found or self._digests.of(found[0]) in (FOLDER, UNREAD):
            return False
        if not reads_first_lines(argv[0]):
            return True
        content = self._digests.content(found[0])
        return content is not None and first_line_agrees(argv[0], content)

    def _bound_files(self, piece: Piece) -> dict[str, str] | None:
        """None when they can't all be told, or another command may change them before this one starts."""
        if piece.later or not self._is_plain(piece):
            return None
        named = self._named(piece, self.folder)
        if not named.all or len(named.paths) > MOST_FILES:
            return None
        files = {path: self._digests.of(path) for path in named.paths}
        return None if UNREAD in files.values() else files

    def _takes_input_as_data(self, texts: Sequence[str]) -> bool:
        """Whether a program surely neither runs nor keeps what another command feeds it."""
        name = name_of(texts[0])
        if not self._locate.is_itself(texts[0]):
            return False
        if name in _SORTS:
            return all(SORTING.fullmatch(text) for text in texts[1:])
        return name in _TAKES_INPUT_AS_DATA or self._runs_a_script(texts)


def _is_known(piece: Piece, named: Sequence[Named], files: dict[str, str]) -> bool:
    if any(word.open for word in piece.words):
        return False
    return all(found.all and all(files[path] != UNREAD for path in found.paths) for found in named)
