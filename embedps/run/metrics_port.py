"""The port at which a process of a run answers Prometheus, and how metrics are declared."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from embedps.console.lines import say
from embedps.errors import UsageError
from embedps.run.monitoring_config import MonitoringConfig
from embedps.run.summary import versions

_CLIENT_SECS = 10.0
_TICK_SECS = 0.1  # how long `close` may take
_BUCKETS = (0, 1, 2, 3, 5, 8, 16, 32, 64, 128, 256)

disable_created_metrics()  # of when each counter began


class Summary(NamedTuple):
    """How often something was, and the sum of what was measured."""

    times: float
    total: float


class Metric(NamedTuple):
    """Declares a metric; one whose name ends with `_total` is a counter.

    Attributes:
      name: by Prometheus' conventions.
      text: what it is.
      read: gives its values of a source, by their labels' values: a number, a Summary, or for a
        histogram a mapping of values to how often they were. A label has few values.
      labels: their names.
    """

    name: str
    text: str
    read: Callable[[Any], Mapping[tuple[str, ...], Any]]
    labels: tuple[str, ...] = ()


def one(value: float | Summary | Mapping[int, int] | None) -> Mapping[tuple[str, ...], Any]:
    """Gives the value of a metric without labels; None if it has none now."""
    return {} if value is None else {(): value}


class Metrics(Collector):
    """Reads declared metrics of a source when Prometheus asks."""

    def __init__(self, declared: Sequence[Metric], source: Any) -> None:
        self._declared = declared
        self._source = source

    def collect(self) -> Iterator[Family]:
        """Gives each metric that has a value now."""
        for metric in self._declared:
            values = metric.read(self._source)
            if values:
                yield _family(metric, values)


class MetricsPort:
    """Answers Prometheus on threads of its own: what it meets there ends no run.

    Attributes:
      port: where it listens; None if no port was asked for.
    """

    def __init__(self, config: MonitoringConfig, *, is_needed: bool = True) -> None:
        """Listens, if the config has a port.

        Args:
          is_needed: raise if it cannot listen; otherwise a warning says so.

        Raises:
          UsageError: the port is in use, or the address is not this machine's.
        """
        self.port: int | None = None
        self._registry = CollectorRegistry()
        self._server: Any = None
        if config.metrics_port is None:
            return
        host = config.metrics_host
        try:
            self._server = make_server(
                host,
                config.metrics_port,
                make_wsgi_app(self._registry),
                _ServerOfIpv6 if ":" in host else ThreadingWSGIServer,
                _Handler,
            )
        except OSError as error:
            problem = (
                f"{host}:{config.metrics_port} must be an address of this machine with a free port "
                f"({error.strerror}): give another --metrics-port or --metrics-host"
            )
            if is_needed:
                raise UsageError(problem) from error
            say(f"warning: there are no metrics: {problem}")
            return
        ProcessCollector(registry=self._registry)
        self._registry.register(Metrics(OF_ALL, None))
        self.port = self._server.server_port
        threading.Thread(
            target=self._server.serve_forever, args=(_TICK_SECS,), name="metrics", daemon=True
        ).start()
        say(f"metrics are at http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics")

    def show(self, declared: Sequence[Metric], source: Any) -> None:
        """Shows what is declared too, as the source has it when it is asked."""
        self._registry.register(Metrics(declared, source))

    def close(self) -> None:
        """Stops listening."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_SECS

    def log_message(self, *_: object) -> None:
        """Logs no request."""


class _ServerOfIpv6(ThreadingWSGIServer):
    address_family = socket.AF_INET6


def _family(metric: Metric, values: Mapping[tuple[str, ...], Any]) -> Family:
    """Makes what Prometheus reads of a metric's values."""
    first = next(iter(values.values()))
    family: Any
    if isinstance(first, Summary):
        family = SummaryMetricFamily(metric.name, metric.text, labels=metric.labels)
        for labels, found in values.items():
            family.add_metric(labels, found.times, found.total)
    elif isinstance(first, Mapping) and metric.name.endswith("_info"):
        family = InfoMetricFamily(metric.name.removesuffix("_info"), metric.text, dict(first))
    elif isinstance(first, Mapping):
        family = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
        for labels, found in values.items():
            family.add_metric(
                labels,
                [(str(float(le)), sum(n for v, n in found.items() if v <= le)) for le in _BUCKETS]
                + [("+Inf", sum(found.values()))],
                sum(v * n for v, n in found.items()),
            )
    else:
        kind = CounterMetricFamily if metric.name.endswith("_total") else GaugeMetricFamily
        family = kind(metric.name, metric.text, labels=metric.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
    return cast(Family, family)


OF_ALL = (Metric("embedps_info", "The versions of what it runs.", lambda _: one(_versions())),)


def _versions() -> Any:
    return {name.replace("-", "_"): value for name, value in versions().items()}
