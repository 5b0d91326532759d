"""Keys of outside services: kept in the desktop's keyring, or in a file only its owner can read."""

import contextlib
import os
from pathlib import Path
from types import ModuleType
from typing import Final, Literal

from ..core.errors import OpenClawError
from .private_files import read_private, write_private

SERVICE: Final = "openclaw-mcp"
MAX_KEY_BYTES: Final = 4096  # bytes; API keys have some dozens
LOWEST_PRIORITY: Final = 1  # a keyring's own priority; below it, it is a stand-in that keeps nothing safe
ELEVENLABS_KEY: Final = "elevenlabs-api-key"

KeyLocation = Literal["keyring", "file"]


class BadKey(OpenClawError):
    code = "bad_key"


class KeyStore:
    """The keys of one state directory. Everything but `location` may wait for the keyring: call it in a thread."""

    def __init__(self, state_dir: Path, *, keyring: bool = True) -> None:
        self._folder = state_dir / "keys"
        self._use_keyring = keyring

    def location(self, name: str) -> KeyLocation | None:
        """Where a key is kept. Looks at our own folder only, so it is cheap."""
        if self.path(name).exists():
            return "file"
        return "keyring" if self._marker_path(name).exists() else None

    def read(self, name: str) -> str | None:
        """The key; None when there is none. Raises BadKey when it is there and can't be used."""
        place = self.location(name)
        if place is None:
            return None
        if place == "keyring":
            return self._read_from_keyring(name)
        path = self.path(name)
        try:
            if os.name != "nt" and path.lstat().st_mode & 0o077:
                raise BadKey(f"{path} can be read by others: chmod 600 it, or store the key again")
            return read_private(path, largest=MAX_KEY_BYTES).decode().strip() or None
        except (OSError, UnicodeDecodeError) as exc:
            raise BadKey(f"{path} can't be read") from exc

    def store(self, name: str, key: str) -> KeyLocation:
        """Keep a key, in the keyring if there is one; returns where it is kept."""
        key = key.strip()
        if not key or len(key) > MAX_KEY_BYTES or not key.isascii() or not key.isprintable():
            raise BadKey("the key must be one line of plain characters")
        self.delete(name)
        if self._store_in_keyring(name, key):
            write_private(self._marker_path(name), b"")
            return "keyring"
        write_private(self.path(name), key.encode())
        return "file"

    def delete(self, name: str) -> None:
        if self.location(name) == "keyring" and (keyring := self._load_keyring()) is not None:
            with contextlib.suppress(keyring.errors.KeyringError):
                keyring.delete_password(SERVICE, name)
        for path in (self.path(name), self._marker_path(name)):
            path.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """The file a key is in when there is no keyring."""
        return self._folder / name

    def _marker_path(self, name: str) -> Path:
        return self._folder / f"{name}.in-keyring"

    def _store_in_keyring(self, name: str, key: str) -> bool:
        keyring = self._load_keyring()
        if keyring is None:
            return False
        try:
            keyring.set_password(SERVICE, name, key)
            return bool(keyring.get_password(SERVICE, name) == key)
        except keyring.errors.KeyringError:
            return False  # locked, and there is no person to unlock it

    def _read_from_keyring(self, name: str) -> str | None:
        keyring = self._load_keyring()
        if keyring is None:
            raise BadKey("the key is in the desktop's keyring, which is not in reach: start the node in the session")
        try:
            found = keyring.get_password(SERVICE, name)
        except keyring.errors.KeyringError as exc:
            raise BadKey("the desktop's keyring did not give the key: unlock it, or store the key again") from exc
        return str(found) if found else None

    def _load_keyring(self) -> ModuleType | None:
        if not self._use_keyring:
            return None
        try:
            # Here for start-up: looks for the desktop's services.
            import keyring
            import keyring.errors
        except ImportError:
            return None
        return keyring if keyring.get_keyring().priority >= LOWEST_PRIORITY else None
