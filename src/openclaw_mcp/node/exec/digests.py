"""The content of files by their digests, each read once, within bounds."""

import hashlib
import os
import stat
from typing import Final

from ...net.open_flags import NO_LINK, NO_WAIT, NOT_INHERITED

MAX_BYTES: Final = 16 << 20  # bytes of one file; a larger one can't be remembered
MOST_BYTES: Final = 64 << 20  # bytes read for one decision; with more nothing can be remembered
FOLDER: Final = "folder"
"""In place of the digest of a folder."""
UNREADABLE: Final = ""
"""In place of the digest of what is no plain file, is too large or can't be read."""


class FileDigests:
    """The digests for one decision, by path, links followed."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        self._bytes_left = MOST_BYTES

    def digest(self, path: str) -> str:
        """The digest of the whole file, FOLDER or UNREADABLE."""
        if path not in self._digests:
            if os.path.isdir(path):  # noqa: PTH112  texts, not paths
                self._digests[path] = FOLDER
            else:
                data = self.read_content(path)
                self._digests[path] = UNREADABLE if data is None else hashlib.sha256(data).hexdigest()
        return self._digests[path]

    def read_content(self, path: str) -> bytes | None:
        """All of a plain file; None for anything else, which is not even opened: opening alone may have an effect."""
        try:
            status = os.stat(path)  # noqa: PTH116
            if not stat.S_ISREG(status.st_mode) or status.st_size > min(MAX_BYTES, self._bytes_left):
                return None
            descriptor = os.open(path, os.O_RDONLY | NOT_INHERITED | NO_WAIT | NO_LINK)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_BYTES + 1)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        self._bytes_left -= len(data)
        return data if len(data) <= MAX_BYTES else None
