"""How stale a run's steps were, by worker: as JSON and as TensorBoard histograms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from embedps.engine.steps.step_logs import Staleness, staleness_percentile


def staleness_json(staleness: Staleness) -> dict[str, Any]:
    """Gives by worker its steps, percentiles of their staleness, and the steps by staleness."""
    return {
        str(worker): {
            "steps": sum(counts.values()),
            "p50": staleness_percentile(counts, 50),
            "p99": staleness_percentile(counts, 99),
            "most": max(counts),
            "histogram": {str(stale): steps for stale, steps in counts.items()},
        }
        for worker, counts in staleness.items()
    }


def staleness_histograms(staleness: Staleness) -> dict[str, Any]:
    """Gives by name what `TrainingLog.write` takes: a histogram per worker."""
    return {f"staleness/worker_{w}": _histogram(counts) for w, counts in staleness.items()}


def _histogram(counts: Mapping[int, int]) -> Any:
    """Makes a HistogramProto with a bucket for each staleness."""
    steps = list(counts.values())
    return tf.compat.v1.HistogramProto(
        min=min(counts),
        max=max(counts),
        num=sum(steps),
        sum=sum(stale * n for stale, n in counts.items()),
        sum_squares=sum(stale**2 * n for stale, n in counts.items()),
        bucket_limit=[stale + 0.5 for stale in counts],
        bucket=steps,
    )
