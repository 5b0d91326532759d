"""`openclaw sessions`: the conversations that are kept, as the gateway tells them or as they lie on disk."""

import argparse
import asyncio
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

from ..assembly import database
from ..config.file import ConfigFile
from ..core.errors import BadRequest, OpenClawError
from ..core.model import Json
from ..state import state_dir
from ..store.engine import is_url
from . import checkup

_ROWS = """SELECT key, session_id, label, title, updated_at, message_count, model_provider, model, status FROM sessions
           WHERE archived = 0 AND updated_at >= ? ORDER BY updated_at DESC LIMIT ?"""


def arguments(parser: argparse.ArgumentParser) -> None:
    checkup.connection(parser)
    words = "read the store itself, without a gateway: `file` is this machine's, else the path of one"
    parser.add_argument("--store", metavar="file|PATH", help=words)
    parser.add_argument("--active", type=int, metavar="MINUTES", help="only those something was said in since")
    parser.add_argument("--limit", type=int, default=50)


def run(options: argparse.Namespace) -> int:
    folder = state_dir(options.state_dir)
    if options.store is None:
        try:
            told = asyncio.run(_asked(options, folder))
        except OpenClawError:
            told = _read(_path(folder), options)  # no gateway goes: what it would tell lies on disk
    else:
        told = _read(_path(folder) if options.store == "file" else Path(options.store), options)
    print(json.dumps(told, indent=2, ensure_ascii=False) if options.json else _written(told))
    return 0


async def _asked(options: argparse.Namespace, folder: Path) -> Json:
    params: Json = {"limit": options.limit}
    if options.active:
        params["activeMinutes"] = options.active
    page = await checkup.ask(options, folder, "sessions.list", params)
    names = ("key", "sessionId", "label", "updatedAt", "model", "status")
    rows = [{**{n: row.get(n) for n in names}, "messages": row.get("messageCount")} for row in page["sessions"]]
    return {"path": page.get("path"), "count": page.get("totalCount", len(rows)), "sessions": rows}


def _path(folder: Path) -> Path:
    where = database(folder, ConfigFile(folder).read().config)
    if is_url(where):
        raise BadRequest("the store is a PostgreSQL database and no gateway answers; start one with openclaw gateway")
    return Path(where)


def _read(path: Path, options: argparse.Namespace) -> Json:
    """As it lies on disk; nothing is made or changed. Raises BadRequest when it is no store of ours."""
    if not path.exists():
        raise BadRequest(f"nothing is kept in {path} yet; it is made with the first message")
    since = 0 if not options.active else round(time.time() * 1000) - options.active * 60_000
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        rows = connection.execute(_ROWS, (since, options.limit)).fetchall()
        count = connection.execute("SELECT count(*) FROM sessions WHERE archived = 0").fetchone()[0]
    except sqlite3.DatabaseError as exc:
        raise BadRequest(f"{path} is no store of ours, or damaged ({exc}); see openclaw doctor") from None
    finally:
        connection.close()
    return {"path": str(path), "count": count, "sessions": [_row(row) for row in rows]}


def _row(row: tuple[Any, ...]) -> Json:
    key, session_id, label, title, updated, messages, provider, model, status = row
    return {
        "key": key, "sessionId": session_id, "label": label or title, "updatedAt": updated, "messages": messages,
        "model": f"{provider}/{model}" if provider and model else model, "status": status,
    }  # fmt: skip


def _written(told: Json) -> str:
    lines = [f"{told['count']} sessions in {told['path']}"]
    for row in told["sessions"]:
        label = " ".join(str(row["label"] or "").split())[:50]
        count = "" if row["messages"] is None else f"  {row['messages']} messages"
        lines.append(f"  {row['key']}  {_age(row['updatedAt'])}{count}" + (f"  {label}" if label else ""))
    return "\n".join(lines)


def _age(updated: int | None) -> str:
    seconds = max(0, round(time.time() - (updated or 0) / 1000))
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"
