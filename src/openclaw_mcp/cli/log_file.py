"""The log of a server command: a file of bounded size in the state directory, which `logs.tail` reads."""

import logging
import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from ..net.files import open_to_append
from .logging_setup import quiet_loggers

LOG_FILE: Final = "gateway.log"
LOG_BYTES: Final = 5 << 20  # of one log file; LOG_BACKUPS older ones are kept
LOG_BACKUPS: Final = 3


class PrivateLogHandler(RotatingFileHandler):
    """Private, and never written through a link."""

    def _open(self) -> TextIOWrapper:
        return os.fdopen(open_to_append(Path(self.baseFilename)), "a", encoding=self.encoding)


def log_to_file(folder: Path, *, verbose: bool) -> None:
    """Raises StateBroken when the log is a link or no file."""
    file = PrivateLogHandler(folder / LOG_FILE, maxBytes=LOG_BYTES, backupCount=LOG_BACKUPS, encoding="utf-8")
    handlers: list[logging.Handler] = [file]
    if verbose:
        handlers.append(logging.StreamHandler())
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=handlers, format=layout)
    quiet_loggers()
