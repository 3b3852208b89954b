"""Stand-ins carry a layer's and a metric's state through a step; the variables stay unchanged."""

import numpy as np
import tensorflow as tf

from embedps.engine.variable_stand_ins import standing_in


def test_state_goes_to_tensors_and_the_variables_stay() -> None:
    layer = tf.keras.layers.BatchNormalization()
    layer(tf.ones([2, 3]))
    metric = tf.keras.metrics.Mean()
    variables = [*layer.non_trainable_variables, *metric.variables]

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with standing_in(variables, [tf.zeros(v.shape, v.dtype) for v in variables]) as stand_ins:
            layer(x, training=True)
            metric.update_state([1.0, 3.0])
        assert not stand_ins.assigned
        return stand_ins.values

    x = tf.constant([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    mean, variance, total, count = (value.numpy() for value in step(x))
    np.testing.assert_allclose(mean, 0.01 * np.array([2.0, 2.0, 2.0]), rtol=1e-5)
    np.testing.assert_allclose(variance, 0.01 * np.array([1.0, 0.0, 1.0]), rtol=1e-5, atol=1e-8)
    assert (total, count) == (4.0, 2.0)
    np.testing.assert_array_equal(layer.moving_mean.numpy(), np.zeros(3))
    np.testing.assert_array_equal(layer.moving_variance.numpy(), np.ones(3))
    assert metric.result().numpy() == 0.0
    layer(x, training=True)  # assigns as before
    np.testing.assert_allclose(layer.moving_mean.numpy(), mean)


def test_an_assignment_is_told_from_an_addition() -> None:
    variable, added = tf.Variable(1.0), tf.Variable(1.0)
    with standing_in([added, variable], [tf.constant(5.0), tf.constant(6.0)]) as stand_ins:
        added.assign_add(2.0)
        variable.assign(variable * 2.0)
    assert [float(v) for v in stand_ins.values] == [7.0, 12.0]
    assert stand_ins.assigned == {1}
    assert (float(variable), float(added)) == (1.0, 1.0)


def test_from_zero_the_first_addition_takes_no_op() -> None:
    vector, whole = tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])
    more = tf.constant([1.0, 2.0])
    zeros = [tf.zeros([2]), tf.zeros([2])]
    with standing_in([vector, whole], zeros, from_zero=True) as stand_ins:
        vector.assign_add(3.0)  # a scalar is spread
        vector.assign_sub(more)
        whole.assign_add(more)
        first = stand_ins.values[1]
        whole.assign_add(more)
    assert first.numpy().tolist() == [1.0, 2.0]
    assert [v.numpy().tolist() for v in stand_ins.values] == [[2.0, 1.0], [2.0, 4.0]]
    assert vector.numpy().tolist() == whole.numpy().tolist() == [0.0, 0.0]
