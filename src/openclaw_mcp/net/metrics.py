"""Numbers as Prometheus reads them."""

from collections.abc import Iterable, Mapping

from msgspec import Struct


class Metric(Struct, frozen=True):
    name: str
    kind: str
    """`counter` or `gauge`."""
    help: str
    samples: Iterable[tuple[Mapping[str, str], float]]


def format_metrics(metrics: Iterable[Metric]) -> str:
    """The text exposition format, version 0.0.4."""
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{metric.name}{_format_labels(labels)} {value:g}" for labels, value in metric.samples]
    return "\n".join(lines) + "\n"


def _format_labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items())
    return "{" + pairs + "}"


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
