"""Where commands log: servers to a file of bounded size in the state directory, which `logs.tail` reads; others to
stderr."""

import logging
import os
import sys
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from ..net.files import StateBroken, open_to_append
from ..net.state_dir import LOG_FILE

LOG_BYTES: Final = 5 << 20  # of one log file; LOG_BACKUPS older ones stay beside it
LOG_BACKUPS: Final = 3

NOISY_LOGGERS: Final = ("websockets", "httpx", "httpcore", "uvicorn", "asyncio")
"""Libraries that would log message bodies, addresses and headers with secrets, or their own start-up."""


def log_to_stderr(*, verbose: bool) -> None:
    level = logging.DEBUG if verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    _quiet_loggers()


class PrivateLogHandler(RotatingFileHandler):
    """For this user alone, and never written through a link. A disk that is full is reported once, on stderr."""

    _is_failing = False

    def _open(self) -> TextIOWrapper:
        return os.fdopen(open_to_append(Path(self.baseFilename)), "a", encoding=self.encoding)

    def flush(self) -> None:
        """Called with each line; it is what fails when the line can't be written."""
        super().flush()
        self._is_failing = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """A record that can't be written: by default, each prints a traceback."""
        failure = sys.exc_info()[1]
        if not isinstance(failure, OSError | StateBroken):
            super().handleError(record)
        elif not self._is_failing:
            self._is_failing = True
            print(f"{self.baseFilename} can't be written: {failure}", file=sys.stderr)


def log_to_file(folder: Path, *, verbose: bool) -> None:
    """Raises StateBroken when the log is a link or no file."""
    file = PrivateLogHandler(folder / LOG_FILE, maxBytes=LOG_BYTES, backupCount=LOG_BACKUPS, encoding="utf-8")
    handlers: list[logging.Handler] = [file]
    if verbose:
        handlers.append(logging.StreamHandler())
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=handlers, format=layout)
    _quiet_loggers()


def _quiet_loggers() -> None:
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
