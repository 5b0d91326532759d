"""Which files the words of a command name, and which its program finds by itself, seen from one folder."""

import fnmatch
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import PurePath
from typing import Final
from urllib.parse import unquote

from msgspec import Struct

from ..path_following import follow, is_of_each_process
from .digests import Digests
from .implicit_files import leads_on, looked_for
from .program_powers import INTERPRETERS, SHELLS, listed, plain_name
from .shell_reader import Word

MOST_LOOKS: Final = 4096  # names tried for one decision
MOST_ENTRIES: Final = 4096  # of a folder in which names are completed
MOST_MATCHES: Final = 64  # of one pattern
MOST_FOLDERS: Final = 32  # a text may move to
LONGEST_CLUSTER: Final = 256  # characters of an option; in a longer one no path is looked for

_ENTRANCES: Final = ("__main__.py", "__init__.py", "index.js", "package.json")
"""What runs when an interpreter is given a folder."""
_MAKES: Final = frozenset({"make", "gmake"})
"""They make a file anew, the one they read as well, from one beside it: `Makefile` from `Makefile.sh`."""
_SPLIT: Final = re.compile(r"[\s=:,@;|&<>(){}'\"`$]+")
_SPLIT_BRACKETS: Final = re.compile(r"[\s=:,@;|&<>(){}\[\]'\"`$]+")
"""At brackets, too: they may be code's, or a pattern's that stays whole by the other."""
_QUOTING: Final = re.compile(r"\\\n|[\\'\"]")
_QUERY: Final = re.compile(r"[?#]")
_ADDRESS: Final = re.compile(r"[%?#]")
_WILD: Final = re.compile(r"[*?\[]")


class Program(Struct, frozen=True):
    """The program of a command."""

    file: str | None = None
    """Its own path, links followed."""
    own: str | None = None
    """The path it is started by, where it is not the one installed by its name."""


class Named(Struct, frozen=True):
    paths: tuple[str, ...] = ()
    """Files and folders, links followed."""
    all: bool = True
    """No word names others, and git finds nothing that leads it on."""


class TooMuch(Exception):
    """More than is looked at."""


class Naming:
    """What words name in the folders of one decision. Looks once, and at no more than it may."""

    def __init__(self, digests: Digests) -> None:
        self._digests = digests
        self._looks = MOST_LOOKS
        self._all = True
        self._entries: dict[str, list[str]] = {}
        self._known: dict[tuple[str, tuple[Word, ...]], Named] = {}

    def named(self, folder: str, words: tuple[Word, ...], program: Program) -> Named:
        """What a command names that starts in this folder."""
        key = folder, words
        if key not in self._known:
            self._all = True
            found: dict[str, None] = {}
            try:
                for path in self._each(folder, words, program):
                    found[path] = None
            except TooMuch:
                self._all = False
            self._known[key] = Named(tuple(found), self._all)
        return self._known[key]

    def folders(self, folder: str, words: Sequence[Word]) -> tuple[list[str], bool]:
        """Where commands may run that move to folders these words name, one after another; and whether that is all."""
        self._all = True
        found, parts = [folder], _all_parts(words)
        try:
            for base in found:  # it grows
                inner = dict.fromkeys(path for path in self._spoken(base, parts) if _is_folder(path))
                found += [path for path in inner if path not in found][: MOST_FOLDERS - len(found)]
        except TooMuch:
            self._all = False
        return found, self._all and len(found) < MOST_FOLDERS

    def there(self, folder: str, name: str) -> Iterator[str]:
        """The real path of what `name` means, if there is such a file. Raises TooMuch."""
        if not name or "\0" in name or len(name) > 4096:
            return
        self._count()
        try:
            path = os.path.join(folder, os.path.expanduser(name))  # noqa: PTH111, PTH118  texts, not paths
            if is_of_each_process(os.path.normpath(path)):
                self._all = False
                return
            if not os.path.lexists(path):
                return
            real, steady = follow(path)
        except (OSError, ValueError):
            return
        if not steady:
            self._all = False
        elif real != folder and os.path.lexists(real):
            yield real

    # ---- what words name ---------------------------------------------------------------------------------------

    def _each(self, folder: str, words: tuple[Word, ...], program: Program) -> Iterator[str]:
        parts = _all_parts(words[1:])
        if program.own is not None:
            yield from self.there(folder, program.own)
        found: list[str] = []
        for path in self._spoken(folder, parts):
            found += [path] if path not in found else []
            yield path
        programs = {plain_name(each) for each in (words[0].text, program.file or "", *(part.text for part in parts))}
        yield from self._found_by(programs, folder, parts, found)
        self._follow_leads(leads_on(words[0].text), folder, found)
        inner = [path for path in found if _is_folder(path)]
        for each in inner:
            yield from (path for name in _ENTRANCES for path in self.there(each, name))
        if any(is_interpreter(each) or each in _MAKES for each in programs):
            for base in (folder, *inner):
                yield from (path for part in parts for path in self._completed(base, part))

    def _spoken(self, folder: str, parts: Sequence[Word]) -> Iterator[str]:
        """What words may mean: themselves, and where a shell may expand them, what they expand to."""
        yield from (path for part in parts for path in self.there(folder, part.text))
        for part in parts:
            if part.open and _WILD.search(part.text):
                matching = self._globbed(folder, os.path.expanduser(part.text))  # noqa: PTH111
                yield from islice(matching, MOST_MATCHES)
                self._all = self._all and next(matching, None) is None

    def _globbed(self, folder: str, pattern: str) -> Iterator[str]:
        """As shells expand patterns, hidden files included."""
        folder = folder.rstrip("/")
        first, _, rest = pattern.partition("/")
        if not first:
            yield from self._globbed("/", rest.lstrip("/")) if rest.strip("/") else ()
            return
        wild = first.replace("[^", "[!")
        entries = [first]
        if _WILD.search(first):
            entries = [entry for entry in self._listed(folder or "/") if fnmatch.fnmatchcase(entry, wild)]
        for entry in entries:
            yield from self._globbed(f"{folder}/{entry}", rest) if rest else self.there(folder or "/", entry)

    def _completed(self, base: str, part: Word) -> Iterator[str]:
        """What an interpreter takes a name for that is no file: `app` is `app.js`, `a.b` is `a.py` or `a/b.py`, `A::B`
        is `A/B.pm`."""
        text = part.text
        for spelled in dict.fromkeys((text, text.replace(".", "/"), text.replace("::", "/"))):
            if "\0" in spelled or len(spelled) > 4096:
                continue
            steps = spelled.split("/")
            # Of a path the last step is completed, of a dotted name each: its packages run first.
            for depth in range(len(steps) if spelled.startswith(("/", ".")) else 1, len(steps) + 1):
                *above, last = steps[:depth]
                if last and last not in (".", ".."):
                    within = os.path.join(base, "/".join(above) or ("/" if above else ""))  # noqa: PTH118
                    yield from self._beginning(within, last)

    def _beginning(self, folder: str, name: str) -> Iterator[str]:
        for entry in self._listed(folder):
            if entry == name or entry.startswith((f"{name}.", f"{name},")):
                yield from self.there(folder, entry)
                for entrance in _ENTRANCES if entry == name else ():
                    yield from self.there(f"{folder}/{entry}", entrance)

    # ---- what programs find by themselves ----------------------------------------------------------------------

    def _found_by(self, programs: set[str], folder: str, parts: Sequence[Word], found: Sequence[str]) -> Iterator[str]:
        names = list(dict.fromkeys(name for program in sorted(programs) for name in looked_for(program)))
        for standing in self._standing(folder, found) if names else ():
            for name in names:
                for each in [name.replace("{}", part.text) for part in parts] if "{}" in name else [name]:
                    yield from self._looked_for(standing, each)

    def _follow_leads(self, signs: Mapping[str, re.Pattern[bytes]], folder: str, found: Sequence[str]) -> None:
        for standing in self._standing(folder, found) if signs else ():
            for name, sign in signs.items():
                self._all = self._all and not any(self._holds(path, sign) for path in self._globbed(standing, name))

    def _looked_for(self, folder: str, name: str) -> Iterator[str]:
        return (path for path in self._globbed(folder, name) if not path.endswith(".sample"))

    def _holds(self, path: str, sign: re.Pattern[bytes]) -> bool:
        """Whether this is in a file, or may be; of a folder only where its being there is enough."""
        if not sign.pattern:
            return True
        data = None if _is_folder(path) else self._digests.content(path)
        return not _is_folder(path) and (data is None or sign.search(data) is not None)

    def _standing(self, folder: str, found: Sequence[str]) -> Sequence[str]:
        """Where a program looks for what it needs: its folder and those above, those it is given, those between."""
        standing = dict.fromkeys([folder, *(str(each) for each in PurePath(folder).parents)])
        for path in found:
            standing |= dict.fromkeys([path, *(str(each) for each in PurePath(path).parents)])
        return [each for each in standing if _is_folder(each)]

    def _listed(self, folder: str) -> list[str]:
        if folder not in self._entries:
            self._count()
            try:
                entries = os.listdir(folder)  # noqa: PTH208  texts, not paths
            except (OSError, ValueError):
                entries = []
            self._entries[folder] = sorted(entries[: MOST_ENTRIES + 1])
        if len(self._entries[folder]) > MOST_ENTRIES:
            self._all = False
        return self._entries[folder]

    def _count(self) -> None:
        self._looks -= 1
        if self._looks < 0:
            raise TooMuch


def is_interpreter(name: str) -> bool:
    return name in SHELLS or listed(name.lower(), INTERPRETERS)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112  a text, as everything here


def _all_parts(words: Sequence[Word]) -> Sequence[Word]:
    found = dict.fromkeys((part, word.open) for word in words for part in _parts(word.text) if part)
    in_addresses = [(_in_address(part), False) for part, _ in found if _ADDRESS.search(part)]
    return [Word(part, open) for part, open in (found | dict.fromkeys(in_addresses))]


def _in_address(part: str) -> str:
    """The path an address means: `/a%20b.mjs?v=1` is `/a b.mjs`."""
    return unquote(_QUERY.split(part)[0], errors="surrogateescape")


def _parts(text: str) -> Iterator[str]:
    """The ways a word can hold a path: itself, `--file=path`, `-fpath`, `-xfpath`, `@path`, `a:b`, `a,b`, `sh path`,
    all of it with quotes or backslashes."""
    for spelled in dict.fromkeys((text, *_unquoted(text))):
        yield spelled
        yield spelled.partition("=")[2]
        yield spelled.partition("@")[2]
        for part in (spelled, *_SPLIT.split(spelled), *_SPLIT_BRACKETS.split(spelled)):
            yield part
            yield from _glued(part)


def _unquoted(text: str) -> Iterator[str]:
    """The words of `text` as a shell would take their quotes and backslashes away, or about so."""
    if _QUOTING.search(text):
        yield _QUOTING.sub("", text)
        with suppress(ValueError):  # a quote that is not closed
            reader = shlex.shlex(text.replace("\\\n", ""), posix=True, punctuation_chars=True)
            reader.whitespace_split, reader.commenters = True, ""
            yield from reader


def _glued(word: str) -> Iterator[str]:
    """What may be glued to an option, or to several: `-fx`, `-xfx`."""
    if word.startswith("-") and not word.startswith("--") and len(word) <= LONGEST_CLUSTER:
        yield from (word[at:] for at in range(2, len(word)))
