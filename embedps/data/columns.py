"""Columns of a dataset that a model gets, by how the native reader gives them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import LabelColumn
from embedps.data.unit_reader import NUMERICS, UnitReader
from embedps.errors import UsageError

SAMPLE_ROWS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Names columns of a dataset by their kinds.

    Attributes:
      labels: of any kind.
      weight: of the examples; empty if there is none.
      own_weights: of single labels.
      numerics: numbers, NaN if missing.
      integers: keys and times.
      ids: one id per example.
      id_lists: lists of ids.
      float_lists: lists of numbers.
    """

    labels: tuple[LabelColumn, ...] = ()
    weight: str = ""
    own_weights: tuple[str, ...] = ()
    numerics: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    id_lists: tuple[str, ...] = ()
    float_lists: tuple[str, ...] = ()

    @classmethod
    def of(cls, dataset: Dataset, names: Collection[str] | None = None) -> Columns:
        """Gives a dataset's columns: all, or those of some names.

        Raises:
          UsageError: the dataset has no column of such a name.
        """
        columns = cls(
            labels=dataset.labels,
            weight=dataset.weight,
            own_weights=tuple(name for name in dataset.weights if name != dataset.weight),
            numerics=tuple(f.name for f in dataset.numeric),
            integers=(*dataset.keys, *([dataset.timestamp] if dataset.timestamp else [])),
            ids=tuple(f.name for f in dataset.categorical if not f.ragged),
            id_lists=tuple(f.name for f in dataset.categorical if f.ragged),
            float_lists=dataset.float_lists,
        )
        if names is None:
            return columns
        if absent := [name for name in names if name not in columns.names]:
            raise UsageError(
                f"{dataset.directory} has no column {absent[0]!r}, which the model reads: its "
                f"columns are {', '.join(columns.names)}"
            )
        return columns.keep(names)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels."""
        return tuple(label.name for label in self.labels)

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of all columns of weights."""
        return (*([self.weight] if self.weight else []), *self.own_weights)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of labels and weights, which no prediction needs."""
        return (*self.label_names, *self.weights)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        singles = (*self.label_names, *self.weights, *self.numerics, *self.integers, *self.ids)
        return (*singles, *self.id_lists, *self.float_lists)

    def keep(self, names: Collection[str]) -> Columns:
        """Gives those among these columns that have one of some names."""
        return Columns(
            labels=tuple(label for label in self.labels if label.name in names),
            weight=self.weight if self.weight in names else "",
            own_weights=tuple(name for name in self.own_weights if name in names),
            numerics=tuple(name for name in self.numerics if name in names),
            integers=tuple(name for name in self.integers if name in names),
            ids=tuple(name for name in self.ids if name in names),
            id_lists=tuple(name for name in self.id_lists if name in names),
            float_lists=tuple(name for name in self.float_lists if name in names),
        )

    def reader(self, *, batch_rows: int, shuffle_rows: int, missing_id: int) -> UnitReader:
        """Makes the reader of these columns; see UnitReader."""
        loose = tuple(label for label in self.labels if label.optional or label.soft)
        strict = [label for label in self.labels if label not in loose]
        return UnitReader(
            batch_rows=batch_rows,
            shuffle_rows=shuffle_rows,
            missing_id=missing_id,
            labels=tuple(label.name for label in strict if label.kind == "binary"),
            class_labels=tuple(
                (label.name, label.classes) for label in strict if label.kind == "classes"
            ),
            floats=tuple(label.name for label in strict if label.kind == "number"),
            loose_labels=loose,
            weights=self.weights,
            numerics=self.numerics,
            integers=self.integers,
            ids=self.ids,
            id_lists=self.id_lists,
            float_lists=self.float_lists,
        )

    def sample(self) -> dict[str, Any]:
        """Makes a batch of SAMPLE_ROWS rows, as the reader gives it."""
        rows = SAMPLE_ROWS
        batch: dict[str, Any] = {NUMERICS: tf.ones([rows, len(self.numerics)])}
        for label in self.labels:
            if label.kind == "classes":
                batch[label.name] = tf.constant([0, label.classes - 1], tf.int64)
            else:
                batch[label.name] = tf.constant([0.0, 1.0])
        floats = (*self.numerics, *self.weights)
        batch |= {name: tf.ones([rows]) for name in floats}
        batch |= {name: tf.ones([rows], tf.int64) for name in (*self.integers, *self.ids)}
        # No list is empty: Keras' mean over nothing is NaN, and a dataset may have no such list.
        splits = tf.constant([0, 1, 3], tf.int64)
        for names, dtype in ((self.id_lists, tf.int64), (self.float_lists, tf.float32)):
            lists = tf.RaggedTensor.from_row_splits(tf.ones([3], dtype), splits)
            batch |= dict.fromkeys(names, lists)
        return batch

    def targets_of(
        self, batch: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Gives the labels of a batch as compiled models take them.

        Returns:
          By label: its values, a missing one as 0; its weights, 0 where it is missing, if it has
          any; and which of its values are there, bool [batch], if some may be missing.
        """
        labels, weights, present = {}, {}, {}
        for label in self.labels:
            labels[label.name] = value = batch[label.name]
            if weight := label.weight or self.weight:
                weights[label.name] = batch[weight]
            if label.optional:
                there = present[label.name] = is_present(value)
                labels[label.name] = tf.where(there, value, tf.zeros_like(value))
                counted = tf.cast(there, tf.float32)
                weights[label.name] = counted * weights.get(label.name, 1.0)
        return labels, weights, present

    def fill(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Adds the columns that a batch lacks, with zeros and empty lists.

        Args:
          batch: of some of these columns, and NUMERICS.
        """
        absent = [name for name in self.names if name not in batch]
        if not absent:
            return dict(batch)
        rows = tf.shape(batch[NUMERICS], tf.int64)[0]
        classes = [label.name for label in self.labels if label.kind == "classes"]
        filled = dict(batch)
        for name in absent:
            is_integer = name in (*classes, *self.integers, *self.ids, *self.id_lists)
            dtype = tf.int64 if is_integer else tf.float32
            if name in (*self.id_lists, *self.float_lists):
                splits = tf.zeros([rows + 1], tf.int64)
                values = tf.zeros([0], dtype)
                filled[name] = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
            else:
                filled[name] = tf.zeros([rows], dtype)
        return filled


def is_present(labels: tf.Tensor) -> tf.Tensor:
    """Tells which labels of a batch are not missing, bool [batch]."""
    return labels >= 0 if labels.dtype.is_integer else ~tf.math.is_nan(labels)
