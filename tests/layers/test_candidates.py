"""embedps.Candidates: TFRS' top-k metrics over candidates that a model encodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

import embedps
from embedps.errors import UsageError

NUM = 30


def batches() -> tf.data.Dataset:
    ids = np.arange(NUM, dtype=np.int64)
    return tf.data.Dataset.from_tensor_slices({"item": ids, "name": [f"n{i}" for i in ids]})


@pytest.fixture
def tower() -> Any:
    table = tf.constant(np.random.default_rng(3).normal(size=(NUM, 4)), tf.float32)
    return lambda batch: tf.gather(table, batch["item"])


@pytest.mark.parametrize("identifier", [None, "name"])
def test_provided_candidates_rank_as_streaming_does(tower: Any, identifier: str | None) -> None:
    candidates = embedps.Candidates(batches().batch(7), tower, identifier=identifier)
    queries = tf.random.normal([5, 4])
    wanted = candidates(queries, k=6)  # by TFRS' Streaming
    encoded = candidates.encoded()
    assert encoded[0].shape == (NUM, 4)
    with candidates.providing(encoded):
        found = candidates(queries, k=6)
        all_of_them, identifiers = candidates(queries, k=NUM + 5)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)
    np.testing.assert_array_equal(found[1], wanted[1])
    assert all_of_them.shape == (5, NUM + 5)
    np.testing.assert_array_equal(all_of_them[:, NUM:], tf.float32.min)
    assert identifiers.shape == (5, NUM + 5)


@pytest.mark.parametrize("by_id", [False, True])
def test_metric_equals_tfrs_own(tower: Any, by_id: bool) -> None:
    column = "name" if by_id else None
    candidates = embedps.Candidates(batches().batch(7), tower, identifier=column)
    ours = tfrs.metrics.FactorizedTopK(candidates, ks=(1, 3, 10))
    exact = tfrs.layers.factorized_top_k.BruteForce().index_from_dataset(
        batches().batch(7).map(lambda b: (b["name"], tower(b)))
    )
    theirs = tfrs.metrics.FactorizedTopK(exact, ks=(1, 3, 10))
    items = np.random.default_rng(1).integers(0, NUM, 200)
    batch = {"item": tf.constant(items), "name": tf.constant([f"n{i}" for i in items])}
    true = tower(batch)
    queries = true + tf.random.stateless_normal(true.shape, [1, 2])
    ids = batch["name"] if by_id else None
    with candidates.providing(candidates.encoded()):
        ours.update_state(queries, true, true_candidate_ids=ids)
    theirs.update_state(queries, true, true_candidate_ids=ids)
    assert [float(x) for x in ours.result()] == [float(x) for x in theirs.result()]
    assert 0 < float(ours.result()[0]) < float(ours.result()[2]) < 1


def test_candidates_read_rows_without_making_any() -> None:
    table = embedps.TableSpec(name="t", embedding_dim=4)
    layer = embedps.Embeddings([embedps.FeatureSpec(name="item", table=table)])
    item = layer.feature("item")
    candidates = embedps.Candidates(batches().batch(7), lambda b: item(b["item"]))
    layer({"item": tf.constant([1, 2], tf.int64)}, training=True)
    with tf.GradientTape():
        scores, _ = tf.function(lambda q: candidates(q, k=3))(tf.ones([2, 4]))
    assert scores.shape == (2, 3)
    assert layer.own.collection.stats().rows == {"t": 2}


def test_mistakes_are_named(tower: Any) -> None:
    with pytest.raises(UsageError, match="must be dicts with column 'nope'"):
        embedps.Candidates(batches().batch(2), tower, identifier="nope")
    with pytest.raises(UsageError, match="must be dicts with columns"):
        embedps.Candidates(tf.data.Dataset.range(3), tower)
    with pytest.raises(UsageError, match="must have a candidate"):
        embedps.Candidates(batches().batch(2).take(0), tower).encoded()
    layer = embedps.Embeddings(
        [embedps.FeatureSpec(name="a", table=embedps.TableSpec(name="a", embedding_dim=2))]
    )
    with pytest.raises(UsageError, match="no feature 'b': the features are \\['a'\\]"):
        layer.feature("b")
