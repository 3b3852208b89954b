"""Measures TensorFlow's checkpoints and its record reader."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.peers import protocol

_RECORDS = 8192


class Checkpoints:
    """Saves a table and its accumulators by tf.train.Checkpoint, which has no deltas."""

    def __init__(self, work: protocol.Work) -> None:
        shape = (protocol.CHECKPOINT_ROWS, work.dim)
        self._folder = work.folder / "tensorflow"
        self._path = str(self._folder / "checkpoint")
        self._weight = tf.Variable(tf.random.uniform(shape))
        accumulator = tf.Variable(tf.random.uniform(shape))
        self._checkpoint = tf.train.Checkpoint(weight=self._weight, accumulator=accumulator)

    def save(self) -> Callable[[], None]:
        def save() -> None:
            self._checkpoint.write(self._path)
            protocol.sync(*self._folder.iterdir())

        return save

    def delta(self) -> Callable[[], None]:
        rows = tf.range(0, protocol.CHECKPOINT_ROWS, 100)
        ones = tf.ones([len(rows), self._weight.shape[1]])
        self._weight.scatter_add(tf.IndexedSlices(ones, rows))
        return self.save()

    def restore(self) -> Callable[[], None]:
        self._checkpoint.write(self._path)
        return lambda: self._checkpoint.read(self._path).assert_consumed()


def reader(work: protocol.Work, variant: protocol.Variant) -> protocol.Measure:
    """Makes a measurement that reads TFRecords; two threads parse whole batches."""
    path = work.folder / "examples.tfrecord"
    columns: dict[str, Any] = {"label": work.labels[:_RECORDS]}
    columns |= {f"I{i + 1}": work.numerics[:_RECORDS, i] for i in range(work.num_numerics)}
    ids = {f"C{i + 1}": column[:_RECORDS] for i, column in enumerate(work.ids)}
    if not path.exists():
        _write(str(path), columns, ids)
    features = {name: tf.io.FixedLenFeature([], tf.float32) for name in columns}
    features |= {name: tf.io.FixedLenFeature([], tf.int64) for name in ids}
    data = tf.data.TFRecordDataset(str(path)).repeat()
    if variant.kind == "shuffled":
        data = data.shuffle(_RECORDS)
    data = data.batch(variant.batch)
    data = data.map(lambda x: tf.io.parse_example(x, features), num_parallel_calls=2).prefetch(4)
    batches = iter(data)

    @tf.function
    def read() -> tf.Tensor:
        return tf.reduce_sum(next(batches)["label"])

    def measure(secs: float) -> dict[str, float]:
        began, examples = time.perf_counter(), 0
        while not examples or time.perf_counter() - began < secs:
            read()
            examples += variant.batch
        return {"examples": examples, "secs": time.perf_counter() - began}

    return measure


def _write(path: str, numbers: dict[str, Any], ids: dict[str, Any]) -> None:
    names = (*numbers, *ids)
    with tf.io.TFRecordWriter(path) as writer:
        for row in zip(*itertools.chain(numbers.values(), ids.values()), strict=True):
            feature = {}
            for name, value in zip(names, row, strict=True):
                if name in ids:
                    feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
                else:
                    feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
