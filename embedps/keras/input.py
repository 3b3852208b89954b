"""Batches of a dataset as a tf.data pipeline, for `fit`, `evaluate`, `predict` and own loops."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from embedps import kernels
from embedps.data.columns import Columns
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.ledger import Ledger

_UNIT_BATCHES = 32


def read(
    dataset: Dataset | Path | str,
    split: str = "train",
    *,
    batch_size: int = 2048,
    columns: Sequence[str] | None = None,
    targets: bool = True,
    shuffle: bool | None = None,
    unit_rows: int | None = None,
    seed: int = 0,
) -> tf.data.Dataset:
    """Reads a split in batches, by the engine's native reader, in the engine's order.

    Each iteration, such as an epoch of `fit`, visits each row once. If it shuffles, it has the
    order of that epoch of a run by the engine with the same `seed`, `unit_rows` and `batch_size`.
    In a dataset function of `tf.distribute`, each iteration has the order of the first: give each
    worker a `seed` of its own, such as `context.input_pipeline_id`.

    Args:
      dataset: the dataset, or its directory.
      split: its name.
      batch_size: rows per batch. The last batch of a unit may have fewer.
      columns: those to read, labels and the weight too; by default all.
      targets: whether batches are (features, labels), or (features, labels, weights) if the dataset
        has weights, as compiled models take them. Otherwise a batch is one dict of all columns, as
        a `tfrs.Model` takes it. Several labels are a dict; so are weights that differ. A missing
        label is 0 of weight 0: give its metrics as `weighted_metrics`.
      shuffle: whether units (ranges of rows of a file) and the rows within each are shuffled;
        by default those of "train" are.
      unit_rows: rows per unit; 32 batches by default.
      seed: of the shuffle.

    Returns:
      A tf.data.Dataset of known cardinality. Features are a dict by column: numbers float32
      [batch], NaN if missing, and all of them under "numerics", float32 [batch, columns]; ids int64
      [batch]; lists of ids ragged int64 [batch, None]. `embedps.data.unit_reader.Batch` has all.

    Raises:
      UsageError: there is no such column, or no column is left to read; or a number is out of
        range.
      DatasetError: there is no such split, or the dataset cannot be read.
    """
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"batch_size must be an integer from 1 on but got {batch_size!r}")
    unit_rows = _UNIT_BATCHES * batch_size if unit_rows is None else unit_rows
    shuffle = split == "train" if shuffle is None else shuffle
    options = LedgerOptions(
        split=split, batch_rows=batch_size, unit_rows=unit_rows, shuffle=shuffle, seed=seed
    )
    epoch = Ledger(dataset, options, epochs=1)
    chosen = Columns.of(dataset, columns)
    reader = chosen.reader(
        batch_rows=batch_size,
        shuffle_rows=unit_rows if shuffle else 0,
        missing_id=dataset.missing_id,
    )
    kernels.load()
    if tf.executing_eagerly():
        units = tf.data.Dataset.from_generator(
            _Iterations(dataset, options).units,
            output_signature=(
                tf.TensorSpec([], tf.string),
                *(tf.TensorSpec([], tf.int64) for _ in range(3)),
            ),
        )
    else:  # of a worker, which has no Python
        listed = [(u.path, u.first_row, u.num_rows, u.seed) for u in epoch.units_of(0)]
        paths, *numbers = zip(*listed, strict=True)
        units = tf.data.Dataset.from_tensor_slices(
            (list(paths), *(tf.constant(each, tf.int64) for each in numbers))
        )

    def batches_of(
        path: tf.Tensor, first_row: tf.Tensor, num_rows: tf.Tensor, unit_seed: tf.Tensor
    ) -> tf.data.Dataset:
        opened = reader.open(path, first_row, num_rows, unit_seed)
        batches = tf.data.Dataset.range(-(-num_rows // batch_size))
        return batches.map(lambda _: reader.next(opened).columns)

    batches = units.flat_map(batches_of)
    batches = batches.apply(tf.data.experimental.assert_cardinality(epoch.steps_per_epoch))
    if targets:
        if not chosen.labels:
            raise UsageError(
                "batches with targets must have a label among the columns but got "
                f"{list(columns or ())}: name it, or give targets=False"
            )
        batches = batches.map(lambda batch: _with_targets(batch, chosen))
    return batches.prefetch(tf.data.AUTOTUNE)


class _Iterations:
    """Gives the units of one epoch per iteration."""

    def __init__(self, dataset: Dataset, options: LedgerOptions) -> None:
        self._dataset = dataset
        self._options = options
        self._begun = 0
        self._lock = threading.Lock()

    def units(self) -> Iterator[tuple[str, int, int, int]]:
        with self._lock:
            self._begun += 1
            epochs = self._begun if self._options.shuffle else 1
        ledger = Ledger(self._dataset, self._options, epochs=epochs)
        for unit in ledger.units_of(epochs - 1):
            yield unit.path, unit.first_row, unit.num_rows, unit.seed


def _with_targets(batch: dict[str, Any], columns: Columns) -> tuple[Any, ...]:
    features = {name: value for name, value in batch.items() if name not in columns.targets}
    wanted, weights, _ = columns.targets_of(batch)
    labels = wanted if len(wanted) > 1 else wanted[columns.label_names[0]]
    if not weights:
        return features, labels
    is_one = len(wanted) == 1 or all(w is next(iter(weights.values())) for w in weights.values())
    if is_one and len(weights) == len(wanted):
        return features, labels, next(iter(weights.values()))
    rows = tf.ones_like(batch[columns.label_names[0]], tf.float32)
    return features, labels, {name: weights.get(name, rows) for name in wanted}
