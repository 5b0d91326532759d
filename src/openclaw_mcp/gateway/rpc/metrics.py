"""What the RPC server counts: handshakes, requests, events, and the time spent answering."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from ...net.metrics import Metric

_COUNTERS: Final = (
    ("handshakes", ("outcome",), "Handshakes by outcome."),
    ("requests", ("method", "outcome"), "Requests answered."),
    ("events", ("event",), "Events sent, counted per receiver."),
    ("slow_consumers", (), "Connections closed because they did not read."),
)


class RpcMetrics:
    def __init__(self) -> None:
        self.counters: Counter[tuple[str, ...]] = Counter()
        self.seconds_by_method: dict[str, float] = {}

    def count_handshake(self, outcome: str) -> None:
        """`ok`, or the code of the refusal."""
        self.counters["handshakes", outcome] += 1

    def record_request(self, method: str, outcome: str, seconds: float) -> None:
        self.counters["requests", method, outcome] += 1
        self.seconds_by_method[method] = self.seconds_by_method.get(method, 0.0) + seconds

    def collect(self) -> Iterable[Metric]:
        for name, labels, description in _COUNTERS:
            samples = [
                (dict(zip(labels, key[1:], strict=True)), float(count))
                for key, count in sorted(self.counters.items())
                if key[0] == name
            ]
            yield Metric(f"openclaw_{name}_total", "counter", description, samples)
        seconds = [({"method": method}, spent) for method, spent in sorted(self.seconds_by_method.items())]
        yield Metric("openclaw_request_seconds_total", "counter", "Time spent answering.", seconds)
