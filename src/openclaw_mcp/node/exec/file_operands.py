"""Which files the arguments of a command name, and which its program finds by itself, in one folder."""

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

from ..path_following import follow_links, is_per_process_path
from .digests import FileDigests
from .implicit_files import implicit_files, indirection_patterns
from .program_powers import INTERPRETERS, SHELLS, is_listed, plain_name
from .shell_reader import ShellWord

MOST_LOOKUPS: Final = 4096  # names tried for one decision
MAX_ENTRIES: Final = 4096  # of a folder in which names are completed
MAX_MATCHES: Final = 64  # of one pattern
MAX_FOLDERS: Final = 32  # a text may move to
MAX_CLUSTER_LENGTH: Final = 256  # characters of an option; in a longer one no path is searched

_ENTRY_POINTS: Final = ("__main__.py", "__init__.py", "index.js", "package.json")
"""The files that run when an interpreter is given a folder."""
_MAKE_PROGRAMS: Final = frozenset({"make", "gmake"})
"""They rebuild a file, even the one they read, from one beside it: `Makefile` from `Makefile.sh`."""
_SPLIT: Final = re.compile(r"[\s=:,@;|&<>(){}'\"`$]+")
_SPLIT_BRACKETS: Final = re.compile(r"[\s=:,@;|&<>(){}\[\]'\"`$]+")
"""At brackets, too: they may be part of code, or of a pattern that the other expression keeps whole."""
_QUOTING: Final = re.compile(r"\\\n|[\\'\"]")
_QUERY: Final = re.compile(r"[?#]")
_ADDRESS: Final = re.compile(r"[%?#]")
_WILD: Final = re.compile(r"[*?\[]")


class ProgramFile(Struct, frozen=True):
    """The program of a command."""

    file: str | None = None
    """Its own path, links followed."""
    custom_path: str | None = None
    """The path it is started by, where it is not the one installed by its name."""


class NamedFiles(Struct, frozen=True):
    paths: tuple[str, ...] = ()
    """Files and folders, links followed."""
    complete: bool = True
    """No argument names others, and git finds no setting that leads it elsewhere."""


class ScanLimitReached(Exception):
    """There is more than is looked at."""


class OperandScanner:
    """The files that arguments name in the folders of one decision. Each name is looked up once, within bounds."""

    def __init__(self, digests: FileDigests) -> None:
        self._digests = digests
        self._lookups_left = MOST_LOOKUPS
        self._complete = True
        self._entries: dict[str, list[str]] = {}
        self._scans: dict[tuple[str, tuple[ShellWord, ...]], NamedFiles] = {}

    def scan(self, folder: str, words: tuple[ShellWord, ...], program: ProgramFile) -> NamedFiles:
        """The files named by a command that starts in this folder."""
        key = folder, words
        if key not in self._scans:
            self._complete = True
            found: dict[str, None] = {}
            try:
                for path in self._scan_paths(folder, words, program):
                    found[path] = None
            except ScanLimitReached:
                self._complete = False
            self._scans[key] = NamedFiles(tuple(found), self._complete)
        return self._scans[key]

    def reachable_folders(self, folder: str, words: Sequence[ShellWord]) -> tuple[list[str], bool]:
        """The folders that commands may change to by these words, one after another; and whether these are all."""
        self._complete = True
        found, parts = [folder], _path_candidates(words)
        try:
            for base in found:  # it grows
                inner = dict.fromkeys(path for path in self._paths_in_words(base, parts) if _is_folder(path))
                found += [path for path in inner if path not in found][: MAX_FOLDERS - len(found)]
        except ScanLimitReached:
            self._complete = False
        return found, self._complete and len(found) < MAX_FOLDERS

    def find_existing_path(self, folder: str, name: str) -> Iterator[str]:
        """The real path of `name`, if there is such a file. Raises ScanLimitReached."""
        if not name or "\0" in name or len(name) > 4096:
            return
        self._count_lookup()
        try:
            path = os.path.join(folder, os.path.expanduser(name))  # noqa: PTH111, PTH118  texts, not paths
            if is_per_process_path(os.path.normpath(path)):
                self._complete = False
                return
            if not os.path.lexists(path):
                return
            real, steady = follow_links(path)
        except (OSError, ValueError):
            return
        if not steady:
            self._complete = False
        elif real != folder and os.path.lexists(real):
            yield real

    # ---- files that arguments name -----------------------------------------------------------------------------

    def _scan_paths(self, folder: str, words: tuple[ShellWord, ...], program: ProgramFile) -> Iterator[str]:
        parts = _path_candidates(words[1:])
        if program.custom_path is not None:
            yield from self.find_existing_path(folder, program.custom_path)
        found: list[str] = []
        for path in self._paths_in_words(folder, parts):
            found += [path] if path not in found else []
            yield path
        programs = {plain_name(each) for each in (words[0].text, program.file or "", *(part.text for part in parts))}
        yield from self._implicit_files(programs, folder, parts, found)
        self._check_indirections(indirection_patterns(words[0].text), folder, found)
        inner = [path for path in found if _is_folder(path)]
        for each in inner:
            yield from (path for name in _ENTRY_POINTS for path in self.find_existing_path(each, name))
        if any(is_interpreter(each) or each in _MAKE_PROGRAMS for each in programs):
            for base in (folder, *inner):
                yield from (path for part in parts for path in self._complete_module_name(base, part))

    def _paths_in_words(self, folder: str, parts: Sequence[ShellWord]) -> Iterator[str]:
        """Files that words may mean: by their own text, and where a shell may expand them, by what they expand to."""
        yield from (path for part in parts for path in self.find_existing_path(folder, part.text))
        for part in parts:
            if part.is_dynamic and _WILD.search(part.text):
                matching = self._expand_glob(folder, os.path.expanduser(part.text))  # noqa: PTH111
                yield from islice(matching, MAX_MATCHES)
                self._complete = self._complete and next(matching, None) is None

    def _expand_glob(self, folder: str, pattern: str) -> Iterator[str]:
        """As shells expand patterns, hidden files included."""
        folder = folder.rstrip("/")
        first, _, rest = pattern.partition("/")
        if not first:
            yield from self._expand_glob("/", rest.lstrip("/")) if rest.strip("/") else ()
            return
        wild = first.replace("[^", "[!")
        entries = [first]
        if _WILD.search(first):
            entries = [entry for entry in self._list_folder(folder or "/") if fnmatch.fnmatchcase(entry, wild)]
        for entry in entries:
            yield from (
                self._expand_glob(f"{folder}/{entry}", rest) if rest else self.find_existing_path(folder or "/", entry)
            )

    def _complete_module_name(self, base: str, part: ShellWord) -> Iterator[str]:
        """The files an interpreter finds for a name that is no file: `app` is `app.js`, `a.b` is `a.py` or `a/b.py`,
        `A::B` is `A/B.pm`."""
        text = part.text
        for spelling in dict.fromkeys((text, text.replace(".", "/"), text.replace("::", "/"))):
            if "\0" in spelling or len(spelling) > 4096:
                continue
            steps = spelling.split("/")
            # Of a path the last step is completed, of a dotted name each: its packages run first.
            for depth in range(len(steps) if spelling.startswith(("/", ".")) else 1, len(steps) + 1):
                *above, last = steps[:depth]
                if last and last not in (".", ".."):
                    within = os.path.join(base, "/".join(above) or ("/" if above else ""))  # noqa: PTH118
                    yield from self._entries_with_stem(within, last)

    def _entries_with_stem(self, folder: str, name: str) -> Iterator[str]:
        for entry in self._list_folder(folder):
            if entry == name or entry.startswith((f"{name}.", f"{name},")):
                yield from self.find_existing_path(folder, entry)
                for entry_point in _ENTRY_POINTS if entry == name else ():
                    yield from self.find_existing_path(f"{folder}/{entry}", entry_point)

    # ---- files that programs find by themselves ----------------------------------------------------------------

    def _implicit_files(
        self, programs: set[str], folder: str, parts: Sequence[ShellWord], found: Sequence[str]
    ) -> Iterator[str]:
        names = list(dict.fromkeys(name for program in sorted(programs) for name in implicit_files(program)))
        for searched in self._search_folders(folder, found) if names else ():
            for name in names:
                for each in [name.replace("{}", part.text) for part in parts] if "{}" in name else [name]:
                    yield from self._expand_implicit_file(searched, each)

    def _check_indirections(self, patterns: Mapping[str, re.Pattern[bytes]], folder: str, found: Sequence[str]) -> None:
        for searched in self._search_folders(folder, found) if patterns else ():
            for name, sign in patterns.items():
                self._complete = self._complete and not any(
                    self._may_contain(path, sign) for path in self._expand_glob(searched, name)
                )

    def _expand_implicit_file(self, folder: str, name: str) -> Iterator[str]:
        return (path for path in self._expand_glob(folder, name) if not path.endswith(".sample"))

    def _may_contain(self, path: str, pattern: re.Pattern[bytes]) -> bool:
        """Whether a file contains this, or may; of a folder only where its existence is enough."""
        if not pattern.pattern:
            return True
        data = None if _is_folder(path) else self._digests.read_content(path)
        return not _is_folder(path) and (data is None or pattern.search(data) is not None)

    def _search_folders(self, folder: str, found: Sequence[str]) -> Sequence[str]:
        """The folders in which a program looks for files: its own and those above, those it is given, those between."""
        searched = dict.fromkeys([folder, *(str(each) for each in PurePath(folder).parents)])
        for path in found:
            searched |= dict.fromkeys([path, *(str(each) for each in PurePath(path).parents)])
        return [each for each in searched if _is_folder(each)]

    def _list_folder(self, folder: str) -> list[str]:
        if folder not in self._entries:
            self._count_lookup()
            try:
                entries = os.listdir(folder)  # noqa: PTH208  texts, not paths
            except (OSError, ValueError):
                entries = []
            self._entries[folder] = sorted(entries[: MAX_ENTRIES + 1])
        if len(self._entries[folder]) > MAX_ENTRIES:
            self._complete = False
        return self._entries[folder]

    def _count_lookup(self) -> None:
        self._lookups_left -= 1
        if self._lookups_left < 0:
            raise ScanLimitReached


def is_interpreter(name: str) -> bool:
    return name in SHELLS or is_listed(name.lower(), INTERPRETERS)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112  a text, as everything here


def _path_candidates(words: Sequence[ShellWord]) -> Sequence[ShellWord]:
    found = dict.fromkeys((part, word.is_dynamic) for word in words for part in _split_candidates(word.text) if part)
    in_urls = [(_url_path(part), False) for part, _ in found if _ADDRESS.search(part)]
    return [ShellWord(part, dynamic) for part, dynamic in (found | dict.fromkeys(in_urls))]


def _url_path(part: str) -> str:
    """The path in a URL: `/a%20b.mjs?v=1` is `/a b.mjs`."""
    return unquote(_QUERY.split(part)[0], errors="surrogateescape")


def _split_candidates(text: str) -> Iterator[str]:
    """The parts of a word that may be a path: itself, `--file=path`, `-fpath`, `-xfpath`, `@path`, `a:b`, `a,b`,
    `sh path`, all of it with quotes or backslashes."""
    for spelling in dict.fromkeys((text, *_unquote_words(text))):
        yield spelling
        yield spelling.partition("=")[2]
        yield spelling.partition("@")[2]
        for part in (spelling, *_SPLIT.split(spelling), *_SPLIT_BRACKETS.split(spelling)):
            yield part
            yield from _option_suffixes(part)


def _unquote_words(text: str) -> Iterator[str]:
    """The words of `text` as a shell would take their quotes and backslashes away, or about so."""
    if _QUOTING.search(text):
        yield _QUOTING.sub("", text)
        with suppress(ValueError):  # a quote that is not closed
            reader = shlex.shlex(text.replace("\\\n", ""), posix=True, punctuation_chars=True)
            reader.whitespace_split, reader.commenters = True, ""
            yield from reader


def _option_suffixes(word: str) -> Iterator[str]:
    """Values attached to an option, or to several: `-fx`, `-xfx`."""
    if word.startswith("-") and not word.startswith("--") and len(word) <= MAX_CLUSTER_LENGTH:
        yield from (word[at:] for at in range(2, len(word)))
