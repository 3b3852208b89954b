"""Traced functions and variables go on with what replaced the resources of a lost server."""

import numpy as np
import pytest
import tensorflow as tf

from embedps.engine.rebound_handles import ReboundHandles
from embedps.errors import ServerLostError

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def make(value: float) -> tuple[tf.Variable, list[int], tf.types.experimental.ConcreteFunction]:
    variable, traces = tf.Variable(value), []

    @tf.function
    def add(x: tf.Tensor) -> tf.Tensor:
        traces.append(1)
        return variable.assign_add(x)

    return variable, traces, add.get_concrete_function(tf.TensorSpec([]))


def test_function_goes_on_with_a_variable_that_was_made_anew_and_is_not_traced_again():
    variable, traces, add = make(1.0)
    add(tf.constant(1.0))
    old = variable.handle
    handles = ReboundHandles(DEVICE)
    handles.remake(variable, np.array(5.0, np.float32), is_saved=True)
    handles.remake(variable, np.array(9.0, np.float32), is_saved=True)  # once is enough
    handles.rebind(add)
    assert float(add(tf.constant(1.0))) == float(variable) == 6.0
    assert float(tf.raw_ops.ReadVariableOp(resource=old, dtype=tf.float32)) == 2.0
    assert traces == [1]


def test_function_of_what_no_checkpoint_has_is_refused():
    variable, _, add = make(1.0)
    handles = ReboundHandles(DEVICE)
    with pytest.raises(ServerLostError, match="what no checkpoint has"):
        handles.rebind(add)
    handles.remake(variable, np.array(1.0, np.float32), is_saved=False)
    with pytest.raises(ServerLostError, match="a function uses 'Variable:0' of a lost server"):
        handles.rebind(add)
