"""Following a path link by link, and whether it leads every process to the same file."""

import os
from typing import Final

MAX_LINKS: Final = 40  # on the way, as the kernel counts

_PER_PROCESS_PATHS: Final = ("/proc", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr")
"""A path there means another file to another process: `/proc/self/cwd`, `/dev/fd/3`."""


def follow_links(path: str) -> tuple[str, bool]:
    """The absolute `path` with its links followed, and whether it means the same file to every process."""
    if os.sep != "/":
        return os.path.realpath(path), True
    remaining = path.split("/")[::-1]
    at, same_for_all, links = "", True, 0
    while remaining:
        part = remaining.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at = at[: at.rfind("/")] if at else ""
            continue
        at = f"{at}/{part}"
        if at.startswith(_PER_PROCESS_PATHS) and is_per_process_path(at):
            same_for_all = False
        try:
            to = os.readlink(at)  # noqa: PTH115  texts, not paths
        except (OSError, ValueError):
            continue  # no link, or nothing
        links += 1
        if links > MAX_LINKS:
            return at, False
        same_for_all = same_for_all and _is_regular_link(at)
        remaining += to.split("/")[::-1]
        at = "" if to.startswith("/") else at[: at.rfind("/")]
    return at or "/", same_for_all


def is_per_process_path(path: str) -> bool:
    """Whether a path, as it is written, is where each process sees files of its own."""
    return any(path == each or path.startswith(f"{each}/") for each in _PER_PROCESS_PATHS)


def _is_regular_link(link: str) -> bool:
    """A link of a file system; those of a /proc mounted elsewhere have no size."""
    try:
        return os.lstat(link).st_size > 0
    except OSError:
        return False
