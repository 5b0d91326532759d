"""What a look around found: each finding in one sentence, with its remedy; as lines or as JSON."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

State = Literal["fine", "note", "attention"]
MARKS = {"fine": "ok ", "note": "-  ", "attention": "!! "}


class Finding(Struct, frozen=True, kw_only=True):
    area: str
    state: State
    says: str
    remedy: str | None = None


def fine(area: str, says: str) -> Finding:
    return Finding(area=area, state="fine", says=says)


def note(area: str, says: str, remedy: str | None = None) -> Finding:
    """Good to know; nothing is wrong."""
    return Finding(area=area, state="note", says=says, remedy=remedy)


def attention(area: str, says: str, remedy: str) -> Finding:
    """Something does not work, or is not safe, until somebody does what `remedy` says."""
    return Finding(area=area, state="attention", says=says, remedy=remedy)


def troubled(findings: Sequence[Finding]) -> bool:
    return any(finding.state == "attention" for finding in findings)


def plain(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """For JSON."""
    return [
        {key: value for key, value in msgspec.to_builtins(finding).items() if value is not None} for finding in findings
    ]


def show(findings: Sequence[Finding]) -> None:
    width = max((len(finding.area) for finding in findings), default=0)
    for finding in findings:
        print(f"{MARKS[finding.state]} {finding.area:{width}}  {finding.says}")
        if finding.remedy:
            print(f"    {'':{width}}  → {finding.remedy}")
