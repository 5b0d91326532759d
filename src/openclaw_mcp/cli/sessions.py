"""`openclaw sessions`: lists the sessions, shows one and searches all, from the running gateway or the store's file."""

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, to_builtins

from ..config.file import ConfigFile
from ..config.locations import store_location
from ..core.chat_messages import ChatMessage
from ..core.errors import OpenClawError
from ..core.lenient import read_struct
from ..core.model import Json
from ..core.numbers import parse_whole_number
from ..core.sessions import SearchHit
from ..net.state_dir import state_dir
from . import probe, store_file
from .commands import repeat_options
from .gateway_connection import read_reply
from .report import count_of, format_table, format_time, print_json, printable

DEFAULT_STORE: Final = "file"
"""`--store file`: the store's own file, even while a gateway runs."""
DEFAULT_LIMIT: Final = 100
DEFAULT_MESSAGES, MAX_MESSAGES = 50, 1000  # of one session
DEFAULT_HITS, MAX_HITS = 10, 25  # a gateway answers with no more
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


class TranscriptReply(Struct, frozen=True, kw_only=True, rename="camel"):
    """The part of `chat.history` that is shown."""

    session_info: Json = {}
    session_id: str | None = None
    messages: tuple[Json, ...] = ()
    total_messages: int = 0


class SearchReply(Struct, frozen=True):
    results: tuple[SearchHit, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    _common_arguments(parser)
    _add_limit(parser, "at most so many, the last used first", DEFAULT_LIMIT, store_file.MAX_SESSIONS)
    title = "without an action, the sessions are listed"
    actions = parser.add_subparsers(dest="action", title=title, metavar="ACTION")
    show = actions.add_parser("show", help="print the messages of one session: openclaw sessions show main")
    search = actions.add_parser("search", help="find messages by their words: openclaw sessions search blue car")
    repeat_options(_common_arguments, *actions.choices.values())
    show.add_argument("key", help="its key, as the list shows it, or the end of it")
    _add_limit(show, "at most so many messages, the newest", DEFAULT_MESSAGES, MAX_MESSAGES)
    search.add_argument("words", nargs="+", help="each must be in the message; the last may be the beginning of one")
    _add_limit(search, "at most so many, the best first", DEFAULT_HITS, MAX_HITS)


def _common_arguments(parser: argparse.ArgumentParser) -> None:
    probe.arguments(parser)
    store_help = "read this SQLite file, and change nothing; the word file means the one in the state directory"
    parser.add_argument("--store", metavar="FILE", help=store_help)


def _add_limit(parser: argparse.ArgumentParser, meaning: str, default: int, maximum: int) -> None:
    text = f"{meaning} (default %(default)s)"
    parser.add_argument("--limit", type=_limit_parser(maximum), default=default, metavar="LIMIT", help=text)


def _limit_parser(maximum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = parse_whole_number(text, maximum=maximum)
        if not number:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {maximum}")
        return number

    return parse


def run(options: argparse.Namespace) -> int:
    folder = state_dir(options.state_dir)
    match options.action:
        case "show":
            return _show(options, folder)
        case "search":
            return _search(options, folder)
    return _list(options, folder)


def _list(options: argparse.Namespace, folder: Path) -> int:
    call = {"sessions.list": {"limit": options.limit, "includeDerivedTitles": True}}
    where, replies = _find_source(options, folder, call)
    if replies is not None:
        found = list(replies["sessions.list"].get("sessions") or ())
    else:
        found = store_file.read_sessions(where) if _is_stored(options, where) else []
    listed = found[: options.limit]
    if options.json:
        print_json({"from": where, "count": len(listed), "sessions": listed})
    elif not listed:
        print(f"There are no sessions in {where}.")
    else:
        rows = map(_format_row, read_reply(listed, list[ListedSession]))
        print(format_table([COLUMNS, *rows]), f"\n{count_of(len(listed), 'session')} of {where}.", sep="\n")
    return 0


def _find_source(
    options: argparse.Namespace, folder: Path, calls: Mapping[str, Json]
) -> tuple[str, Mapping[str, Json] | None]:
    """The gateway that runs and its answers to `calls`; or the store's location, and None."""
    if options.store is not None and options.store != DEFAULT_STORE:
        return options.store, None
    config = ConfigFile(folder).read().config
    if options.store is None:
        seen = asyncio.run(probe.probe_gateway(folder, config, url=options.url, token=options.token, calls=calls))
        if seen.answers:
            return seen.url, seen.replies
        if seen.is_configured:
            raise OpenClawError(f"{seen.problem}; openclaw sessions --store file reads the store itself")
    return store_location(folder, config), None


def _is_stored(options: argparse.Namespace, location: str) -> bool:
    """Whether there is a store to read: its own need not be there yet, a named one must."""
    own = options.store is None or options.store == DEFAULT_STORE
    return not own or "://" in location or Path(location).exists()


def _format_row(row: ListedSession) -> list[str]:
    title = _printable_line(row.derived_title or row.display_name or row.label or "")
    return [str(row.key), format_time(row.updated_at), row.status or "-", str(row.message_count), title]


def _printable_line(text: str) -> str:
    """One line without control characters."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= MAX_TITLE_CHARS else shown[: MAX_TITLE_CHARS - 1] + "…"


# ---- one session -----------------------------------------------------------------------------------------------------


def _show(options: argparse.Namespace, folder: Path) -> int:
    where, replies = _find_source(options, folder, _transcript_calls(options.key, options.limit))
    if replies is not None and replies["sessions.describe"].get("session") is None:
        keys = _find_source(options, folder, {"sessions.list": {"search": options.key}})[1] or {}
        if (key := _find_by_ending(options.key, keys)) is not None:
            where, replies = _find_source(options, folder, _transcript_calls(key, options.limit))
    if replies is None:
        session, messages, total = _read_stored(options, where)
    else:
        session = replies["sessions.describe"].get("session")
        page = read_reply(replies["chat.history"], TranscriptReply)
        messages, total = page.messages, page.total_messages
    if session is None:
        raise OpenClawError(f"there is no session {options.key!r} in {where}; openclaw sessions lists them")
    if options.json:
        print_json({"from": where, "session": session, "totalMessages": total, "messages": messages})
        return 0
    row = read_reply(session, ListedSession)
    print(f"{row.key}: {count_of(total, 'message')}, last used {format_time(row.updated_at)}, {row.status or 'idle'}")
    if len(messages) < total:
        print(f"The newest {len(messages)} of them; --limit shows more.")
    for message in messages:
        _print_message(message)
    return 0


def _transcript_calls(key: str, limit: int) -> Mapping[str, Json]:
    return {
        "sessions.describe": {"key": key, "includeDerivedTitles": True},
        "chat.history": {"sessionKey": key, "limit": limit},
    }


def _find_by_ending(key: str, replies: Mapping[str, Json]) -> str | None:
    """The one session whose key ends so, as a list shows it; None if there are several."""
    rows = read_reply(replies.get("sessions.list", {}).get("sessions", []), list[ListedSession])
    found = [row.key for row in rows if row.key and row.key.endswith(f":{key.lower()}")]
    return found[0] if len(found) == 1 else None


def _read_stored(options: argparse.Namespace, location: str) -> tuple[Json | None, Sequence[Json], int]:
    """The session as a list has it, its newest messages, and how many it has."""
    if not _is_stored(options, location):
        return None, (), 0
    page = store_file.read_transcript(location, options.key, limit=options.limit)
    if page.session is None:
        return None, (), 0
    session = {
        "key": page.session.key, "agentId": page.session.agent_id, "sessionId": page.session.session_id,
        "updatedAt": page.session.updated_at, "status": page.session.status, "messageCount": page.total,
    }  # fmt: skip
    return session, [{**message.body, "timestamp": message.at} for message in page.messages], page.total


def _print_message(raw: Json) -> None:
    """Who wrote it and when, then the text; of what is no text, what it is."""
    message = read_struct(raw, ChatMessage)
    calls = [f"[calls {block.name}]" for block in message.blocks if block.type == "toolCall"]
    files = [f"[{file.name or 'file'}, {file.mime_type}]" for file in message.media]
    lines = printable("\n".join(part for part in (message.text, *calls, *files) if part)).strip().splitlines()
    print(f"\n{format_time(raw.get('timestamp'), 'seconds')} {message.role}")
    for line in lines:
        print(f"  {line}")


# ---- words -----------------------------------------------------------------------------------------------------------


def _search(options: argparse.Namespace, folder: Path) -> int:
    words = " ".join(options.words)
    where, replies = _find_source(options, folder, {"sessions.search": {"query": words, "limit": options.limit}})
    hits: Sequence[SearchHit] = ()
    if replies is not None:
        hits = read_reply(replies["sessions.search"], SearchReply).results
    elif _is_stored(options, where):
        hits = store_file.search_transcripts(where, words, limit=options.limit)
    if options.json:
        print_json({"from": where, "count": len(hits), "results": to_builtins(hits)})
    elif not hits:
        print(f"No message in {where} has these words.")
    for hit in () if options.json else hits:
        print(f"{format_time(hit.timestamp)}  {hit.session_key}  {hit.role}")
        print(f"  {_one_line(hit.snippet)}")
    return 0


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
