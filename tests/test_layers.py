"""The fused layers equal their plain twins."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps.layers import dot_interaction


def _features(n: int, batch: int, dim: int) -> list[tf.Tensor]:
    rng = np.random.default_rng(n * 1000 + dim)
    return [tf.constant(rng.normal(size=(batch, dim)), tf.float32) for _ in range(n)]


@pytest.mark.parametrize("n", [2, 3, 16, 17, 27, 40])
@pytest.mark.parametrize("dim", [1, 5, 16, 17, 64])
def test_dot_interaction_equals_tfrs_forward_and_backward(n: int, dim: int) -> None:
    features = _features(n, 37, dim)
    twin = tfrs.layers.feature_interaction.DotInteraction()
    weights = tf.constant(np.random.default_rng(0).normal(size=(37, n * (n - 1) // 2)), tf.float32)
    values, gradients = [], []
    for layer in (dot_interaction, twin):
        with tf.GradientTape() as tape:
            tape.watch(features)
            out = layer(features)
            loss = tf.reduce_sum(out * weights)
        values.append(out.numpy())
        gradients.append([g.numpy() for g in tape.gradient(loss, features)])
    np.testing.assert_allclose(values[0], values[1], rtol=1e-5, atol=1e-4)
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_dot_interaction_of_an_empty_batch_is_empty() -> None:
    assert dot_interaction(_features(3, 0, 4)).shape == (0, 3)


def test_dot_interaction_refuses_vectors_of_different_dims() -> None:
    features = [*_features(2, 4, 8), *_features(1, 4, 9)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"feature 2 is \[4,9\]"):
        dot_interaction(features)
