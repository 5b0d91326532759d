"""Sound in and out of this machine: the microphone as ffmpeg opens it, and the program that plays."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

SOUND_CARDS: Final = Path("/proc/asound/cards")
NO_SOUND_CARDS: Final = "--- no soundcards ---"
MOST_CARDS_BYTES: Final = 4096  # bytes of that file worth reading


def microphone_options(environ: Mapping[str, str], platform: str = sys.platform) -> Sequence[str] | None:
    """ffmpeg's input options for the default microphone; None when there is no way to hear."""
    if platform == "darwin":
        return ("-f", "avfoundation", "-i", ":default")
    if platform == "win32":
        return None  # ffmpeg there needs the device's name, which only the user knows
    if has_pulse_server(environ):
        return ("-f", "pulse", "-i", "default")
    return ("-f", "alsa", "-i", "default") if _has_sound_card() else None


def find_player(environ: Mapping[str, str], platform: str = sys.platform) -> Sequence[str] | None:
    """The program, with its options, that plays a sound file named after them; None when sound can't be played."""
    if platform == "darwin":
        return ("afplay",)
    pulse = has_pulse_server(environ)
    candidates: tuple[tuple[bool, Sequence[str]], ...] = (
        (_has_pipewire(environ), ("pw-play",)),
        (pulse, ("paplay",)),
        (_has_sound_card(), ("aplay", "-q")),
        (pulse or _has_sound_card() or platform == "win32", ("ffplay", "-nodisp", "-autoexit", "-loglevel", "error")),
    )
    return next((argv for usable, argv in candidates if usable and shutil.which(argv[0])), None)


def has_pulse_server(environ: Mapping[str, str]) -> bool:
    """Whether a PulseAudio server, or PipeWire playing its part, is in reach."""
    server = environ.get("PULSE_SERVER", "")
    if server:
        return not server.startswith("unix:") or Path(server.removeprefix("unix:")).exists()
    runtime = environ.get("XDG_RUNTIME_DIR")
    return runtime is not None and Path(runtime, "pulse", "native").exists()


def _has_pipewire(environ: Mapping[str, str]) -> bool:
    runtime = environ.get("PIPEWIRE_RUNTIME_DIR") or environ.get("XDG_RUNTIME_DIR")
    return runtime is not None and Path(runtime, environ.get("PIPEWIRE_REMOTE", "pipewire-0")).exists()


def _has_sound_card() -> bool:
    try:
        with SOUND_CARDS.open(encoding="utf-8", errors="replace") as file:
            return NO_SOUND_CARDS not in file.read(MOST_CARDS_BYTES)
    except OSError:
        return False
