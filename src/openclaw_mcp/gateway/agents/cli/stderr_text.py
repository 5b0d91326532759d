"""What a CLI wrote to stderr before it ended: the lines that name the cause, without warnings, frames and usage."""

import re
from collections.abc import Sequence
from typing import Final

CAUSE_LINES: Final = 4  # lines: the error itself, and what it says on the lines after it
MAX_CAUSE: Final = 2000  # characters; what is shown of it is cut further

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NOISE: Final = re.compile(
    r"^(?:\W*warn(?:ing)?\b|\W*deprecat|\(node:\d+\)|\(use `node --trace|node\.js v\d|reading additional input)"
    r"|(?:deprecation|experimental)warning\b|^at (?:async |new )?\S+.*[:\d)]$|^at \S+$|^\^+$"
    r"|^(?:tip|usage):|^for more information",
    re.IGNORECASE,
)
_WARNING_LEVEL: Final = re.compile(r"\b(?:WARN|INFO|DEBUG|TRACE)\b")
"""The level of a line of a log."""
_ERROR: Final = re.compile(
    r"^\W*(?:error|fatal|panic|uncaught)\b|^thread '.*' panicked|\b[A-Z]\w*(?:Error|Exception):", re.IGNORECASE
)
_ERROR_LEVEL: Final = re.compile(r"\bERROR\b")


def clean_lines(text: str) -> list[str]:
    """The lines that hold anything, without colours."""
    return [line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]


def find_cause(stderr: str) -> str:
    """The last error in it and the lines after that; without one, the last lines that are no warnings. Empty when there
    are none."""
    lines = [line for line in clean_lines(stderr) if not _is_noise(line)]
    starts = [number for number, line in enumerate(lines) if _is_error(line)]
    found: Sequence[str] = lines[starts[-1] :][:CAUSE_LINES] if starts else lines[-CAUSE_LINES:]
    return "\n".join(found)[:MAX_CAUSE]


def _is_noise(line: str) -> bool:
    return _NOISE.search(line) is not None or _WARNING_LEVEL.search(line) is not None


def _is_error(line: str) -> bool:
    return _ERROR.search(line) is not None or _ERROR_LEVEL.search(line) is not None
