"""The state directory: where everything we keep lies, and the gateway's shared token in it."""

import os
import secrets
from pathlib import Path
from typing import Final

from .files import StateBroken, create_if_absent, make_private_folder, read_if_exists, write_atomic

AUDIT_KEY_FILE: Final = "audit-key.bin"
TOKEN_FILE: Final = "gateway-token.txt"
CONFIG_TOKEN_MARKER: Final = "gateway-token-chosen"  # there while the config names the token, and not we


def state_dir(chosen: str | None = None) -> Path:
    """The folder, made if absent."""
    return make_private_folder(state_dir_path(chosen))


def state_dir_path(chosen: str | None = None) -> Path:
    """Where it is or would be, seen from anywhere: `chosen`, else $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp."""
    named = chosen or os.environ.get("OPENCLAW_STATE_DIR") or "~/.openclaw-mcp"
    return Path(named).expanduser().absolute()


def ensure_gateway_token(folder: Path) -> str:
    """$OPENCLAW_GATEWAY_TOKEN, else the token kept in the folder, made at first use."""
    given = os.environ.get("OPENCLAW_GATEWAY_TOKEN", "").strip()
    if given:
        return given
    path = folder / TOKEN_FILE
    # Hexadecimal: it can be pasted anywhere, and never begins with a dash, which command lines take for an option.
    token = create_if_absent(path, secrets.token_hex(32).encode()).decode(errors="replace").strip()
    if not token:
        raise StateBroken(f"{path} is empty; put the gateway's token in it, or remove it to have a new one made")
    return token


def sync_token_file(folder: Path, config_token: str) -> None:
    """Have the token file hold the token the config names, since that file is where every program of this machine
    looks; once the config names none any more, a new token takes its place: the old one may have been let go."""
    path, mark = folder / TOKEN_FILE, folder / CONFIG_TOKEN_MARKER
    if config_token:
        if read_if_exists(path) != config_token.encode():
            write_atomic(mark, b"")  # first: cut short here, we would make a new token too many, not keep an old one
            write_atomic(path, config_token.encode())
    elif mark.exists():
        path.unlink(missing_ok=True)
        mark.unlink(missing_ok=True)


def audit_key(folder: Path) -> bytes:
    """What digests of arguments are keyed with: beside the database, never in it, so that the one does not betray
    the other."""
    return create_if_absent(folder / AUDIT_KEY_FILE, secrets.token_bytes(32))[:64]


def find_gateway_token(folder: Path) -> str | None:
    """The token as a client finds it: never made here."""
    given = os.environ.get("OPENCLAW_GATEWAY_TOKEN", "").strip()
    if given:
        return given
    try:
        return (folder / TOKEN_FILE).read_text().strip() or None
    except OSError:
        return None
