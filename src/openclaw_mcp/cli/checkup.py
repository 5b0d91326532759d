"""What may be wrong with this installation: each finding in a sentence, with what to do about it."""

import argparse
import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from .. import __version__
from ..assembly import database, roster_of
from ..config.file import ConfigFile, Snapshot
from ..core.errors import OpenClawError, StoreDamaged
from ..core.model import Json
from ..core.rpc import Fault
from ..rpc.client import CannotConnect, gateway_url
from ..state import TOKEN_FILE
from ..store.engine import is_url, shown
from ..store.integrity import look
from ..store.migrate import HEAD
from . import gateway

Level = Literal["ok", "warning", "error"]
LEAST_FREE: Final = 200 << 20  # bytes on the disk: below this the store may soon refuse to write
ANSWER_WITHIN: Final = 5.0  # seconds for a gateway on this machine
WITHOUT_KEY: Final = ("demo",)
"""Runtimes that ask no model of their own."""


class Finding(Struct, frozen=True, kw_only=True):
    about: str
    level: Level
    words: str
    remedy: str | None = None


def ok(about: str, words: str) -> Finding:
    return Finding(about=about, level="ok", words=words)


def warning(about: str, words: str, remedy: str) -> Finding:
    return Finding(about=about, level="warning", words=words, remedy=remedy)


def error(about: str, words: str, remedy: str) -> Finding:
    return Finding(about=about, level="error", words=words, remedy=remedy)


def checkup(folder: Path) -> Iterator[Finding]:
    """Everything that can be looked at without a gateway. A check that fails itself is a finding, not an end."""
    yield from _guarded("program", _program)
    yield from _guarded("state directory", lambda: _folder(folder))
    snapshot = ConfigFile(folder).read()
    yield from _guarded("config", lambda: _config(snapshot))
    yield from _guarded("token", lambda: _token(folder))
    yield from _guarded("store", lambda: _store(folder, snapshot))
    yield from _guarded("agents", lambda: agents(snapshot))


def _guarded(about: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except (OSError, OpenClawError) as exc:
        yield error(about, f"could not be looked at: {exc}", "see that this user may read it")


def _program() -> Iterator[Finding]:
    yield ok("program", f"openclaw-mcp {__version__} on Python {sys.version.split()[0]}")
    found, here = shutil.which("openclaw"), Path(sys.executable).with_name("openclaw")
    if found is None:
        remedy = (
            f"give MCP clients the full path, {here}" if here.exists() else "install the package's scripts on the PATH"
        )
        yield warning("program", "openclaw is not on the PATH, so MCP clients won't find it by name", remedy)
    elif here.exists() and Path(found).resolve() != here.resolve():
        remedy = f"use openclaw-mcp, or the full path {here}, in MCP configurations"
        yield warning("program", f"the openclaw on the PATH is another program, {found}", remedy)


def _folder(folder: Path) -> Iterator[Finding]:
    mode = stat.S_IMODE(folder.stat().st_mode)
    if os.name != "nt" and mode & 0o077:
        yield warning("state directory", f"{folder} can be read by others (mode {mode:03o})", f"chmod 700 {folder}")
    if not os.access(folder, os.W_OK):
        yield error("state directory", f"{folder} can't be written", "chown it to this user, or set OPENCLAW_STATE_DIR")
        return
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE:
        yield warning("state directory", f"only {free >> 20} MB are free on the disk of {folder}", "make room on it")
    yield ok("state directory", f"{folder} is ours, {free >> 20} MB free")


def _config(snapshot: Snapshot) -> Iterator[Finding]:
    for issue in snapshot.issues:
        place = issue.get("path") or "the file"
        remedy = f"correct it in {snapshot.path}, or with openclaw config set"
        yield error("config", f"{place}: {issue.get('message', 'is wrong')}", remedy)
    for note in snapshot.warnings:
        remedy = "set that environment variable, or write the value itself"
        yield warning("config", f"{note.get('path')}: {note.get('message', 'is not set')}", remedy)
    if not snapshot.issues:
        yield ok("config", f"{snapshot.path} is valid" if snapshot.exists else "there is none; defaults are used")


def _token(folder: Path) -> Iterator[Finding]:
    path = folder / TOKEN_FILE
    if not path.exists():
        yield ok("token", "is made when the gateway first starts")
        return
    if not path.read_text().strip():
        yield error("token", f"{path} is empty", "remove it; the gateway makes a new one")
    elif os.name != "nt" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        yield error("token", f"{path} can be read by others", f"chmod 600 {path}")
    else:
        yield ok("token", "is there, and private")


def _store(folder: Path, snapshot: Snapshot) -> Iterator[Finding]:
    where = database(folder, snapshot.config)
    if is_url(where):
        yield ok("store", f"{shown(where)}; `openclaw status` says whether a gateway is served from it")
        return
    path = Path(where)
    if not path.exists() or path.stat().st_size == 0:
        yield ok("store", "is made when something is first kept")
        return
    try:
        whole = look(path)
    except StoreDamaged as exc:
        yield error("store", str(exc), f"stop the gateway, and put a copy of {path} back from a backup")
        return
    version = _version(path)
    if version is not None and version > HEAD:
        yield error(
            "store", f"{path} was written by a newer version (tables {version}, ours {HEAD})", "upgrade openclaw-mcp"
        )
    else:
        yield ok("store", f"{path} is sound" + ("" if whole else " as far as a quick look tells"))


def _version(path: Path) -> str | None:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError:
        return None
    finally:
        connection.close()
    return None if row is None else str(row[0])


def agents(snapshot: Snapshot) -> Iterator[Finding]:
    """Who answers, and whether it has what it needs to."""
    for card in roster_of(snapshot.config).agents:
        about = f"agent {card.id}"
        if card.runtime in WITHOUT_KEY:
            remedy = "set agents.defaults.runtime and agents.defaults.model with openclaw config set"
            yield warning(about, "is the built-in demo, which echoes: no model is set up", remedy)
            continue
        provider = (card.model or card.runtime).partition("/")[0]
        if _credential(provider, snapshot.config):
            yield ok(about, f"{card.runtime}, {card.model or 'its own model'}; {provider} has a credential")
        else:
            name = f"{provider.upper().replace('-', '_')}_API_KEY"
            remedy = f"export {name}, or set models.providers.{provider}.apiKey; a CLI that is logged in needs neither"
            yield warning(
                about, f"{card.runtime}, {card.model or 'its own model'}; no credential of {provider} is set", remedy
            )


def _credential(provider: str, config: Json) -> bool:
    entry: Any = config.get("models", {}).get("providers", {}).get(provider, {})
    return bool(entry.get("apiKey") or os.environ.get(f"{provider.upper().replace('-', '_')}_API_KEY"))


# ---- a gateway -------------------------------------------------------------------------------------------------------


def connection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--state-dir", help="where state is kept (default ~/.openclaw-mcp)")
    parser.add_argument("--url", help="the gateway's address (default $OPENCLAW_GATEWAY_URL, else this machine's)")
    parser.add_argument("--token", help="its token (default $OPENCLAW_GATEWAY_TOKEN, else the one kept here)")
    parser.add_argument("--port", type=int, help="its port on this machine")


async def ask(options: argparse.Namespace, folder: Path, method: str, params: Json | None = None) -> Any:
    """Raises OpenClawError when there is no answer."""
    given = argparse.Namespace(
        url=options.url, token=options.token, port=options.port or _port(folder), timeout=ANSWER_WITHIN, final=False,
        method=method,
    )  # fmt: skip
    return await gateway.asked(given, folder, params or {})


def _port(folder: Path) -> int | None:
    given = os.environ.get("OPENCLAW_GATEWAY_PORT", "")
    if given.isdecimal():
        return int(given)
    configured = ConfigFile(folder).read().config.get("gateway", {}).get("port")
    return configured if isinstance(configured, int) else None


async def gateway_finding(options: argparse.Namespace, folder: Path) -> tuple[Finding, Json | None]:
    """Whether a gateway answers, and what it says of itself."""
    where = options.url or gateway_url(options.port or _port(folder) or gateway.DEFAULT_PORT)
    try:
        told: Json = await ask(options, folder, "status")
    except OpenClawError as exc:
        if isinstance(exc, Fault) or (isinstance(exc, CannotConnect) and exc.fault is not None):
            remedy = "give its token with --token or OPENCLAW_GATEWAY_TOKEN"
            return error("gateway", f"{where} refuses: {exc}", remedy), None
        remedy = "start it with openclaw gateway; mcp-server and node work without one"
        return warning("gateway", f"none answers: {exc}", remedy), None
    up = int(told.get("uptimeMs", 0)) // 1000
    return ok(
        "gateway", f"{where} answers, version {told.get('runtimeVersion')}, up {up // 3600}h{up // 60 % 60:02}m"
    ), told


def written(findings: Iterable[Finding]) -> str:
    marks = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}
    lines = []
    for finding in findings:
        lines.append(f"{marks[finding.level]}  {finding.about}: {finding.words}")
        if finding.remedy:
            lines.append(f"{'':9}-> {finding.remedy}")
    return "\n".join(lines)
