"""The twins in stock ops give the bits of our ops in float32, and their values in bfloat16.

Where the processor has no AVX-512, TensorFlow sums in another order, and bits may differ.
"""

import numpy as np
import pytest
import tensorflow as tf

from embedps.layers.dense import MLP, dot_interaction
from embedps.layers.stock_ops import stock_ops
from tests.processors import HAS_AMX, SUMS_IN_ORDER


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
    if dtype == tf.float32 and SUMS_IN_ORDER:
        np.testing.assert_array_equal(ours, stock)
    elif dtype == tf.float32:
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-5)
    elif HAS_AMX:
        np.testing.assert_allclose(ours, stock, rtol=2**-7, atol=1e-4)
    else:  # the stock op rounds each factor, and both round the sum: by 2**-8 at most
        sizes = np.abs(np.stack(features, 1))
        row, column = np.tril_indices(n, -1)
        sums = np.matmul(sizes, np.swapaxes(sizes, 1, 2))[:, row, column]
        assert (np.abs(ours - stock) <= 2.01 * 2**-8 * (sums + np.abs(stock))).all()
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
