"""A channel's secrets, read from the config, a file or the environment; in that order."""

import os
from pathlib import Path

from ...core.channel import ChannelRefused

MAX_SECRET_BYTES = 64 * 1024  # bytes; a file beyond this holds something else than a token


def read_secret(value: str | None, file: str | None, variable: str | None) -> str | None:
    """The secret, or None when none of the three has it. A file that is named must be readable and not empty."""
    if value:
        return value
    if file:
        return _read_secret_file(Path(file).expanduser())
    return (os.environ.get(variable) if variable else None) or None


def _read_secret_file(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            text = opened.read(MAX_SECRET_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ChannelRefused(f"the secret in {path} can't be read: make it a readable text file") from exc
    if not text:
        raise ChannelRefused(f"{path} is empty: write the secret into it")
    return text
