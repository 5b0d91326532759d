"""The folder a browser of the canvas has for its temporary files, and the link in its profile that remembers it.

A browser that is killed leaves files there. When the node is killed, too, the next start removes them.
"""

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "oc-"  # short: Chromium makes a socket in it, whose path may have 107 bytes
LINK_NAME: Final = "Temporary Files"


def make_temporary_folder(profile: Path) -> Path:
    """A new folder, for a profile that no browser uses; the one before it is removed."""
    remove_temporary_folder(profile)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    (profile / LINK_NAME).symlink_to(folder)
    return folder


def remove_temporary_folder(profile: Path) -> None:
    """Remove the folder with what is in it. What another link leads to is left alone."""
    link = profile / LINK_NAME
    with contextlib.suppress(OSError):
        folder = link.readlink()
        if folder.parent == Path(tempfile.gettempdir()) and folder.name.startswith(PREFIX) and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
        link.unlink()
