"""Measures the checkpoints and the reader of embedps, against those of the peers."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.peers import protocol
from embedps.data.unit_reader import UnitReader
from embedps.tables import Adagrad, FeatureSpec, TableSpec
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.row_files import ShardFile

_INSERT_IDS = 1 << 16
_UNIT_ROWS = 32768


class Checkpoints:
    """A table with one accumulator per weight, in this process; its shard saves and restores it."""

    def __init__(self, work: protocol.Work) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=work.folder))
        self._numbers = itertools.count()
        self._collection = EmbeddingCollection(
            [TableSpec(name="t", embedding_dim=work.dim, optimizer=Adagrad())],
            [FeatureSpec(name="t", table="t")],
            devices=["/device:CPU:0"],
            container="benchmark-checkpoints",
        )
        for first in range(0, protocol.CHECKPOINT_ROWS, _INSERT_IDS):
            last = min(first + _INSERT_IDS, protocol.CHECKPOINT_ROWS)
            self._touch(np.arange(first, last))
        self._files = self._write("base", {})

    def save(self) -> Callable[[], None]:
        """Prepares a save of every row."""
        return lambda: self._keep(self._write("base", {}))

    def delta(self) -> Callable[[], None]:
        """Changes one row in a hundred; prepares a save of the changed rows."""
        self._touch(np.arange(next(self._numbers) % 100, protocol.CHECKPOINT_ROWS, 100))
        cuts = {(f.group, f.shard): f.cut for f in self._files}
        return lambda: self._keep(self._write("delta", cuts))

    def restore(self) -> Callable[[], None]:
        """Saves; prepares a restore that checks checksums, as the trainer's does."""
        self._keep(self._write("base", {}))

        def restore() -> None:
            self._collection.clear()
            self._collection.files.load({f.group: [f.stored] for f in self._files})

        return restore

    def _touch(self, ids: Any) -> None:
        looked = self._collection.lookup({"t": tf.constant(ids, tf.int64)}, insert=True)
        gradients = [[tf.ones_like(rows) for rows in of_group] for of_group in looked.rows]
        self._collection.update(
            looked, gradients, learning_rate=tf.constant(0.01), step=tf.constant(1, tf.int64)
        )

    def _write(self, kind: Any, since: dict[tuple[str, int], int]) -> list[ShardFile]:
        folder = self._folder / str(next(self._numbers))
        for group in self._collection.groups:
            (folder / group.name).mkdir(parents=True)
        return self._collection.files.write(kind, str(folder), since=since)

    def _keep(self, files: list[ShardFile]) -> None:
        self._files = files
        for old in sorted(self._folder.iterdir(), key=lambda p: int(p.name))[:-2]:
            shutil.rmtree(old)


def reader(work: protocol.Work, variant: protocol.Variant) -> protocol.Measure:
    """Makes a measurement that reads units of the Parquet file in batches."""
    rows = len(work.labels) // _UNIT_ROWS * _UNIT_ROWS
    unit_input = UnitReader(
        batch_rows=variant.batch,
        labels=("label",),
        numerics=tuple(f"I{i + 1}" for i in range(work.num_numerics)),
        ids=tuple(f"C{i + 1}" for i in range(len(work.cardinalities))),
        shuffle_rows=_UNIT_ROWS if variant.kind == "shuffled" else 0,
    )
    path = tf.constant(str(work.folder / "batches.parquet"))

    @tf.function
    def read(first: tf.Tensor) -> tf.Tensor:
        opened = unit_input.open(path, first, tf.constant(_UNIT_ROWS, tf.int64), first)
        total = tf.constant(0.0)
        for _ in tf.range(_UNIT_ROWS // variant.batch):
            total += tf.reduce_sum(unit_input.next(opened).columns["label"])
        return total

    firsts = itertools.cycle(range(0, rows, _UNIT_ROWS))

    def measure(secs: float) -> dict[str, float]:
        began, examples = time.perf_counter(), 0
        while not examples or time.perf_counter() - began < secs:
            read(tf.constant(next(firsts), tf.int64))
            examples += _UNIT_ROWS
        return {"examples": examples, "secs": time.perf_counter() - began}

    return measure
