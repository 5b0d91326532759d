"""What a benchmark prints and keeps: tables, targets with their verdicts, and one JSON file."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from measure import Figures, Ratios
from subjects import HERE, REPOSITORY, missing_peers, ours_python, strange_interpreters

MISSED = 1
VERSION_LIMIT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound and what was measured against it; exactly one of the two bounds is set."""

    what: str
    unit: str
    measured: float | None
    at_most: float | None = None
    at_least: float | None = None

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return "not measured"
        over = self.at_most is not None and self.measured > self.at_most
        under = self.at_least is not None and self.measured < self.at_least
        return "miss" if over or under else "pass"

    def row(self) -> list[str]:
        bound = f"<= {self.at_most:g}" if self.at_most is not None else f">= {self.at_least:g}"
        return [self.what, f"{bound} {self.unit}", number(self.measured), self.verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asked for."""

    name: str
    rounds: int
    quick: bool
    json: Path
    check: bool
    venv: Path


def read_options(name: str, about: str, *, rounds: int, quick_rounds: int) -> Options:
    parser = argparse.ArgumentParser(description=about)
    results = HERE / "results" / f"{name}.json"
    parser.add_argument("--rounds", type=int, help=f"over all subjects ({rounds}; quick: {quick_rounds})")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples: a look, no verdict")
    parser.add_argument("--json", type=Path, default=results, metavar="FILE", help="where to keep it all")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every target is measured and met")
    parser.add_argument("--venv", type=Path, default=REPOSITORY / ".venv", help="where ours is installed")
    options = parser.parse_args()
    count = options.rounds or (quick_rounds if options.quick else rounds)
    venv = options.venv.absolute()
    return Options(name=name, rounds=count, quick=options.quick, json=options.json, check=options.check, venv=venv)


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_conditions(options: Options) -> None:
    """Name what makes this run less than complete or less than fair."""
    say(f"{options.name}: {options.rounds} rounds, interleaved; medians. Ratios are medians over medians.")
    say(f"  {', '.join(_runtimes(options).values())}, {os.cpu_count()} processors")
    for name in missing_peers():
        say(f"  {name} is left out: run benchmarks/prepare.py first")
    for name in strange_interpreters(options.venv):
        say(f"  {name} runs on another interpreter than ours: run benchmarks/prepare.py with the same --venv")


def number(value: float | None) -> str:
    """Three figures for people; a dash for what was not measured."""
    if value is None:
        return "-"
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f}"


def say_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned names, right-aligned figures."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    say(f"\n{title}")
    for row in (head, ["-" * width for width in widths], *rows):
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        say("  ".join(["  " + first.strip().ljust(widths[0]), *others]).rstrip())


def conclude(options: Options, figures: Figures, ratios: Ratios, targets: Sequence[Target]) -> int:
    """Print the verdicts, keep everything, and return the exit code."""
    say_table("targets", ["ours", "target", "measured", "verdict"], [target.row() for target in targets])
    if figures.rushed:
        say(f"\n{figures.rushed} of {figures.taken} samples were taken while other work kept it busy.")
    _keep(options, figures, ratios, targets)
    met = all(target.verdict == "pass" for target in targets)
    return MISSED if options.check and not met else 0


def _keep(options: Options, figures: Figures, ratios: Ratios, targets: Sequence[Target]) -> None:
    report = {
        "benchmark": options.name,
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"processors": os.cpu_count(), "kernel": platform.release(), **_runtimes(options)},
        "rounds": options.rounds,
        "quick": options.quick,
        "samples": {"taken": figures.taken, "not_calm": figures.rushed},
        "ratios": ratios,
        "targets": [asdict(target) | {"verdict": target.verdict} for target in targets],
        "figures": {
            subject: {name: {"median": median(values), "samples": values} for name, values in named.items()}
            for subject, named in figures.by_subject.items()
        },
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    say(f"\nkept in {os.path.relpath(options.json)}")


def _runtimes(options: Options) -> dict[str, str]:
    """What runs the servers; a runtime that is not there is left out."""
    commands = {"python": [ours_python(options.venv), "-V"], "node": ["node", "-v"]}
    versions = {}
    for name, argv in commands.items():
        if shutil.which(argv[0]):
            result = subprocess.run(argv, capture_output=True, text=True, timeout=VERSION_LIMIT, check=True)
            versions[name] = f"{name} {result.stdout.split()[-1].removeprefix('v')}"
    return versions
