"""Counters, histograms and gauges in Prometheus' text format."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]


class Counter:
    """Counts events by labels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Labels, float] = {}

    def add(self, **labels: str) -> None:
        """Counts one."""
        key = tuple(labels.items())
        with self._lock:
            self._values[key] = self._values.get(key, 0) + 1

    def samples(self) -> list[Sample]:
        """Gives the suffix, labels and value of each line."""
        with self._lock:
            return [("", key, value) for key, value in self._values.items()]


class Histogram:
    """Counts values by labels in buckets."""

    def __init__(self, limits: Sequence[float]) -> None:
        """Takes the buckets' upper limits, in order; the last bucket has none."""
        self._limits = tuple(limits)
        self._lock = threading.Lock()
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def add(self, value: float, **labels: str) -> None:
        """Counts a value."""
        key = tuple(labels.items())
        with self._lock:
            counts = self._counts.setdefault(key, [0] * (len(self._limits) + 1))
            counts[bisect.bisect_left(self._limits, value)] += 1
            self._sums[key] = self._sums.get(key, 0.0) + value

    def samples(self) -> list[Sample]:
        """Gives the suffix, labels and value of each line."""
        made: list[Sample] = []
        with self._lock:
            for key, counts in self._counts.items():
                total = 0
                names = (*(f"{limit:g}" for limit in self._limits), "+Inf")
                for name, count in zip(names, counts, strict=True):
                    total += count
                    made.append(("_bucket", (*key, ("le", name)), total))
                made += [("_sum", key, self._sums[key]), ("_count", key, total)]
        return made


class Gauge:
    """Gives values when it is asked."""

    def __init__(self, values: Callable[[], Iterable[tuple[dict[str, str], float]]]) -> None:
        """Takes a function that gives labels and values."""
        self._values = values

    def samples(self) -> list[Sample]:
        """Gives the suffix, labels and value of each line."""
        return [("", tuple(labels.items()), value) for labels, value in self._values()]


class Metrics:
    """A set of metrics by name."""

    def __init__(self) -> None:
        self._metrics: dict[str, tuple[str, Counter | Histogram | Gauge]] = {}

    def add(self, name: str, text: str, metric: Counter | Histogram | Gauge) -> None:
        """Adds a metric; `text` says what it is, on one line."""
        self._metrics[name] = (text, metric)

    def text(self) -> str:
        """Writes all metrics."""
        lines = []
        for name, (text, metric) in self._metrics.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {type(metric).__name__.lower()}"]
            for suffix, labels, value in metric.samples():
                shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
                lines.append(f"{name}{suffix}{{{shown}}} {value:.10g}")
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
