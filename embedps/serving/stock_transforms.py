"""A dataset's transforms in stock ops of TensorFlow: features of raw values.

They give what `embedps.Transforms` gives. A number that takes a logarithm may differ
in its last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedps.data.columns import Columns
from embedps.data.dataset import MISSING_ID, RARE_ID
from embedps.errors import UsageError
from embedps.features.table_columns import Column, Feature
from embedps.features.table_schema import Table
from embedps.features.text_values import MAX_INT
from embedps.features.transform_steps import (
    DAY_MS,
    FIRST_WEEKDAY,
    HOUR_MS,
    Age,
    Bucketize,
    Clip,
    Hash,
    Hour,
    Log1p,
    RareIds,
    Standardize,
    TransformStep,
    Weekday,
)
from embedps.layers.id_hash import crossed, finalized, unsigned
from embedps.serving.inputs import FINITE, Inputs, lengths_name, refuse, tensor_name

_DIGITS = 16
_HEX = "0*[0-9a-fA-F]{1,16}"
_MAX_TIME = MAX_INT // 1000
_RESERVED = "0*[fF]{15}[eEfF]"  # the bits of MISSING_ID and RARE_ID


class StockTransforms(tf.Module):
    """Makes a model's columns of a request of raw values.

    Attributes:
      texts: the columns of ids of texts, and of times written as text.
    """

    def __init__(
        self, table: Table, columns: Columns, *, missing_id: int, takes_decoded: bool = False
    ) -> None:
        """Takes what makes a model's columns.

        Args:
          table: of the dataset's `embedps.Transforms`.
          columns: those that the model reads.
          takes_decoded: takes ids of texts, and times written as text, as the int64 that
            `Transforms.decode` makes of them; otherwise, such columns are refused.

        Raises:
          UsageError: a transform has no twin in TensorFlow, or two tensors would have one name.
        """
        super().__init__(name="transforms")
        self._table = table
        wanted = set(columns.names)
        self._features = [f for f in table.features if f.name in wanted]
        made = {feature.name for feature in self._features}
        names = dict.fromkeys(name for f in self._features for name in f.sources)
        self._sources = [table.column(name) for name in names]
        self._as_they_are = [name for name in names if name in wanted - made]  # such as a time
        rest = columns.keep(wanted - made - set(self._as_they_are))
        self._rest = Inputs(rest, missing_id=missing_id)
        self.texts = tuple(c.name for c in self._sources if c.type in ("string", "text"))
        if self.texts and not takes_decoded:
            column = table.column(self.texts[0])
            what = "ids of texts" if column.type == "string" else "times written as text"
            raise UsageError(
                f"--raw: the model reads column {column.name!r} of {what}, for which TensorFlow "
                "has no op: leave --raw out and send features, which "
                "embedps.Transforms.load(DATA).apply(batch) makes; or run "
                "embedps serve --raw, which takes texts"
            )
        self._kept = {
            feature.name: tf.Variable(step.kept, trainable=False, name="kept_ids")
            for feature in self._features
            for step in feature.steps
            if isinstance(step, RareIds) and step.kept is not None and len(step.kept)
        }
        names_of = [*self._rest.specs(), *(tensor_name(c.name) for c in self._sources)]
        names_of += [lengths_name(c.name) for c in self._sources if c.role == "list"]
        if repeated := sorted({name for name in names_of if names_of.count(name) > 1}):
            raise UsageError(
                f"--raw: each tensor of a request must have a name of its own, but {repeated[0]!r} "
                "would be of two columns: rename a column in the dataset's schema"
            )

    @property
    def missing(self) -> dict[str, int | bytes]:
        """What a missing id is, by tensor of ids; not of those that have no such value."""
        rest = (*self._rest.columns.ids, *self._rest.columns.id_lists)
        found: dict[str, int | bytes] = dict.fromkeys(map(tensor_name, rest), MISSING_ID)
        for column in self._sources:
            if column.role not in ("categorical", "list", "key"):
                continue
            if column.type != "hex":
                found[tensor_name(column.name)] = MISSING_ID
            elif self._table.missing:
                found[tensor_name(column.name)] = self._table.missing[0].encode()
        return found

    @property
    def lists(self) -> tuple[str, ...]:
        """The columns of lists."""
        rest = (*self._rest.columns.id_lists, *self._rest.columns.float_lists)
        return (*rest, *(column.name for column in self._sources if column.role == "list"))

    def specs(self) -> dict[str, tf.TensorSpec]:
        """Gives the tensors of a request by name: numbers float64, hexadecimal ids as texts."""
        specs = self._rest.specs()
        for column in self._sources:
            dtype = tf.int64
            if column.role == "numeric":
                dtype = tf.float64
            elif column.type == "hex":
                dtype = tf.string
            name = tensor_name(column.name)
            specs[name] = tf.TensorSpec([None], dtype, name=name)
            if column.role == "list":
                name = lengths_name(column.name)
                specs[name] = tf.TensorSpec([None], tf.int64, name=name)
        return specs

    def zeros(self, rows: int) -> dict[str, npt.NDArray[Any]]:
        """Makes the tensors of a request of zeros, missing ids and empty lists."""
        made: dict[str, npt.NDArray[Any]] = self._rest.zeros(rows)
        for name, spec in self.specs().items():
            if name not in made:
                is_text = spec.dtype == tf.string
                made[name] = np.full(rows, b"0" if is_text else 0, spec.dtype.as_numpy_dtype)
        for column in self._sources:
            if column.role == "list":
                made[tensor_name(column.name)] = made[tensor_name(column.name)][:0]
        return made

    def batch(self, given: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        """Makes the columns that the model reads.

        Where it runs, InvalidArgumentError tells of a value that ingestion refuses.
        """
        self._check(given)
        made = self._rest.batch(given)
        for column in self._table.columns:
            if column.name in made and column.role == "float_list":
                made[column.name] = _cut(column, made[column.name])
        decoded = {column.name: self._decoded(column, given) for column in self._sources}
        made |= {name: decoded[name] for name in self._as_they_are}
        for feature in self._features:
            sources = [decoded[name] for name in feature.sources]
            value = sources[0] if len(sources) == 1 else crossed(sources)
            if isinstance(value, tf.RaggedTensor):
                made[feature.name] = value.with_values(self._apply(feature, value.values))
            else:
                made[feature.name] = self._apply(feature, value)
        return made

    def _check(self, given: Mapping[str, tf.Tensor]) -> None:
        """Refuses the numbers and times that ingestion refuses; a tf.function runs the checks."""
        numbers, lists, times = {}, {}, {}
        for column in self._sources:
            values = given[tensor_name(column.name)]
            if column.role == "numeric":
                numbers[column.name] = tf.math.is_inf(tf.cast(values, tf.float32))
            elif column.role == "timestamp" and column.type != "text":
                times[column.name] = (values > _MAX_TIME) | (values < -_MAX_TIME)
        for name in self._rest.columns.float_lists:
            lists[name] = ~tf.math.is_finite(given[tensor_name(name)])
        for found, rule in (
            (numbers, FINITE),
            (lists, "lists of numbers that are finite in float32"),
            (times, "times within 64 bits of milliseconds"),
        ):
            if found:
                is_wrong = tf.stack([tf.reduce_any(each) for each in found.values()])
                refuse([*found], is_wrong, rule)

    def _decoded(self, column: Column, given: Mapping[str, tf.Tensor]) -> Any:
        values = given[tensor_name(column.name)]
        if column.type == "hex":
            values = _hex_ids(values, self._table.missing, column.name)
        elif column.type == "seconds":
            values *= 1000
        if column.role != "list":
            return values
        lists = tf.RaggedTensor.from_row_lengths(values, given[lengths_name(column.name)])
        return _cut(column, lists)

    def _apply(self, feature: Feature, values: tf.Tensor) -> tf.Tensor:
        for step in feature.steps:
            if isinstance(step, RareIds):
                values = self._frequent(feature.name, values)
            elif (made := _apply_step(step, values)) is not None:
                values = made
            else:
                raise UsageError(
                    f"--raw: feature {feature.name!r} has the transform {step.op}, which has no "
                    "twin in TensorFlow: leave --raw out"
                )
        return tf.cast(values, tf.float32) if values.dtype == tf.float64 else values

    def _frequent(self, name: str, ids: tf.Tensor) -> tf.Tensor:
        """Replaces ids that are not kept."""
        stays = tf.equal(ids, MISSING_ID)
        if name in self._kept:
            kept = self._kept[name].read_value()
            at = tf.searchsorted(kept, ids, out_type=tf.int64)
            at = tf.minimum(at, tf.size(kept, tf.int64) - 1)
            stays = tf.logical_or(stays, tf.equal(tf.gather(kept, at), ids))
        return tf.where(stays, ids, tf.constant(RARE_ID, tf.int64))


def _cut(column: Column, lists: tf.RaggedTensor) -> tf.RaggedTensor:
    """Does what `nested_lists.cut_lists` does; lists of lists come as one."""
    if len(column.cut) != 1:
        return lists
    (most,) = column.cut
    return lists[:, :most] if most > 0 else lists[:, most:]


def _apply_step(step: TransformStep, x: tf.Tensor) -> tf.Tensor | None:
    """Does in TensorFlow what the step does in NumPy; gives None if it has no twin."""
    match step:
        case Log1p():
            return tf.where(tf.math.is_nan(x), x, tf.math.log1p(tf.maximum(x, 0)))
        case Clip():
            return tf.where(tf.math.is_nan(x), x, tf.clip_by_value(x, step.low, step.high))
        case Standardize():
            return (x - step.mean) / (step.std or 1.0)
        case Bucketize():
            bounds = tf.constant(step.bounds, tf.float64)
            ids = tf.searchsorted(bounds, x, side="right", out_type=tf.int64)
            return tf.where(tf.math.is_nan(x), tf.constant(MISSING_ID, tf.int64), ids)
        case Hash():
            words = finalized(tf.bitcast(x, tf.uint64))
            hashes = tf.math.floormod(words, unsigned(step.buckets))
            return tf.where(tf.equal(x, MISSING_ID), x, tf.bitcast(hashes, tf.int64))
        case Hour():
            return x // HOUR_MS % 24
        case Weekday():
            return (x // DAY_MS + FIRST_WEEKDAY) % 7
        case Age():
            until = tf.constant(step.until.timestamp() * 1000, tf.float64)
            return (until - tf.cast(x, tf.float64)) / DAY_MS
    return None


def _hex_ids(texts: tf.Tensor, missing: Sequence[str], name: str) -> tf.Tensor:
    """Reads hexadecimal ids, int64 [n]; texts that mean a missing value give MISSING_ID."""
    is_missing = tf.zeros_like(texts, tf.bool)
    for text in missing:
        is_missing = tf.logical_or(is_missing, tf.equal(texts, text))
    is_reserved = tf.strings.regex_full_match(texts, _RESERVED)
    is_id = tf.logical_and(tf.strings.regex_full_match(texts, _HEX), ~is_reserved)
    is_read = tf.logical_or(is_missing, is_id)
    message = f"column {name!r} must have hexadecimal ids of 64 bits, but the two largest"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(is_read), [message])]):
        texts = tf.where(is_missing, tf.constant("0"), texts)
    padded = tf.strings.substr(tf.strings.join(["0" * _DIGITS, texts]), -_DIGITS, _DIGITS)
    codes = tf.cast(tf.reshape(tf.io.decode_raw(padded, tf.uint8), [-1, _DIGITS]), tf.int64)
    digits = tf.where(codes <= ord("9"), codes - ord("0"), codes % 32 + 9)
    shifts = tf.range(4 * (_DIGITS - 1), -1, -4, tf.int64)
    ids = tf.reduce_sum(tf.bitwise.left_shift(digits, shifts), axis=1)
    return tf.where(is_missing, tf.constant(MISSING_ID, tf.int64), ids)
