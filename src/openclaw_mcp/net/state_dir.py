"""The state directory, the names of files in it, and the gateway's shared token."""

import os
import secrets
from pathlib import Path
from typing import Final

from .files import StateBroken, create_if_absent, make_private_folder, read_if_exists, write_atomic

LOG_FILE: Final = "gateway.log"
AUDIT_KEY_FILE: Final = "audit-key.bin"
TOKEN_FILE: Final = "gateway-token.txt"
CONFIG_TOKEN_MARKER: Final = "gateway-token-chosen"  # exists while the token file holds the token of the config


def state_dir(chosen: str | None = None) -> Path:
    """The folder, created if absent."""
    return make_private_folder(state_dir_path(chosen))


def existing_state_dir(chosen: str | None = None) -> Path:
    """The folder for a program that only reads: never created. Raises StateBroken when it is no folder."""
    path = state_dir_path(chosen)
    return make_private_folder(path) if path.exists() else path


def state_dir_path(chosen: str | None = None) -> Path:
    """Its absolute path, whether it exists or not: `chosen`, else $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp."""
    named = chosen or os.environ.get("OPENCLAW_STATE_DIR") or "~/.openclaw-mcp"
    return Path(named).expanduser().absolute()


def ensure_gateway_token(folder: Path) -> str:
    """$OPENCLAW_GATEWAY_TOKEN, else the token stored in the folder, made at first use."""
    if token := os.environ.get("OPENCLAW_GATEWAY_TOKEN", "").strip():
        return token
    path = folder / TOKEN_FILE
    # Hexadecimal: it can be pasted anywhere, and never begins with a dash, which command lines take for an option.
    token = create_if_absent(path, secrets.token_hex(32).encode()).decode(errors="replace").strip()
    if not token:
        raise StateBroken(f"{path} is empty; put the gateway's token in it, or remove it for a new one")
    return token


def sync_token_file(folder: Path, config_token: str) -> None:
    """Write the config's token to the token file, where every program of this machine looks for it. Once the config
    names none any more, remove it, so that a new one is made: the old one may have become known."""
    path, mark = folder / TOKEN_FILE, folder / CONFIG_TOKEN_MARKER
    if config_token:
        if read_if_exists(path) != config_token.encode():
            write_atomic(mark, b"")  # first: interrupted here, we make a new token too many, and never keep an old one
            write_atomic(path, config_token.encode())
    elif mark.exists():
        path.unlink(missing_ok=True)
        mark.unlink(missing_ok=True)


def audit_key(folder: Path) -> bytes:
    """The key of argument digests: beside the database, never in it; a copy of one must not reveal the other."""
    return create_if_absent(folder / AUDIT_KEY_FILE, secrets.token_bytes(32))[:64]


def find_gateway_token(folder: Path) -> str | None:
    """The token for a client: never made here."""
    if token := os.environ.get("OPENCLAW_GATEWAY_TOKEN", "").strip():
        return token
    try:
        return (folder / TOKEN_FILE).read_text().strip() or None
    except OSError:
        return None
