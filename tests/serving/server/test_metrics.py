"""What `/metrics` says: counts by label."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from embedps.serving.server.metrics import ServerMetrics
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.request_error import RequestError


def samples(metrics: ServerMetrics) -> dict[tuple[str, ...], float]:
    """Values by name and labels, in order of the labels' names, as Prometheus reads them."""
    return {
        (sample.name, *(text for _, text in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
    }


def test_requests_are_counted_by_api_and_code() -> None:
    api = ModelApi()
    for _ in range(2):
        with api.counting("rest"):
            pass
    with pytest.raises(RequestError, match="KeyError: 'a'"), api.counting("grpc"):
        raise KeyError("a")
    found = samples(api.metrics)
    assert found["embedps_requests_total", "rest", "OK"] == 2
    assert found["embedps_requests_total", "grpc", "INTERNAL"] == 1
    assert found["embedps_request_seconds_count", "rest"] == 2


def test_a_batch_is_counted_in_the_buckets_that_hold_its_rows() -> None:
    metrics = ServerMetrics(list)
    count = metrics.count_batch('a "name"')
    for rows in (1, 2, 3, 20000):
        count(rows)
    found = samples(metrics)
    name = "embedps_batch_rows_bucket"
    counts = [found[name, le, 'a "name"', ""] for le in ("1.0", "2.0", "5.0", "10000.0", "+Inf")]
    assert counts == [1, 2, 3, 3, 4]
    assert found["embedps_batch_rows_sum", 'a "name"', ""] == 20006
