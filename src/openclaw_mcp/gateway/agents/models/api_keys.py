"""Keys: read from where the config has them, used in turns, not used for a while after a provider refused one."""

import asyncio
import os
import stat
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from ....net.open_flags import NOT_INHERITED
from .errors import ModelError
from .settings import KeySource, ModelProvider

REJECTION_COOLDOWN: Final = 300.0  # seconds before a key that was turned down is the first choice again
RATE_LIMIT_COOLDOWN: Final = 30.0  # seconds, when the provider does not say how long
MAX_KEY_LENGTH: Final = 16 << 10  # bytes; a larger file is no key


class KeyRing:
    """The keys of a provider. What was read is kept until it is turned down."""

    def __init__(self, provider: ModelProvider) -> None:
        self._provider = provider
        self._values: dict[KeySource, str] = {}
        self._cooldown_until: dict[KeySource, float] = {}

    def sort_sources(self) -> list[KeySource | None]:
        """Every key, the rested first; a resting one is still better than none. [None]: no key is needed."""
        now = time.monotonic()
        sources = sorted(self._provider.keys, key=lambda source: max(self._cooldown_until.get(source, 0.0), now))
        return list(sources) or [None]

    async def read(self, source: KeySource | None) -> str | None:
        """Raises ModelError that names the setting, never the key."""
        if source is None:
            return None
        if source not in self._values:
            self._values[source] = await self._fetch(source)
        return self._values[source]

    async def _fetch(self, source: KeySource) -> str:
        place = f"models.providers.{self._provider.name}.apiKey"
        match source.kind:
            case "value":
                key, trouble = source.where, ""
            case "env":
                key = os.environ.get(source.where, "").strip()
                trouble = f"the environment variable {source.where} is not set"
            case "file":
                key, trouble = await asyncio.to_thread(_read_key_file, source)
            case "keyring":
                key, trouble = await asyncio.to_thread(_read_keyring, source)
        if not key:
            raise ModelError(f"there is no key for it: {trouble} ({place})", kind="auth")
        if not key.isascii() or not key.isprintable():
            raise ModelError(f"its key must be one line of plain characters ({place})", kind="auth")
        return key

    def reject(self, source: KeySource | None) -> None:
        """The provider refused this key: read it again when its turn comes."""
        if source is not None:
            self._values.pop(source, None)
            self._cooldown_until[source] = time.monotonic() + REJECTION_COOLDOWN

    def cool_down(self, source: KeySource | None, seconds: float | None) -> None:
        if source is not None:
            self._cooldown_until[source] = time.monotonic() + (RATE_LIMIT_COOLDOWN if seconds is None else seconds)


def _read_key_file(source: KeySource) -> tuple[str, str]:
    """The key, or what is wrong. A file others may read is no place for one."""
    path = Path(source.where).expanduser()
    try:
        descriptor = os.open(path, os.O_RDONLY | NOT_INHERITED)
    except OSError as exc:
        return "", f"{path} can't be read ({exc.strerror})"
    with os.fdopen(descriptor, "rb") as file:
        if os.name == "posix" and stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            return "", f"{path} may be read by others; chmod 600 it"
        data = file.read(MAX_KEY_LENGTH + 1)
    if len(data) > MAX_KEY_LENGTH:
        return "", f"{path} is larger than {MAX_KEY_LENGTH} bytes"
    if source.entry in ("", "value"):
        return data.decode("utf-8", "replace").strip(), f"{path} is empty"
    return _resolve_pointer(data, source.entry), f"{path} holds no text at {source.entry}"


def _resolve_pointer(data: bytes, pointer: str) -> str:
    try:
        value: Any = msgspec.json.decode(data)
        for step in pointer.removeprefix("/").split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            value = value[int(name)] if isinstance(value, list) else value[name]
    except (msgspec.DecodeError, KeyError, IndexError, TypeError, ValueError):
        return ""
    return value.strip() if isinstance(value, str) else ""


def _read_keyring(source: KeySource) -> tuple[str, str]:
    try:
        import keyring  # here for start-up: an optional package, for those whose keys are there
    except ImportError:
        return "", "the keyring needs the package keyring (pip install 'openclaw-mcp[node]')"
    try:
        found = keyring.get_password(source.where, source.entry)
    except keyring.errors.KeyringError as exc:
        return "", f"the keyring can't be read ({type(exc).__name__})"
    return found or "", f'the keyring holds nothing for service "{source.where}", account "{source.entry}"'
