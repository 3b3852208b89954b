"""A lookup tells how often rows are updated, in each place where tables can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.errors import UsageError
from embedps.tables import FeatureSpec, TableSpec
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.optimizers import SGD

TABLE = TableSpec(name="items", embedding_dim=2, optimizer=SGD())
OTHER = TableSpec(name="others", embedding_dim=2, optimizer=SGD())


def collection(features: list[FeatureSpec], shards: int = 3) -> EmbeddingCollection:
    return EmbeddingCollection(
        [], features, devices=["/device:CPU:0"] * shards, container=f"rates-{id(features)}"
    )


def test_rates_come_in_the_form_of_the_ids() -> None:
    kept: dict[str, Any] = {"ragged": True, "combiner": "none"}
    features = [
        FeatureSpec(name="one", table=TABLE, rate_as="one_rate"),
        FeatureSpec(name="list", table=TABLE, **kept, rate_as="list_rate"),
        FeatureSpec(name="padded", table=TABLE, **kept, max_length=2, rate_as="padded_rate"),
        FeatureSpec(name="mean", table=OTHER, ragged=True, combiner="mean"),
    ]
    tables = collection(features)
    lists = tf.ragged.constant([[1, 2], [], [3]], tf.int64, row_splits_dtype=tf.int64)
    ids = {"one": tf.constant([1, 2, 1], tf.int64), "list": lists, "mean": lists}
    ids["padded"] = tf.ragged.constant([[9, 2, 1], [], [3]], tf.int64, row_splits_dtype=tf.int64)
    for step in range(6):
        found = tables.lookup(ids, insert=True)
        gradients = tf.nest.map_structure(tf.ones_like, found.rows)
        tables.update(
            found,
            gradients,
            learning_rate=tf.constant(0.1),
            step=tf.constant(step, tf.int64),
        )
    got = tables.combine(tables.lookup(ids, insert=False))
    np.testing.assert_allclose(got["one_rate"], [7 / 8] * 3)
    assert got["list_rate"].to_list() == [[7 / 8, 7 / 8], [], [7 / 8]]
    np.testing.assert_allclose(got["padded_rate"], np.array([[7, 7], [0, 0], [7, 0]]) / 8)
    assert "mean_rate" not in got
    never = tables.combine(
        tables.lookup({"one": tf.constant([77], tf.int64)}, insert=False, partial=True)
    )
    np.testing.assert_allclose(never["one_rate"], [1 / 8])
    tables.drop()


def test_in_keras_mode_rates_count_the_steps() -> None:
    layer = embedps.Embeddings(
        [FeatureSpec(name="item", table=TABLE, rate_as="rate")], learning_rate=0.1
    )
    seen: list[Any] = []
    for step in range(5):
        ids = tf.constant([4, 4] if step % 2 else [4, 8], tf.int64)
        with tf.GradientTape() as tape:
            found = layer({"item": ids})
            seen.append(found["rate"].numpy().tolist())
            loss = tf.reduce_sum(found["item"])
        tape.gradient(loss, layer.trainable_weights)
    assert seen[0] == [0.5, 0.5]
    assert seen[4] == pytest.approx([5 / 6, 3 / 6])  # before the fifth step: 4 and 2 of 4


def test_wrong_declarations_are_refused() -> None:
    with pytest.raises(UsageError, match="rate_as of a ragged feature must go with combiner"):
        FeatureSpec(name="list", table=TABLE, ragged=True, rate_as="rate")
    with pytest.raises(UsageError, match="feature names must be unique"):
        embedps.Embeddings(
            [FeatureSpec(name="a", table=TABLE, rate_as="b"), FeatureSpec(name="b", table=TABLE)]
        )
