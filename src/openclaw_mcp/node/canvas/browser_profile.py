"""The profile of the canvas's browser: its pages lead to no other program of this machine."""

from pathlib import Path
from typing import Any, Final

import msgspec

from ..private_files import make_private, read_private, write_private

NAME: Final = "Default"
LARGEST: Final = 16 << 20  # bytes of the preferences; larger ones are made anew

_LISTS: Final = {
    "url_blocklist": ["*"],
    "url_allowlist": ["http://*", "https://*", "data:*", "about:*", "blob:*"],
}
"""Which addresses a page may lead to. For any other, `mailto:` first of all, Chromium would start a program."""


def options(folder: Path) -> list[str]:
    return [f"--user-data-dir={folder}", f"--profile-directory={NAME}"]


def prepare(folder: Path) -> None:
    """Write what must hold before the browser starts; what else it keeps there stays."""
    make_private(folder)
    path = folder / NAME / "Preferences"
    kept = _read(path)
    policy = kept.get("policy")
    kept["policy"] = {**(policy if type(policy) is dict else {}), **_LISTS}
    write_private(path, msgspec.json.encode(kept))


def _read(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(read_private(path, largest=LARGEST), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return {}
