import numpy as np
import pytest

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import tensorflow as tf

from benchmarks import model_speed, plain_models
from embedps.metrics import Accumulator
from embedps.tables import FeatureSpec, TableSpec
from embedps.training.training_log import TrainingLog


@pytest.mark.parametrize("max_length", [None, 2])
def test_lists_are_padded_and_averaged_as_ours(max_length):
    table = TableSpec(name="item", embedding_dim=3)
    features = [
        FeatureSpec(name="item", table=table),
        FeatureSpec(
            name="history", table=table, ragged=True, combiner="none", max_length=max_length
        ),
        FeatureSpec(name="mean", table=table, ragged=True, combiner="mean"),
    ]
    layer = plain_models.PlainEmbeddings(features, {"item": 3}, {"item": 10})
    lists = [[1, 2, 3], [], [4]]
    ragged = tf.ragged.constant(lists, tf.int64)
    batch = {"item": tf.constant([5, 6, 7], tf.int64), "history": ragged, "mean": ragged}
    found = layer(batch)
    rows = layer.layers["item"].embeddings.numpy()
    length = max_length or 3
    expected = np.zeros([3, length, 3], np.float32)
    for i, ids in enumerate(lists):
        kept = ids[-length:]
        expected[i, : len(kept)] = rows[kept]
    np.testing.assert_array_equal(found["item"], rows[[5, 6, 7]])
    np.testing.assert_array_equal(found["history"], expected)
    means = [rows[[1, 2, 3]].mean(axis=0), np.zeros(3), rows[4]]
    np.testing.assert_allclose(found["mean"], means, rtol=1e-6)
    lengths = [min(len(ids), length) for ids in lists]
    mask = np.arange(length) < np.array(lengths)[:, None]
    np.testing.assert_array_equal(layer.compute_mask(batch)["history"], mask)


def test_a_plain_model_of_histories_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_models, "_USERS", 60)
    monkeypatch.setattr(plain_models, "_ITEMS", 80)
    dataset = plain_models.histories("two_tower", tmp_path / "set")
    columns, sizes = plain_models.read_columns(dataset, 64)
    assert sizes == {"user": 60, "item": 80, "history": 80}
    model = plain_models.make_plain("two_tower", dataset, sizes)
    model.compile(tf.keras.optimizers.legacy.Adagrad(0.5))
    batches = tf.data.Dataset.from_tensor_slices(columns).batch(32)
    losses = model.fit(batches, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_the_warm_rate_leaves_out_the_first_third(tmp_path):
    log = TrainingLog(tmp_path, lambda: Accumulator(lambda counts: {}))
    for step, rate in enumerate([1.0, 50.0, 50.0, 50.0]):
        log.write("train", {"examples_per_sec": rate}, step=step, texts={})
    assert model_speed.warm_rate(tmp_path) == pytest.approx(50)
