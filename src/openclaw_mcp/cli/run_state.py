"""Which `openclaw up` serves a state directory: written once it answers, read by the other commands."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ..core.errors import OpenClawError
from ..net.files import StateBroken, lock_file, make_private_folder, open_private, read_if_exists, write_atomic

FILE: Final = "up.json"
RESTART_FILE: Final = "restart.json"
"""What a restart has stopped, or is about to stop, and has not started again."""
LOCK_FILE: Final = ".up.lock"
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


class AlreadyUp(OpenClawError):
    code = "already_up"


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """This process alone is `openclaw up` of `folder` meanwhile, also while it starts. Raises AlreadyUp."""
    descriptor = open_private(make_private_folder(folder) / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        if not lock_file(descriptor, wait=False):
            raise AlreadyUp("another openclaw up is starting or stopping with this state directory; wait a moment")
        yield
    finally:
        os.close(descriptor)


def require_down(folder: Path) -> None:
    """Raises AlreadyUp."""
    found = read(folder)
    if found is not None:
        raise AlreadyUp(f"it is up already, as process {found.pid}; openclaw down stops it")


def write(folder: Path, surfaces: tuple[Surface, ...]) -> None:
    """This process serves `folder` from now on."""
    import psutil  # here for start-up: only `up` and the commands beside it ask for processes

    mine = UpState(pid=os.getpid(), started=psutil.Process().create_time(), surfaces=surfaces)
    _write_file(folder / FILE, mine)
    (folder / RESTART_FILE).unlink(missing_ok=True)


def plan_restart(folder: Path, running: UpState) -> None:
    """Remember what is about to be stopped until the next `write`: it is lost if none comes. Raises StateBroken."""
    _write_file(folder / RESTART_FILE, running)


def _write_file(path: Path, state: UpState) -> None:
    write_atomic(path, msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")


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
    state = _read_file(folder / FILE)
    return state if state is not None and _is_alive(state) else None


def read_lost(folder: Path) -> UpState | None:
    """The process that served `folder` and should still: it was killed, the machine went down, or a restart failed."""
    state = _read_file(folder / FILE) or _read_file(folder / RESTART_FILE)
    return None if state is None or _is_alive(state) else state


def _read_file(path: Path) -> UpState | None:
    found = read_if_exists(path)
    try:
        return None if found is None else msgspec.json.decode(found, type=UpState)
    except msgspec.MsgspecError:
        return None


def remove(folder: Path) -> None:
    """This process no longer serves `folder`. Raises StateBroken."""
    _unlink(folder / FILE)


def forget(folder: Path) -> None:
    """Nothing should be up here. Raises StateBroken."""
    for name in (FILE, RESTART_FILE):
        _unlink(folder / name)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as exc:
        raise StateBroken(f"{path} can't be removed: {exc.strerror}; make its folder writable") from exc


def _is_alive(state: UpState) -> bool:
    import psutil  # here for start-up, as above

    try:
        process = psutil.Process(state.pid)
        same = abs(process.create_time() - state.started) < START_TOLERANCE
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
