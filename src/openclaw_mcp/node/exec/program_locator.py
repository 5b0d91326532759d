"""Which file a program's name means, and whether it is the one that is installed by that name."""

import os
import shutil
import stat
import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from ..path_following import follow_links
from .always_offer import may_be_program
from .environment import clean_path
from .program_powers import base_name
from .shell_reader import word_set
from .wrappers import APPLET_BOXES, WRAPPERS

SYSTEM_FOLDERS: Final = word_set("/bin /sbin /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin")

_CLONED_MANAGERS: Final = word_set(".pyenv .rbenv .nodenv .goenv .jenv .nvm .asdf .sdkman")
"""Version managers of the home folder that may be repositories themselves. What is below may be a project's."""
_HOME_INSTALL_FOLDERS: Final = word_set("""
    bin .local/bin .cargo/bin go/bin .volta/bin .bun/bin .deno/bin .npm-global/bin .yarn/bin .local/share/pnpm
    Library/pnpm .linuxbrew/bin .dotnet .dotnet/tools .ghcup/bin .cabal/bin .juliaup/bin .krew/bin .rye/shims
    .nvm/versions/node/*/bin .asdf/bin .asdf/shims .asdf/installs/*/*/bin .sdkman/candidates/*/*/bin
    .local/share/mise/shims .local/share/mise/installs/*/*/bin .local/share/fnm/node-versions/*/installation/bin
""") | {
    f"{manager}/{folder}"
    for manager in word_set(".pyenv .rbenv .nodenv .goenv .jenv")
    for folder in ("shims", "bin", "versions/*/bin")
}
"""Folders of the home folder where installers put programs."""
_OTHER_INSTALL_FOLDERS: Final = word_set("""
    /opt/homebrew/bin /opt/homebrew/sbin /home/linuxbrew/.linuxbrew/bin /home/linuxbrew/.linuxbrew/sbin /nix/store/*/bin
""")
"""The same outside of the home folder, where others than root may have put them."""
_PROJECT_MARKERS: Final = word_set("""
    .git .hg .svn .jj .fslckout conda-meta pyvenv.cfg node_modules package.json composer.json pyproject.toml Cargo.toml
""")
"""Names of files and folders that mark a project."""
_SHARED_FOLDERS: Final = word_set("""
    / /usr /usr/lib /usr/local /usr/local/lib /opt /opt/homebrew /home/linuxbrew/.linuxbrew /nix /nix/store
""")
"""Folders of many programs: a marker there, such as `/usr/lib/node_modules`, says nothing about what is below."""


class ProgramLocator:
    """Which file a program name means in one folder. One object for each decision: it looks at a name once."""

    def __init__(self, cwd: Path | None, *, untrusted_folders: Sequence[Path] = ()) -> None:
        """`untrusted_folders`: where no program is trusted, besides `cwd` and the node's own folder."""
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
        """Whether it means the same file to every process: a path through /proc may mean another to the next."""
        if self.real_path(program) is None and "/" in program and "\0" not in program:
            return follow_links(str(self._cwd / program))[1]
        return self._process_independent[program]

    def executable(self, program: str) -> str | None:
        """The path to start it by: links are not followed, since programs look at their name."""
        if program not in self._executables:
            try:
                self._executables[program] = self._find_executable(program)
            except ValueError:  # no file can have such a name
                self._executables[program] = None
        return self._executables[program]

    def launch_path(self, program: str) -> str | None:
        """The file as which it is started: its own path, but a link's where the link is in no trusted folder of the
        PATH. Programs look for their files beside the path they are started by."""
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
            return () if "/" in program else (own,)  # no file; it may be a builtin of the shell
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
        """The file behind a bare name in the folders of the PATH that no other user and no workspace writes to."""
        first = self.executable(name)
        if first is None or self._is_trusted(first.rpartition(os.sep)[0]):
            return self.real_path(name)
        folders = [each for each in self._path.split(os.pathsep) if self._is_trusted(each)]
        found = shutil.which(name, path=os.pathsep.join(folders)) if folders else None
        return os.path.realpath(found) if found else None

    def _is_trusted_path_folder(self, folder: str) -> bool:
        """Whether bare names mean the programs there: a folder of the PATH that is trusted."""
        if folder in SYSTEM_FOLDERS:
            return True
        real = follow_links(folder)[0]
        if self._trusted_path_folders is None:
            listed = [each for each in self._path.split(os.pathsep) if self._is_trusted(each)]
            self._trusted_path_folders = SYSTEM_FOLDERS | {os.path.realpath(each) for each in listed}
        return real in self._trusted_path_folders

    def _is_trusted(self, folder: str) -> bool:
        if folder not in self._trust_by_folder:
            self._trust_by_folder[folder] = _is_trusted_folder(
                folder, untrusted_folders=(self._cwd, Path.cwd(), *self._untrusted_folders)
            )
        return self._trust_by_folder[folder]

    def is_on_path(self, program: str) -> bool:
        """Whether it is the one its bare name means in a trusted folder; a bare name without a file is a builtin of the
        shell."""
        started, meant = self.launch_path(program), self._find_trusted_program(base_name(program))
        return started == meant and (meant is not None or "/" not in program)

    def is_genuine(self, program: str) -> bool:
        """Whether it is on the path and does not choose another program by the files of the folder, as version managers
        do."""
        if not self.is_on_path(program):
            return False
        real = self.real_path(program)
        if real is None:
            return True  # a builtin of the shell
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


def _is_trusted_folder(folder: str, *, untrusted_folders: Sequence[Path]) -> bool:
    """Whether a bare name may mean a program there: in a folder of the system, in a well-known one of this user that no
    other user may write, or where only root writes. Never in a project's, and never in `untrusted_folders`, which
    commands and agents write to."""
    real = folder if folder in SYSTEM_FOLDERS else os.path.realpath(folder)
    try:
        found = Path(real).stat()
        if os.name != "nt" and found.st_mode & stat.S_IWOTH:
            return False
        if real in SYSTEM_FOLDERS:
            return True
        return _is_protected(Path(real)) and not any(
            Path(real).is_relative_to(os.path.realpath(one)) for one in untrusted_folders
        )
    except OSError:
        return False


def _is_protected(folder: Path) -> bool:
    home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111  it does not fail where there is no home
    within = folder.relative_to(home).as_posix() if folder.is_relative_to(home) else None
    if _matches_any(folder.as_posix(), _OTHER_INSTALL_FOLDERS) or (
        within is not None and _matches_any(within, _HOME_INSTALL_FOLDERS)
    ):
        protected = os.name == "nt" or not (_may_be_written_by_others(folder.stat()) or _has_writable_parent(folder))
    else:
        protected = within is None and (os.name == "nt" or all(map(_is_root_only, (folder, *folder.parents))))
    return protected and not _is_in_project(folder, home)


def _matches_any(path: str, patterns: Iterable[str]) -> bool:
    """Whether it matches one of them, part by part: a wildcard matches one folder."""
    parts = path.split("/")
    return any(
        len(parts) == len(pattern_parts) and all(map(fnmatchcase, parts, pattern_parts))
        for pattern_parts in (pattern.split("/") for pattern in patterns)
    )


def _may_be_written_by_others(status: os.stat_result) -> bool:
    """By another owner, or by a group that is neither root's nor this user's own."""
    if sys.platform == "win32":
        return False  # its access rules are not in the mode; asked only where there are modes
    if status.st_uid not in (0, os.geteuid()):
        return True
    own_group = status.st_gid == 0 or status.st_gid == os.getegid() == os.geteuid()
    return bool(status.st_mode & stat.S_IWGRP) and not own_group


def _has_writable_parent(folder: Path) -> bool:
    """Whether any user can replace a folder above it."""
    modes = (above.stat().st_mode for above in folder.parents)
    return any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in modes)


def _is_root_only(folder: Path) -> bool:
    """Whether only root may write there."""
    found = folder.stat()
    for_group = found.st_mode & stat.S_IWGRP and found.st_gid != 0
    return found.st_uid == 0 and not for_group and not found.st_mode & stat.S_IWOTH


def _is_in_project(folder: Path, home: Path) -> bool:
    """Whether it or a folder above it is marked as a project, below the folders of many programs."""
    if "node_modules" in folder.parts:
        return True
    ends = {*map(Path, _SHARED_FOLDERS), home, *(home / manager for manager in _CLONED_MANAGERS)}
    for above in (folder, *folder.parents):
        if above in ends:
            return False
        if any(os.path.lexists(above / marker) for marker in _PROJECT_MARKERS):
            return True
    return False
