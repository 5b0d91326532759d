"""`openclaw sessions`: the conversations there are, as the running gateway or the store's file tells them."""

import argparse
import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ..config.file import ConfigFile
from ..config.locations import store_location
from ..core.errors import OpenClawError
from ..core.model import Json
from ..core.numbers import parse_whole_number
from ..net.state_dir import state_dir
from . import probe, store_file

DEFAULT_STORE: Final = "file"
"""`--store file`: the store's own file, whatever gateway runs."""
DEFAULT_LIMIT: Final = 100
MAX_TITLE_CHARS: Final = 60


def arguments(parser: argparse.ArgumentParser) -> None:
    probe.arguments(parser)
    words = "read this SQLite file, and change nothing; the word file means the one in the state directory"
    parser.add_argument("--store", metavar="FILE", help=words)
    parser.add_argument(
        "--limit", type=_parse_limit, default=DEFAULT_LIMIT, help="the last used so many (default %(default)s)"
    )


def _parse_limit(text: str) -> int:
    number = parse_whole_number(text, maximum=store_file.MAX_SESSIONS)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {store_file.MAX_SESSIONS}")
    return number


def run(options: argparse.Namespace) -> int:
    folder = state_dir(options.state_dir)
    where, found = _find_sessions(options, folder)
    listed = found[: options.limit]
    if options.json:
        print(json.dumps({"from": where, "count": len(listed), "sessions": listed}, indent=2, ensure_ascii=False))
    elif not listed:
        print(f"There are no sessions in {where}.")
    else:
        _show_table(listed)
        print(f"\n{len(listed)} of {where}.")
    return 0


def _find_sessions(options: argparse.Namespace, folder: Path) -> tuple[str, list[Json]]:
    """Where they come from, and the sessions."""
    if options.store is not None and options.store != DEFAULT_STORE:
        return options.store, store_file.read_sessions(options.store)
    config = ConfigFile(folder).read().config
    own = store_location(folder, config)
    if options.store is None:
        wanted = {"limit": options.limit, "includeDerivedTitles": True}
        seen = asyncio.run(probe.probe_gateway(folder, config, url=options.url, token=options.token, sessions=wanted))
        if seen.answers:
            return seen.url, list(seen.sessions.get("sessions") or ())
        if seen.is_configured:
            raise OpenClawError(f"{seen.problem}; openclaw sessions --store file reads the store itself")
    if "://" not in own and not Path(own).exists():
        return own, []  # nobody has talked yet
    return own, store_file.read_sessions(own)


def _show_table(sessions: list[Json]) -> None:
    rows = [("session", "last used", "state", "messages", "about")]
    rows += [
        (
            str(row.get("key")),
            _format_time(row.get("updatedAt")),
            str(row.get("status") or "-"),
            str(row.get("messageCount", "-")),
            _printable_line(row.get("derivedTitle") or row.get("displayName") or row.get("label") or ""),
        )
        for row in sessions
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=False))
        print(f"{'  '.join(cells)}  {row[4]}".rstrip())


def _format_time(ms: Any) -> str:
    if not isinstance(ms, int | float):
        return "-"
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="minutes")


def _printable_line(text: str) -> str:
    """One line, and nothing a terminal would obey."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= MAX_TITLE_CHARS else shown[: MAX_TITLE_CHARS - 1] + "…"
