"""Makes traced functions and variables go on with what replaced the resources of a lost server.

A traced function holds the handles of stores, logs and variables as captured inputs. With the new
handles in their places it runs as it is: tracing it anew takes seconds.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from embedps.errors import ServerLostError


class ReboundHandles:
    """Maps the handles of a lost server to those of what replaced it."""

    def __init__(self, device: str) -> None:
        """Takes the device of the server, which serves again and is empty."""
        self._device = device
        self._new: dict[int, tf.Tensor] = {}
        self._old: list[tf.Tensor] = []  # alive, so that no other handle gets an id of theirs
        self._unsaved: dict[int, str] = {}  # by handle the names of variables

    def replace(self, old: tf.Tensor, new: tf.Tensor) -> None:
        """Takes a handle and the one that replaces it."""
        self._old.append(old)
        self._new[id(old)] = new

    def remake(self, variable: Any, value: npt.NDArray[Any], *, is_saved: bool) -> None:
        """Makes a variable's resource anew, with a value.

        Args:
          variable: was made on the server.
          value: what it has from now on.
          is_saved: whether that is what it must have. Functions that use others are refused.
        """
        own = own_variable(variable)
        old = own.handle
        if any(old is made for made in self._new.values()):
            return
        with tf.device(self._device):
            own._handle = resource_variable_ops._variable_handle_from_shape_and_dtype(
                own.shape, own.dtype, None, own.name.partition(":")[0], graph_mode=False
            )
            own.assign(value)
        self.replace(old, own.handle)
        if not is_saved:
            self._unsaved[id(own.handle)] = own.name

    def rebind(self, function: Any) -> None:
        """Gives a traced function the new handles.

        Raises:
          ServerLostError: it uses something of the server that nothing replaces.
        """
        captured = [self._new.get(id(each), each) for each in function._captured_inputs]
        new = {id(each) for each in self._new.values()}
        for each in captured:
            if callable(each) or (each.device == self._device and id(each) not in new):
                raise ServerLostError("a function uses what no checkpoint has of a lost server")
            if id(each) in self._unsaved:
                raise ServerLostError(
                    f"a function uses {self._unsaved[id(each)]!r} of a lost server, which no "
                    "checkpoint has"
                )
        function.set_external_captures(captured)


def own_variable(variable: Any) -> Any:
    """Gives the variable that has the resource, without the strategy's and Keras's wrappers."""
    while True:
        inner = getattr(variable, "_v", None)
        inner = getattr(variable, "_variable", None) if inner is None else inner
        if inner is None:
            return variable
        variable = inner
