"""What a server counts, and how Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """How often values fell below each of some bounds, and their sum.

    >>> found = Histogram((1, 10))
    >>> found.add(0.5), found.add(10), found.add(99)
    (None, None, None)
    >>> found.counts, found.total
    ([1, 1, 1], 109.5)
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class ModelMetrics:
    """What is counted of one version of a model."""

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version = name, version
        self.statuses: dict[int, int] = {}
        self.seconds = Histogram(SECONDS)
        self.rows = Histogram(ROWS)
        self.waiting = 0
        self.turned_away = 0
        self.dropped = 0

    def request(self, status: int, seconds: float) -> None:
        """Count a request, and how long it took."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.seconds.add(seconds)

    def batch(self, rows: int) -> None:
        """Count a batch of so many rows."""
        self.rows.add(rows)

    def to_json(self) -> dict[str, Any]:
        """To be sent to the worker that was asked for the metrics of all."""
        histograms = {
            name: {"bounds": list(one.bounds), "counts": one.counts, "total": one.total}
            for name, one in (("seconds", self.seconds), ("rows", self.rows))
        }
        return {
            "model": self.name,
            "version": self.version,
            "statuses": {str(status): count for status, count in self.statuses.items()},
            "waiting": self.waiting,
            "turned_away": self.turned_away,
            "dropped": self.dropped,
            **histograms,
        }


def prometheus_text(workers: Iterable[tuple[int, list[dict[str, Any]]]]) -> str:
    """The metrics of all workers, by their numbers, in Prometheus's text format.

    Each worker has a series of its own, so that one that starts anew looks like what it is.
    """
    found = [(number, one) for number, models in workers for one in models]
    lines: list[str] = []
    _family(lines, "requests_total", "counter", "Requests that were answered.")
    for number, one in found:
        for status, count in sorted(one["statuses"].items()):
            lines.append(_line("requests_total", _labels(number, one, status=status), count))
    for name, kind, help_ in (
        ("waiting", "gauge", "Rows that wait in the queue."),
        ("turned_away", "counter", "Requests that found the queue full."),
        ("dropped", "counter", "Requests that were cancelled or late before their turn came."),
    ):
        metric = {"waiting": "queue_rows"}.get(name, f"{name}_total")
        _family(lines, metric, kind, help_)
        lines += [_line(metric, _labels(number, one), one[name]) for number, one in found]
    for name, metric, help_ in (
        ("seconds", "request_seconds", "From the end of a request's headers to its answer."),
        ("rows", "batch_rows", "Rows that went through the network at once."),
    ):
        _family(lines, metric, "histogram", help_)
        for number, one in found:
            lines += _histogram(metric, _labels(number, one), one[name])
    return "\n".join(lines) + "\n"


def _family(lines: list[str], metric: str, kind: str, help_: str) -> None:
    lines.append(f"# HELP farandole_{metric} {help_}")
    lines.append(f"# TYPE farandole_{metric} {kind}")


def _histogram(metric: str, labels: str, one: dict[str, Any]) -> list[str]:
    lines, seen = [], 0
    for bound, count in zip([*one["bounds"], "+Inf"], one["counts"], strict=True):
        seen += count
        lines.append(_line(f"{metric}_bucket", f'{labels},le="{bound}"', seen))
    return [
        *lines,
        _line(f"{metric}_sum", labels, one["total"]),
        _line(f"{metric}_count", labels, seen),
    ]


def _labels(number: int, one: dict[str, Any], **more: str) -> str:
    pairs = {"model": one["model"], "version": one["version"], "worker": str(number), **more}
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items())


def _line(metric: str, labels: str, value: float) -> str:
    return f"farandole_{metric}{{{labels}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
