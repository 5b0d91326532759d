"""Which `openclaw up` serves a state directory: written once it answers, read by down, logs, status and demo."""

import os
from pathlib import Path
from typing import Final

import msgspec
import psutil
from msgspec import Struct

from ..net.files import read_whole, write_whole

FILE: Final = "up.json"
OFF: Final = "off in node.json"
"""What is said instead of an address; the node is the one surface that can be switched off."""
SAME_START: Final = 1.0  # seconds two readings of one process's start may differ


class Surface(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    address: str
    """Empty while it is switched off."""
    token: str
    """Where its token lies, in words or as a path; never the token."""
    use: str


class Standing(Struct, frozen=True, kw_only=True, rename="camel"):
    pid: int
    started: float
    surfaces: tuple[Surface, ...]

    def surface(self, name: str) -> Surface:
        return next(surface for surface in self.surfaces if surface.name == name)


def write(folder: Path, surfaces: tuple[Surface, ...]) -> None:
    """This process serves `folder` from now on."""
    mine = Standing(pid=os.getpid(), started=psutil.Process().create_time(), surfaces=surfaces)
    write_whole(folder / FILE, msgspec.json.format(msgspec.json.encode(mine), indent=2) + b"\n")


def moved(folder: Path, name: str, address: str) -> None:
    """One surface of this process is elsewhere by now; nothing to do before the first `write`."""
    found = read(folder)
    if found is not None and found.pid == os.getpid():
        write(
            folder,
            tuple(msgspec.structs.replace(s, address=address) if s.name == name else s for s in found.surfaces),
        )


def read(folder: Path) -> Standing | None:
    """What serves `folder`; None when nothing does, whatever a crash left in the file."""
    found = read_whole(folder / FILE)
    try:
        standing = None if found is None else msgspec.json.decode(found, type=Standing)
    except msgspec.MsgspecError:
        return None
    return standing if standing is not None and _lives(standing) else None


def forget(folder: Path) -> None:
    (folder / FILE).unlink(missing_ok=True)


def _lives(standing: Standing) -> bool:
    try:
        process = psutil.Process(standing.pid)
        same = abs(process.create_time() - standing.started) < SAME_START
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
