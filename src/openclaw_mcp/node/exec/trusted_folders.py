"""Which folders of the PATH hold programs that a bare name means: the system's, and those on a short list."""

import os
import stat
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from .shell_reader import word_set

SYSTEM_FOLDERS: Final = word_set("/bin /sbin /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin")

_CLONED_MANAGERS: Final = word_set(".pyenv .rbenv .nodenv .goenv .jenv .nvm .asdf .sdkman")
"""Version managers of the home folder that may be repositories themselves. What lies below can still be a project's."""
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
"""Where installers put a user's programs."""
_OTHER_INSTALL_FOLDERS: Final = word_set("""
    /opt/homebrew/bin /opt/homebrew/sbin /home/linuxbrew/.linuxbrew/bin /home/linuxbrew/.linuxbrew/sbin /nix/store/*/bin
""")
"""The same outside of the home folder, where others than root may have put them."""
_PROJECT_MARKERS: Final = word_set("""
    .git .hg .svn .jj .fslckout conda-meta pyvenv.cfg node_modules package.json composer.json pyproject.toml Cargo.toml
""")
"""What a project's folder has."""
_SHARED_FOLDERS: Final = word_set("""
    / /usr /usr/lib /usr/local /usr/local/lib /opt /opt/homebrew /home/linuxbrew/.linuxbrew /nix /nix/store
""")
"""Folders for the programs of many: a sign there, `/usr/lib/node_modules` say, tells nothing about what lies below."""


def is_trusted_folder(folder: str, *, untrusted_folders: Sequence[Path]) -> bool:
    """Whether a bare name may mean a program there: in a folder of the system, in a well-known one of this user's that
    nobody else may write, or where only root writes. Never in one that is a project's, and never in the folders
    `besides`, whose content commands and agents bring along."""
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
        kept = os.name == "nt" or not (_may_be_written_by_others(folder.stat()) or _has_writable_parent(folder))
    else:
        kept = within is None and (os.name == "nt" or all(map(_is_root_only, (folder, *folder.parents))))
    return kept and not _is_in_project(folder, home)


def _matches_any(path: str, patterns: Iterable[str]) -> bool:
    """Whether it is one of them, step by step: a wildcard stands for one folder."""
    steps = path.split("/")
    return any(
        len(steps) == len(wanted) and all(map(fnmatchcase, steps, wanted))
        for wanted in (pattern.split("/") for pattern in patterns)
    )


def _may_be_written_by_others(status: os.stat_result) -> bool:
    """By its owner, or by a group that is more than root's or this user's own."""
    if status.st_uid not in (0, os.geteuid()):
        return True
    own_group = status.st_gid == 0 or status.st_gid == os.getegid() == os.geteuid()
    return bool(status.st_mode & stat.S_IWGRP) and not own_group


def _has_writable_parent(folder: Path) -> bool:
    """Whether a folder above it can be replaced by anybody."""
    modes = (above.stat().st_mode for above in folder.parents)
    return any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in modes)


def _is_root_only(folder: Path) -> bool:
    """Whether nobody but root puts anything there."""
    found = folder.stat()
    for_group = found.st_mode & stat.S_IWGRP and found.st_gid != 0
    return found.st_uid == 0 and not for_group and not found.st_mode & stat.S_IWOTH


def _is_in_project(folder: Path, home: Path) -> bool:
    """Whether it or a folder above it has a project's sign, below those that hold the programs of many."""
    if "node_modules" in folder.parts:
        return True
    ends = {*map(Path, _SHARED_FOLDERS), home, *(home / manager for manager in _CLONED_MANAGERS)}
    for above in (folder, *folder.parents):
        if above in ends:
            return False
        if any(os.path.lexists(above / sign) for sign in _PROJECT_MARKERS):
            return True
    return False
