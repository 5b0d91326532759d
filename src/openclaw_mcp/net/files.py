"""Files that are whole or absent: secrets and small books that survive a power cut."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from ..core.errors import OpenClawError

_SAFE_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
"""Not through a link, not into programs we start, not waiting for somebody at the other end of a pipe."""


class StateBroken(OpenClawError):
    """A file of ours can't be used. We stop and say which; we never replace it by an empty one."""

    code = "state_broken"


def make_private_folder(path: Path) -> Path:
    """`path`, made if absent, for this user alone."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise StateBroken(f"{path} can't be made or used as a folder: {exc.strerror}") from exc
    return path


def open_private(path: Path, flags: int) -> int:
    """Open a file of ours, a log or a lock: never through a link, and what is written is for this user alone.

    Raises FileNotFoundError when it is to be read and absent, StateBroken when it is a link or no file."""
    writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
    try:
        if not _SAFE_FLAGS and path.is_symlink():  # Windows
            raise _link_error(path)
        descriptor = os.open(path, flags | _SAFE_FLAGS, 0o600)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise (
            _link_error(path) if path.is_symlink() else StateBroken(f"{path} can't be opened: {exc.strerror}")
        ) from exc
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StateBroken(f"{path} is no file; move it away")
    if writes and os.name != "nt":
        os.fchmod(descriptor, 0o600)
    return descriptor


def open_to_append(path: Path) -> int:
    """Open a file of ours to add to it, made if absent. One that others know by another name is begun anew."""
    descriptor = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if os.fstat(descriptor).st_nlink == 1:
        return descriptor
    os.close(descriptor)
    return open_new(path)


def open_new(path: Path) -> int:
    """Open a new file of ours in the place of whatever is there, a link included; what a link led to is left alone."""
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        raise StateBroken(f"{path} can't be replaced: {exc.strerror}") from exc
    return open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)


def _link_error(path: Path) -> StateBroken:
    return StateBroken(f"{path} is a link, and what is kept there must not go elsewhere; remove the link")


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: on disk when this returns, never half. Readable by this user alone."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        _write_new(draft, data)
        draft.replace(path)
        _sync_folder(path.parent)
    except OSError as exc:
        raise StateBroken(f"{path} can't be written: {exc.strerror}") from exc
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def read_if_exists(path: Path) -> bytes | None:
    """The file's bytes; None when there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StateBroken(f"{path} can't be read: {exc.strerror}") from exc


def create_if_absent(path: Path, data: bytes) -> bytes:
    """The file's bytes, made from `data` when it is absent. Of several processes at once, one wins; all agree."""
    found = read_if_exists(path)
    if found is not None:
        return found
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        _write_new(draft, data)
        with suppress(FileExistsError):
            os.link(draft, path)
        _sync_folder(path.parent)
    except OSError as exc:
        raise StateBroken(f"{path} can't be written: {exc.strerror}") from exc
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return path.read_bytes()


def _write_new(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """A rename is on disk once its folder is."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
