"""Which file a program's name means, and whether it is the one that is installed by that name."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..path_following import follow
from .always_offer import may_stand_for
from .environment import clean_path
from .program_powers import name_of
from .trusted_folders import SYSTEM_FOLDERS, is_trusted
from .wrappers import APPLETS, WRAPPERS


class Locator:
    """Which file a program name means, seen from one folder. Made anew for each decision: it looks at a name once."""

    def __init__(self, cwd: Path | None, *, besides: Sequence[Path] = ()) -> None:
        """`besides`: folders where no program is trusted, besides the one it is seen from and the node's own."""
        self._cwd = cwd or Path.cwd()
        self._besides = besides
        self._path = clean_path()
        self._found: dict[str, str | None] = {}
        self._real: dict[str, str | None] = {}
        self._steady: dict[str, bool] = {}
        self._trusted: dict[str, bool] = {}
        self._places: frozenset[str] | None = None

    def path(self, program: str) -> str | None:
        """The file's own path, links followed."""
        if program not in self._real:
            found = self.executable(program)
            self._real[program], self._steady[program] = follow(found) if found else (None, True)
        return self._real[program]

    def is_steady(self, program: str) -> bool:
        """Whether it means the same file to every process: what passes through /proc may be another to the next."""
        if self.path(program) is None and "/" in program and "\0" not in program:
            return follow(str(self._cwd / program))[1]
        return self._steady[program]

    def executable(self, program: str) -> str | None:
        """The path to start it by: links stay, since programs look at their name."""
        if program not in self._found:
            try:
                self._found[program] = self._look(program)
            except ValueError:  # no file can have such a name
                self._found[program] = None
        return self._found[program]

    def started(self, program: str) -> str | None:
        """The file as which it is started: its own path, but a link's where the link lies in no trusted folder of the
        PATH. Programs look beside the name they are started by for what belongs to them."""
        found, real = self.executable(program), self.path(program)
        if found is None or real is None or found == real:
            return real
        folder, _, name = found.rpartition(os.sep)
        if self._is_place(folder):
            return real
        return f"{follow(folder)[0].rstrip(os.sep)}{os.sep}{name}"

    def names(self, program: str) -> tuple[str, ...]:
        """The names it surely acts by among programs that start others: only where the file behind it is the one that
        name means on the trusted part of the PATH, and it is started from there."""
        return self._names(program, self.started(program))

    def suspected(self, program: str) -> tuple[str, ...]:
        """The names it may act by, wherever it is started from."""
        return self._names(program, self.path(program))

    def _names(self, program: str, found: str | None) -> tuple[str, ...]:
        own = name_of(program)
        if found is None:
            return () if "/" in program else (own,)  # no file; it may be a word of the shell's own
        real = name_of(found)
        box = next((box for box in APPLETS if real.startswith(box)), None)
        if box is not None and self._meant(real) == found:
            return (box,) if own.startswith(box) else (own,)  # it acts on the name it was called by
        return tuple(name for name in (own, real) if name in WRAPPERS and self._meant(name) == found)

    def _look(self, program: str) -> str | None:
        if "/" in program or (os.sep != "/" and os.sep in program):
            candidate = str(self._cwd / program)
            return candidate if os.access(candidate, os.X_OK) else None
        if os.name == "nt":
            return shutil.which(program, path=self._path)
        # As shutil.which does, with a third of the system calls: a decision looks for several programs.
        candidates = (f"{folder}/{program}" for folder in self._path.split(os.pathsep))
        return next((each for each in candidates if os.access(each, os.X_OK) and Path(each).is_file()), None)

    def _meant(self, name: str) -> str | None:
        """The file behind a bare name on the folders of the PATH that nobody else and no workspace fills."""
        first = self.executable(name)
        if first is None or self._is_trusted(first.rpartition(os.sep)[0]):
            return self.path(name)
        folders = [each for each in self._path.split(os.pathsep) if self._is_trusted(each)]
        found = shutil.which(name, path=os.pathsep.join(folders)) if folders else None
        return os.path.realpath(found) if found else None

    def _is_place(self, folder: str) -> bool:
        """Whether programs lie there that bare names mean: a folder of the PATH that is trusted."""
        if folder in SYSTEM_FOLDERS:
            return True
        real = follow(folder)[0]
        if self._places is None:
            listed = [each for each in self._path.split(os.pathsep) if self._is_trusted(each)]
            self._places = SYSTEM_FOLDERS | {os.path.realpath(each) for each in listed}
        return real in self._places

    def _is_trusted(self, folder: str) -> bool:
        if folder not in self._trusted:
            self._trusted[folder] = is_trusted(folder, besides=(self._cwd, Path.cwd(), *self._besides))
        return self._trusted[folder]

    def is_on_path(self, program: str) -> bool:
        """Whether it is the one its bare name means where nobody else and no workspace puts programs; a bare name that
        is no file's is a word of a shell's own."""
        started, meant = self.started(program), self._meant(name_of(program))
        return started == meant and (meant is not None or "/" not in program)

    def is_itself(self, program: str) -> bool:
        """Whether it is on the path and does not choose another by what lies in the folder, as those of version
        managers do."""
        if not self.is_on_path(program):
            return False
        real = self.path(program)
        if real is None:
            return True  # a word of a shell's own
        system = real.rpartition(os.sep)[0] in SYSTEM_FOLDERS
        if not may_stand_for(program, real, system=system):
            return False
        return system or not _is_script(real)


def _is_script(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True
