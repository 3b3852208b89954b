"""Reads batches of a unit (a row range of a Parquet file) on a worker, by the native reader."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from embedps import kernels
from embedps.config_fields import MAX_COUNT
from embedps.data.dataset_metadata import MISSING_CLASS, LabelColumn
from embedps.errors import UsageError

NUMERICS = "numerics"
"""The name of all numeric columns together, in a batch."""


class Batch(NamedTuple):
    """Holds rows of a unit; `num_rows` is 0 after the unit's end."""

    num_rows: tf.Tensor
    """int64 scalar."""
    columns: dict[str, tf.Tensor | tf.RaggedTensor]
    """By name: labels, weights and floats float32 [num_rows]; numerics float32 [num_rows] (NaN is
    missing), and all of them under "numerics", float32 [num_rows, columns]; ids, integers and class
    labels int64 [num_rows]; lists of ids ragged int64 [num_rows, None]; lists of floats ragged
    float32 [num_rows, None] (NaN is missing)."""


class UnitInput(Protocol):
    """Reads the batches of units on a worker: from files, or from what a user's function makes."""

    @property
    def batch_rows(self) -> int:
        """Rows per batch; a last batch may have fewer."""

    def open(self, path: Any, first_row: Any, num_rows: Any, seed: Any = 0) -> tf.Tensor:
        """Opens a unit; gives its reader, a resource of the worker."""

    def next(self, reader: tf.Tensor) -> Batch:
        """Returns a reader's next batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitReader:
    """Says which columns a step reads from a unit, and how rows are batched and shuffled.

    A reader is a resource on the device where the op that opens it runs. In a function scheduled
    onto a worker, this is the worker; a thread there reads ahead. The reader is freed with the last
    tensor that refers to it.
    """

    batch_rows: int
    """Rows per batch; a unit's last batch may have fewer."""
    labels: tuple[str, ...] = ()
    """Columns of labels: zeros and ones, no nulls."""
    class_labels: tuple[tuple[str, int], ...] = ()
    """Columns of labels with their numbers of classes: integers in [0, classes), no nulls."""
    loose_labels: tuple[LabelColumn, ...] = ()
    """Columns of labels that are soft, or that a row may lack; see LabelColumn."""
    weights: tuple[str, ...] = ()
    """Columns of finite numbers of at least 0, no nulls."""
    numerics: tuple[str, ...] = ()
    """Columns of finite numbers; a null becomes NaN, and NaN means missing."""
    floats: tuple[str, ...] = ()
    """Columns of finite numbers, no nulls."""
    integers: tuple[str, ...] = ()
    """Columns of one integer per row, no nulls."""
    ids: tuple[str, ...] = ()
    """Columns of one integer per row; a null becomes `missing_id`."""
    id_lists: tuple[str, ...] = ()
    """Columns of one list of integers per row; a null list is empty, a null in it `missing_id`."""
    float_lists: tuple[str, ...] = ()
    """Columns of one list of finite numbers per row; a null list is empty, a null in it NaN."""
    shuffle_rows: int = 0
    """Rows are shuffled in blocks of this size, held in the worker's memory; 0 keeps the order."""
    missing_id: int = -1
    prefetch_batches: int = 4
    """How many batches are read ahead."""

    def __post_init__(self) -> None:
        for name, least in (("batch_rows", 1), ("shuffle_rows", 0), ("prefetch_batches", 1)):
            value = getattr(self, name)
            if not least <= value <= MAX_COUNT:
                raise UsageError(f"{name} must be in [{least}, {MAX_COUNT}] but is {value}")
        if not (self.numerics or self._single_integers or self.id_lists or self.float_lists):
            raise UsageError(
                "a unit's input must have a column of numerics, ids, integers or lists"
            )
        singles = [*self._loose_floats, *self._single_floats, *self._single_integers]
        columns = [*self.numerics, *singles, *self.id_lists, *self.float_lists]
        repeated = sorted({name for name in columns if columns.count(name) > 1})
        if repeated:
            raise UsageError(f"a unit's input must name each column once, it repeats {repeated}")
        if NUMERICS in columns:
            raise UsageError(
                f"a column must not be named {NUMERICS!r}: batches have all numbers by that name"
            )
        if "" in columns:
            raise UsageError("a unit's input must not have a column with an empty name")
        for name, classes in self.class_labels:
            if not 1 <= classes <= MAX_COUNT:
                raise UsageError(
                    f"label {name!r} must have 1 to {MAX_COUNT} classes but has {classes}"
                )

    @property
    def _loose_floats(self) -> tuple[str, ...]:
        """The labels that are read as numbers, as these may be NaN."""
        return tuple(label.name for label in self.loose_labels if label.kind != "classes")

    @property
    def _loose_classes(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.loose_labels if label.kind == "classes")

    @property
    def _single_floats(self) -> tuple[str, ...]:
        """The float32 columns beside the numerics, in the order of the op."""
        return (*self.labels, *self.weights, *self.floats)

    @property
    def _single_integers(self) -> tuple[str, ...]:
        """The int64 columns, in the order of the op."""
        classes = (name for name, _ in self.class_labels)
        return (*self.ids, *self.integers, *self._loose_classes, *classes)

    def open(self, path: Any, first_row: Any, num_rows: Any, seed: Any = 0) -> tf.Tensor:
        """Opens a unit and starts to read ahead.

        Args:
          path: string scalar, the Parquet file's path on the worker.
          first_row: int64 scalar.
          num_rows: int64 scalar; -1 reads to the file's end.
          seed: int64 scalar; it alone determines the shuffle, on any machine.

        Returns:
          The reader, a resource scalar; use it on the device that made it.

        Raises:
          tf.errors.NotFoundError: there is no such file.
          tf.errors.DataLossError: it is not a Parquet file, or not a regular file.
          tf.errors.InvalidArgumentError: a column is absent or has another type, or the row range
            exceeds the file.
        """
        ops = kernels.load()
        return ops.embedps_unit_reader(
            path=tf.convert_to_tensor(path, tf.string),
            first_row=tf.convert_to_tensor(first_row, tf.int64),
            num_rows=tf.convert_to_tensor(num_rows, tf.int64),
            seed=tf.convert_to_tensor(seed, tf.int64),
            numeric_columns=[*self.numerics, *self._loose_floats],
            label_columns=list(self.labels),
            weight_columns=list(self.weights),
            float_columns=list(self.floats),
            id_columns=list(self.ids),
            integer_columns=list(self._single_integers[len(self.ids) :]),
            integer_limits=[
                *(0 for _ in (*self.integers, *self._loose_classes)),
                *(n for _, n in self.class_labels),
            ],
            id_list_columns=list(self.id_lists),
            float_list_columns=list(self.float_lists),
            batch_rows=self.batch_rows,
            shuffle_rows=self.shuffle_rows,
            missing_id=self.missing_id,
            prefetch_batches=self.prefetch_batches,
        )

    def next(self, reader: tf.Tensor) -> Batch:
        """Returns the next batch of a reader that `open` returned; an empty one at the unit's end.

        Raises:
          tf.errors.DataLossError: the file's content cannot be read, or a value is none that its
            column may have: a label is neither 0 nor 1 or not among its classes, a number is
            infinite, a weight negative, or a null is where none may be. A column of lists is read
            as one of single numbers if each list has one element; else this is raised too.
        """
        out = kernels.load().embedps_unit_reader_next(
            reader,
            num_numeric_columns=len(self.numerics) + len(self._loose_floats),
            num_float_columns=len(self._single_floats),
            num_integer_columns=len(self._single_integers),
            num_id_list_columns=len(self.id_lists),
            num_float_list_columns=len(self.float_lists),
        )
        numerics = (*self.numerics, *self._loose_floats)
        columns: dict[str, tf.Tensor | tf.RaggedTensor] = {
            NUMERICS: out.numerics[:, : len(self.numerics)] if self._loose_floats else out.numerics
        }
        numbers = tf.unstack(out.numerics, len(numerics), axis=1)
        columns |= zip(numerics, numbers, strict=True)
        columns |= zip(self._single_floats, out.floats, strict=True)
        columns |= zip(self._single_integers, out.integers, strict=True)
        lists = [
            *zip(self.id_lists, out.id_list_values, out.id_list_splits, strict=True),
            *zip(self.float_lists, out.float_list_values, out.float_list_splits, strict=True),
        ]
        for name, values, splits in lists:
            columns[name] = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        for label in self.loose_labels:
            columns[label.name] = _checked(label, columns[label.name])
        return Batch(out.num_rows, columns)


def _checked(label: LabelColumn, values: tf.Tensor) -> tf.Tensor:
    """Checks a label that the native reader reads as numbers or integers, in a graph."""
    if label.kind == "classes":
        good = (values >= MISSING_CLASS) & (values < label.classes)
        what = f"a class from 0 to {label.classes - 1}"
    else:
        good, what = tf.math.is_finite(values), "a finite number"
        if label.kind == "binary":
            is_hard = (values == 0) | (values == 1)
            good = (values >= 0) & (values <= 1) if label.soft else is_hard
            what = "a number from 0 to 1" if label.soft else "0 or 1"
        if label.optional:
            good |= tf.math.is_nan(values)
    said = f"label {label.name} must be {what}" + ", or missing" * label.optional
    check = tf.debugging.Assert(tf.reduce_all(good), [said, "but is", values[~good][:1]])
    with tf.control_dependencies([check]):
        return tf.identity(values)
