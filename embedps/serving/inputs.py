"""A request's tensors, and the batch of columns that a model gets of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedps.data.columns import Columns
from embedps.data.unit_reader import NUMERICS
from embedps.errors import UsageError

FINITE = "numbers that are finite in float32, or NaN where they are missing"
"""What columns of numbers must have."""
_UNFIT = re.compile(r"[^A-Za-z0-9_]")


def tensor_name(column: str) -> str:
    """Names a column's tensor: TensorFlow's names have letters, digits and underscores."""
    name = _UNFIT.sub("_", column)
    return name if name[:1].isalnum() else f"c{name}"


def lengths_name(column: str) -> str:
    """Names the tensor of the lengths of a column's lists."""
    return f"{tensor_name(column)}_lengths"


def rows_of(value: Any) -> tf.Tensor:
    """Gives the number of rows of a tensor or a ragged tensor, int64."""
    return (
        value.nrows(tf.int64)
        if isinstance(value, tf.RaggedTensor)
        else tf.shape(value, tf.int64)[0]
    )


def common_rows(values: Sequence[Any]) -> tf.Tensor:
    """Gives the rows of a request, int64: those of its tensors that do not have one row."""
    rows = tf.stack([rows_of(value) for value in values])
    return tf.where(tf.reduce_any(tf.equal(rows, 0)), tf.constant(0, tf.int64), tf.reduce_max(rows))


def refuse(names: Sequence[str], is_wrong: tf.Tensor, rule: str) -> None:
    """Adds an assertion that no column has a wrong value; a tf.function runs it.

    Args:
      is_wrong: bool [names].
      rule: what a column must have.
    """
    wrong = tf.boolean_mask(tf.constant(names), is_wrong)
    tf.debugging.Assert(~tf.reduce_any(is_wrong), [f"a column must have {rule}, but not:", wrong])


class Inputs:
    """The columns of a request."""

    def __init__(self, columns: Columns, *, missing_id: int) -> None:
        """Takes the columns.

        Raises:
          UsageError: two columns' tensors would have one name.
        """
        self.columns = columns
        self._missing_id = missing_id
        classes = [label.name for label in columns.labels if label.kind == "classes"]
        self._integers = {*classes, *columns.integers, *columns.ids, *columns.id_lists}
        self._lists = (*columns.id_lists, *columns.float_lists)
        names = [tensor_name(name) for name in columns.names]
        names += [lengths_name(name) for name in self._lists]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(
                f"each tensor of a request must have a name of its own, but {repeated[0]!r} would "
                "be of two columns: rename a column in the dataset's schema"
            )

    def specs(self) -> dict[str, tf.TensorSpec]:
        """Gives the tensors of a request by name; a list's values lie one after another."""
        specs = {}
        for column in self.columns.names:
            name = tensor_name(column)
            specs[name] = tf.TensorSpec([None], self._dtype(column), name=name)
        for column in self._lists:
            name = lengths_name(column)
            specs[name] = tf.TensorSpec([None], tf.int64, name=name)
        return specs

    def zeros(self, rows: int) -> dict[str, npt.NDArray[Any]]:
        """Makes the tensors of a request of zeros and empty lists."""
        made = {}
        for name, spec in self.specs().items():
            made[name] = np.zeros(rows, spec.dtype.as_numpy_dtype)
        for column in self._lists:
            made[tensor_name(column)] = made[tensor_name(column)][:0]
        return made

    def examples(self, rows: int) -> list[bytes]:
        """Makes serialized tf.Examples of zeros and empty lists."""
        feature = {}
        for column in self.columns.names:
            values = [] if column in self._lists else [0]
            if self._dtype(column) == tf.int64:
                feature[column] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
            else:
                feature[column] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        return [example.SerializeToString()] * rows

    def batch(self, given: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Makes the columns of a request's tensors."""
        made: dict[str, Any] = {}
        for column in self.columns.names:
            made[column] = given[tensor_name(column)]
            if column in self._lists:
                made[column] = tf.RaggedTensor.from_row_lengths(
                    made[column], given[lengths_name(column)]
                )
        return made

    def parse(self, examples: tf.Tensor) -> dict[str, Any]:
        """Makes the columns of serialized tf.Examples; an absent number or id is a missing one."""
        wanted: dict[str, Any] = {}
        for column in self.columns.names:
            dtype = self._dtype(column)
            if column in self._lists:
                wanted[column] = tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
            elif column in self.columns.numerics:
                wanted[column] = tf.io.FixedLenFeature([], dtype, float("nan"))
            elif column in self.columns.ids:
                wanted[column] = tf.io.FixedLenFeature([], dtype, self._missing_id)
            else:
                wanted[column] = tf.io.FixedLenFeature([], dtype)
        return dict(tf.io.parse_example(examples, wanted))

    def with_numerics(self, batch: Mapping[str, Any], rows: tf.Tensor) -> dict[str, Any]:
        """Adds the matrix of all numbers."""
        numbers = [batch[name] for name in self.columns.numerics]
        matrix = tf.stack(numbers, axis=1) if numbers else tf.zeros([rows, 0])
        return {**batch, NUMERICS: matrix}

    def refuse_infinite(self, batch: Mapping[str, Any]) -> None:
        """Adds an assertion that no number of a batch of `with_numerics` is infinite.

        A network makes NaN of an infinite number, and may make any other number of that.
        """
        if self.columns.numerics:
            is_wrong = tf.reduce_any(tf.math.is_inf(batch[NUMERICS]), axis=0)
            refuse(self.columns.numerics, is_wrong, FINITE)
        if lists := self.columns.float_lists:
            found = [tf.reduce_any(tf.math.is_inf(batch[name].values)) for name in lists]
            refuse(lists, tf.stack(found), FINITE)

    def _dtype(self, column: str) -> tf.DType:
        return tf.int64 if column in self._integers else tf.float32
