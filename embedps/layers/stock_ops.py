"""Twins of our ops in stock ops of TensorFlow, for graphs that run where embedps is not.

They need more time and memory. In float32 they give the same bits. In bfloat16 a sum may be rounded
in another order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

_state = threading.local()


@contextmanager
def stock_ops() -> Iterator[None]:
    """Makes our layers use stock ops in this thread within the block."""
    before = wanted()
    _state.wanted = True
    try:
        yield
    finally:
        _state.wanted = before


def wanted() -> bool:
    """Tells whether our layers shall use stock ops now."""
    return bool(getattr(_state, "wanted", False))


def mlp(
    inputs: Sequence[tf.Tensor],
    kernels: Sequence[tf.Tensor],
    biases: Sequence[tf.Tensor],
    *,
    final_relu: bool,
    out_dtype: tf.DType,
) -> tf.Tensor:
    """Computes what EmbedpsMlp does: products of bfloat16, sums of float32.

    Args:
      inputs: float32 or bfloat16 [batch, n], to concatenate.
      kernels: of the layers, float32.
      biases: of the layers, float32.
      final_relu: whether the last layer has a ReLU, as the others have.
      out_dtype: float32 or bfloat16.
    """
    x = tf.concat([_rounded(each) for each in inputs], axis=1)
    last = len(kernels) - 1
    for i, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        x = tf.matmul(x, _rounded(kernel)) + bias
        x = tf.nn.relu(x) if i < last or final_relu else x
        x = _rounded(x) if i < last else x
    return tf.cast(x, out_dtype)


def dot_interaction(features: Sequence[tf.Tensor], out_dtype: tf.DType) -> tf.Tensor:
    """Computes what EmbedpsDotInteraction does; see `dense.dot_interaction`."""
    n = len(features)
    in_bfloat16 = out_dtype == tf.bfloat16
    vectors = tf.stack(
        [_rounded(x) if in_bfloat16 else tf.cast(x, tf.float32) for x in features], 1
    )
    products = tf.matmul(vectors, vectors, transpose_b=True)
    row, column = np.tril_indices(n, -1)
    pairs = tf.gather(tf.reshape(products, [-1, n * n]), row * n + column, axis=1)
    return tf.cast(pairs, out_dtype)


def _rounded(x: tf.Tensor) -> tf.Tensor:
    """Rounds to bfloat16, in float32."""
    return tf.cast(tf.cast(x, tf.bfloat16), tf.float32)
