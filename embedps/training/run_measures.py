"""What a run measured of itself, for summary.json."""

from __future__ import annotations

from typing import Any

from embedps.metrics import ClickScores
from embedps.training.callback_effects import CallbackEffects
from embedps.training.training_loop import TrainingLoop
from embedps.training.training_setup import TrainingSetup


def measure(
    setup: TrainingSetup, loop: TrainingLoop, effects: CallbackEffects, secs: float
) -> dict[str, Any]:
    """Gives fields of summary.json, after so many seconds of training."""
    ledger, writer = setup.ledger, setup.writer
    stats = setup.collection.stats()
    examples, training = loop.log.result()
    return {
        "examples": loop.examples_of(examples),
        "units": {
            "done": ledger.num_done,
            "repeated": ledger.num_repeated,
            "attempts": ledger.num_attempts,
            "total": ledger.num_units,
            "set_aside": ledger.num_aside,
        },
        "set_aside": ledger.deaths.set_aside,
        "stages_before": ledger.history,
        "finished": loop.finished,
        "stopped_early": effects.reason,
        "learning_rate_factor": effects.rate_factor,
        "wall_secs": round(secs, 3),
        "examples_per_sec": round(examples / secs, 1) if examples else 0.0,
        "tables": stats.rows,
        "tables_memory_bytes": stats.memory_bytes,
        "evicted": setup.collection.eviction_stats(),
        "evicted_rows": writer.evicted_counts,
        "table_statistics": loop.reports.table_statistics(walk=loop.finished),
        "sync": loop.reports.sync(),
        "staleness": loop.reports.staleness(),
        "checkpoint": {f"{kind}s": dict(c) for kind, c in writer.counts.items()},
        "training": _training_scores(training),
    }


def _training_scores(metrics: ClickScores) -> dict[str, float]:
    if "logloss" in metrics.values:
        return {"auc": metrics.auc, "logloss": metrics.logloss}
    return dict(metrics.values)
