"""A run's own folder: private, removed with the run; what a crash left is removed at the next start."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ....net.files import lock_file, make_private_folder

LOCK: Final = "lock"  # in each process's folder, held while the process lives: unlike a pid, it is never another's


class RunFolders:
    """Folders of one process, below `base`. Created at first use; `close` removes them all."""

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
    """Remove the folders of processes that ended; how many they were."""
    if not base.exists():
        return 0
    with _file_lock(base / LOCK):
        return _remove_stale(base)


def _remove_stale(base: Path) -> int:
    removed = 0
    for owner in base.glob("owner-*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(owner / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if lock_file(descriptor, wait=False):
                    shutil.rmtree(owner, ignore_errors=True)
                    removed += 1
            finally:
                os.close(descriptor)
    return removed


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """One process at a time: no other sees a folder before it is locked."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock_file(descriptor)
        yield
    finally:
        os.close(descriptor)
