"""Files that may leave this machine: one rule for every way out, and one way to read them.

Whoever takes a path from a message, a tool call or a request asks `read_file`, with the `FileAccess` of whoever asks.
What is judged is what is read: the file is reached from an allowed folder, folder by folder, through no link, and only
its open descriptor is looked at.
"""

import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from msgspec import Struct

from ..core.errors import OpenClawError

LONGEST_PATH: Final = 4096  # characters; no file system takes more
STATE_MARK: Final = "gateway-token.txt"
"""A folder with this file is a state directory: of this gateway or of another of the same person."""
WORKSPACES: Final = "workspaces"
"""The folder of the state directory with the workspaces of agents that were given none."""
SENDABLE_STATE: Final = re.compile(r"media|workspaces?(-[a-z0-9_-]+)?")
"""What may leave of a state directory: these folders in it, when they are named as folders to send from."""
SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # two letters at least: one is a drive
UNREAL: Final = ("/proc", "/sys", "/dev")

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class FileRefused(OpenClawError):
    """The file does not leave. The text says why, and nothing about files outside the allowed folders."""

    code = "file_refused"


class FileOutside(FileRefused):
    """It lies in none of the folders this asker may send from, or does not exist there."""


class FileAccess(Struct, frozen=True, kw_only=True):
    """What one asker may send. Without folders: nothing."""

    folders: tuple[Path, ...] = ()
    """Files below these; relative paths begin at the first."""
    own_folders: tuple[Path, ...] = ()
    """The same, but only while they are real folders, no links, that belong to this user."""
    secrets: tuple[Path, ...] = ()
    """Files and folders that never leave, whatever name or allowed folder they are reached by."""
    words: tuple[bytes, ...] = ()
    """No file that holds one of these leaves."""
    hidden: bool = False
    """Whether names that begin with a dot may be asked for: settings and credentials lie under such."""


class FoundFile(Struct, frozen=True, kw_only=True):
    name: str
    path: Path
    data: bytes


def read_file(place: str, access: FileAccess, *, most: int) -> FoundFile:
    """The file a path or `file:` address names, if this asker may have it. Raises FileRefused with one sentence."""
    roots = _roots(access)
    path = _path(place, roots)
    # Only a guess at what is meant: links are followed here and nowhere below.
    real = _followed(path)
    if real is None:
        raise _outside(roots)
    root = max((root for root in roots if root in real.parents), key=lambda root: len(root.parts), default=None)
    if real in roots:
        raise _no_file(real.name)
    if root is None or _unreal(path):
        raise _outside(roots)
    parts = real.relative_to(root).parts
    if not access.hidden and any(part.startswith(".") for part in parts):
        raise FileRefused(f"{real.name} lies under a name that begins with a dot, which only the owner may send")
    try:
        data = _read(root, parts, access, most)
    except FileNotFoundError:
        raise FileRefused(f"there is no file {real.name}") from None
    except (OSError, NotImplementedError):  # the latter where folders have no descriptors
        raise FileRefused(f"{real.name} can't be read; it must be a plain file of its folder, and no link") from None
    if any(word in data for word in access.words):
        raise FileRefused(f"{real.name} holds a token of the gateway and is not sent")
    return FoundFile(name=real.name, path=path, data=data)


def scheme_of(place: str) -> str:
    """`https` of `https://…`; nothing for a path, drive letters included."""
    found = SCHEME.match(place.strip())
    return found[1].lower() if found else ""


def outside_secrets(folders: Iterable[Path], state: Path) -> tuple[Path, ...]:
    """Of these the folders that may be sent from: not the state directory, nor what it keeps for itself."""
    own = _followed(state)
    return tuple(folder for folder in folders if _may_send_from(_followed(folder), own))


def _may_send_from(folder: Path | None, state: Path | None) -> bool:
    if folder is None or state is None or folder == state:
        return False
    return state not in folder.parents or SENDABLE_STATE.fullmatch(folder.relative_to(state).parts[0]) is not None


# ---- what is meant ---------------------------------------------------------------------------------------------------


def _path(place: str, roots: Sequence[Path]) -> Path:
    text = place.strip()
    if scheme_of(text) == "file":
        text = _from_address(text[len("file:") :])
    if not text or "\0" in text or len(text) > LONGEST_PATH:
        raise FileRefused(f"that is no path; give one of at most {LONGEST_PATH} characters")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise FileRefused("that is no path: it has characters no file name can have") from None
    # normpath is not asked: it would take `link/..` for nothing.
    path = Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for a user there is not
    if path.is_absolute():
        return path
    if not roots:
        raise _outside(roots)
    return roots[0] / path


def _from_address(rest: str) -> str:
    """`file:/p`, `file:///p` and `file://localhost/p`; another machine's files are not ours to read."""
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise FileRefused("a file: address names a path of this machine: write file:///path")
        rest = slash + path
    if not rest.startswith("/"):
        raise FileRefused("a file: address names a whole path: write file:///path")
    return unquote(rest)


# ---- where it may lie ------------------------------------------------------------------------------------------------


def _roots(access: FileAccess) -> list[Path]:
    found = [real for folder in access.folders if (real := _followed(folder)) is not None]
    for folder in access.own_folders:
        parent = _followed(folder.parent)
        if parent is not None and _is_ours(parent / folder.name):
            found.append(parent / folder.name)
    return list(dict.fromkeys(found))


def _followed(path: Path) -> Path | None:
    """Where links lead at this moment; None where one is just being changed, or may not be read."""
    try:
        return Path(os.path.realpath(path))
    except OSError:
        return None


def _is_ours(folder: Path) -> bool:
    try:
        about = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and (not hasattr(os, "geteuid") or about.st_uid == os.geteuid())


def _unreal(path: Path) -> bool:
    return str(path).startswith(tuple(f"{place}/" for place in UNREAL))


def _outside(roots: Sequence[Path]) -> FileOutside:
    shown = ", ".join(map(str, roots)) or "no folder"
    return FileOutside(f"files are sent from {shown} only; put it there first")


# ---- reading ---------------------------------------------------------------------------------------------------------


class _Guard:
    """What may not be met on the way to a file: secrets by what they are, not by their names; no file system of the
    kernel's own."""

    def __init__(self, secrets: Iterable[Path]) -> None:
        self._secrets = {found for place in secrets if (found := _identity(place)) is not None}
        devices = {place: found[0] for place in ("/", *UNREAL) if (found := _identity(Path(place))) is not None}
        self._unreal = set(devices.values()) - {devices.get("/")}

    def pass_folder(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        self._pass(about)
        try:
            os.stat(STATE_MARK, dir_fd=descriptor, follow_symlinks=False)
        except OSError:
            return
        raise _secret()

    def pass_file(self, about: os.stat_result, name: str) -> None:
        self._pass(about)
        if not stat.S_ISREG(about.st_mode):
            raise _no_file(name)
        if about.st_nlink > 1:
            raise FileRefused(f"{name} has a second name (a hard link), so it may belong elsewhere; send a copy of it")

    def _pass(self, about: os.stat_result) -> None:
        if (about.st_dev, about.st_ino) in self._secrets:
            raise _secret()
        if about.st_dev in self._unreal:
            raise FileRefused("that is no file of a disk and is not sent")


def _identity(place: Path) -> tuple[int, int] | None:
    try:
        about = place.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino


def _secret() -> FileRefused:
    return FileRefused("that belongs to the gateway itself (its state, settings or credentials) and is never sent")


def _read(root: Path, parts: Sequence[str], access: FileAccess, most: int) -> bytes:
    guard = _Guard(access.secrets)
    descriptor = _opened(root, parts, guard)
    with os.fdopen(descriptor, "rb") as file:
        guard.pass_file(os.fstat(descriptor), parts[-1])
        data = file.read(most + 1)  # not its size is asked: it may grow while it is read
    if len(data) > most:
        raise _too_large(parts[-1], most)
    return data


def _opened(root: Path, parts: Sequence[str], guard: _Guard) -> int:
    """The file's descriptor, reached from folder to folder; a link anywhere on the way ends it."""
    folder = os.open(root, _FOLDER | _NO_LINK)
    try:
        guard.pass_folder(folder)
        for part in parts[:-1]:
            deeper = os.open(part, _FOLDER | _NO_LINK, dir_fd=folder)
            os.close(folder)
            folder = deeper
            guard.pass_folder(folder)
        # Looked at first: merely opening a device can do something.
        guard.pass_file(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False), parts[-1])
        return os.open(parts[-1], _FILE | _NO_LINK, dir_fd=folder)
    finally:
        os.close(folder)


def _no_file(name: str) -> FileRefused:
    return FileRefused(f"{name} is no file; a folder, pipe or device can't be sent")


def _too_large(name: str, most: int) -> FileRefused:
    return FileRefused(f"{name} is larger than {most} bytes, the most that can be sent here")
