"""What a user's script does with a Trainer on a cluster, several runs on one that is started once.

usage: python -m tests.training.engine_program DIRECTORY
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

import embedps
from benchmarks.row_visits import visits
from embedps.cluster.local_cluster import LocalCluster
from tests.builders import COLUMNS, MIXED, make_rows, make_trainer, read_split, write_dataset
from tests.training.same_bits import FIELDS


class KillsOne(embedps.Callback):
    """Kills a worker at the first unit's end, and stops the run once that is at work again."""

    def __init__(self, cluster: LocalCluster, *, ends_run: bool = True) -> None:
        self._cluster, self._ends_run = cluster, ends_run
        self.told: list[Any] = []

    def on_unit_end(self, run: embedps.RunControl, event: embedps.UnitEnd) -> None:
        if "killed" not in self.told:  # it may hear of the return of one that a run before killed
            os.kill(self._cluster.processes.pid("worker", 0), signal.SIGKILL)
            self.told.append("killed")

    def on_lost_worker(self, run: embedps.RunControl, event: embedps.LostWorker) -> None:
        self.told.append(["lost", event.worker])

    def on_recovered(self, run: embedps.RunControl, event: embedps.RecoveryEnd) -> None:
        self.told.append(["recovered", event.why, event.secs > 0, event.steps, event.examples])
        if self._ends_run:
            run.stop("seen enough")

    def on_train_end(self, run: embedps.RunControl, result: embedps.FitResult) -> None:
        self.told.append(["end", result.stopped_early])


def lost_worker(folder: Path, cluster: LocalCluster) -> list[Any]:
    dataset = write_dataset(folder / "data", train=(600, 600))
    callback = KillsOne(cluster)
    make_trainer(dataset, folder / "m", cluster=cluster, callbacks=[callback], epochs=5000).fit()
    return callback.told


ROWS, EPOCHS = 1600, 6


def made_in_memory(folder: Path, cluster: LocalCluster) -> dict[str, Any]:
    """Two kinds of datasets in memory, in two pipelines, and a worker that is killed."""
    table = make_rows(ROWS, seed=1)
    tags = tf.ragged.constant(table["tags"].to_pylist(), dtype=tf.int64)
    columns = {name: table[name].to_numpy() for name in table.column_names if name != "tags"}

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices({**columns, "tags": tags})
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        return data.batch(64)

    dataset = embedps.describe_dataset(folder / "described", make(tf.distribute.InputContext()))
    found: dict[str, Any] = {}
    for resumable in (True, False):
        model_dir = folder / f"{resumable}"
        callback = KillsOne(cluster, ends_run=False)
        made = embedps.DatasetFunction(function=make, batches=13, pipelines=2, resumable=resumable)
        trainer = make_trainer(
            dataset,
            model_dir,
            cluster=cluster,
            recommender=MIXED,
            callbacks=[callback],
            epochs=EPOCHS,
            unit_rows=256,
            dataset_fn=made,
        )
        result = trainer.fit()
        counts = visits(model_dir, ROWS)
        found[f"{resumable}"] = {
            "killed": "killed" in callback.told,
            "units": [result.units.done, result.units.total],
            "fewest": int(counts.min()),
            "examples": result.examples,
            "visits": int(counts.sum()),
        }
    return found


def in_step(folder: Path, cluster: LocalCluster) -> list[str]:
    """Runs of files and of the same rows in memory, on workers in step."""
    files: dict[str, Any] = {"train": (600,), "evaluation": (100,), "row_group_rows": 512}
    dataset = write_dataset(folder / "data", **files)
    rows = read_split(dataset, "train")
    columns = {name: rows[name].to_numpy() for name in ("label", *COLUMNS)}

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        size = context.get_per_replica_batch_size(64)
        return tf.data.Dataset.from_tensor_slices(columns).batch(size)

    fields: dict[str, Any] = {**FIELDS, "sync": "full", "shuffle": False, "epochs": 2}
    for name, made in (("files", None), ("memory", make)):
        trainer = make_trainer(dataset, folder / name, cluster=cluster, dataset_fn=made, **fields)
        trainer.fit()
    return [str(folder / "files"), str(folder / "memory")]


def main() -> None:
    directory = Path(sys.argv[1])
    found = {}
    with LocalCluster(num_ps=1, num_workers=2, log_dir=directory / "logs") as cluster:
        for run in (in_step, lost_worker, made_in_memory):
            found[run.__name__] = run(directory / run.__name__, cluster)
    print("found", json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
