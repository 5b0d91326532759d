"""A throw-away fence around real shells: what they are given can neither touch the machine nor outlive the test."""

import shutil
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import IO, Self

import msgspec

from tests.programs import ROOT, need

from .fenced import Batch, FenceReport, Setting, receive, send

SHELLS = {
    "sh": ["sh"],
    "dash": ["dash"],
    "bash": ["bash", "--norc"],
    "bash as sh": ["bash", "--posix"],
    "ksh": ["ksh93"],
    "mksh": ["mksh"],
    "busybox ash": ["busybox", "ash"],
    "zsh as sh": ["zsh", "--emulate", "sh", "-f"],
}
"""What stands behind the names `wrappers.POSIX_SHELLS` on one machine or another."""
OTHER_NAMES = {"ash": "busybox", "ksh": "ksh93", "rbash": "bash"}
PACKAGES = {"sh": "dash", "ksh93": "ksh93u+m", "busybox": "busybox", "mksh": "mksh", "zsh": "zsh"}
WRAPPERS = ("env", "nice", "nohup", "timeout", "stdbuf", "xargs")
TRAPS = """
    ls id tool pwn touch rm cat x y a b c made victim man whence builtin login source eval if then [[ { } ! - time
    function less more uname date git printf which type kill echo true false test [ pwd : umask ulimit cd exit shift
    return break continue exec command
"""
UNSHARE = (["-Urmnpif", "--kill-child"], ["-mnpif", "--kill-child"])
"""As an ordinary user; as root where a changed root forbids that."""
PROBE_SECONDS = 20


class Fence:
    """Shells that run what they are given, and a list of what came of it."""

    def __enter__(self) -> Self:
        shells = {
            name: [need(words[0], package=PACKAGES.get(words[0], words[0])), *words[1:]]
            for name, words in SHELLS.items()
        }
        own = _own_namespaces()
        real = {name: need(name, package="coreutils") for name in WRAPPERS}
        real |= {words[0]: shells[name][0] for name, words in SHELLS.items()}
        real |= {other: real[name] for other, name in OTHER_NAMES.items()}
        self.closed = own is not None
        """Whether nothing of the machine can be reached from inside. If not, a text's letters must see to it."""
        self._folder = tempfile.TemporaryDirectory(prefix="fence-")
        self._child = subprocess.Popen(
            [*(own or []), sys.executable, "-m", "tests.fuzz.fenced"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._child.stdin
        assert self._child.stdout
        self._there: IO[bytes] = self._child.stdin
        self._back: IO[bytes] = self._child.stdout
        send(self._there, Setting(self._folder.name, shells, real, TRAPS.split(), self.closed))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._there.close()
        self._child.kill()
        self._child.wait()
        self._back.close()
        self._folder.cleanup()

    def run(self, batch: Batch) -> FenceReport:
        send(self._there, batch)
        data = receive(self._back)
        if data is None:
            raise AssertionError(f"the fence broke down at a batch for {batch.shell}: {batch.texts[:3]}")
        return msgspec.msgpack.decode(data, type=FenceReport)


def _own_namespaces() -> list[str] | None:
    unshare = need("unshare", package="util-linux")
    ways = ([unshare, *words] for words in UNSHARE)
    return next((way for way in ways if _works([*way, shutil.which("true") or "true"])), None)


def _works(words: list[str]) -> bool:
    try:
        return subprocess.run(words, timeout=PROBE_SECONDS, capture_output=True, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
