"""Which `openclaw up` serves a state directory: written once it answers, read by down, logs, status and demo."""

import os
from pathlib import Path
from typing import Final

import msgspec
import psutil
from msgspec import Struct

from ..net.files import read_if_exists, write_atomic

FILE: Final = "up.json"
OFF_LABEL: Final = "off in node.json"
"""What is said instead of an address; the node is the one surface that can be switched off."""
START_TOLERANCE: Final = 1.0  # seconds two readings of one process's start may differ


class Surface(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    address: str
    """Empty while it is switched off."""
    token: str
    """Where its token lies, in words or as a path; never the token."""
    use: str


class UpState(Struct, frozen=True, kw_only=True, rename="camel"):
    pid: int
    started: float
    surfaces: tuple[Surface, ...]

    def surface(self, name: str) -> Surface:
        return next(surface for surface in self.surfaces if surface.name == name)


def write(folder: Path, surfaces: tuple[Surface, ...]) -> None:
    """This process serves `folder` from now on."""
    mine = UpState(pid=os.getpid(), started=psutil.Process().create_time(), surfaces=surfaces)
    write_atomic(folder / FILE, msgspec.json.format(msgspec.json.encode(mine), indent=2) + b"\n")


def update_address(folder: Path, name: str, address: str) -> None:
    """One surface of this process is elsewhere by now; nothing to do before the first `write`."""
    found = read(folder)
    if found is not None and found.pid == os.getpid():
        write(
            folder,
            tuple(msgspec.structs.replace(s, address=address) if s.name == name else s for s in found.surfaces),
        )


def read(folder: Path) -> UpState | None:
    """What serves `folder`; None when nothing does, whatever a crash left in the file."""
    found = read_if_exists(folder / FILE)
    try:
        standing = None if found is None else msgspec.json.decode(found, type=UpState)
    except msgspec.MsgspecError:
        return None
    return standing if standing is not None and _is_alive(standing) else None


def remove(folder: Path) -> None:
    (folder / FILE).unlink(missing_ok=True)


def _is_alive(state: UpState) -> bool:
    try:
        process = psutil.Process(state.pid)
        same = abs(process.create_time() - state.started) < START_TOLERANCE
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
