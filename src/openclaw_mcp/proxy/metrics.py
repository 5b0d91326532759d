"""Counters in Prometheus text. A few dozen numbers need no library on the start-up path."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ..tools.audit import AuditRecord

LATENCY_BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
"""Upper bounds of the latency histogram, in seconds: from an app that answers at once to the default timeout."""


class Metrics:
    def __init__(self) -> None:
        self._bad_frames = 0
        self._calls: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._buckets = [0] * (len(LATENCY_BOUNDS) + 1)
        self._seconds = 0.0

    def count_call(self, record: AuditRecord) -> None:
        seconds = record.milliseconds / 1000
        self._calls[record.outcome] += 1
        self._buckets[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self._seconds += seconds

    def count_refusal(self, reason: str) -> None:
        self._refusals[reason] += 1

    def count_bad_frames(self, count: int) -> None:
        self._bad_frames += count

    def format_text(self, *, sessions: int | None, bridges: int, running_calls: int) -> str:
        lines: list[str] = []

        def block(name: str, kind: str, help: str, rows: Sequence[tuple[str, float]]) -> None:
            lines.append(f"# HELP openclaw_proxy_{name} {help}\n# TYPE openclaw_proxy_{name} {kind}")
            lines.extend(f"openclaw_proxy_{name}{suffix} {value}" for suffix, value in rows)

        calls = [(f'{{outcome="{outcome}"}}', count) for outcome, count in sorted(self._calls.items())]
        refused = [(f'{{reason="{reason}"}}', count) for reason, count in sorted(self._refusals.items())]
        block("calls_total", "counter", "Tool calls by how they ended.", calls)
        block("call_seconds", "histogram", "How long tool calls took.", self._histogram())
        block("calls_running", "gauge", "Tool calls waiting for an app.", [("", running_calls)])
        if sessions is not None:
            block("sessions", "gauge", "Sessions registered.", [("", sessions)])
        block("bridges", "gauge", "Bridges attached to this process.", [("", bridges)])
        block("refused_total", "counter", "Requests refused at the door.", refused)
        block("bad_frames_total", "counter", "Frames from apps that could not be used.", [("", self._bad_frames)])
        return "\n".join(lines) + "\n"

    def _histogram(self) -> list[tuple[str, float]]:
        rows: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip(LATENCY_BOUNDS, self._buckets, strict=False):
            total += count
            rows.append((f'_bucket{{le="{bound:g}"}}', total))
        total += self._buckets[-1]
        return [*rows, ('_bucket{le="+Inf"}', total), ("_sum", self._seconds), ("_count", total)]
