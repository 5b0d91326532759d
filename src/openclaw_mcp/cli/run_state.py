"""Which `openclaw up` serves a state directory: written once it answers, read by the other commands."""

import os
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ..net.files import read_if_exists, write_atomic

FILE: Final = "up.json"
OFF_LABEL: Final = "off in node.json"
"""Shown instead of an address; the node is the one surface that can be switched off."""
START_TOLERANCE: Final = 1.0  # seconds two readings of one process's start may differ


class Surface(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    address: str
    """Empty while it is switched off."""
    token: str
    """Where its token is stored, described or as a path; never the token."""
    use: str


class UpState(Struct, frozen=True, kw_only=True, rename="camel"):
    pid: int
    started: float
    surfaces: tuple[Surface, ...]

    def surface(self, name: str) -> Surface:
        return next(surface for surface in self.surfaces if surface.name == name)


def write(folder: Path, surfaces: tuple[Surface, ...]) -> None:
    """This process serves `folder` from now on."""
    import psutil  # here for start-up: only `up` and the commands beside it ask for processes

    mine = UpState(pid=os.getpid(), started=psutil.Process().create_time(), surfaces=surfaces)
    write_atomic(folder / FILE, msgspec.json.format(msgspec.json.encode(mine), indent=2) + b"\n")


def update_address(folder: Path, name: str, address: str) -> None:
    """One surface of this process has moved; nothing to do before the first `write`."""
    found = read(folder)
    if found is not None and found.pid == os.getpid():
        write(
            folder,
            tuple(msgspec.structs.replace(s, address=address) if s.name == name else s for s in found.surfaces),
        )


def read(folder: Path) -> UpState | None:
    """The process that serves `folder`; None when none does, also when a crash left the file behind."""
    found = read_if_exists(folder / FILE)
    try:
        state = None if found is None else msgspec.json.decode(found, type=UpState)
    except msgspec.MsgspecError:
        return None
    return state if state is not None and _is_alive(state) else None


def remove(folder: Path) -> None:
    (folder / FILE).unlink(missing_ok=True)


def _is_alive(state: UpState) -> bool:
    import psutil  # here for start-up, as above

    try:
        process = psutil.Process(state.pid)
        same = abs(process.create_time() - state.started) < START_TOLERANCE
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
