"""What a look around found: each finding in one sentence, with its remedy; as lines or as JSON."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

FindingState = Literal["fine", "note", "attention"]
MARKS = {"fine": "ok ", "note": "-  ", "attention": "!! "}


class Finding(Struct, frozen=True, kw_only=True):
    area: str
    state: FindingState
    says: str
    remedy: str | None = None


def fine(area: str, message: str) -> Finding:
    return Finding(area=area, state="fine", says=message)


def note(area: str, message: str, remedy: str | None = None) -> Finding:
    """Good to know; nothing is wrong."""
    return Finding(area=area, state="note", says=message, remedy=remedy)


def attention(area: str, message: str, remedy: str) -> Finding:
    """Something does not work, or is not safe, until somebody does what `remedy` says."""
    return Finding(area=area, state="attention", says=message, remedy=remedy)


def has_problems(findings: Sequence[Finding]) -> bool:
    return any(finding.state == "attention" for finding in findings)


def findings_to_json(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """For JSON."""
    return [
        {key: value for key, value in msgspec.to_builtins(finding).items() if value is not None} for finding in findings
    ]


def print_findings(findings: Sequence[Finding]) -> None:
    width = max((len(finding.area) for finding in findings), default=0)
    for finding in findings:
        print(f"{MARKS[finding.state]} {finding.area:{width}}  {finding.says}")
        if finding.remedy:
            print(f"    {'':{width}}  → {finding.remedy}")
