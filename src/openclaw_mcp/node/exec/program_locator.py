"""Which file a program's name means, and whether it is the one that is installed by that name."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..path_following import follow_links
from .always_offer import may_be_program
from .environment import clean_path
from .program_powers import base_name
from .trusted_folders import SYSTEM_FOLDERS, is_trusted_folder
from .wrappers import APPLET_BOXES, WRAPPERS


class ProgramLocator:
    """Which file a program name means, seen from one folder. Made anew for each decision: it looks at a name once."""

    def __init__(self, cwd: Path | None, *, untrusted_folders: Sequence[Path] = ()) -> None:
        """`besides`: folders where no program is trusted, besides the one it is seen from and the node's own."""
        self._cwd = cwd or Path.cwd()
        self._untrusted_folders = untrusted_folders
        self._path = clean_path()
        self._executables: dict[str, str | None] = {}
        self._real_paths: dict[str, str | None] = {}
        self._process_independent: dict[str, bool] = {}
        self._trust_by_folder: dict[str, bool] = {}
        self._trusted_path_folders: frozenset[str] | None = None

    def real_path(self, program: str) -> str | None:
        """The file's own path, links followed."""
        if program not in self._real_paths:
            found = self.executable(program)
            self._real_paths[program], self._process_independent[program] = (
                follow_links(found) if found else (None, True)
            )
        return self._real_paths[program]

    def is_process_independent(self, program: str) -> bool:
        """Whether it means the same file to every process: what passes through /proc may be another to the next."""
        if self.real_path(program) is None and "/" in program and "\0" not in program:
            return follow_links(str(self._cwd / program))[1]
        return self._process_independent[program]

    def executable(self, program: str) -> str | None:
        """The path to start it by: links stay, since programs look at their name."""
        if program not in self._executables:
            try:
                self._executables[program] = self._find_executable(program)
            except ValueError:  # no file can have such a name
                self._executables[program] = None
        return self._executables[program]

    def launch_path(self, program: str) -> str | None:
        """The file as which it is started: its own path, but a link's where the link lies in no trusted folder of the
        PATH. Programs look beside the name they are started by for what belongs to them."""
        found, real = self.executable(program), self.real_path(program)
        if found is None or real is None or found == real:
            return real
        folder, _, name = found.rpartition(os.sep)
        if self._is_trusted_path_folder(folder):
            return real
        return f"{follow_links(folder)[0].rstrip(os.sep)}{os.sep}{name}"

    def certain_names(self, program: str) -> tuple[str, ...]:
        """The names it surely acts by among programs that start others: only where the file behind it is the one that
        name means on the trusted part of the PATH, and it is started from there."""
        return self._wrapper_names(program, self.launch_path(program))

    def possible_names(self, program: str) -> tuple[str, ...]:
        """The names it may act by, wherever it is started from."""
        return self._wrapper_names(program, self.real_path(program))

    def _wrapper_names(self, program: str, found: str | None) -> tuple[str, ...]:
        own = base_name(program)
        if found is None:
            return () if "/" in program else (own,)  # no file; it may be a word of the shell's own
        real = base_name(found)
        box = next((box for box in APPLET_BOXES if real.startswith(box)), None)
        if box is not None and self._find_trusted_program(real) == found:
            return (box,) if own.startswith(box) else (own,)  # it acts on the name it was called by
        return tuple(name for name in (own, real) if name in WRAPPERS and self._find_trusted_program(name) == found)

    def _find_executable(self, program: str) -> str | None:
        if "/" in program or (os.sep != "/" and os.sep in program):
            candidate = str(self._cwd / program)
            return candidate if os.access(candidate, os.X_OK) else None
        if os.name == "nt":
            return shutil.which(program, path=self._path)
        # As shutil.which does, with a third of the system calls: a decision looks for several programs.
        candidates = (f"{folder}/{program}" for folder in self._path.split(os.pathsep))
        return next((each for each in candidates if os.access(each, os.X_OK) and Path(each).is_file()), None)

    def _find_trusted_program(self, name: str) -> str | None:
        """The file behind a bare name on the folders of the PATH that nobody else and no workspace fills."""
        first = self.executable(name)
        if first is None or self._is_trusted(first.rpartition(os.sep)[0]):
            return self.real_path(name)
        folders = [each for each in self._path.split(os.pathsep) if self._is_trusted(each)]
        found = shutil.which(name, path=os.pathsep.join(folders)) if folders else None
        return os.path.realpath(found) if found else None

    def _is_trusted_path_folder(self, folder: str) -> bool:
        """Whether programs lie there that bare names mean: a folder of the PATH that is trusted."""
        if folder in SYSTEM_FOLDERS:
            return True
        real = follow_links(folder)[0]
        if self._trusted_path_folders is None:
            listed = [each for each in self._path.split(os.pathsep) if self._is_trusted(each)]
            self._trusted_path_folders = SYSTEM_FOLDERS | {os.path.realpath(each) for each in listed}
        return real in self._trusted_path_folders

    def _is_trusted(self, folder: str) -> bool:
        if folder not in self._trust_by_folder:
            self._trust_by_folder[folder] = is_trusted_folder(
                folder, untrusted_folders=(self._cwd, Path.cwd(), *self._untrusted_folders)
            )
        return self._trust_by_folder[folder]

    def is_on_path(self, program: str) -> bool:
        """Whether it is the one its bare name means where nobody else and no workspace puts programs; a bare name that
        is no file's is a word of a shell's own."""
        started, meant = self.launch_path(program), self._find_trusted_program(base_name(program))
        return started == meant and (meant is not None or "/" not in program)

    def is_genuine(self, program: str) -> bool:
        """Whether it is on the path and does not choose another by what lies in the folder, as those of version
        managers do."""
        if not self.is_on_path(program):
            return False
        real = self.real_path(program)
        if real is None:
            return True  # a word of a shell's own
        system = real.rpartition(os.sep)[0] in SYSTEM_FOLDERS
        if not may_be_program(program, real, in_system_folder=system):
            return False
        return system or not _is_script(real)


def _is_script(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True
