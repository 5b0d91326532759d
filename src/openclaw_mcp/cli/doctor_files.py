"""The doctor on files: state directory, secrets, config, store, and what we wrote into clients' settings."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..config.file import CONFIG_FILE, Snapshot
from ..config.locations import store_location
from ..config.schema import ConfigSchema
from ..connect.changes import ConnectionRecord, SettingsEditor
from ..connect.clients import CLIENTS
from ..connect.jsonc import CannotEdit
from ..core.config.config import Config
from ..core.errors import OpenClawError
from ..net.files import read_if_exists
from ..net.state_dir import AUDIT_KEY_FILE, TOKEN_FILE
from ..node.token import TokenFile
from ..store.engine import create_engines, is_url, redact_location
from ..store.integrity import check_integrity
from ..store.schema import REVISION
from .report import Finding, attention, fine, note
from .store_file import open_read_only

OTHERS_MODE: Final = stat.S_IRWXG | stat.S_IRWXO
SECRET_FILES: Final = ("device.json", "device-tokens.json", AUDIT_KEY_FILE, CONFIG_FILE)
"""Files with secrets, beside the tokens and the store."""
NO_TIME_LIMIT: Final = None  # a doctor reads the whole database, however long it takes


def check_state_dir(folder: Path) -> Iterator[Finding]:
    if not folder.exists():
        yield note("state", f"{folder} is not there yet; the first start makes it")
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        remedy = f"chown it to yourself, then chmod 700 {folder}"
        yield attention("state", f"{folder} can't be written by this user", remedy)
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & OTHERS_MODE and os.name != "nt":
        yield attention("state", f"others may look into {folder} (mode {mode:o})", f"chmod 700 {folder}")
    else:
        yield fine("state", f"{folder}, for this user alone")
    for name in (TOKEN_FILE, TokenFile(folder).path.name):
        yield from _check_token_file(folder / name)
    for name in SECRET_FILES:
        yield from _check_permissions(folder / name)


def _check_token_file(path: Path) -> Iterator[Finding]:
    found = read_if_exists(path)
    if found is None:
        yield note("tokens", f"{path.name} is not there yet; the first start makes it")
    elif not found.strip():
        yield attention("tokens", f"{path} is empty", "remove it to have a new one made")
    else:
        yield from _check_permissions(path) or [fine("tokens", f"{path.name} is there, for this user alone")]


def _check_permissions(path: Path) -> list[Finding]:
    if os.name == "nt" or not path.exists():
        return []
    mode = stat.S_IMODE(path.stat().st_mode)
    found = attention("secrets", f"others may read {path} (mode {mode:o})", f"chmod 600 {path}")
    return [found] if mode & OTHERS_MODE else []


def check_config(snapshot: Snapshot) -> Iterator[Finding]:
    for issue in snapshot.issues:
        where = f"{issue['path']}: " if issue["path"] else ""
        remedy = f"correct {snapshot.path}; openclaw config validate checks it"
        yield attention("config", f"{where}{issue['message']}", remedy)
    for warning in snapshot.warnings:
        remedy = "set it, or take the reference out"
        yield attention("config", f"{warning['path']}: {warning['message']}", remedy)
    for warning in ConfigSchema().find_unused(snapshot.parsed) if snapshot.is_valid else ():
        yield note("config", f"{warning['path']}: {warning['message']}", "remove it, unless another program reads it")
    if not snapshot.issues and not snapshot.warnings:
        there = "is valid" if snapshot.exists else "does not exist; defaults are used"
        yield fine("config", f"{snapshot.path} {there}")


# ---- the store ----


def check_store(folder: Path, config: Config) -> Iterator[Finding]:
    where = store_location(folder, config)
    if not is_url(where) and not Path(where).exists():
        yield note("store", f"{where} is not there yet; the first start makes it")
        return
    version = _server_schema_version(where) if is_url(where) else _sqlite_schema_version(Path(where))
    if version is None:
        yield note("store", f"{redact_location(where)} has no tables yet; the next start makes them")
    elif version > REVISION:
        message = (
            f"{redact_location(where)} was written by a newer version (schema revision {version}, ours {REVISION})"
        )
        yield attention("store", message, "upgrade openclaw-mcp, or use another state directory")
    elif version < REVISION:
        message = f"{redact_location(where)} has the tables of a development version ({version}, ours {REVISION})"
        yield attention(
            "store", message, "open it once with a version that has schema revision 0005, or use another directory"
        )
    else:
        yield fine("store", f"{redact_location(where)} is intact (schema revision {version})")
    if not is_url(where):
        yield from _check_permissions(Path(where))


def _sqlite_schema_version(path: Path) -> str | None:
    check_integrity(path, seconds=NO_TIME_LIMIT)
    try:
        with open_read_only(path) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.OperationalError:
        return None
    return None if row is None else str(row[0])


def _server_schema_version(location: str) -> str | None:
    # Here for start-up: most stores are a file.
    from sqlalchemy import inspect, text
    from sqlalchemy.exc import SQLAlchemyError  # here for start-up, as above

    try:
        _, reader = create_engines(location)
        with reader.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar())
    except (SQLAlchemyError, ImportError) as exc:
        shown = redact_location(location)
        raise OpenClawError(f"{shown} can't be reached ({type(exc).__name__}); is it running?") from exc


# ---- clients ----


def check_clients(folder: Path) -> Iterator[Finding]:
    """Whether what `openclaw connect` wrote is still in the clients' settings."""
    records = SettingsEditor(folder).records()
    if not records:
        yield note("clients", "no client was given our surfaces", "openclaw connect CLIENT does it")
    for file, written in records.items():
        client = CLIENTS.get(written.client)
        title = client.title if client else written.client
        missing = _absent_entries(Path(file), written)
        if missing:
            message = f"{title} no longer has {', '.join(missing)} in {file}"
            id = written.client
            remedy = f"openclaw connect {id} writes it again, openclaw disconnect {id} forgets it"
            yield attention("clients", message, remedy)
        else:
            yield fine("clients", f"{title} has {', '.join(written.names)} ({file})")


def _absent_entries(file: Path, record: ConnectionRecord) -> list[str]:
    client = CLIENTS.get(record.client)
    found = read_if_exists(file)
    if client is None or found is None:
        return record.names
    text = found.decode(errors="replace")
    try:
        return [name for name in record.names if not client.has_server(text, name)]
    except CannotEdit:
        return record.names
