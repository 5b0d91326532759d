"""Where a path leads, link by link, and whether it leads every process to the same file."""

import os
from typing import Final

MAX_LINKS: Final = 40  # on the way, as the kernel counts

_PER_PROCESS_PATHS: Final = ("/proc", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr")
"""What lies there means another file to another process: `/proc/self/cwd`, `/dev/fd/3`."""


def follow_links(path: str) -> tuple[str, bool]:
    """The absolute `path` with its links followed, and whether it means the same file to every process."""
    if os.sep != "/":
        return os.path.realpath(path), True
    waiting = path.split("/")[::-1]
    at, steady, links = "", True, 0
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at = at[: at.rfind("/")] if at else ""
            continue
        at = f"{at}/{part}"
        if at.startswith(_PER_PROCESS_PATHS) and is_per_process_path(at):
            steady = False
        try:
            to = os.readlink(at)  # noqa: PTH115  texts, not paths
        except (OSError, ValueError):
            continue  # no link, or nothing
        links += 1
        if links > MAX_LINKS:
            return at, False
        steady = steady and _is_regular_link(at)
        waiting += to.split("/")[::-1]
        at = "" if to.startswith("/") else at[: at.rfind("/")]
    return at or "/", steady


def is_per_process_path(path: str) -> bool:
    """Whether a path, as it is written, lies where each process sees files of its own."""
    return any(path == each or path.startswith(f"{each}/") for each in _PER_PROCESS_PATHS)


def _is_regular_link(link: str) -> bool:
    """A link of a file system; those of a /proc mounted elsewhere have no size."""
    try:
        return os.lstat(link).st_size > 0
    except OSError:
        return False
