"""Files that may leave this machine: one rule for every way out, and one way to read them.

Code that gets a path from a message, a tool call or a request calls `read_file`, with the `FileAccess` of the caller.
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
from .open_flags import NO_LINK, NO_WAIT, NOT_INHERITED

MAX_PATH_LENGTH: Final = 4096  # characters; no file system takes more
STATE_MARKER_FILE: Final = "gateway-token.txt"
"""A folder with this file is a state directory: of this gateway or of another of the same person."""
WORKSPACES_FOLDER: Final = "workspaces"
"""The folder of the state directory with the workspaces of agents that were given none."""
SENDABLE_STATE_FOLDERS: Final = re.compile(r"media|workspaces?(-[a-z0-9_-]+)?")
"""What may leave of a state directory: these folders in it, when they are named as folders to send from."""
SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # two letters at least: one is a drive
VIRTUAL_FILESYSTEMS: Final = ("/proc", "/sys", "/dev")

_FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | NOT_INHERITED | NO_LINK
_FILE_FLAGS = os.O_RDONLY | NOT_INHERITED | NO_WAIT | NO_LINK | getattr(os, "O_NOCTTY", 0)


class FileRefused(OpenClawError):
    """The file does not leave. The text says why, and nothing about files outside the allowed folders."""

    code = "file_refused"


class FileOutside(FileRefused):
    """It is in none of the folders this caller may send from, or does not exist there."""


class FileAccess(Struct, frozen=True, kw_only=True):
    """What one caller may send. Without folders: nothing."""

    folders: tuple[Path, ...] = ()
    """Files below these; relative paths begin at the first."""
    own_folders: tuple[Path, ...] = ()
    """The same, but only while they are real folders, no links, that belong to this user."""
    secrets: tuple[Path, ...] = ()
    """Files and folders that never leave, by any name and from any allowed folder."""
    secret_texts: tuple[bytes, ...] = ()
    """No file that holds one of these leaves."""
    allows_hidden: bool = False
    """Whether names that begin with a dot may be asked for: settings and credentials have such names."""


class SendableFile(Struct, frozen=True, kw_only=True):
    name: str
    path: Path
    data: bytes


def read_file(location: str, access: FileAccess, *, max_bytes: int) -> SendableFile:
    """The file a path or `file:` address names, if this caller may have it. Raises FileRefused with one sentence."""
    roots = _root_folders(access)
    path = _parse_path(location, roots)
    # Only a guess at what is meant: links are followed here and nowhere below.
    real = _resolve_links(path)
    if real is None:
        raise _outside_error(roots)
    root = max((root for root in roots if root in real.parents), key=lambda root: len(root.parts), default=None)
    if real in roots:
        raise _not_a_file_error(real.name)
    if root is None or _is_virtual(path):
        raise _outside_error(roots)
    parts = real.relative_to(root).parts
    if not access.allows_hidden and any(part.startswith(".") for part in parts):
        raise FileRefused(f"{real.name} lies under a name that begins with a dot, which only the owner may send")
    try:
        data = _read_bytes(root, parts, access, max_bytes)
    except FileNotFoundError:
        raise FileRefused(f"there is no file {real.name}") from None
    except (OSError, NotImplementedError):  # the latter where folders have no descriptors
        raise FileRefused(f"{real.name} can't be read; it must be a plain file of its folder, and no link") from None
    if any(word in data for word in access.secret_texts):
        raise FileRefused(f"{real.name} holds a token of the gateway and is not sent")
    return SendableFile(name=real.name, path=path, data=data)


def url_scheme(location: str) -> str:
    """`https` of `https://…`; nothing for a path, drive letters included."""
    found = SCHEME.match(location.strip())
    return found[1].lower() if found else ""


def sendable_folders(folders: Iterable[Path], state: Path) -> tuple[Path, ...]:
    """Of these the folders that may be sent from: not the state directory, nor what it keeps for itself."""
    own = _resolve_links(state)
    return tuple(folder for folder in folders if _may_send_from(_resolve_links(folder), own))


def _may_send_from(folder: Path | None, state: Path | None) -> bool:
    if folder is None or state is None or folder == state:
        return False
    return (
        state not in folder.parents or SENDABLE_STATE_FOLDERS.fullmatch(folder.relative_to(state).parts[0]) is not None
    )


# ---- what is meant ---------------------------------------------------------------------------------------------------


def _parse_path(location: str, roots: Sequence[Path]) -> Path:
    text = location.strip()
    if url_scheme(text) == "file":
        text = _path_from_url(text[len("file:") :])
    if not text or "\0" in text or len(text) > MAX_PATH_LENGTH:
        raise FileRefused(f"that is no path; give one of at most {MAX_PATH_LENGTH} characters")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise FileRefused("that is no path: it has characters no file name can have") from None
    # normpath is not asked: it would take `link/..` for nothing.
    path = Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for a user there is not
    if path.is_absolute():
        return path
    if not roots:
        raise _outside_error(roots)
    return roots[0] / path


def _path_from_url(rest: str) -> str:
    """`file:/p`, `file:///p` and `file://localhost/p`; another machine's files are not ours to read."""
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise FileRefused("a file: address names a path of this machine: write file:///path")
        rest = slash + path
    if not rest.startswith("/"):
        raise FileRefused("a file: address names a whole path: write file:///path")
    return unquote(rest)


# ---- where it may be -------------------------------------------------------------------------------------------------


def _root_folders(access: FileAccess) -> list[Path]:
    found = [real for folder in access.folders if (real := _resolve_links(folder)) is not None]
    for folder in access.own_folders:
        parent = _resolve_links(folder.parent)
        if parent is not None and _is_own_folder(parent / folder.name):
            found.append(parent / folder.name)
    return list(dict.fromkeys(found))


def _resolve_links(path: Path) -> Path | None:
    """Where links lead at this moment; None where one is just being changed, or may not be read."""
    try:
        return Path(os.path.realpath(path))
    except OSError:
        return None


def _is_own_folder(folder: Path) -> bool:
    try:
        about = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and (not hasattr(os, "geteuid") or about.st_uid == os.geteuid())


def _is_virtual(path: Path) -> bool:
    return str(path).startswith(tuple(f"{place}/" for place in VIRTUAL_FILESYSTEMS))


def _outside_error(roots: Sequence[Path]) -> FileOutside:
    shown = ", ".join(map(str, roots)) or "no folder"
    return FileOutside(f"files are sent from {shown} only; put it there first")


# ---- reading ---------------------------------------------------------------------------------------------------------


class _SecretGuard:
    """What may not be met on the way to a file: secrets by what they are, not by their names; no file system of the
    kernel's own."""

    def __init__(self, secrets: Iterable[Path]) -> None:
        self._secrets = {found for place in secrets if (found := _file_identity(place)) is not None}
        devices = {
            place: found[0]
            for place in ("/", *VIRTUAL_FILESYSTEMS)
            if (found := _file_identity(Path(place))) is not None
        }
        self._virtual_devices = set(devices.values()) - {devices.get("/")}

    def check_folder(self, descriptor: int) -> None:
        self._check(os.fstat(descriptor))
        try:
            os.stat(STATE_MARKER_FILE, dir_fd=descriptor, follow_symlinks=False)
        except OSError:
            return
        raise _secret_error()

    def check_file(self, info: os.stat_result, name: str) -> None:
        self._check(info)
        if not stat.S_ISREG(info.st_mode):
            raise _not_a_file_error(name)
        if info.st_nlink > 1:
            raise FileRefused(f"{name} has a second name (a hard link), so it may belong elsewhere; send a copy of it")

    def _check(self, info: os.stat_result) -> None:
        if (info.st_dev, info.st_ino) in self._secrets:
            raise _secret_error()
        if info.st_dev in self._virtual_devices:
            raise FileRefused("that is no file of a disk and is not sent")


def _file_identity(path: Path) -> tuple[int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino


def _secret_error() -> FileRefused:
    return FileRefused("that belongs to the gateway itself (its state, settings or credentials) and is never sent")


def _read_bytes(root: Path, parts: Sequence[str], access: FileAccess, max_bytes: int) -> bytes:
    guard = _SecretGuard(access.secrets)
    descriptor = _open_beneath(root, parts, guard)
    with os.fdopen(descriptor, "rb") as file:
        guard.check_file(os.fstat(descriptor), parts[-1])
        data = file.read(max_bytes + 1)  # not its size is asked: it may grow while it is read
    if len(data) > max_bytes:
        raise FileRefused(f"{parts[-1]} is larger than {max_bytes} bytes, the most that can be sent here")
    return data


def _open_beneath(root: Path, parts: Sequence[str], guard: _SecretGuard) -> int:
    """The file's descriptor, reached from folder to folder; a link anywhere on the way ends it."""
    folder = os.open(root, _FOLDER_FLAGS)
    try:
        guard.check_folder(folder)
        for part in parts[:-1]:
            deeper = os.open(part, _FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = deeper
            guard.check_folder(folder)
        # Looked at first: merely opening a device can do something.
        guard.check_file(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False), parts[-1])
        return os.open(parts[-1], _FILE_FLAGS, dir_fd=folder)
    finally:
        os.close(folder)


def _not_a_file_error(name: str) -> FileRefused:
    return FileRefused(f"{name} is no file; a folder, pipe or device can't be sent")
