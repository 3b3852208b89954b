"""Requests of tf.Examples, or of what the dataset was made of: each becomes one of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import tensorflow as tf

from embedps.console.tf_logging import op_error_text
from embedps.data.columns import Columns
from embedps.serving.inputs import Inputs, lengths_name, tensor_name
from embedps.serving.server.request_error import invalid
from embedps.serving.server.requests import Request, RequestFormat, check_names
from embedps.serving.server.tensor_values import Array
from embedps.serving.stock_transforms import StockTransforms

EXAMPLES, RAW = "examples", "raw"


class MadeColumns:
    """What such requests hold.

    Attributes:
      specs: the tensors by name.
      lists: the columns of lists.
      list_values: the names of the tensors of their values.
    """

    def __init__(
        self,
        form: RequestFormat,
        columns: Columns,
        make: Callable[[Mapping[str, tf.Tensor]], Mapping[str, Any]],
        *,
        specs: Mapping[str, tf.TensorSpec],
        lists: Sequence[str] = (),
    ) -> None:
        """Traces a function.

        Args:
          form: of the requests that are made.
          columns: that the model's predictions depend on.
          make: makes these columns of a request's tensors, in a tf.function.
          specs: of the tensors.
          lists: the columns of lists among them.
        """
        self.specs, self.lists = specs, tuple(lists)
        self.list_values = frozenset(map(tensor_name, lists))
        self._form = form

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
        tensors = {n: tf.constant(array, self.specs[n].dtype) for n, array in given.items()}
        try:
            made = self._make(**tensors)
        except tf.errors.InvalidArgumentError as error:
            said = op_error_text(error.message)
            raise invalid(f"the request's values cannot be read: {said}") from None
        except UnicodeDecodeError:  # TensorFlow's message quotes the bytes
            raise invalid("the request's values cannot be read: their bytes are damaged") from None
        return self._form.request({name: value.numpy() for name, value in made.items()})


def of_examples(form: RequestFormat, columns: Columns, *, missing_id: int) -> MadeColumns:
    """Makes the format of serialized tf.Examples, as an export's signature "examples" has it."""
    inputs = Inputs(columns, missing_id=missing_id)
    specs = {EXAMPLES: tf.TensorSpec([None], tf.string, name=EXAMPLES)}
    made = MadeColumns(form, columns, lambda given: inputs.parse(given[EXAMPLES]), specs=specs)
    made.request({EXAMPLES: np.array(inputs.examples(1), object)})  # the first one takes longer
    return made


def of_raw(
    form: RequestFormat, columns: Columns, transforms: Any, *, missing_id: int
) -> MadeColumns:
    """Makes the format of raw values, as an export's signature "raw" has it.

    Args:
      form: of the requests that are made.
      columns: that the model's predictions depend on.
      transforms: the table of the dataset's Transforms.
      missing_id: the dataset's.

    Raises:
      UsageError: a transform has no twin in TensorFlow.
    """
    raw = StockTransforms(transforms, columns, missing_id=missing_id)
    made = MadeColumns(form, columns, raw.batch, specs=raw.specs(), lists=raw.lists)
    made.request(raw.zeros(1))
    return made
