"""`openclaw sessions`: lists the sessions, from the running gateway or from the store's file."""

import argparse
import asyncio
from pathlib import Path
from typing import Final

from msgspec import Struct

from ..config.file import ConfigFile
from ..config.locations import store_location
from ..core.errors import OpenClawError
from ..core.model import Json
from ..core.numbers import parse_whole_number
from ..net.state_dir import state_dir
from . import probe, store_file
from .gateway_connection import read_reply
from .report import count_of, format_table, format_time, print_json

DEFAULT_STORE: Final = "file"
"""`--store file`: the store's own file, even while a gateway runs."""
DEFAULT_LIMIT: Final = 100
MAX_TITLE_CHARS: Final = 60
COLUMNS: Final = ("session", "last used", "state", "messages", "about")


class ListedSession(Struct, frozen=True, kw_only=True, rename="camel"):
    """A session as `sessions.list` has it."""

    key: str | None = None
    updated_at: float | None = None
    status: str | None = None
    message_count: int | str = "-"
    derived_title: str | None = None
    display_name: str | None = None
    label: str | None = None


def arguments(parser: argparse.ArgumentParser) -> None:
    probe.arguments(parser)
    store_help = "read this SQLite file, and change nothing; the word file means the one in the state directory"
    parser.add_argument("--store", metavar="FILE", help=store_help)
    limit_help = "at most so many, the last used first (default %(default)s)"
    parser.add_argument("--limit", type=_parse_limit, default=DEFAULT_LIMIT, help=limit_help)


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
        print_json({"from": where, "count": len(listed), "sessions": listed})
    elif not listed:
        print(f"There are no sessions in {where}.")
    else:
        rows = map(_format_row, read_reply(listed, list[ListedSession]))
        print(format_table([COLUMNS, *rows]), f"\n{count_of(len(listed), 'session')} of {where}.", sep="\n")
    return 0


def _find_sessions(options: argparse.Namespace, folder: Path) -> tuple[str, list[Json]]:
    """The source, and its sessions."""
    if options.store is not None and options.store != DEFAULT_STORE:
        return options.store, store_file.read_sessions(options.store)
    config = ConfigFile(folder).read().config
    own = store_location(folder, config)
    if options.store is None:
        seen = asyncio.run(
            probe.probe_gateway(folder, config, url=options.url, token=options.token, sessions=options.limit)
        )
        if seen.answers:
            return seen.url, list(seen.replies["sessions.list"].get("sessions") or ())
        if seen.is_configured:
            raise OpenClawError(f"{seen.problem}; openclaw sessions --store file reads the store itself")
    if "://" not in own and not Path(own).exists():
        return own, []  # no session yet
    return own, store_file.read_sessions(own)


def _format_row(row: ListedSession) -> list[str]:
    title = _printable_line(row.derived_title or row.display_name or row.label or "")
    return [str(row.key), format_time(row.updated_at), row.status or "-", str(row.message_count), title]


def _printable_line(text: str) -> str:
    """One line without control characters."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= MAX_TITLE_CHARS else shown[: MAX_TITLE_CHARS - 1] + "…"
