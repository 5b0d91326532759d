"""Runs shell texts inside a fence, and says what they started: a program of its own, started by `fence.Fence`.

Inside, every program there is to start writes down its own words and does nothing else. With namespaces of our own the
machine's files are gone altogether: what is needed was copied into memory, and the old root is unmounted.
"""

import contextlib
import ctypes
import os
import re
import resource
import shutil
import signal
import struct
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

UNKNOWN = -1
"""The number of a text that started a program without its environment."""
MARK = b"here-begins-text-"
VICTIM = "victim"
BEDROCK = ("victim", "a", "b.txt", "-v", "$(pwn)", "`pwn`", "a b")
"""Files that lie around for patterns to find, the first one to lose."""
TRIED = re.compile(
    rb"not found|No such file|(?:cannot|can't) (?:open|create|execute|overwrite)|denied|inaccessible|Read-only",
    re.IGNORECASE,
)
NOTHING_TRIED = re.compile(
    rb"[^\n]*(?:no matches found|applet not found|setlocale|^ls: |Bad file descriptor)[^\n]*",
    re.IGNORECASE | re.MULTILINE,
)
"""What a shell says of patterns, of languages it doesn't have and of descriptors; what busybox says."""
BATCH_SECONDS = 60
ALONE_SECONDS = 20
MOST_MEMORY = 4 << 30
MOST_OUTPUT = 64 << 20  # bytes in one file
MOST_PROCESSES = 4000  # of this user, other programs' included
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38
MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 4, 4096, 16384, 1 << 18, 2
LAST_CAPABILITY = 63


class Setting(Struct, frozen=True):
    base: str
    """An empty folder."""
    shells: dict[str, list[str]]
    real: dict[str, str]
    """Programs that are what they seem, with their paths: shells, and what starts other programs."""
    traps: list[str]
    """Names of programs that only say that they were started."""
    closed: bool
    """Whether we have namespaces of our own, and may leave the machine's files."""


class Batch(Struct, frozen=True):
    shell: str
    texts: list[bytes]
    alone: bool = False
    """Each text in a process of its own, by `-c`; otherwise one process reads one after the other by `eval`."""
    locale: str = "C"


class FenceReport(Struct, frozen=True):
    started: list[tuple[int, list[bytes]]]
    """The text's number, and the words a program was started with."""
    complaints: list[tuple[int, bytes]]
    """What a shell said it could not find, open or make."""
    files: list[str]
    """What came, went or changed in the folder they ran in."""
    processes: int
    """Shells that were started."""
    stopped: list[int]
    """Texts whose shell did not come to an end, and was killed."""


_libc = ctypes.CDLL(None, use_errno=True)


class Inside:
    def __init__(self, setting: Setting) -> None:
        self._shells = setting.shells
        base = Path(setting.base)
        if setting.closed:
            base = _leave_the_machine(base, setting.real.values())
        self._work, self._log, self._traps, bin = (base / name for name in ("work/in/here", "log", "traps", "bin"))
        for folder in (self._work, self._log, self._traps, bin):
            folder.mkdir(parents=True, exist_ok=True)
        for name in BEDROCK:
            (self._work / name).write_text("still here")
        for name, path in setting.real.items():
            (bin / name).unlink(missing_ok=True)
            (bin / name).symlink_to(path)
        writes = f"""#!/bin/sh\nprintf '%s\\0' "$n" "$#" "$0" "$@" >>'{self._log}/started'\n"""
        for name in setting.traps:
            for folder in (self._traps, bin):
                if name not in setting.real:
                    (folder / name).write_text(writes)
                    (folder / name).chmod(0o755)
        self._environment = {
            "PATH": f"{self._traps}:{bin}",
            "HOME": str(self._work),
            "TMPDIR": str(self._log),
            "x": "pwn x; pwn $(pwn) `pwn` 'a[$(pwn)]' >made",
            "v": "a[$(pwn)]",
            "e": "",
        }
        self._stopped: list[int] = []
        os.chdir(self._work)
        _lay_down_powers()

    def run(self, batch: Batch) -> FenceReport:
        for name in ("started", "said"):
            (self._log / name).write_bytes(b"")
        self._stopped.clear()
        processes = self._alone(batch) if batch.alone else self._together(batch)
        return FenceReport(self._started(), self._complaints(), self._changed(), processes, list(self._stopped))

    def _alone(self, batch: Batch) -> int:
        messages = self._log / "said"
        for number, text in enumerate(batch.texts):
            with messages.open("ab") as file:
                file.write(b"\n" + MARK + b"%d\n" % number)
            if not self._spawn(batch, [b"-c", text], number):
                self._stopped.append(number)
        return len(batch.texts)

    def _together(self, batch: Batch) -> int:
        """A text may end the shell that reads it; then another takes up the next one."""
        script, begin, processes = self._log / "script", 0, 0
        while begin < len(batch.texts):
            lines = [b"export n\n"]
            for number, text in enumerate(batch.texts[begin:], begin):
                quoted = b"'" + text.replace(b"'", b"'\\''") + b"'"
                lines.append(b"n=%d\necho '%s%d' >&2\neval %s\n" % (number, MARK, number, quoted))
            script.write_bytes(b"".join(lines))
            ended = self._spawn(batch, [os.fsencode(script)], 0)
            processes += 1
            reached = max([begin, *map(int, re.findall(MARK + rb"(\d+)\n", (self._log / "said").read_bytes()))])
            if not ended:
                self._stopped.append(reached)
            begin = reached + 1
        return processes

    def _spawn(self, batch: Batch, arguments: Sequence[bytes], number: int) -> bool:
        """Run a shell until it and everything it left behind has ended; False if it had to be killed."""
        argv = [os.fsencode(word) for word in self._shells[batch.shell]]
        environment = {**self._environment, "n": str(number), "LC_ALL": batch.locale}
        files = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, str(self._log / "said"), os.O_WRONLY | os.O_APPEND, 0),
        ]
        child = os.posix_spawn(argv[0], [*argv, *arguments], environment, file_actions=files, setpgroup=0)
        with _deadline(child, ALONE_SECONDS if batch.alone else BATCH_SECONDS) as killed:
            while True:
                try:
                    os.wait()
                except ChildProcessError:
                    return not killed

    def _started(self) -> list[tuple[int, list[bytes]]]:
        fields = iter((self._log / "started").read_bytes().split(b"\0")[:-1])
        found = []
        for number in fields:
            count = int(next(fields))
            found.append(
                (int(number or UNKNOWN), [next(fields).rpartition(b"/")[2], *(next(fields) for _ in range(count))])
            )
        return found

    def _complaints(self) -> list[tuple[int, bytes]]:
        messages = (self._log / "said").read_bytes()
        parts = re.split(MARK + rb"(\d+)\n", messages)[1:]
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return [(int(number), part[:400]) for number, part in pairs if TRIED.search(NOTHING_TRIED.sub(b"", part))]

    def _changed(self) -> list[str]:
        changed = []
        for name in {path.name for path in self._work.iterdir()} ^ set(BEDROCK):
            changed.append(name)
            path = self._work / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for name in BEDROCK:
            path = self._work / name
            if not path.exists() or path.read_bytes() != b"still here":
                changed.append(name)
                path.write_text("still here")
        return changed


@contextlib.contextmanager
def _deadline(group: int, seconds: int) -> Iterator[list[int]]:
    """Kill a process group when time is up, again and again as long as something of it is left."""
    killed: list[int] = []

    def stop(*_: object) -> None:
        killed.append(group)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        signal.alarm(1)

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield killed
    finally:
        signal.alarm(0)


def _leave_the_machine(base: Path, programs: Collection[str]) -> Path:
    """Make a root of our own in memory, with copies of `programs` and what they load, and enter it for good."""
    _must(_libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    root = os.fsencode(base)
    _must(_libc.mount(b"tmpfs", root, b"tmpfs", MS_NODEV, b"size=256m"))
    for path in {found for program in programs for found in _files_of(program)}:
        copy = base / path.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for folder in (*Path("/usr/lib/locale").glob("C.*"), *Path("/usr/lib").glob("*/zsh")):
        shutil.copytree(folder, base / str(folder)[1:], dirs_exist_ok=True)
    for place in ("dev", "old"):
        (base / place).mkdir()
    (base / "dev/null").touch()
    _must(_libc.mount(b"/dev/null", root + b"/dev/null", None, MS_BIND, None))
    os.chdir(base)
    _must(_libc.pivot_root(b".", b"old"))
    os.chdir("/")
    _must(_libc.umount2(b"/old", MNT_DETACH))
    return Path("/")


def _files_of(program: str) -> list[str]:
    """The program by its path, the file behind it, and the libraries it loads, by their paths."""
    with os.popen(f"ldd '{program}' 2>/dev/null") as listing:
        libraries = re.findall(r"(/\S+) \(0x", listing.read())
    return [program, *libraries]


def _lay_down_powers() -> None:
    for capability in range(LAST_CAPABILITY + 1):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    _must(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _must(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    for limit, most in (
        (resource.RLIMIT_AS, MOST_MEMORY),
        (resource.RLIMIT_FSIZE, MOST_OUTPUT),
        (resource.RLIMIT_NPROC, MOST_PROCESSES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))


def _must(status: int) -> None:
    if status:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def send(pipe: IO[bytes], message: Struct) -> None:
    data = msgspec.msgpack.encode(message)
    pipe.write(struct.pack("!I", len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(4)
    return pipe.read(struct.unpack("!I", head)[0]) if len(head) == 4 else None


def main() -> None:
    there, back = sys.stdin.buffer, sys.stdout.buffer
    inside = Inside(msgspec.msgpack.decode(receive(there) or b"", type=Setting))
    while (data := receive(there)) is not None:
        send(back, inside.run(msgspec.msgpack.decode(data, type=Batch)))


if __name__ == "__main__":
    main()
