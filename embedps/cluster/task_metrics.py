"""What a worker or parameter server tells Prometheus of itself; its client knows the rest."""

from __future__ import annotations

from embedps import kernels
from embedps.run.metrics_port import Metric, one


def _client_secs(_: object) -> float | None:
    secs = kernels.library().embedps_secs_since_probe()
    return secs if secs < 1e9 else None  # it has had no client


METRICS = (
    Metric(
        "embedps_server_client_seconds",
        "Since the client last asked whether the server is alive.",
        lambda source: one(_client_secs(source)),
    ),
)
