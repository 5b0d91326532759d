"""What a server says on stderr, and which libraries say nothing there."""

import logging
import sys
from typing import Final

NOISY_LOGGERS: Final = ("websockets", "httpx", "httpcore", "uvicorn", "asyncio")
"""Libraries that would log message bodies, addresses and headers with secrets in them, or their own starting up."""


def log_to_stderr(*, verbose: bool) -> None:
    level = logging.DEBUG if verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    quiet_loggers()


def quiet_loggers() -> None:
    for talker in NOISY_LOGGERS:
        logging.getLogger(talker).setLevel(logging.WARNING)
