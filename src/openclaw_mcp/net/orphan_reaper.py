"""Ends the process groups of our servers when we die without doing it ourselves, even by `kill -9`.

A child's "signal me when my parent dies" (Linux) reaches only that child, and many servers are started through a
launcher that has children of its own. So one tiny shell, in a session of its own, reads a pipe of ours and keeps a list
of groups. When we die, the pipe is closed, and the shell ends every group still on the list.

We may die between the start of a program and the line that names its group. So the shell is told of a start before it
happens, by a mark that the program gets in its environment, and looks for that mark (Linux).
"""

import contextlib
import os
import secrets
import subprocess
import sys
from typing import Final

from .processes import LAUNCH_MARK_VARIABLE, popen_group

GRACE: Final = 2  # seconds between asking a group to end and ending it
CLOSE_WAIT: Final = 5.0  # seconds the shell may take to notice that it is not needed any more

_SCRIPT: Final = f"""
trap '' TERM INT HUP
groups= started=
find_started() {{
  [ -n "$started" ] || return
  for file in $(grep -lsF -- "{LAUNCH_MARK_VARIABLE}=$started" /proc/[0-9]*/environ); do
    file=${{file#/proc/}}; groups="$groups ${{file%/environ}}"
  done
}}
while read -r sign group; do
  case $sign in
    @) started=$group ;;
    +) groups="$groups $group"; started= ;;
    -) kept=; for each in $groups; do [ "$each" = "$group" ] || kept="$kept $each"; done; groups=$kept ;;
  esac
done
find_started
for group in $groups; do kill -s TERM -- "-$group" 2>/dev/null; done
[ -z "$groups$started" ] || sleep {GRACE}
find_started
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
"""


class OrphanReaper:
    """A `ProcessGuard`. Its shell is started with the first group; another one takes over should it be killed."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._shell: _Shell | None = None

    def prepare(self) -> str:
        mark = secrets.token_hex(8)
        line = f"@ {mark}\n"
        if not self._send_line(line):
            self._replace_shell(line)
        return mark

    def watch(self, group: int) -> None:
        self._groups.add(group)
        if not self._send_line(f"+ {group}\n"):
            self._replace_shell()

    def unwatch(self, group: int) -> None:
        """To be called once a group is gone: its number may soon be another group's."""
        self._groups.discard(group)
        if not self._send_line(f"- {group}\n") and self._groups:
            self._replace_shell()

    def close(self) -> None:
        """Groups still watched are ended."""
        self._send_line("@\n")  # no start is under way: the last one may have failed, and its mark be waited for
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.close(CLOSE_WAIT)

    def _send_line(self, line: str) -> bool:
        """False when there is no shell. One that is gone is forgotten: the number of its pipe may be another file's."""
        if sys.platform == "win32":
            return True  # there is no shell to ask: a program outlives a process of ours that is killed
        if self._shell is not None and not self._shell.send(line):
            self._shell = None
        return self._shell is not None

    def _replace_shell(self, line: str = "") -> None:
        self._shell = _Shell()
        self._shell.send("".join(f"+ {group}\n" for group in self._groups) + line)


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
