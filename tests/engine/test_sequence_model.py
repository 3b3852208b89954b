"""A network over rows per position: with the mask of what is padded, and over ragged rows."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from embedps.engine.model_signature import signature_of
from embedps.engine.recommender import Recommender
from embedps.errors import DimMismatchError
from embedps.layers.embeddings import Embeddings
from embedps.tables import FeatureSpec, TableSpec
from tests.builders import SumModel, dataset_fixture, make_trainer
from tests.tables.builders import ids, ragged

LISTS = [[1, 2, 3, 4], [], [5]]


def _sequences(max_length=None):
    """Makes a recommender of the tests' columns whose tags keep their rows."""
    table = TableSpec(name="tags", embedding_dim=4)
    tags = FeatureSpec(
        name="tags", table=table, ragged=True, combiner="none", max_length=max_length
    )
    c1 = FeatureSpec(name="C1", table=TableSpec(name="small", embedding_dim=3))
    return Recommender(build=lambda: SequenceModel((c1, tags), ()))


class SequenceModel(SumModel):
    """Reads the tags in their order, and attends to them if they are padded."""

    def __init__(self, features, tables):
        super().__init__(features, tables)
        self.read = tf.keras.layers.SimpleRNN(5)  # a GRU takes seconds to trace
        self.attend = tf.keras.layers.MultiHeadAttention(2, 3)

    def rows(self, features):
        found = self.embeddings(features)
        tags = found["tags"]
        parts = [found["C1"], self.read(tags)]
        if not isinstance(tags, tf.RaggedTensor):
            parts.append(tf.reduce_sum(self.attend(tags, tags), axis=1))
        return tf.concat(parts, axis=1)


dataset = dataset_fixture(train=(600,), evaluation=(100,), whole=True)


@pytest.mark.parametrize("max_length", [None, 3])
def test_sequences_train_and_resume_only_with_their_length(tmp_path, dataset, max_length):
    recommender = _sequences(max_length)
    trainer = make_trainer(
        dataset, tmp_path / "m", recommender=recommender, epochs=2, eval="inline"
    )
    lengths = {} if max_length is None else {"max_length": max_length}
    assert signature_of(trainer._setup.model)["features"] == [
        {"combiner": None, "name": "C1", "table": "small"},
        {"combiner": "none", "name": "tags", "table": "tags", **lengths},
    ]
    result = trainer.fit()
    assert result.finished
    assert len(result.scores) == 2
    assert np.isfinite(np.array([score.logloss for score in result.scores], float)).all()
    with pytest.raises(DimMismatchError, match=r"feature 1 is .*'max_length': 5.*has .*'none'"):
        make_trainer(dataset, tmp_path / "m", recommender=_sequences(5))


@pytest.mark.parametrize("traced", [False, True])
def test_keras_gets_the_mask_of_padded_rows(traced):
    table = TableSpec(name="t", embedding_dim=2)
    layer = Embeddings(
        [
            FeatureSpec(name="last", table=table, ragged=True, combiner="none", max_length=3),
            FeatureSpec(name="one", table="t"),
        ]
    )
    assert layer.tables == (table,)
    pool = tf.keras.layers.GlobalAveragePooling1D()
    rows = np.arange(18, dtype=np.float32).reshape(3, 3, 2)
    batch = {"last": ragged(LISTS), "one": ids(1, 2, 3)}

    def run(batch, rows):
        with layer.providing({"last": rows, "one": tf.zeros([3, 2])}):
            found = layer(batch)
            assert getattr(found["one"], "_keras_mask", None) is None
            return found["last"]._keras_mask, pool(found["last"])

    mask, pooled = (tf.function(run) if traced else run)(batch, tf.constant(rows))
    np.testing.assert_array_equal(mask, [[True] * 3, [False] * 3, [True, False, False]])
    np.testing.assert_allclose(pooled.numpy()[[0, 2]], [rows[0].mean(0), rows[2, 0]])


def test_layer_without_lengths_makes_no_masks():
    layer = Embeddings(
        [FeatureSpec(name="f", table=TableSpec(name="t", embedding_dim=2), ragged=True)]
    )
    assert layer.compute_mask({"f": ragged(LISTS)}) is None


def test_feature_keeps_its_words_in_the_layer():
    spec = FeatureSpec(
        name="f",
        table=TableSpec(name="t", embedding_dim=2),
        ragged=True,
        combiner="none",
        max_length=7,
    )
    assert Embeddings([spec]).features == (dataclasses.replace(spec, table="t"),)
