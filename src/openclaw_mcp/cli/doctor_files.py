"""The doctor on files: state directory, secrets, config, store, and what we wrote into clients' settings."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..config.file import NAME, Snapshot
from ..config.views import database
from ..connect.changes import Ledger, Written
from ..connect.clients import CLIENTS
from ..connect.jsonc import CannotEdit
from ..core.errors import OpenClawError
from ..core.model import Json
from ..net.files import read_whole
from ..net.state_dir import AUDIT_KEY_FILE, TOKEN_FILE
from ..node.token import TokenFile
from ..store.engine import engines, is_url, shown
from ..store.integrity import look
from ..store.migrate import HEAD
from .report import Finding, attention, fine, note
from .store_file import connected

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
KEPT: Final = ("device.json", "device-tokens.json", AUDIT_KEY_FILE, NAME)
"""Files with secrets, beside the tokens and the store."""
FOREVER: Final = None  # a doctor reads the whole database, however long it takes


def folder(place: Path) -> Iterator[Finding]:
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        yield attention(
            "state", f"{place} can't be written by this user", f"chown it to yourself, then chmod 700 {place}"
        )
        return
    mode = stat.S_IMODE(place.stat().st_mode)
    if mode & OTHERS and os.name != "nt":
        yield attention("state", f"others may look into {place} (mode {mode:o})", f"chmod 700 {place}")
    else:
        yield fine("state", f"{place}, for this user alone")
    for name in (TOKEN_FILE, TokenFile(place).path.name):
        yield from _token(place / name)
    for name in KEPT:
        yield from _open_to_others(place / name)


def _token(path: Path) -> Iterator[Finding]:
    found = read_whole(path)
    if found is None:
        yield note("tokens", f"{path.name} is not there yet; the first start makes it")
    elif not found.strip():
        yield attention("tokens", f"{path} is empty", "remove it to have a new one made")
    else:
        yield from _open_to_others(path) or [fine("tokens", f"{path.name} is there, for this user alone")]


def _open_to_others(path: Path) -> list[Finding]:
    if os.name == "nt" or not path.exists():
        return []
    mode = stat.S_IMODE(path.stat().st_mode)
    return (
        [attention("secrets", f"others may read {path} (mode {mode:o})", f"chmod 600 {path}")] if mode & OTHERS else []
    )


def config(snapshot: Snapshot) -> Iterator[Finding]:
    for issue in snapshot.issues:
        where = f"{issue['path']}: " if issue["path"] else ""
        yield attention(
            "config", f"{where}{issue['message']}", f"correct {snapshot.path}; openclaw config validate checks it"
        )
    for warning in snapshot.warnings:
        remedy = "set it, or take the reference out"
        yield attention("config", f"{warning['path']}: {warning['message']}", remedy)
    if not snapshot.issues and not snapshot.warnings:
        there = "is valid" if snapshot.exists else "does not exist; defaults are used"
        yield fine("config", f"{snapshot.path} {there}")


# ---- the store ----


def store(place: Path, settings: Json) -> Iterator[Finding]:
    where = database(place, settings)
    if not is_url(where) and not Path(where).exists():
        yield note("store", f"{where} is not there yet; the first start makes it")
        return
    version = _version_there(where) if is_url(where) else _version_in(Path(where))
    if version is None:
        yield note("store", f"{shown(where)} has no tables yet; the next start makes them")
    elif version > HEAD:
        words = f"{shown(where)} was written by a newer version (tables {version}, ours {HEAD})"
        yield attention("store", words, "upgrade openclaw-mcp, or use another state directory")
    elif version < HEAD:
        yield note("store", f"{shown(where)} has the tables of {version}; the next start brings them to {HEAD}")
    else:
        yield fine("store", f"{shown(where)} is sound, tables {version}")
    if not is_url(where):
        yield from _open_to_others(Path(where))


def _version_in(path: Path) -> str | None:
    look(path, seconds=FOREVER)
    try:
        with connected(path) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.OperationalError:
        return None
    return None if row is None else str(row[0])


def _version_there(where: str) -> str | None:
    # Here for start-up: most stores are a file.
    from sqlalchemy import inspect, text
    from sqlalchemy.exc import SQLAlchemyError  # here for start-up, as above

    try:
        _, reader = engines(where)
        with reader.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar())
    except (SQLAlchemyError, ImportError) as exc:
        raise OpenClawError(f"{shown(where)} can't be reached ({type(exc).__name__}); is it running?") from exc


# ---- clients ----


def clients(place: Path) -> Iterator[Finding]:
    """Whether what `openclaw connect` wrote is still in the clients' settings."""
    book = Ledger(place).connected()
    if not book:
        yield note("clients", "no client was given our surfaces", "openclaw connect CLIENT does it")
    for file, written in book.items():
        client = CLIENTS.get(written.client)
        title = client.title if client else written.client
        missing = _missing(Path(file), written)
        if missing:
            words = f"{title} no longer has {', '.join(missing)} in {file}"
            yield attention(
                "clients",
                words,
                f"openclaw connect {written.client} writes it again, openclaw disconnect {written.client} forgets it",
            )
        else:
            yield fine("clients", f"{title} has {', '.join(written.names)} ({file})")


def _missing(file: Path, written: Written) -> list[str]:
    client = CLIENTS.get(written.client)
    found = read_whole(file)
    if client is None or found is None:
        return written.names
    text = found.decode(errors="replace")
    try:
        return [name for name in written.names if not client.holds(text, name)]
    except CannotEdit:
        return written.names
