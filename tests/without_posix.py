"""Runs a command of ours as far as possible as on Windows: `python -m tests.without_posix openclaw gateway --port 0`.

What Windows lacks is hidden from our modules: modules, attributes of `os`, `signal` and `asyncio`, and the parts of the
event loop that its loop does not have. The standard library and the packages we use are imported first, since each
of them chooses its own code for the platform when it is imported. Not hidden: how paths look, and how programs start.
"""

import asyncio
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ABSENT_MODULES = frozenset(
    {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty", "uvloop"}
)
ABSENT_FROM_OS = (
    "O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH", "chown", "fchmod", "fchown", "fork",
    "forkpty", "getegid", "geteuid", "getgid", "getgroups", "getloadavg", "getpgid", "getpgrp", "getsid", "getuid",
    "initgroups", "killpg", "mkfifo", "mknod", "nice", "openpty", "pidfd_open", "posix_spawn", "register_at_fork",
    "sched_getaffinity", "set_blocking", "setsid", "setuid", "statvfs", "sync", "sysconf", "sysconf_names", "uname",
    "wait", "wait3", "wait4", "waitid",
)  # fmt: skip
ABSENT_FROM_SIGNAL = (
    "SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGUSR1", "SIGUSR2",
    "SIGWINCH",
)  # fmt: skip
ABSENT_FROM_ASYNCIO = ("start_unix_server", "open_unix_connection")
IMPORTED_FIRST = (
    "concurrent.futures.thread", "ctypes", "getpass", "http.client", "logging.handlers", "mimetypes", "multiprocessing",
    "platform", "random", "shutil", "sqlite3", "ssl", "tempfile", "unittest.mock", "uuid", "webbrowser", "zoneinfo",
    "cryptography.hazmat.primitives.asymmetric.ed25519", "httptools", "httpx", "jsonschema_rs", "keyring", "msgspec",
    "psutil", "pyjson5", "redis.asyncio", "sqlalchemy.dialects.sqlite", "starlette.applications", "uvicorn.main",
)  # fmt: skip


class _AbsentModules(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in ABSENT_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


class _LoopWithoutDescriptors(asyncio.SelectorEventLoop):
    """The loop of Windows can neither watch descriptors nor handle signals."""

    def add_reader(self, *arguments: Any) -> None:  # type: ignore[override]
        raise NotImplementedError

    add_writer = add_signal_handler = add_reader  # type: ignore[assignment]


def hide_posix() -> None:
    for name in IMPORTED_FIRST:
        importlib.import_module(name)
    for name in ABSENT_MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _AbsentModules())
    kill = signal.SIGKILL
    subprocess.Popen.kill = lambda self: self.send_signal(kill)  # type: ignore[method-assign]
    for module, names in ((os, ABSENT_FROM_OS), (signal, ABSENT_FROM_SIGNAL), (asyncio, ABSENT_FROM_ASYNCIO)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    asyncio.new_event_loop = _LoopWithoutDescriptors
    asyncio.events.new_event_loop = _LoopWithoutDescriptors
    sys.platform = "win32"


def main() -> int:
    hide_posix()
    command = sys.argv[1]
    sys.argv = sys.argv[1:]
    if command == "remoteclaw-mcp-server":
        from openclaw_mcp.cli.remoteclaw import main as run  # here: its modules must find the platform changed
    else:
        from openclaw_mcp.cli import main as run  # as above
    return run()


if __name__ == "__main__":
    sys.exit(main())
