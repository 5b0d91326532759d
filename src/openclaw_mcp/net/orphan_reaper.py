"""Ends the process groups of our servers when we die without doing it ourselves, even by `kill -9`.

A child's "signal me when my parent dies" (Linux) reaches only that child, and many servers are started through a
launcher that has children of its own. So one tiny shell, in a session of its own, reads a pipe of ours and keeps a list
of groups. When we die, the pipe is closed, and the shell ends every group still on the list.
"""

import contextlib
import os
import subprocess
from typing import Final

from .processes import popen_group

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
    """A `ProcessGuard`. Its shell is started with the first group; another one takes over should it be killed."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._shell: _Shell | None = None

    def prepare(self) -> None:
        if self._shell is None:
            self._shell = _Shell()

    def watch(self, group: int) -> None:
        self._groups.add(group)
        self._send_line(f"+ {group}\n")

    def unwatch(self, group: int) -> None:
        """To be called once a group is gone: its number may soon be another group's."""
        self._groups.discard(group)
        self._send_line(f"- {group}\n")

    def close(self) -> None:
        """Groups still watched are ended."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.close(CLOSE_WAIT)

    def _send_line(self, line: str) -> None:
        if self._shell is not None and self._shell.send(line):
            return
        if self._groups:
            self._shell = _Shell()
            self._shell.send("".join(f"+ {group}\n" for group in self._groups))


class _Shell:
    def __init__(self) -> None:
        reader, self._pipe = os.pipe()
        try:
            self.child = popen_group(["/bin/sh", "-c", _SCRIPT], stdin=reader, env={"PATH": os.defpath}, cwd="/")
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(reader)

    def send(self, line: str) -> bool:
        """False when the shell is gone."""
        try:
            # A line is far shorter than what a pipe takes at once, and the shell does nothing but read.
            os.write(self._pipe, line.encode())
        except OSError:
            self.close(0)
            return False
        return True

    def close(self, seconds: float) -> None:
        os.close(self._pipe)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(seconds)
