"""What a worker reads: batches of a unit, a Parquet file's range of rows, by the native reader."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from embedps import kernels
from embedps.config_fields import MAX_COUNT
from embedps.errors import UsageError


class Batch(NamedTuple):
    """Rows of a unit; `num_rows` is 0 once the unit is at its end."""

    num_rows: tf.Tensor
    """int64 scalar."""
    labels: tf.Tensor
    """float32 [num_rows]; [0] without a label column, so that a loop can carry it."""
    numerics: tf.Tensor
    """float32 [num_rows, columns]; NaN is missing."""
    ids: dict[str, tf.Tensor | tf.RaggedTensor]
    """int64 [num_rows] for a column of ids, ragged [num_rows, None] for one of id lists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitReader:
    """The columns a step takes from a unit, and how its rows are batched and shuffled.

    A reader lives where the op that opens it runs: inside a function scheduled onto a worker, that
    is the worker, whose thread reads ahead. It ends with the last tensor that holds it.
    """

    batch_rows: int
    """Rows a batch; a unit's last may have fewer."""
    label: str | None = None
    """A column of zeros and ones, without nulls."""
    numerics: tuple[str, ...] = ()
    """Columns of finite numbers; NaN and null are NaN, which is missing."""
    ids: tuple[str, ...] = ()
    """Columns of one integer a row; a null becomes `missing_id`."""
    id_lists: tuple[str, ...] = ()
    """Columns of a list of integers a row; a null list is empty, a null in it is `missing_id`."""
    shuffle_rows: int = 0
    """Rows are permuted within runs of so many, which the worker holds in memory; 0 keeps order."""
    missing_id: int = -1
    prefetch_batches: int = 4
    """Finished batches held ready."""

    def __post_init__(self) -> None:
        for name, least in (("batch_rows", 1), ("shuffle_rows", 0), ("prefetch_batches", 1)):
            value = getattr(self, name)
            if not least <= value <= MAX_COUNT:
                raise UsageError(f"{name} must be in [{least}, {MAX_COUNT}] but is {value}")
        features = [*self.numerics, *self.ids, *self.id_lists]
        if not features:
            raise UsageError("a unit's input must have a column of numerics, ids or id_lists")
        columns = [*features, *([] if self.label is None else [self.label])]
        repeated = sorted({name for name in columns if columns.count(name) > 1})
        if repeated:
            raise UsageError(f"a unit's input must name a column once, it repeats {repeated}")
        if "" in columns:
            raise UsageError("a unit's input must have no column of an empty name")

    def open(self, path: Any, first_row: Any, num_rows: Any, seed: Any = 0) -> tf.Tensor:
        """Opens a unit; its rows are read ahead from now on.

        Args:
          path: string scalar, the Parquet file as the worker sees it.
          first_row: int64 scalar.
          num_rows: int64 scalar; -1 reads to the file's end.
          seed: int64 scalar; the shuffle follows from it alone, whatever the machine.

        Returns:
          The reader, a resource scalar that must stay on the device that made it.

        Raises:
          tf.errors.NotFoundError: there is no such file.
          tf.errors.DataLossError: it is not a Parquet file, or no regular file.
          tf.errors.InvalidArgumentError: a column is not in it or not of a type that fits, or the
            rows are not within it.
        """
        ops = kernels.load()
        return ops.embedps_unit_reader(
            path=tf.convert_to_tensor(path, tf.string),
            first_row=tf.convert_to_tensor(first_row, tf.int64),
            num_rows=tf.convert_to_tensor(num_rows, tf.int64),
            seed=tf.convert_to_tensor(seed, tf.int64),
            label_column=self.label or "",
            float_columns=list(self.numerics),
            id_columns=list(self.ids),
            list_columns=list(self.id_lists),
            batch_rows=self.batch_rows,
            shuffle_rows=self.shuffle_rows,
            missing_id=self.missing_id,
            prefetch_batches=self.prefetch_batches,
        )

    def next(self, reader: tf.Tensor) -> Batch:
        """Takes the next batch of a unit that `open` opened; one of no rows at its end.

        Raises:
          tf.errors.DataLossError: the file's content cannot be read, a label is neither 0 nor 1, or
            a number is infinite.
        """
        out = kernels.load().embedps_unit_reader_next(
            reader,
            num_float_columns=len(self.numerics),
            num_id_columns=len(self.ids),
            num_list_columns=len(self.id_lists),
        )
        ids: dict[str, tf.Tensor | tf.RaggedTensor] = dict(zip(self.ids, out.ids, strict=True))
        lists = zip(self.id_lists, out.list_values, out.list_splits, strict=True)
        for name, values, splits in lists:
            ids[name] = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        return Batch(num_rows=out.num_rows, labels=out.labels, numerics=out.floats, ids=ids)
