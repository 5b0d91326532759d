"""Which desktop this process can use, by its environment. Nothing is started or imported."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from ..core.numbers import parse_whole_number

DesktopKind = Literal["x11", "wayland", "macos", "windows", "none"]

X_SOCKETS: Final = Path("/tmp/.X11-unix")  # noqa: S108  where every X server listens


def desktop_kind(environ: Mapping[str, str], platform: str = sys.platform) -> DesktopKind:
    """The desktop in reach. Under Wayland an X display, if any, shows only its own windows and does not count."""
    if platform == "darwin":
        return "macos"
    if platform == "win32":
        return "windows"
    if environ.get("WAYLAND_DISPLAY"):
        return "wayland"
    return "x11" if has_x_display(environ.get("DISPLAY", "")) else "none"


def has_x_display(display: str) -> bool:
    """Whether there may be a server behind this DISPLAY: a local one has its socket, a remote one is assumed."""
    host, _, number = display.rpartition(":")
    if host and host != "unix":
        return True
    screenless = number.partition(".")[0]
    return parse_whole_number(screenless) is not None and (X_SOCKETS / f"X{screenless}").exists()
