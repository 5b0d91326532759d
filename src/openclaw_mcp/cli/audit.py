"""`openclaw audit`: which tools were called, by whom, by which rule, and with which outcome."""

import argparse
import asyncio
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from ..config.file import ConfigFile, invalid_config_error
from ..config.locations import store_location
from ..core.errors import BadRequest
from ..core.model import Json
from ..core.sessions import AuditQuery, now_ms
from ..net.state_dir import state_dir
from ..store.small_repositories import SqlAuditTrail
from ..store.store import open_store
from .report import format_table, format_time, print_json

MAX_RECORDS: Final = 100_000  # records of one answer; more are read in parts, with --since
UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
COLUMNS: Final = ("when", "tool", "outcome", "ms", "caller", "door", "session", "decided by")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="KEY", help="only calls made in this session")
    parser.add_argument("--tool", metavar="NAME", help="only calls of this tool")
    parser.add_argument("--outcome", metavar="CODE", help="ok, failed, tool_denied, tool_timeout, ...")
    parser.add_argument("--since", metavar="WHEN", help="90s, 15m, 2h, 7d ago, or a time such as 2026-03-01T12:00")
    parser.add_argument("--limit", type=int, default=50, help="records at most, the newest (default %(default)s)")
    parser.add_argument("--state-dir", help="where state is kept (default $OPENCLAW_STATE_DIR, else ~/.openclaw-mcp)")
    parser.add_argument("--json", action="store_true", help="print JSON, with the rule's text and the digest")


def run(options: argparse.Namespace) -> int:
    if not 1 <= options.limit <= MAX_RECORDS:
        raise BadRequest(f"--limit must be from 1 to {MAX_RECORDS}")
    query = AuditQuery(
        session=options.session,
        tool=options.tool,
        outcome=options.outcome,
        since=None if options.since is None else parse_time(options.since),
        limit=options.limit,
    )
    records = asyncio.run(_find_records(state_dir(options.state_dir), query))
    if options.json:
        print_json(records)
    elif not records:
        is_filtered = query != AuditQuery(limit=options.limit)
        print("no recorded tool call matches" if is_filtered else "no tool call is recorded yet")
    else:
        print(format_table([COLUMNS, *map(_format_row, reversed(records))]))
    return 0


async def _find_records(folder: Path, query: AuditQuery) -> Sequence[Json]:
    """From the store itself, so that no gateway has to run."""
    snapshot = ConfigFile(folder).read()
    if not snapshot.is_valid:
        raise invalid_config_error(snapshot.issues, snapshot.path)
    async with open_store(store_location(folder, snapshot.config)) as store:
        return await SqlAuditTrail(store).find(query)


def parse_time(text: str) -> int:
    """Unix milliseconds. Raises BadRequest."""
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text.strip())
    if ago:
        return now_ms() - int(ago[1]) * UNIT_SECONDS[ago[2]] * 1000
    try:
        return round(datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except ValueError:
        raise BadRequest(f"{text!r} is no time: write 90s, 15m, 2h, 7d, or 2026-03-01T12:00") from None


def _format_row(record: Json) -> list[str]:
    texts = {name: str(record[name] or "-") for name in ("tool", "outcome", "caller", "door", "sessionKey", "step")}
    milliseconds = "-" if record["ms"] is None else f"{record['ms']:.1f}"
    at = format_time(record["at"], "seconds")[:19]  # without the offset from UTC
    return [at, texts.pop("tool"), texts.pop("outcome"), milliseconds, *texts.values()]
