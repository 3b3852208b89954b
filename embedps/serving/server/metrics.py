"""What `serve` counts and measures, as Prometheus reads it at `/metrics`."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from embedps.serving.server.served_model import ServedModel

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_DIFFERENCES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_OUTCOMES = ("scored", "dropped", "failed")
_ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)

# By name, of each model: what it is, and its value when it is asked.
_GAUGES: dict[str, tuple[str, Callable[[ServedModel], float]]] = {
    "manifest_number": ("The manifest that is served.", lambda m: m.standing.number),
    "manifest_step": ("Its training step.", lambda m: m.standing.step),
    "manifest_age_seconds": (
        "Time since its commit.",
        lambda m: time.time() - m.standing.wall_time,
    ),
    "commit_to_visible_seconds": (
        "From its commit until requests saw it.",
        lambda m: m.standing.visible_secs,
    ),
    "apply_seconds": (
        "For how long requests waited while it was applied.",
        lambda m: m.standing.apply_secs,
    ),
    "applied_rows": ("Rows that it changed or removed.", lambda m: m.standing.applied_rows),
    "follow_failing": (
        "1 if the newest manifest cannot be served: GetModelStatus says why.",
        lambda m: m.refusal is not None,
    ),
    "row_bytes": ("Memory of the rows and their index.", lambda m: m.standing.row_bytes),
    "rows_on_disk": (
        "Rows on disk, with --max-memory-bytes.",
        lambda m: sum(m.tier_stats.rows_on_disk.values()),
    ),
    "rows_read_from_disk": (
        "Rows read from there since the model was loaded.",
        lambda m: m.tier_stats.read,
    ),
    "items": ("Items that are ranked for queries.", lambda m: m.standing.items),
    "item_recall": (
        "Share of the exact best items that a search finds, by a sample of queries.",
        lambda m: 1.0 if m.model.items is None else m.model.items.recall,
    ),
    "item_bytes": ("Memory of their vectors.", lambda m: m.standing.item_bytes),
}

disable_created_metrics()  # of when each counter began


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShadowCounts:
    """What counts a shadow.

    Attributes:
      count: a request that was "scored", "dropped" or "failed".
      observe: the difference of a request that was scored.
    """

    count: Callable[[str], None]
    observe: Callable[[float], None]


class ServerMetrics:
    """Counts requests and batches, and reads the gauges of the models."""

    def __init__(self, served: Callable[[], Sequence[ServedModel]]) -> None:
        """Takes what lists the models that are served."""
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "embedps_requests_total",
            "Requests by API and code.",
            ("api", "code"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "embedps_request_seconds",
            "Time to answer a request.",
            ("api",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._batch_rows = Histogram(
            "embedps_batch_rows",
            "Records that were scored together.",
            ("model", "ref"),
            buckets=_ROWS,
            registry=self._registry,
        )
        self._shadow_requests = Counter(
            "embedps_shadow_requests_total",
            "Requests for the shadow: scored, dropped as it was busy, or failed.",
            ("model", "ref", "outcome"),
            registry=self._registry,
        )
        self._shadow_difference = Histogram(
            "embedps_shadow_difference",
            "Mean absolute difference of a request's predictions and the shadow's.",
            ("model", "ref"),
            buckets=_DIFFERENCES,
            registry=self._registry,
        )
        self._registry.register(_ModelGauges(served))
        # To find a metric by its labels takes longer than to count.
        self._counts_of = functools.cache(
            lambda api, code: (self._requests.labels(api, code), self._seconds.labels(api))
        )

    def count_request(self, api: str, code: str, secs: float) -> None:
        """Counts a request by its code, and the seconds that it took."""
        requests, seconds = self._counts_of(api, code)
        requests.inc()
        seconds.observe(secs)

    def count_batch(self, model: str, ref: str = "") -> Callable[[int], None]:
        """Gives the function that counts the rows of a model's batches, of a ref if it has one."""
        return self._batch_rows.labels(model, ref).observe

    def shadow_counts(self, model: str, ref: str) -> ShadowCounts:
        """Gives what counts a model's shadow, of a ref."""
        outcomes = {o: self._shadow_requests.labels(model, ref, o) for o in _OUTCOMES}
        difference = self._shadow_difference.labels(model, ref)
        return ShadowCounts(
            count=lambda outcome: outcomes[outcome].inc(), observe=difference.observe
        )

    def text(self) -> str:
        """Writes all metrics in Prometheus' text format."""
        return generate_latest(self._registry).decode()


class _ModelGauges(Collector):
    """Asks each model for its values when Prometheus asks."""

    def __init__(self, served: Callable[[], Sequence[ServedModel]]) -> None:
        self._served = served

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, (text, value) in _GAUGES.items():
            family = GaugeMetricFamily(f"embedps_{name}", text, labels=("model", "ref"))
            for served in self._served():
                family.add_metric((served.name, served.ref or ""), value(served))
            yield family
        rows = GaugeMetricFamily("embedps_rows", "Rows by table.", labels=("model", "ref", "table"))
        for served in self._served():
            for table, count in served.standing.rows.items():
                rows.add_metric((served.name, served.ref or "", table), count)
        yield rows
