"""Ends the process groups of our servers when we die without doing it ourselves, even by `kill -9`.

A child's "signal me when my parent dies" (Linux) reaches only that child, and many servers are started through a
launcher that has children of its own. So one tiny shell, in a session of its own, holds the other end of a pipe of ours
and a list of groups. The pipe's end is our end: it then ends every group still on the list.
"""

import contextlib
import os
import subprocess
from typing import Final

GRACE: Final = 2  # seconds between asking a group to end and ending it
CLOSE_WAIT: Final = 5.0  # seconds the shell may take to notice that it is not needed any more

_SCRIPT: Final = f"""
trap '' TERM INT HUP
groups=
while read -r sign group; do
  case $sign in
    +) groups="$groups $group" ;;
    -) kept=; for each in $groups; do [ "$each" = "$group" ] || kept="$kept $each"; done; groups=$kept ;;
  esac
done
for group in $groups; do kill -s TERM -- "-$group" 2>/dev/null; done
[ -z "$groups" ] || sleep {GRACE}
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
"""


class OrphanReaper:
    """Started with the first group it is told of; a new one takes over should it be killed."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._shell: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        if self._shell is None:
            self._shell = self._start()

    def watch(self, group: int) -> None:
        self._groups.add(group)
        self._send_line(f"+ {group}\n")

    def unwatch(self, group: int) -> None:
        """To be called once a group is gone: its number may soon be somebody else's."""
        self._groups.discard(group)
        self._send_line(f"- {group}\n")

    def close(self) -> None:
        """Groups still watched are ended."""
        shell, self._shell = self._shell, None
        if shell is not None:
            assert shell.stdin is not None
            with contextlib.suppress(OSError):
                shell.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                shell.wait(CLOSE_WAIT)

    def _send_line(self, line: str) -> None:
        if self._shell is not None and self._write(self._shell, line):
            return
        if self._groups:
            self._shell = self._start()
            self._write(self._shell, "".join(f"+ {group}\n" for group in self._groups))

    def _write(self, shell: subprocess.Popen[bytes], line: str) -> bool:
        assert shell.stdin is not None
        try:
            # A line is far shorter than what a pipe takes at once, and the shell does nothing but read.
            os.write(shell.stdin.fileno(), line.encode())
        except OSError:
            shell.poll()
            shell.stdin.close()
            return False
        return True

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.defpath},
            cwd="/",
        )
