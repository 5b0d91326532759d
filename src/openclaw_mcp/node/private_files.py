"""Private files: only their owner reads them, no link is followed, and a write is whole or not at all."""

import os
import secrets
import stat
from pathlib import Path


def read_private(path: Path, *, largest: int) -> bytes:
    """The bytes of a regular file of ours. Raises FileNotFoundError, or OSError saying what is wrong with it."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        if hasattr(os, "geteuid") and status.st_uid not in (os.geteuid(), 0):
            raise OSError(f"{path} belongs to another user")
        if status.st_size > largest:
            raise OSError(f"{path} is larger than {largest} bytes")
        return file.read(largest + 1)


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file is replaced or written; None while there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116  asked for each request, and twice as fast
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ino, status.st_size)


def write_private(path: Path, data: bytes) -> None:
    """Replace `path` by a file only its owner can read; a crash leaves the old or the new one, never half."""
    make_private_folder(path.parent)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def make_private_folder(folder: Path) -> None:
    """Make `folder` if need be; one that is made is its owner's alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # a folder can't be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
