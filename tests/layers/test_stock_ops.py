"""The twins in stock ops give the bits of our ops in float32, and their values in bfloat16."""

import numpy as np
import pytest
import tensorflow as tf

from embedps.layers.dense import MLP, dot_interaction
from embedps.layers.stock_ops import stock_ops


def both(function):
    """What a function gives by our ops and by stock ops, and the stock graph's ops."""
    ours = tf.function(function)().numpy()
    with stock_ops():
        concrete = tf.function(function).get_concrete_function()
    return ours, concrete().numpy(), {op.type for op in concrete.graph.get_operations()}


@pytest.mark.parametrize("n", [2, 3, 17, 27])
@pytest.mark.parametrize("dim", [1, 5, 16, 64, 130])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_dot_interaction_equals(n: int, dim: int, dtype: tf.DType) -> None:
    rng = np.random.default_rng(n)
    features = [tf.constant(rng.normal(size=(37, dim)), tf.float32) for _ in range(n)]
    ours, stock, ops = both(lambda: tf.cast(dot_interaction(features, dtype), tf.float32))
    if dtype == tf.float32:
        np.testing.assert_array_equal(ours, stock)
    else:
        np.testing.assert_allclose(ours, stock, rtol=2**-7, atol=1e-4)
    assert not any(op.startswith("Embedps") for op in ops)


@pytest.mark.parametrize("final", [None, "relu"])
@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16"])
def test_mlp_equals(final: str | None, out_dtype: str) -> None:
    rng = np.random.default_rng(3)
    inputs = [
        tf.constant(rng.normal(size=(50, 13)), tf.float32),
        tf.cast(tf.constant(rng.normal(size=(50, 20)), tf.float32), tf.bfloat16),
    ]
    layer = MLP([64, 17], final_activation=final, compute_dtype="bfloat16", out_dtype=out_dtype)
    layer(inputs)
    ours, stock, ops = both(lambda: tf.cast(layer(inputs), tf.float32))
    np.testing.assert_allclose(ours, stock, rtol=2**-6, atol=2e-3)
    assert not any(op.startswith("Embedps") for op in ops)
