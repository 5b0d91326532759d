"""The doctor on files: state directory, secrets, config and store."""

import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..config.file import CONFIG_FILE, Snapshot
from ..config.locations import store_location
from ..config.schema import ConfigSchema
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
LOW_SPACE: Final = 16 << 20  # bytes: SQLite's log of changes and ours take as much before they are cut
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


def check_disk(folder: Path, config: Config) -> Iterator[Finding]:
    """Whether state can be stored: what is wrong, and nothing otherwise."""
    where = store_location(folder, config)
    file = None if is_url(where) else Path(where)
    for place in dict.fromkeys(_existing_folder(path) for path in (folder, *([file.parent] if file else []))):
        free = shutil.disk_usage(place).free
        if free < LOW_SPACE:
            message = f"the disk of {place} is full: {free >> 10} kB are free, and the store needs room to write"
            yield attention("disk", message, "free some space there; nothing new can be stored until then")
        elif sys.platform != "win32" and (files := os.statvfs(place)).f_files and not files.f_favail:
            message = f"the disk of {place} can hold no further file: all of its {files.f_files} inodes are in use"
            yield attention(
                "disk", message, "remove files there; settings can't be stored, nor can it start, until then"
            )
    if file is not None and file.exists() and not all(os.access(path, os.W_OK) for path in (file, file.parent)):
        remedy = "make the file and its folder writable for this user; messages and answers can't be stored until then"
        yield attention("store", f"{file} is read-only", remedy)


def _existing_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


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
