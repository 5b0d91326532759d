"""Private files: only their owner reads them, no link leads elsewhere, and a write is whole or not at all."""

import os
import stat
from pathlib import Path

from ..net.files import replace_file


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


def write_private(path: Path, data: bytes) -> None:
    """Replace `path` by a file only its owner can read; a crash leaves the old or the new one, never half."""
    make_private_folder(path.parent)
    replace_file(path, data)


def make_private_folder(folder: Path) -> None:
    """Make `folder` if need be; one that is made is its owner's alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
