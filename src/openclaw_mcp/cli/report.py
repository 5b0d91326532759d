"""How commands print: findings with their remedies, tables, times, JSON."""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

FindingState = Literal["fine", "note", "attention"]
MARKS = {"fine": "ok ", "note": "-  ", "attention": "!! "}

_CONTROLS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]")


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    area: str
    state: FindingState
    says: str
    remedy: str | None = None


def fine(area: str, message: str) -> Finding:
    return Finding(area=area, state="fine", says=message)


def note(area: str, message: str, remedy: str | None = None) -> Finding:
    """Information; nothing is wrong."""
    return Finding(area=area, state="note", says=message, remedy=remedy)


def attention(area: str, message: str, remedy: str) -> Finding:
    """Something does not work, or is not safe, until a person carries out `remedy`."""
    return Finding(area=area, state="attention", says=message, remedy=remedy)


def report_lost(pid: int) -> Finding:
    """The process of `openclaw up` that should be there."""
    message = f"process {pid} is gone: it was killed, it crashed, or a restart of it failed"
    return attention("up", message, "openclaw restart starts it again; openclaw logs shows its end")


def has_problems(findings: Sequence[Finding]) -> bool:
    return any(finding.state == "attention" for finding in findings)


def print_findings(findings: Sequence[Finding]) -> None:
    width = max((len(finding.area) for finding in findings), default=0)
    for finding in findings:
        print(f"{MARKS[finding.state]} {finding.area:{width}}  {printable(finding.says)}")
        if finding.remedy:
            print(f"    {'':{width}}  → {printable(finding.remedy)}")


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns; the first row is the heading."""
    rows = [[as_row(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def format_time(ms: Any, timespec: str = "minutes") -> str:
    """Unix milliseconds as local time; `-` for anything else."""
    if not isinstance(ms, int | float):
        return "-"
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec=timespec)


def printable(text: str) -> str:
    """Without control characters: what others write must not move the terminal's cursor or turn text around."""
    return _CONTROLS.sub("", text)


def as_row(text: str) -> str:
    """One line of a list: a name that others chose neither begins a line of its own nor moves the cursor."""
    return printable(" ".join(text.split("\n")))


def count_of(number: int, thing: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def print_json(value: Any) -> None:
    print(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))
