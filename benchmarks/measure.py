"""How samples are taken: round-robin over the subjects, each on a machine as calm as it will get."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CALM_SHARE = 0.12  # of all processors; one scheduler tick in a window is 5 % of two of them
CALM_WINDOW = 0.1
CALM_LIMIT = 2.0  # a machine that never rests is measured anyway, and the report says so
STAT = Path("/proc/stat")

Sample = Mapping[str, float]
Ratios = dict[str, dict[str, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One subject's turn in a round; `take` returns its figures by name."""

    subject: str
    take: Callable[[], Sample]


@dataclass(slots=True)
class Figures:
    """All samples of a run, by subject and then by figure."""

    by_subject: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    taken: int = 0
    rushed: int = 0

    def note(self, subject: str, sample: Sample) -> None:
        figures = self.by_subject.setdefault(subject, {})
        for name, value in sample.items():
            figures.setdefault(name, []).append(value)

    def median(self, subject: str, name: str) -> float | None:
        values = self.by_subject.get(subject, {}).get(name)
        return statistics.median(values) if values else None

    def ratio(self, name: str, *, of: str, to: str, to_name: str = "") -> float | None:
        """Median over median, or nothing when either was not measured."""
        over, under = self.median(of, name), self.median(to, to_name or name)
        return None if over is None or not under else over / under


def interleave(what: str, turns: Sequence[Turn], *, rounds: int, figures: Figures) -> None:
    """One unrecorded round to warm caches, then `rounds` rounds, each starting one subject later."""
    _progress(f"{what}: warming up")
    for turn in turns:
        turn.take()
    for number in range(rounds):
        _progress(f"{what}: round {number + 1} of {rounds}")
        first = number % len(turns)
        for turn in (*turns[first:], *turns[:first]):
            figures.taken += 1
            figures.rushed += not calm()
            figures.note(turn.subject, turn.take())


def calm() -> bool:
    """Wait until the others rest, CALM_LIMIT at most; tells whether they did."""
    deadline = time.monotonic() + CALM_LIMIT
    while True:
        busy, total = _processor_ticks()
        time.sleep(CALM_WINDOW)
        busy_now, total_now = _processor_ticks()
        if busy_now - busy <= CALM_SHARE * (total_now - total):
            return True
        if time.monotonic() > deadline:
            return False


def _processor_ticks() -> tuple[int, int]:
    """Busy and total ticks of all processors since boot; time stolen by other machines is busy."""
    with STAT.open() as stat:
        user, nice, system, idle, iowait, *interrupts = map(int, stat.readline().split()[1:9])
    busy = user + nice + system + sum(interrupts)
    return busy, busy + idle + iowait


def _progress(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
