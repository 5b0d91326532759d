"""A run's own folder: for this user alone, gone with the run; what a crash left is swept at the next start."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ....net.files import lock_file, make_private_folder

LOCK: Final = "lock"  # in each owner's folder, held while the owner lives: no pid to be mistaken for another's


class RunFolders:
    """Folders of one process, below `base`. Made at first use; `close` removes them all."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._process_folder: Path | None = None
        self._lock: int | None = None

    @contextlib.contextmanager
    def create(self) -> Iterator[Path]:
        """An empty folder for one run."""
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self._ensure_process_folder()))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _ensure_process_folder(self) -> Path:
        if self._process_folder is None:
            make_private_folder(self._base)
            with _file_lock(self._base / LOCK):
                _remove_stale(self._base)
                self._process_folder = Path(tempfile.mkdtemp(prefix="owner-", dir=self._base))
                self._lock = os.open(self._process_folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
                lock_file(self._lock)
        return self._process_folder

    def close(self) -> None:
        if self._process_folder is not None and self._lock is not None:
            shutil.rmtree(self._process_folder, ignore_errors=True)
            os.close(self._lock)
            self._process_folder = self._lock = None


def remove_stale_folders(base: Path) -> int:
    """Remove what processes that are gone left; how many they were."""
    if not base.exists():
        return 0
    with _file_lock(base / LOCK):
        return _remove_stale(base)


def _remove_stale(base: Path) -> int:
    swept = 0
    for owner in base.glob("owner-*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(owner / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if lock_file(descriptor, wait=False):
                    shutil.rmtree(owner, ignore_errors=True)
                    swept += 1
            finally:
                os.close(descriptor)
    return swept


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """One process at a time: between a folder and its lock nobody looks."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock_file(descriptor)
        yield
    finally:
        os.close(descriptor)
