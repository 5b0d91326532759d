"""Edits of TOML that a person maintains: a table is appended or removed, every other byte stays."""

import json
import re
import tomllib
from typing import Any

from .entries import SettingsEntry
from .jsonc import CannotEdit


def put(text: str, table: str, name: str, value: SettingsEntry) -> str:
    """`text` with the table `[table.name]`, replacing one of that name. Raises CannotEdit."""
    before = read(text)
    if not isinstance(before.get(table, {}), dict):
        raise CannotEdit(f"its {table} is no table")
    bare = drop(text, table, name)
    gap = "" if not bare or bare.endswith("\n\n") else "\n" if bare.endswith("\n") else "\n\n"
    block = f"[{table}.{_format_key(name)}]\n" + "".join(
        f"{_format_key(key)} = {_format_value(item)}\n" for key, item in value.items()
    )
    wanted = {**before, table: {**before.get(table, {}), name: value}}
    edited = bare + gap + block
    try:
        same = tomllib.loads(edited) == wanted
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise CannotEdit(f"its {table} is not written as tables of their own; write it as [{table}.NAME] first")
    return edited


def drop(text: str, table: str, name: str) -> str:
    """`text` without that table and its sub-tables; the same text when there is none. Raises CannotEdit."""
    before = read(text)
    if name not in before.get(table, {}):
        return text
    start, end = _find_table(text, table, name)
    end = start + _length_without_comments_below(text[start:end])
    wanted = {key: item for key, item in before.items() if key != table}
    others = {key: item for key, item in before[table].items() if key != name}
    kept = text[:start] + text[end:]
    if not text[end:].strip() and kept.endswith("\n\n"):
        kept = kept[:-1]  # the empty line that `put` added before it
    found = tomllib.loads(kept)
    if found.get(table, {}) != others or {key: item for key, item in found.items() if key != table} != wanted:
        raise CannotEdit(f"[{table}.{name}] is written in a way that we can't remove; remove it by hand")
    return kept


def read(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise CannotEdit(f"it is not TOML ({exc})") from exc


def _find_table(text: str, table: str, name: str) -> tuple[int, int]:
    key = rf"(?:{re.escape(name)}|{re.escape(json.dumps(name))}|'{re.escape(name)}')"
    ours = re.compile(rf"^\[\s*{re.escape(table)}\s*\.\s*{key}\s*(?:\.[^\]]*)?\]", re.MULTILINE)
    first = ours.search(text)
    if first is None:
        raise CannotEdit(f"[{table}.{name}] is written in a way that we can't remove; remove it by hand")
    end = first.end()
    for header in re.compile(r"^\[", re.MULTILINE).finditer(text, first.end()):
        if not ours.match(text, header.start()):
            return first.start(), header.start()
        end = header.end()
    return first.start(), max(end, len(text))


def _length_without_comments_below(block: str) -> int:
    """What stands below the last value of a table may be about the next one, or a person's note: it is not ours."""
    lines = block.splitlines(keepends=True)
    kept = len(lines)
    for place in range(len(lines) - 1, 0, -1):
        line = lines[place].strip()
        if line.startswith("#"):
            kept = place
        elif line:
            break
    return len("".join(lines[:kept]))


def _format_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _format_value(value: Any) -> str:
    """Strings, numbers, booleans, lists and flat tables, as TOML writes them."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_format_key(key)} = {_format_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_format_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
