"""Ids as Keras' models have them give the rows of plain lookups, or one line says why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.errors import UsageError

DIM = 4
LISTS = [[3, 5], [], [5, 7, 3]]
PADDED = np.array([[0, 3, 0, 5], [0, 0, 0, 0], [5, 7, 3, 0]])  # 0 is padding, anywhere


def layer(**feature: Any) -> embedps.Embeddings:
    table = embedps.TableSpec(name="t", embedding_dim=DIM, absent="initial")
    spec = embedps.FeatureSpec(name="x", table=table, **feature)
    return embedps.Embeddings([spec], padding_id=0)


def rows(ids: Any) -> np.ndarray:
    """The rows of ids, by a lookup of each alone."""
    flat = np.asarray(ids, np.int64).reshape(-1)
    found = layer()({"x": tf.constant(flat)})["x"].numpy()
    return found.reshape(*np.shape(ids), DIM)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "int8"])
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_single_ids(dtype: str, shape: tuple[int, ...]) -> None:
    ids = np.array([3, 5, 0], dtype)
    found = layer()({"x": tf.constant(ids.reshape(shape))})["x"]
    np.testing.assert_array_equal(found, rows(ids))


def sparse() -> tf.SparseTensor:
    return tf.sparse.from_dense(PADDED)


@pytest.mark.parametrize("given", [tf.ragged.constant(LISTS, tf.int32), PADDED, sparse()])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_lists_are_combined(given: Any, combiner: Any) -> None:
    found = layer(ragged=True, combiner=combiner)({"x": tf.nest.map_structure(_tensor, given)})
    combine = np.sum if combiner == "sum" else np.mean
    wanted = [combine(rows(ids), axis=0) if ids else np.zeros(DIM) for ids in LISTS]
    np.testing.assert_allclose(found["x"], wanted, rtol=1e-6)


def _tensor(value: Any) -> Any:
    return tf.constant(value) if isinstance(value, np.ndarray) else value


def mask(made: embedps.Embeddings) -> Any:
    masks = made.compute_mask({"x": tf.constant(PADDED)})
    assert masks is not None
    return masks["x"]


def test_dense_lists_keep_their_places() -> None:
    made = layer(ragged=True, combiner="none", rate_as="rate")
    found = made({"x": tf.constant(PADDED)})
    has_id = PADDED != 0
    np.testing.assert_array_equal(found["x"], rows(PADDED) * has_id[:, :, None])
    np.testing.assert_array_equal(found["rate"] > 0, has_id)
    np.testing.assert_array_equal(mask(made), has_id)
    cut = layer(ragged=True, combiner="none", max_length=2)
    np.testing.assert_array_equal(
        cut({"x": tf.constant(PADDED)})["x"],
        [rows([3, 5]), np.zeros([2, DIM]), rows([7, 3])],
    )
    np.testing.assert_array_equal(mask(cut), [[1, 1], [0, 0], [1, 1]])


@pytest.mark.parametrize("max_length", [None, 4])
@pytest.mark.parametrize("rate", ["rate", "zrate"])  # before and after x, as Keras pairs masks
def test_a_mask_is_that_of_its_output(rate: str, max_length: int | None) -> None:
    made = layer(ragged=True, combiner="none", rate_as=rate, max_length=max_length)
    for output in made({"x": tf.constant(PADDED)}).values():
        ids = PADDED != 0 if max_length is None else [[1, 1, 0, 0], [0] * 4, [1, 1, 1, 0]]
        np.testing.assert_array_equal(output._keras_mask, ids)


def test_a_functional_gru_of_padded_lists_is_that_of_ragged_lists() -> None:
    def build(**options: Any) -> tf.keras.Model:
        tf.keras.utils.set_random_seed(3)
        ids = tf.keras.Input(dtype=tf.int32, name="x", **options)
        found = layer(ragged=True, combiner="none")({"x": ids})["x"]
        model = tf.keras.Model(ids, tf.keras.layers.Dense(1)(tf.keras.layers.GRU(3)(found)))
        model.compile("sgd", "mse")
        return model

    y = np.ones(3)
    ragged = tf.ragged.constant(LISTS, tf.int32)
    ours, theirs = (
        model.fit(x, y, epochs=3, verbose=0).history["loss"]
        for model, x in (
            (build(shape=(4,)), PADDED.astype(np.int32)),
            (build(shape=(None,), ragged=True), ragged),
        )
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert ours[-1] < ours[0]


def test_columns_of_one_id_train() -> None:
    inputs = tf.keras.Input((1,), dtype=tf.int32, name="x")
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(layer()({"x": inputs})["x"]))
    model.compile("sgd", "mse")
    x = np.array([3, 5, 7, 3], np.int32)
    assert model.output_shape == (None, 1)
    assert len(model.fit({"x": x}, np.ones(4), epochs=2, verbose=0).history["loss"]) == 2
    assert model.fit({"x": x[:, None]}, np.ones(4), verbose=0)


@pytest.mark.parametrize(
    ("feature", "given", "message"),
    [
        ({}, {"shape": (5,), "dtype": tf.int64}, r"or \[batch, 1\], but got \[None, 5\]: declare"),
        ({}, {"shape": (), "dtype": tf.string}, "must have integer ids but got texts: use embedps"),
        ({}, {"shape": (), "dtype": tf.float32}, "63 bits but got float32: tf.cast"),
        ({}, {"shape": (), "dtype": tf.bool}, "63 bits but got bool: tf.cast"),
        ({}, {"shape": (3,), "dtype": tf.int64, "sparse": True}, "but got SparseTensor"),
        (
            {"ragged": True},
            {"shape": (), "dtype": tf.int64},
            r"\[batch, length\], but got \[None\]",
        ),
        ({"ragged": True}, {"shape": (2, 3), "dtype": tf.int64}, r"but got \[None, 2, 3\]"),
    ],
)
def test_others_are_refused_at_declaration(feature: Any, given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        layer(**feature)({"x": tf.keras.Input(name="x", **given)})
    assert "\n" not in str(refused.value)
