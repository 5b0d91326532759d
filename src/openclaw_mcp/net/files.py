"""Files that are whole or absent, for this user alone: secrets and small records that survive a power cut."""

import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ..core.errors import OpenClawError
from .open_flags import NO_LINK, NO_WAIT, NOT_INHERITED

if sys.platform != "win32":
    import fcntl

DRAFT_DIGITS: Final = 8  # at the end of a draft's name
_SAFE_FLAGS = NO_LINK | NOT_INHERITED | NO_WAIT


class StateBroken(OpenClawError):
    """A file of ours can't be used. The text names it; it is never replaced by an empty one."""

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
        is_link = os.path.islink(path)  # noqa: PTH114 - `path.is_symlink` raises, in the folder of somebody else
        broken = _link_error(path) if is_link else StateBroken(f"{path} can't be opened: {exc.strerror}")
        raise broken from exc
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StateBroken(f"{path} is no file; move it away")
    if writes and sys.platform != "win32":
        try:
            os.fchmod(descriptor, 0o600)
        except OSError as exc:
            os.close(descriptor)
            raise StateBroken(f"{path} can't be made private: {exc.strerror}; it may belong to another user") from exc
    return descriptor


def open_to_append(path: Path) -> int:
    """Open a file of ours to add to it, made if absent. One that has another name too is replaced by an empty one."""
    descriptor = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if os.fstat(descriptor).st_nlink == 1:
        return descriptor
    os.close(descriptor)
    return open_new(path)


def open_new(path: Path) -> int:
    """Open a new file of ours in place of what is there, a link included; what a link led to is left alone."""
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        raise StateBroken(f"{path} can't be replaced: {exc.strerror}") from exc
    return open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)


def _link_error(path: Path) -> StateBroken:
    return StateBroken(f"{path} is a link, and what is kept there must not go elsewhere; remove the link")


def lock_file(descriptor: int, *, wait: bool = True, shared: bool = False) -> bool:
    """Lock an open file until it is closed or this process dies. False: another process has it, and we do not `wait`.

    Windows has no such lock: there it counts as taken."""
    if sys.platform != "win32":
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
    return True


class FileIdentity:
    """Which file a path leads to now, to find out later whether it still does: what is written to an open file that was
    removed is gone once it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = path.stat()

    def is_there(self) -> bool:
        try:
            return os.path.samestat(self._found, self._path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # the folder may be closed to us by now; the file is in it all the same
            return True


def write_atomic(path: Path, data: bytes) -> None:
    """`replace_file`, for a file of the state directory. Raises StateBroken."""
    with _state_errors(path, "written"):
        replace_file(path, data)


def replace_file(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: on disk when this returns, never half, readable by this user alone. Raises OSError."""
    with _draft(path, data) as draft:
        draft.replace(path)


def read_if_exists(path: Path) -> bytes | None:
    """The file's bytes, also through a link; None when there is none. Raises StateBroken, for a pipe or device too."""
    with _state_errors(path, "read"), suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | NOT_INHERITED | NO_WAIT)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # to read it could last for ever
                raise StateBroken(f"{path} is no file; move it away")
            return file.read()
    return None


def create_if_absent(path: Path, data: bytes) -> bytes:
    """The file's bytes, made from `data` when it is absent. Of several processes at once, one wins; all agree."""
    found = read_if_exists(path)
    if found is not None:
        return found
    with _state_errors(path, "written"), _draft(path, data) as draft, suppress(FileExistsError):
        os.link(draft, path)
    return path.read_bytes()


@contextmanager
def _state_errors(path: Path, action: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StateBroken(f"{path} can't be {action}: {exc.strerror}") from exc


@contextmanager
def _draft(path: Path, data: bytes) -> Iterator[Path]:
    """A private file with `data` beside `path`, on disk before it takes its place; removed if it is not moved."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(DRAFT_DIGITS // 2)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
        _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def remove_drafts(path: Path) -> None:
    """Remove what killed processes left of a `write_atomic` to `path`. The caller holds the lock of its writers, which
    Windows does not have."""
    if sys.platform != "win32":
        with suppress(OSError):
            for found in path.parent.iterdir():
                if found.name.startswith(f".{path.name}.") and len(found.suffix) == len(".") + DRAFT_DIGITS:
                    found.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """A rename is on disk once its folder is."""
    if sys.platform == "win32":  # a folder can't be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
