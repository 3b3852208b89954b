"""Replaces variables by tensors while a step is traced.

A step must not change state where it runs: on parameter servers each assignment would cost
messages, and a repeated attempt at a unit would apply it twice. So the step is traced over
tensors: reading a variable gives a tensor, and assigning to it replaces that tensor. What the
tensors become is sent with the step's gradients, or returned as counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

# Methods of a variable that read or assign it past its cached value.
_REPLACED = ("read_value", "_read_variable_op", "sparse_read", "gather_nd")
_ASSIGNING = ("assign", "assign_add", "assign_sub")
_LOCK = threading.RLock()


class StandIns:
    """The tensors that stand in for variables.

    Attributes:
      values: the tensors, in the variables' order, as the last assignment left them.
      assigned: indices of the variables that were assigned other than by adding or subtracting.
    """

    def __init__(self, values: Sequence[tf.Tensor]) -> None:
        self.values = list(values)
        self.assigned: set[int] = set()


def unwrap(variable: Any) -> Any:
    """Returns the resource variable inside of the wrappers of Keras and tf.distribute."""
    while True:
        inner = getattr(variable, "_variable", None)  # AutoCastVariable
        if inner is None and hasattr(variable, "get") and hasattr(variable, "_v"):
            inner = variable.get()  # AggregatingVariable
        if inner is None:
            return variable
        variable = inner


@contextmanager
def standing_in(
    variables: Sequence[Any], values: Sequence[tf.Tensor], *, from_zero: bool = False
) -> Iterator[StandIns]:
    """Makes variables read as tensors within the block, and assignments replace those tensors.

    Use it where a graph is traced: eagerly, some of TensorFlow's ops read a variable past Python.
    Other threads see the stand-ins too: a lock lets one thread at a time have any.

    Args:
      variables: of any layers or metrics; wrapped ones too.
      values: a tensor for each variable, of its shape and dtype.
      from_zero: the values are zeros, so the first addition is what it adds, without an op.

    Yields:
      The stand-ins; read `values` at the block's end.
    """
    inner = [unwrap(variable) for variable in variables]
    stand_ins = StandIns(values)
    with _LOCK:
        for index, variable in enumerate(inner):
            _replace(variable, index, stand_ins, values[index] if from_zero else None)
        try:
            yield stand_ins
        finally:
            for variable in inner:
                variable._cached_value = None
                for name in (*_REPLACED, *_ASSIGNING):
                    vars(variable).pop(name, None)


def _replace(variable: Any, index: int, stand_ins: StandIns, zero: tf.Tensor | None) -> None:
    def current() -> tf.Tensor:
        return stand_ins.values[index]

    def become(value: tf.Tensor) -> tf.Tensor:
        stand_ins.values[index] = variable._cached_value = value
        return value

    def assigning(change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], adds: bool) -> Any:
        def method(value: Any, use_locking: Any = None, name: Any = None, read_value: Any = True):  # type: ignore[no-untyped-def]
            given = tf.cast(tf.convert_to_tensor(value), variable.dtype)
            if not adds:
                stand_ins.assigned.add(index)
            return become(tf.ensure_shape(change(current(), given), variable.shape))

        return method

    def add(old: tf.Tensor, more: tf.Tensor) -> tf.Tensor:
        return more if old is zero and more.shape == variable.shape else old + more

    become(stand_ins.values[index])
    own = vars(variable)
    own["read_value"] = current
    own["_read_variable_op"] = lambda *_, **__: current()
    own["sparse_read"] = lambda indices, name=None: tf.gather(current(), indices)
    own["gather_nd"] = lambda indices, name=None: tf.gather_nd(current(), indices)
    own["assign"] = assigning(lambda _, new: new, adds=False)
    own["assign_add"] = assigning(add, adds=True)
    own["assign_sub"] = assigning(lambda old, less: old - less, adds=True)
