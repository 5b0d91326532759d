"""The profile of the canvas's browser: its pages lead to no other program of this machine."""

from pathlib import Path
from typing import Any, Final

import msgspec

from ..private_files import make_private_folder, read_private, write_private

PROFILE_NAME: Final = "Default"
MAX_BYTES: Final = 16 << 20  # bytes of the preferences; larger ones are made anew

_URL_POLICY: Final = {
    "url_blocklist": ["*"],
    "url_allowlist": ["http://*", "https://*", "data:*", "about:*", "blob:*"],
}
"""Which addresses a page may lead to. For any other, `mailto:` first of all, Chromium would start a program."""


def profile_options(folder: Path) -> list[str]:
    return [f"--user-data-dir={folder}", f"--profile-directory={PROFILE_NAME}"]


def prepare_profile(folder: Path) -> None:
    """Write what must hold before the browser starts; what else it keeps there stays."""
    make_private_folder(folder)
    path = folder / PROFILE_NAME / "Preferences"
    kept = _read_preferences(path)
    policy = kept.get("policy")
    kept["policy"] = {**(policy if type(policy) is dict else {}), **_URL_POLICY}
    write_private(path, msgspec.json.encode(kept))


def _read_preferences(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(read_private(path, largest=MAX_BYTES), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return {}
