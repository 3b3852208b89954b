"""Requests of tf.Examples, or of what the dataset was made of: each becomes one of columns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.example.example_pb2 import Example

from embedps.console.tf_logging import op_error_text
from embedps.data.columns import Columns
from embedps.errors import DatasetError
from embedps.features.transforms import Transforms
from embedps.serving.inputs import Inputs, lengths_name, tensor_name
from embedps.serving.server.request_error import invalid
from embedps.serving.server.requests import Request, RequestFormat, check_names
from embedps.serving.server.tensor_values import Array, parts_of
from embedps.serving.stock_transforms import StockTransforms

EXAMPLES, RAW = "examples", "raw"


class MadeColumns:
    """What such requests hold.

    Attributes:
      specs: the tensors by name.
      lists: the columns of lists.
      list_values: the names of the tensors of their values.
      missing: what a missing id is, by tensor of ids.
      width: how many numbers a record becomes, besides the values of its lists.
    """

    def __init__(
        self,
        form: RequestFormat,
        columns: Columns,
        make: Callable[[Mapping[str, tf.Tensor]], Mapping[str, Any]],
        *,
        specs: Mapping[str, tf.TensorSpec],
        lists: Sequence[str] = (),
        missing: Mapping[str, int | bytes] | None = None,
        decode: Mapping[str, Callable[[Array], Array]] | None = None,
        check: Callable[[Mapping[str, Array]], None] | None = None,
    ) -> None:
        """Traces a function.

        Args:
          columns: that the model's predictions depend on.
          make: makes these columns of a request's tensors, in a tf.function.
          lists: the columns of lists among them.
          missing: what a missing id is, by tensor of ids.
          decode: by tensor, what makes int64 of its texts before that; it raises DatasetError.
          check: refuses tensors that TensorFlow must not see; it raises RequestError.
        """
        self._decode, self._check = decode or {}, check
        texts = {n: tf.TensorSpec([None], tf.string, name=n) for n in self._decode}
        self.specs: Mapping[str, tf.TensorSpec] = {**specs, **texts}
        self.lists, self.missing = tuple(lists), missing or {}
        self.list_values = frozenset(map(tensor_name, lists))
        self._form = form
        self.width = len(self.specs) + form.width

        def flat(**given: tf.Tensor) -> dict[str, tf.Tensor]:
            made, tensors = make(given), {}
            for name in columns.names:
                value = made[name]
                if isinstance(value, tf.RaggedTensor):
                    tensors[lengths_name(name)] = value.row_lengths()
                    value = value.values
                tensors[tensor_name(name)] = value
            return tensors

        self._make = tf.function(flat, autograph=False).get_concrete_function(**specs)

    def check_names(self, names: Set[str]) -> None:
        """Checks the names of a request's tensors.

        Raises:
          RequestError: one is absent or unknown.
        """
        check_names(self.specs, names)

    def request(self, given: Mapping[str, Array]) -> Request:
        """Makes a request of columns.

        Raises:
          RequestError: a tensor is absent or unknown, or its values have no meaning.
        """
        self.check_names(given.keys())
        if self._check is not None:
            self._check(given)
        try:
            given = {n: self._decode[n](a) if n in self._decode else a for n, a in given.items()}
            tensors = {
                n: _constant(a, tf.int64 if n in self._decode else self.specs[n].dtype)
                for n, a in given.items()
            }
            made = self._make(**tensors)
        except tf.errors.InvalidArgumentError as error:
            said = op_error_text(error.message)
            raise invalid(f"the request's values cannot be read: {said}") from None
        except DatasetError as error:
            raise invalid(f"the request's values cannot be read: {error}") from None
        except UnicodeDecodeError:  # TensorFlow's message quotes the bytes
            raise invalid("the request's values cannot be read: their bytes are damaged") from None
        return self._form.request({name: value.numpy() for name, value in made.items()})


def _constant(array: Array, dtype: tf.DType) -> tf.Tensor:
    if dtype != tf.string:
        return tf.constant(array, dtype)
    parts = [tf.constant(part, dtype) for part in parts_of(array)]
    return parts[0] if len(parts) == 1 else tf.concat([tf.constant([], dtype), *parts], axis=0)


def of_examples(form: RequestFormat, columns: Columns, *, missing_id: int) -> MadeColumns:
    """Makes the format of serialized tf.Examples, as an export's signature "examples" has it."""
    inputs = Inputs(columns, missing_id=missing_id)
    specs = {EXAMPLES: tf.TensorSpec([None], tf.string, name=EXAMPLES)}
    made = MadeColumns(
        form,
        columns,
        lambda given: inputs.parse(given[EXAMPLES]),
        specs=specs,
        check=_check_examples,
    )
    made.request({EXAMPLES: np.array(inputs.examples(1), object)})  # the first one takes longer
    return made


def _check_examples(given: Mapping[str, Array]) -> None:
    """Refuses what protobuf cannot read.

    TensorFlow's own parser reserves memory for the floats that a list claims, of up to 17 GB, and
    ends the process if there is not as much.
    """
    for place, each in enumerate(given[EXAMPLES]):
        try:
            Example.FromString(each)
        except DecodeError:
            raise invalid(
                f"the request's values cannot be read: value {place} of {EXAMPLES!r}, of "
                f"{len(each)} bytes, must be a serialized tf.Example"
            ) from None


def of_raw(
    form: RequestFormat, columns: Columns, transforms: Transforms, *, missing_id: int
) -> MadeColumns:
    """Makes the format of raw values, as an export's signature "raw" has it, and with texts.

    Args:
      columns: that the model's predictions depend on.
      transforms: the dataset's `embedps.Transforms`.

    Raises:
      UsageError: a transform has no twin in TensorFlow.
    """
    raw = StockTransforms(transforms.table, columns, missing_id=missing_id, takes_decoded=True)
    made = MadeColumns(
        form,
        columns,
        raw.batch,
        specs=raw.specs(),
        lists=raw.lists,
        missing=raw.missing,
        decode={
            tensor_name(name): functools.partial(transforms.decode, name) for name in raw.texts
        },
    )
    zeros = raw.zeros(1)
    for name in map(tensor_name, raw.texts):  # no text is read
        zeros[name] = np.full(len(zeros[name]), None, object)
    if not any(transforms.table.column(name).role == "timestamp" for name in raw.texts):
        made.request(zeros)
    return made
