"""The fused layers equal those of plain TensorFlow."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps.dtypes import COMPUTE_DTYPES
from embedps.errors import UsageError
from embedps.layers.dense import MLP, dot_interaction


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


def _round(x: np.ndarray) -> np.ndarray:
    """Rounds to bfloat16; returns float64."""
    return x.astype(tf.bfloat16.as_numpy_dtype).astype(np.float64)


def _mlp_twin(
    x: np.ndarray,
    kernels: list[np.ndarray],
    biases: list[np.ndarray],
    upstream: np.ndarray,
    *,
    final_relu: bool,
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Computes output and gradients in NumPy, with bfloat16's roundings."""
    inputs = [_round(x)]
    rounded = [_round(k) for k in kernels]
    last = len(kernels) - 1
    for i, (kernel, bias) in enumerate(zip(rounded, biases, strict=True)):
        y = inputs[-1] @ kernel + bias
        if i < last or final_relu:
            y = np.maximum(y, 0)
        inputs.append(_round(y) if i < last else y)
    gradient = _round(upstream)
    if final_relu:
        gradient = gradient * (inputs[-1] > 0)
    kernel_gradients: list[np.ndarray] = []
    bias_gradients: list[np.ndarray] = []
    for i in range(last, -1, -1):
        kernel_gradients.insert(0, inputs[i].T @ gradient)
        bias_gradients.insert(0, gradient.sum(axis=0))
        gradient = gradient @ rounded[i].T
        if i:
            gradient = _round(gradient * (inputs[i] > 0))
    return inputs[-1], gradient, kernel_gradients, bias_gradients


@pytest.mark.parametrize("batch", [1, 31, 64, 555])
@pytest.mark.parametrize("widths", [(13, 512, 256, 64, 16), (367, 48, 1), (5, 3), (32, 32, 32)])
@pytest.mark.parametrize("final_activation", [None, "relu"])
def test_bfloat16_mlp_equals_its_twin_forward_and_backward(
    batch: int, widths: tuple[int, ...], final_activation: str | None
) -> None:
    rng = np.random.default_rng(batch * 1000 + widths[0])
    mlp = MLP(
        widths[1:],
        final_activation=final_activation,
        compute_dtype="bfloat16",
        out_dtype="float32",
    )
    # Two inputs side by side, one of each dtype if there are two columns.
    left = widths[0] // 2
    x = rng.normal(size=(batch, widths[0])).astype(np.float32)
    x[:, :left] = _round(x[:, :left])
    inputs = [tf.constant(x[:, :left], tf.bfloat16), tf.constant(x[:, left:])]
    mlp(inputs)
    for weight in mlp.trainable_variables:
        weight.assign(rng.normal(scale=0.3, size=weight.shape))
    upstream = rng.normal(size=(batch, widths[-1])).astype(np.float32)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        out = mlp(inputs)
        loss = tf.reduce_sum(out * upstream)
    input_gradients, weight_gradients = tape.gradient(loss, (inputs, mlp.trainable_variables))
    weights = [w.numpy() for w in mlp.trainable_variables]
    twin = _mlp_twin(
        x, weights[::2], weights[1::2], upstream, final_relu=final_activation == "relu"
    )

    def close(ours: tf.Tensor, theirs: np.ndarray) -> None:
        # A sum near a tie may round to the other side: the last bit of bfloat16.
        ours = tf.cast(ours, tf.float64).numpy()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=0.02 * np.abs(theirs).max() + 1e-6)
        assert np.abs(ours - theirs).mean() < 0.002 * np.abs(theirs).max() + 1e-6

    close(out, twin[0])
    close(tf.concat([tf.cast(g, tf.float32) for g in input_gradients], axis=1), twin[1])
    for ours, theirs in zip(weight_gradients[::2], twin[2], strict=True):
        close(ours, theirs)
    for ours, theirs in zip(weight_gradients[1::2], twin[3], strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("in_graph", [False, True])
def test_bfloat16_mlp_of_inputs_that_nobody_watches_has_the_same_gradients(in_graph: bool) -> None:
    rng = np.random.default_rng(3)
    x = tf.constant(rng.normal(size=(70, 13)), tf.float32)
    mlp = MLP([40, 16], final_activation="relu", compute_dtype="bfloat16", out_dtype="float32")
    mlp(x)

    def gradients(watched: bool) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            if watched:
                tape.watch(x)
            loss = tf.reduce_sum(mlp(x))
        of_x, of_weights = tape.gradient(loss, (x, mlp.trainable_variables))
        assert (of_x is not None) == watched
        return list(of_weights)

    run = tf.function(gradients) if in_graph else gradients
    for alone, beside in zip(run(False), run(True), strict=True):
        assert np.abs(beside).max() > 0
        np.testing.assert_array_equal(alone, beside)


def test_mlp_has_the_weights_of_tfrs_in_either_dtype() -> None:
    names, shapes, values = [], [], []
    for make in (
        lambda: tfrs.layers.blocks.MLP(units=[8, 4], final_activation="relu", name="m"),
        lambda: MLP([8, 4], final_activation="relu", name="m"),
        lambda: MLP([8, 4], final_activation="relu", compute_dtype="bfloat16", name="m"),
    ):
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(7)
        mlp = make()
        x = tf.constant(np.random.default_rng(0).normal(size=(16, 6)), tf.float32)
        values.append(tf.cast(mlp(x), tf.float32).numpy())
        names.append([v.name for v in mlp.trainable_variables])
        shapes.append([v.numpy().tolist() for v in mlp.trainable_variables])
    assert names[0] == names[1] == names[2]
    assert shapes[0] == shapes[1] == shapes[2]
    np.testing.assert_array_equal(values[1], values[0])
    np.testing.assert_allclose(values[2], values[0], atol=0.02)


def test_mlp_refuses_inputs_that_its_weights_do_not_fit() -> None:
    mlp = MLP([4], compute_dtype="bfloat16")
    mlp(tf.zeros([2, 6]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"kernel 0 must be \[7, units\]"):
        mlp(tf.zeros([2, 7]))
    with pytest.raises(UsageError, match="compute_dtype must be one of float32, bfloat16"):
        MLP([4], compute_dtype="float16")


@pytest.mark.parametrize("compute_dtype", COMPUTE_DTYPES)
@pytest.mark.parametrize("widths", [(0,), (0, 0)])
def test_mlp_refuses_inputs_without_columns(compute_dtype: str, widths: tuple[int, ...]) -> None:
    mlp = MLP([4], compute_dtype=compute_dtype, name="bottom")
    inputs = [tf.zeros([2, width]) for width in widths]
    with pytest.raises(UsageError, match=r"at least 1 column but bottom's have none: leave it out"):
        mlp(inputs if len(inputs) > 1 else inputs[0])


@pytest.mark.parametrize("units", [[], [0], [4, 0], [-1, 4]])
def test_mlp_refuses_layers_without_outputs(units: list[int]) -> None:
    with pytest.raises(UsageError, match=re.escape(f"at least 1 output but got {units}")):
        MLP(units)


@pytest.mark.parametrize("dim", [5, 16, 64])
def test_bfloat16_dot_interaction_is_float32s_within_a_rounding(dim: int) -> None:
    features = [tf.cast(x, tf.bfloat16) for x in _features(27, 37, dim)]
    wide = [tf.cast(x, tf.float32) for x in features]
    upstream = tf.cast(_features(1, 37, 27 * 13)[0], tf.bfloat16)
    values, gradients = [], []
    for inputs, dtype in ((features, tf.bfloat16), (wide, tf.float32)):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            out = dot_interaction(inputs, dtype)
        gradients.append(tape.gradient(out, inputs, output_gradients=tf.cast(upstream, dtype)))
        values.append(out)
    for ours, theirs in zip([values[0], *gradients[0]], [values[1], *gradients[1]], strict=True):
        assert ours.dtype == tf.bfloat16
        # Half of bfloat16's last bit, and sums in another order near a tie.
        np.testing.assert_allclose(tf.cast(ours, tf.float32), theirs, rtol=2**-7, atol=1e-5)
