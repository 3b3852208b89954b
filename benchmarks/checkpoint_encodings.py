"""Measures quantized checkpoints: `python -m benchmarks.checkpoint_encodings`.

Its figures are bytes against float32, and the AUC after ten restores.

DLRM at the Kaggle configuration trains on examples whose labels follow from planted effects of
their ids. Ten times during training the model is saved as a base, cleared and restored; one model
is never restored. All models see the same examples in the same order. A feature has at most --ids
ids, so that each id is frequent enough to learn its effect.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import embedded_dlrm
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table
from benchmarks.workload import W1, Batches, Workload, files, make_batches
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.quantize import Encoding
from embedps.config_fields import option
from embedps.training.checkpoint_writer import CheckpointWriter

ENCODINGS: dict[str, Encoding | None] = {
    "never restored": None,
    "float32": Encoding(),
    "int8": Encoding(rows="int8"),
    "int8, bfloat16 slots": Encoding(rows="int8", optimizer_slots="bfloat16"),
    "int4": Encoding(rows="int4"),
    "int4, bfloat16 slots": Encoding(rows="int4", optimizer_slots="bfloat16"),
}
_EFFECT = 0.45  # standard deviation of an id's effect on the log odds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The training."""

    examples: int = option(1_802_240, "to train on", least=1)
    ids: int = option(2000, "of a feature, at most", least=1)
    held_out: int = option(65_536, "examples to score", least=1)
    restores: int = option(10, "on the way", least=1)
    batch_size: int = option(512, "examples per step", least=1)


def measure(config: Config, run: Run) -> Content:
    """Trains once per encoding."""
    examples, batch = config.examples, config.batch_size
    workload = dataclasses.replace(
        W1, cardinalities=tuple(min(count, config.ids) for count in W1.cardinalities)
    )
    train, _ = _planted(workload, examples, seed=1)
    held_out, best = _planted(workload, config.held_out, seed=2)
    results: dict[str, Any] = {}
    with (
        files(workload, train) as train_files,
        files(workload, held_out) as held_out_files,
    ):
        for name, encoding in ENCODINGS.items():
            dlrm = embedded_dlrm.make(
                container=f"benchmark {name}",
                batch=batch,
                unit_batches=examples // (config.restores + 1) // batch,
                sparse="adagrad",
                rate=0.05,
            )
            results[name] = _train(
                dlrm,
                train_files / "batches.parquet",
                held_out_files / "batches.parquet",
                encoding,
                config,
            )
            dlrm.collection.drop()
            print(f"{name}: {results[name]}", flush=True)
    float32 = results["float32"]["bytes"]
    never = results["never restored"]["auc"]
    for result in results.values():
        result["auc_difference"] = round(result["auc"] - never, 6)
        if "bytes" in result:
            result["bytes_of_float32"] = round(result["bytes"] / float32, 4)
    return {"best_auc": best, "results": results}


def _train(
    dlrm: embedded_dlrm.EmbeddedDLRM,
    train: Path,
    held_out: Path,
    encoding: Encoding | None,
    config: Config,
) -> dict[str, Any]:
    parts = config.restores + 1
    rows = config.examples // parts
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in range(parts):
            dlrm.train(train, part * rows, rows, part)
            if encoding is None or part == parts - 1:
                continue
            # A new directory per save, so that each restore reads a base of this encoding.
            saver = CheckpointWriter(
                CheckpointDirectory(Path(folder) / str(part)),
                dlrm.collection,
                {str(i): v for i, v in enumerate(dlrm.variables)},
                encoding=encoding,
            )
            manifest = saver.save(
                step=part, ledger={}, partially_applied=dict, progress={}, final=False
            )
            found["bytes"] = manifest.chain_bytes
            found["rows"] = manifest.chain[-1].rows
            dlrm.collection.clear()
            saver.restore(manifest)
    metrics = dlrm.score(held_out, config.held_out)
    return {
        "auc": round(metrics.auc, 6),
        "logloss": round(metrics.logloss, 6),
        "restores": 0 if encoding is None else config.restores,
        **found,
    }


def _planted(workload: Workload, rows: int, *, seed: int) -> tuple[Batches, float]:
    """Makes examples whose labels follow the effects of their ids; returns the best AUC too."""
    batches = make_batches(workload, rows, seed=seed)
    odds = np.full(rows, -1.2)
    for feature, ids in enumerate(batches.ids):
        # A normal number per (feature, id): the sum of 12 uniform numbers, minus 6.
        hashed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
            feature * 977 + 1
        )
        total = np.zeros(rows)
        for _ in range(12):
            hashed ^= hashed >> np.uint64(29)
            hashed *= np.uint64(0xBF58476D1CE4E5B9)
            total += (hashed >> np.uint64(40)).astype(np.float64) * 2.0**-24
        odds += _EFFECT * (total - 6)
    chances = 1 / (1 + np.exp(-odds))
    labels = (np.random.default_rng(seed + 100).random(rows) < chances).astype(np.float32)
    return dataclasses.replace(batches, labels=labels), round(_auc(chances, labels), 6)


def _auc(scores: np.ndarray, labels: np.ndarray) -> float:
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    positives = labels.sum()
    least = positives * (positives + 1) / 2
    return float((ranks[labels == 1].sum() - least) / (positives * (len(labels) - positives)))


def layout(content: Content) -> list[Part]:
    """Lays out bytes and scores by encoding."""
    rows = [
        [
            name,
            f"{found['bytes'] / 1e6:.2f}" if "bytes" in found else "",
            f"{found['bytes_of_float32']:.3f}" if "bytes" in found else "",
            f"{found['auc']:.5f}",
            f"{found['auc_difference']:+.5f}",
        ]
        for name, found in content["results"].items()
    ]
    heads = ["rows and optimizer slots", "MB", "of float32", "AUC", "minus AUC of never restored"]
    return [Table(heads=heads, rows=rows), f"The best AUC is {content['best_auc']:.5f}."]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
