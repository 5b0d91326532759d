"""Private files: only their owner reads them, no link is followed, and a write is whole or not at all."""

import os
import stat
import time
from pathlib import Path
from typing import Final, NamedTuple

from ..net.files import write_atomic
from ..net.open_flags import NO_LINK, NO_WAIT

CLOCK_TICK_NS: Final = 1_000_000_000  # nanoseconds, far longer than any such clock's tick


def read_private(path: Path, *, largest: int) -> bytes:
    """The bytes of a regular file of ours. Raises FileNotFoundError, or OSError saying what is wrong with it."""
    descriptor = os.open(path, os.O_RDONLY | NO_LINK | NO_WAIT)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        if hasattr(os, "geteuid") and status.st_uid not in (os.geteuid(), 0):
            raise OSError(f"{path} belongs to another user")
        if status.st_size > largest:
            raise OSError(f"{path} is larger than {largest} bytes")
        return file.read(largest + 1)


class FileStamp(NamedTuple):
    """Changes when a file is replaced, written, or gets another owner or mode."""

    changed_ns: int
    """The time of the last change, which no program can set."""
    modified_ns: int
    inode: int
    size: int

    @property
    def is_settled(self) -> bool:
        """Whether the next change will have another time: clocks of file systems tick some times in a second only."""
        return time.time_ns() - self.changed_ns > CLOCK_TICK_NS


def file_stamp(path: Path) -> FileStamp | None:
    """None while there is no such file."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return FileStamp(status.st_ctime_ns, status.st_mtime_ns, status.st_ino, status.st_size)


def write_private(path: Path, data: bytes) -> None:
    """Replace `path` by a file only its owner can read; a crash leaves the old or the new one, never half.
    Raises StateBroken."""
    make_private_folder(path.parent)
    write_atomic(path, data)


def make_private_folder(folder: Path) -> None:
    """Make `folder` if need be; one that is made is its owner's alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
