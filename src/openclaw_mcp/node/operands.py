"""What *always* binds a command to besides its words: the folder it runs in and the files it names, by their digests.

A rule remembered from an answer holds while all of that is as it was. What those files read in turn is not looked at.
"""

import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Final

from .following import follow, is_of_each_process
from .looked_for import looked_for
from .powers import INTERPRETERS, listed, name_of, plain_name
from .rules import Bound
from .shell import Piece, words

LARGEST: Final = 16 << 20  # bytes of one file; a larger one can't be remembered
MOST_BYTES: Final = 64 << 20  # read for one decision; beyond that nothing can be remembered
MOST_FILES: Final = 64  # named by one command
MOST_LOOKS: Final = 4096  # names tried for one decision
MOST_ENTRIES: Final = 4096  # of a folder in which names are completed
LONGEST_CLUSTER: Final = 256  # characters of an option; in a longer one no path is looked for
FOLDER: Final = "folder"
"""Stands for the digest of a folder: that it is one."""
UNREAD: Final = ""
"""Stands for the digest of what is no plain file, is too large or can't be read."""

_ONLY_READS_OR_NAMES: Final = words("""
    cat head tail wc nl tac rev cut tr uniq comm paste fold fmt column ls stat file du df grep egrep fgrep cmp diff
    md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum od xxd hexdump strings base64 base32 echo
    printf test [ touch mkdir rmdir basename dirname readlink realpath true false pwd date id whoami uname expr seq
    sleep cd pushd popd
""")
"""Programs that never run what is in a file they are given: for these the folder is enough."""
_TAKES_INPUT_AS_DATA: Final = _ONLY_READS_OR_NAMES - words("uniq xxd")
"""Programs that neither run what another command feeds them nor write it to a file."""
_SORTS: Final = words("sort uniq")
_SORTING: Final = re.compile(r"-[bcdfghiMnrRsuVzk0-9.,]+")
"""Options with which these print what they are fed, and do nothing else."""
_ENTRANCES: Final = ("__main__.py", "__init__.py", "index.js", "package.json")
"""What runs when an interpreter is given a folder."""
_RUNS_A_SCRIPT: Final = re.compile(
    r"[a-z]*sh|python[\d.]*|pypy[\d.]*|perl[\d.]*|ruby[\d.]*|node(js)?|deno|bun|php[\d.]*|lua(jit)?[\d.]*|tclsh[\d.]*|guile|"
    r"Rscript|osascript|julia|irb|ghci"
)
"""Interpreters that run the script that is their first word, and then not what they are fed."""
_RUNS_ITS_WORDS: Final = re.compile(r"-[a-zA-Z]*[cemEp].*|--(eval|print|version|help).*|-[vVh]", re.DOTALL)
"""Options with which an interpreter looks at its own words."""
_SPLIT: Final = re.compile(r"[\s=:,@;|&<>(){}\[\]'\"`$]+")
_MOVES: Final = words("cd pushd popd chdir")
_MOVING_FIND: Final = words("-execdir -okdir")


def moves(pieces: Sequence[Piece]) -> bool:
    """Whether one of these commands may make the others run in another folder."""
    for piece in pieces:
        name = PurePath(piece.words[0].text).name
        if name in _MOVES or (name == "find" and any(word.text in _MOVING_FIND for word in piece.words)):
            return True
    return False


class _TooMuch(Exception):
    """More than is looked at."""


class Files:
    """The files that the commands of one decision name, seen from one folder. Each is read once, all within bounds."""

    def __init__(self, cwd: Path | None) -> None:
        self._given = cwd
        self._known_folder: str | None = None
        self._digests: dict[str, str] = {}
        self._bytes = MOST_BYTES
        self._looks = MOST_LOOKS
        self._entries: dict[str, list[str]] = {}
        self._paths: dict[tuple[str, ...], list[str] | None] = {}
        self._spoken: set[tuple[str, ...]] = set()  # words that name a file, beyond what the program looks for

    def bound(self, piece: Piece, *, program: str | None, on_path: bool, moved: bool) -> Bound | None:
        """What `piece` is bound to when it runs now; None when that can't be told.

        `program`: the file of its program. `on_path`: it is the one its bare name means, as installed. `moved`: another
        command may have changed the folder.
        """
        texts = tuple(word.text for word in piece.words)
        name = name_of(texts[0])
        if moved:
            return Bound(self._folder, {}) if on_path and name in _ONLY_READS_OR_NAMES else None
        if piece.fed and not (on_path and self._takes_input_as_data(name, texts)):
            return None
        if on_path and name in _ONLY_READS_OR_NAMES:
            return Bound(self._folder, {}, program if "/" in texts[0] else None)
        named = self._named(texts)
        if named is None or len(named) > MOST_FILES:
            return None
        if texts not in self._spoken and _runs_something_unseen(name, texts):
            return None
        own = [] if on_path else self._own(texts[0])
        files = {path: self._digest(path) for path in dict.fromkeys([*own, *named])}
        if UNREAD in files.values():
            return None
        return Bound(self._folder, files, program if "/" in texts[0] else None)

    def _own(self, given: str) -> list[str]:
        """A program of somebody's own, and what makes a link to Python another Python."""
        folder = PurePath(given).parent
        names = (given, str(folder / "pyvenv.cfg"), str(folder.parent / "pyvenv.cfg"))
        try:
            return [path for name in names for path in self._there(self._folder, name)]
        except _TooMuch:
            return []

    def named(self, pieces: Sequence[Piece]) -> dict[str, str]:
        """Every file these commands name, by path and digest, as far as it is looked at."""
        found: dict[str, str] = {}
        for piece in pieces:
            texts = tuple(word.text for word in piece.words)
            own = self._own(texts[0]) if "/" in texts[0] else []
            for path in [*own, *(self._named(texts) or ())]:
                found[path] = self._digest(path)
        return found

    @property
    def _folder(self) -> str:
        if self._known_folder is None:
            self._known_folder = os.path.realpath(self._given or Path.cwd())
        return self._known_folder

    # ---- what words name ---------------------------------------------------------------------------------------

    def _named(self, texts: tuple[str, ...]) -> list[str] | None:
        """The real path of every file and folder the words name or the program looks for; None when there is too much
        to look at, or a name means another file to another process."""
        if texts not in self._paths:
            try:
                self._paths[texts] = list(dict.fromkeys(self._all_named(texts)))
            except _TooMuch:
                self._paths[texts] = None
        return self._paths[texts]

    def _all_named(self, texts: tuple[str, ...]) -> Iterator[str]:
        given = [list(dict.fromkeys(_parts(text))) for text in texts[1:]]
        parts = list(dict.fromkeys(part for each in given for part in each if part))
        found = list(dict.fromkeys(path for part in parts for path in self._there(self._folder, part)))
        yield from found
        folders = [path for path in found if self._is_folder(path)]
        programs = {plain_name(texts[0]), name_of(texts[0]), *(name_of(part) for part in parts)}
        names = list(dict.fromkeys(name for program in sorted(programs) for name in looked_for(program)))
        for folder in self._standing(found) if names else ():
            for name in names:
                yield from self._looked_for(folder, name)
        for folder in folders:
            for name in _ENTRANCES:
                yield from self._there(folder, name)
        if any(_is_interpreter(program) for program in programs):
            for base in (self._folder, *folders):
                found += [path for part in parts for path in self._completed(base, part)]
            yield from found
        if found:
            self._spoken.add(texts)

    def _standing(self, found: Sequence[str]) -> Sequence[str]:
        """Where a program looks for what it needs: its folder and those above, those it is given, those between."""
        standing = [self._folder, *(str(each) for each in PurePath(self._folder).parents)]
        for path in found:
            above = [path, *(str(each) for each in PurePath(path).parents)]
            standing += [each for each in above if each not in standing]
        return [folder for folder in dict.fromkeys(standing) if self._is_folder(folder)]

    def _looked_for(self, folder: str, name: str) -> Iterator[str]:
        if "*" not in name:
            yield from self._there(folder, name)
            return
        below, _, pattern = name.rpartition("/")
        inner = f"{folder}/{below}" if below else folder
        for entry in self._listed(inner):
            if fnmatch.fnmatchcase(entry, pattern) and not entry.endswith(".sample"):
                yield from self._there(inner, entry)

    def _completed(self, base: str, name: str) -> Iterator[str]:
        """What an interpreter takes a name for that is no file: `app` is `app.js`, `a.b` `a/b.py`, `A::B` `A/B.pm`."""
        for spelled in dict.fromkeys((name, name.replace(".", "/"), name.replace("::", "/"))):
            parent, _, last = spelled.rpartition("/")
            if not last or last in (".", "..") or "\0" in spelled:
                continue
            within = os.path.join(base, parent)  # noqa: PTH118  texts, not paths
            for entry in self._listed(within):
                if entry == last or entry.startswith(f"{last}."):
                    yield from self._there(within, entry)
                    if entry == last:
                        for entrance in _ENTRANCES:
                            yield from self._there(f"{within}/{entry}", entrance)
            for depth in range(parent.count("/") + 1 if parent and not parent.startswith(("/", ".")) else 0):
                package = "/".join(parent.split("/")[: depth + 1])
                yield from self._there(base, f"{package}/__init__.py")

    def _listed(self, folder: str) -> list[str]:
        if folder not in self._entries:
            self._count()
            try:
                entries = os.listdir(folder)  # noqa: PTH208  texts, not paths
            except (OSError, ValueError):
                entries = []
            if len(entries) > MOST_ENTRIES:
                raise _TooMuch
            self._entries[folder] = sorted(entries)
        return self._entries[folder]

    def _there(self, folder: str, name: str) -> Iterator[str]:
        if not name or "\0" in name or len(name) > 4096:
            return
        self._count()
        try:
            path = os.path.join(folder, os.path.expanduser(name))  # noqa: PTH111, PTH118  texts, not paths
            if is_of_each_process(os.path.normpath(path)):
                raise _TooMuch
            if not os.path.lexists(path):
                return
            real, steady = follow(path)
        except (OSError, ValueError):
            return
        if not steady:
            raise _TooMuch
        if real not in (folder, self._folder) and os.path.lexists(real):
            yield real

    def _count(self) -> None:
        self._looks -= 1
        if self._looks < 0:
            raise _TooMuch

    def _is_folder(self, path: str) -> bool:
        return os.path.isdir(path)  # noqa: PTH112  a text, as everything here

    # ---- what is in them -----------------------------------------------------------------------------------------

    def _digest(self, path: str) -> str:
        if path not in self._digests:
            self._digests[path] = self._read(path)
        return self._digests[path]

    def _read(self, path: str) -> str:
        """The digest of the whole file, FOLDER or UNREAD. What is no plain file is not opened: that alone may act."""
        try:
            if stat.S_ISDIR((status := os.stat(path)).st_mode):  # noqa: PTH116
                return FOLDER
            if not stat.S_ISREG(status.st_mode) or status.st_size > min(LARGEST, self._bytes):
                return UNREAD
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return UNREAD
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return UNREAD
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(LARGEST + 1)
        except OSError:
            return UNREAD
        finally:
            os.close(descriptor)
        self._bytes -= len(data)
        return hashlib.sha256(data).hexdigest() if len(data) <= LARGEST else UNREAD

    def _takes_input_as_data(self, name: str, texts: Sequence[str]) -> bool:
        """Whether a program surely neither runs nor keeps what another command feeds it."""
        if name in _TAKES_INPUT_AS_DATA:
            return True
        if name in _SORTS:
            return all(_SORTING.fullmatch(text) for text in texts[1:])
        if not _RUNS_A_SCRIPT.fullmatch(name) or len(texts) < 2 or texts[1].startswith(("-", "+")):
            return False
        try:
            script = list(self._there(self._folder, texts[1]))
        except _TooMuch:
            return False
        return bool(script) and self._digest(script[0]) not in (FOLDER, UNREAD)


def _is_interpreter(name: str) -> bool:
    return _RUNS_A_SCRIPT.fullmatch(name) is not None or listed(name.lower(), INTERPRETERS)


def _runs_something_unseen(name: str, texts: Sequence[str]) -> bool:
    """Whether an interpreter is told to run something, and no file of that name was found."""
    if not _is_interpreter(name) or any(_RUNS_ITS_WORDS.fullmatch(text) for text in texts[1:]):
        return False
    return any(not text.startswith("-") for text in texts[1:])


def _parts(text: str) -> Iterator[str]:
    """The ways a word can hold a path: itself, `--file=path`, `-fpath`, `-xfpath`, `@path`, `a:b`, `a,b`, `sh path`."""
    yield text
    yield text.partition("=")[2]
    yield text.partition("@")[2]
    for part in (text, *_SPLIT.split(text)):
        yield part
        if part.startswith("-") and not part.startswith("--") and len(part) <= LONGEST_CLUSTER:
            yield from (part[at:] for at in range(2, len(part)))
