"""`openclaw logs`: the end of the log, and new lines as they come."""

import argparse
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO, Final

from ..core.errors import OpenClawError
from ..net.files import open_private
from ..net.state_dir import LOG_FILE, state_dir

POLL_INTERVAL: Final = 0.25  # seconds between two reads


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines as they are written")
    parser.add_argument(
        "-n", "--lines", type=int, default=50, metavar="N", help="how many of the last lines (default 50)"
    )
    parser.add_argument("--state-dir", help="where state is kept (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)")


def run(options: argparse.Namespace) -> int:
    path = state_dir(options.state_dir) / LOG_FILE
    try:
        file = _open_log(path)
    except FileNotFoundError:
        raise OpenClawError(f"there is no log yet ({path}); openclaw up writes it") from None
    with file:
        _write_stdout(b"".join(deque(file, maxlen=max(0, options.lines))))
        if options.follow:
            _follow(path, file)
    return 0


def _open_log(path: Path) -> BinaryIO:
    return os.fdopen(open_private(path, os.O_RDONLY), "rb")


def _follow(path: Path, file: BinaryIO) -> None:
    """Until Ctrl-C. When the log is rotated, the new file is followed."""
    while True:
        data = file.read()
        if data:
            _write_stdout(data)
        elif path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:
            with _open_log(path) as newer:
                return _follow(path, newer)
        else:
            time.sleep(POLL_INTERVAL)


def _write_stdout(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
