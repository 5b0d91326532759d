"""Logging to stderr, and the libraries that are kept quiet."""

import logging
import sys
from typing import Final

NOISY_LOGGERS: Final = ("websockets", "httpx", "httpcore", "uvicorn", "asyncio")
"""Libraries that would log message bodies, addresses and headers with secrets, or their own start-up."""


def log_to_stderr(*, verbose: bool) -> None:
    level = logging.DEBUG if verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    quiet_loggers()


def quiet_loggers() -> None:
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
