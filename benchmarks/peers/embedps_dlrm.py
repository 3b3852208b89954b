"""Measures embedps itself: the trainer's own unit function, embedded or on a local cluster.

Settings: num_ps (0 is embedded), num_workers, shuffle, overlap, sync, on_lost_worker,
steps_per_unit (of each worker that has a part of the unit). It reads and shuffles its examples from
Parquet while it trains, as in a run; the peers have theirs in memory. The rows of all examples
exist before the measurement, because the peers' tables have a row for every id from the start.
"""

from __future__ import annotations

import atexit
import collections
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import tensorflow as tf

from benchmarks.example_columns import describe
from benchmarks.peers import embedps_files, protocol
from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset_metadata import DataFile, Split
from embedps.engine.dense_optimizer import make_dense_optimizer
from embedps.engine.step_model import StepModel
from embedps.engine.steps.interface import UnitFunction
from embedps.engine.unit_functions import make_train_unit
from embedps.models import dlrm
from embedps.run.cluster_config import ClusterConfig
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.gang_scheduler import GangScheduler
from embedps.scheduling.ledger import Ledger, Unit
from embedps.tables.collection import EmbeddingCollection

_STEPS_PER_UNIT = 16
_INSERT_ROWS = 32768
_FILE = "batches.parquet"
_EPOCHS = 1000  # more than a measurement trains
_containers = itertools.count()


class Embedps:
    """Trains with one set of tables per sparse optimizer, and one network per variant."""

    def __init__(self, work: protocol.Work, cluster: Cluster) -> None:
        self._work = work
        self._cluster = cluster
        self._collections: dict[str, EmbeddingCollection] = {}
        self._checkpoints: embedps_files.Checkpoints | None = None
        self._names = [f"C{i + 1}" for i in range(len(work.cardinalities))]
        self.network: Any = None  # the network of the variant prepared last

    def __del__(self) -> None:
        for collection in self._collections.values():
            collection.drop()

    def prepare(self, variant: protocol.Variant) -> protocol.Measure:
        if variant.task == "input":
            return embedps_files.reader(self._work, variant)
        if variant.task == "checkpoint":
            self._checkpoints = self._checkpoints or embedps_files.Checkpoints(self._work)
            return protocol.checkpointer(self._checkpoints, variant.kind)
        config = dlrm.Config(
            embedding_dim=self._work.dim,
            bottom_mlp=tuple(self._work.bottom_mlp[:-1]),  # DLRM adds the layer of dim
            top_mlp=tuple(self._work.top_mlp[:-1]),  # and the logit
            sparse_optimizer=variant.kind,
            compute_dtype=variant.precision,
        )
        columns = describe(self._work.num_numerics, len(self._names))
        with self._cluster.scope():
            model = StepModel(dlrm.make(config, columns), columns)
        if variant.kind not in self._collections:
            self._collections[variant.kind] = EmbeddingCollection(
                model.tables,
                model.features,
                devices=self._cluster.shard_devices,
                container=f"benchmark-{next(_containers)}",
            )
            self._make_rows(self._collections[variant.kind])
        collection = self._collections[variant.kind]
        prepare = {"train": self._train, "lookup": self._lookup}[variant.task]
        return prepare(variant, model, collection)

    def _make_rows(self, collection: EmbeddingCollection) -> None:
        """Looks every id up once, which creates its row."""

        @tf.function
        def insert(ids: tf.Tensor) -> tf.Tensor:
            columns = dict(zip(self._names, tf.unstack(ids), strict=True))
            collection.lookup(columns, insert=True)
            return tf.size(ids)

        ids = self._work.ids
        for first in range(0, ids.shape[1], _INSERT_ROWS):
            part = tf.constant(ids[:, first : first + _INSERT_ROWS])
            self._cluster.fetch(self._cluster.schedule(insert, (part,)))

    def _train(
        self, variant: protocol.Variant, model: StepModel, collection: EmbeddingCollection
    ) -> protocol.Measure:
        settings = self._work.settings
        sync = settings.get("sync", "none")
        in_groups = settings.get("on_lost_worker") == "continue"
        in_step = sync != "none" and not in_groups
        num_ranks = self._cluster.num_workers if in_step else 1
        unit_steps = num_ranks * settings.get("steps_per_unit", _STEPS_PER_UNIT)
        rows = len(self._work.labels)
        unit_rows = min(rows, unit_steps * variant.batch)
        shuffle = settings.get("shuffle", True)
        dense = "sgd" if variant.kind == "sgd" else "adagrad"
        with self._cluster.scope():
            self.network = model.model
            optimizer = make_dense_optimizer(dense, 0.01, self.network)
        train_unit = make_train_unit(
            model,
            optimizer,
            collection,
            self._cluster.strategy,
            model.input(batch_rows=variant.batch, shuffle_rows=unit_rows if shuffle else 0),
            overlap=settings.get("overlap", ClusterConfig.overlap),
            sync=sync,
            backup_workers=0 if in_groups else None,
        )
        units_per_sec = 1.0
        if in_step:
            run = self._run_in_step(train_unit, unit_rows, variant.batch)
        else:
            run = self._run_alone(train_unit, unit_rows, unit_steps)

        def measure(secs: float) -> dict[str, float]:
            nonlocal units_per_sec
            units = max(self._cluster.num_workers // num_ranks, round(secs * units_per_sec))
            began = time.perf_counter()
            run(units)
            took = time.perf_counter() - began
            units_per_sec = units / took
            return {"examples": units * unit_rows, "secs": took}

        return measure

    def _run_alone(
        self, train_unit: UnitFunction, unit_rows: int, unit_steps: int
    ) -> Callable[[int], None]:
        """Returns what trains so many units, each on one worker."""
        path = tf.constant(str(self._work.folder / _FILE))
        numbers = itertools.count()

        def schedule() -> Any:
            unit = next(numbers)
            first = unit * unit_rows % (len(self._work.labels) - unit_rows + 1)
            of_unit = (first, unit_rows, unit, unit * unit_steps)
            arguments = [tf.constant(n, tf.int64) for n in of_unit]
            return self._cluster.schedule(train_unit, (path, *arguments, tf.constant(0.01)))

        def run(units: int) -> None:
            running = collections.deque(schedule() for _ in range(units))
            while running:
                self._cluster.fetch(running.popleft())

        return run

    def _run_in_step(
        self, train_unit: UnitFunction, unit_rows: int, batch_rows: int
    ) -> Callable[[int], None]:
        """Returns what trains so many units, each on all workers together."""
        rows = len(self._work.labels) // unit_rows * unit_rows
        file = DataFile(path=_FILE, rows=rows, bytes=0, xxh3_64="", row_groups=(rows,))
        dataset = dataclasses.replace(
            describe(self._work.num_numerics, len(self._names)),
            directory=self._work.folder,
            splits={"train": Split(rows=rows, positives=0, files=(file,))},
        )
        options = LedgerOptions(batch_rows=batch_rows, unit_rows=unit_rows, shuffle=False)
        ledger = Ledger(dataset, options, epochs=_EPOCHS)

        def arguments(unit: Unit) -> tuple[tf.Tensor, ...]:
            of_unit = (unit.first_row, unit.num_rows, unit.seed, unit.first_step)
            numbers = (tf.constant(n, tf.int64) for n in of_unit)
            return (tf.constant(unit.path), *numbers, tf.constant(0.01))

        def run(units: int) -> None:
            ledger.pause_at(ledger.num_done + units)
            with GangScheduler(
                self._cluster,
                ledger,
                train_unit,
                arguments=arguments,
                record=lambda *_: None,
                stop=threading.Event(),
            ) as scheduler:
                while scheduler.wait(60):
                    pass
            if scheduler.error is not None:
                raise scheduler.error

        return run

    def _lookup(
        self, variant: protocol.Variant, model: StepModel, collection: EmbeddingCollection
    ) -> protocol.Measure:
        if len(set(collection.devices)) > 1:
            raise protocol.UnsupportedError("lookups are measured in one process only")
        names = [f.name for f in model.features]
        data = [tf.constant(ids) for _, ids, _ in self._work.batches(variant.batch)]

        @tf.function
        def step(ids: tf.Tensor, number: tf.Tensor) -> None:
            columns = dict(zip(names, tf.unstack(ids), strict=True))
            looked = collection.lookup(columns, insert=True)
            with tf.GradientTape() as tape:
                tape.watch(looked.rows)
                vectors = collection.combine(looked)
                total = tf.add_n([tf.reduce_sum(v) for v in vectors.values()])
            gradients = tape.gradient(total, looked.rows)
            collection.update(looked, gradients, learning_rate=tf.constant(0.01), step=number)

        def run(number: int) -> None:
            step(data[number % len(data)], tf.constant(number, tf.int64))

        return protocol.stepper(run, variant.batch)


_cluster: Cluster | None = None


def _make(work: protocol.Work) -> Embedps:
    global _cluster
    if _cluster is None:
        num_ps, num_workers = work.settings.get("num_ps", 0), work.settings.get("num_workers", 1)
        if num_ps:
            _cluster = LocalCluster(
                num_ps=num_ps,
                num_workers=num_workers,
                log_dir=work.folder / "logs",
            )
        else:
            _cluster = EmbeddedCluster(num_workers=num_workers)
        atexit.register(_cluster.close)
    return Embedps(work, _cluster)


if __name__ == "__main__":
    protocol.serve(_make, ["tensorflow", "tf-keras", "pyarrow", "numpy"])
