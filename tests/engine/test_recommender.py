"""A recommender checks its declaration, and its model reads its columns and gives its logits."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import tensorflow as tf

import embedps
from embedps.engine.recommender import Recommender
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from tests.builders import MIXED, SumModel, dataset_fixture

dataset = dataset_fixture(train=(10,), evaluation=(), whole=True)


def test_input_reads_each_feature_by_its_kind(dataset):
    step = StepModel(dataclasses.replace(MIXED, missing_id=-7), dataset)
    read = step.input(batch_rows=8, shuffle_rows=100)
    assert read.labels == ("label",)
    assert read.numerics == ("I1", "I2")
    assert read.integers == ("row",)
    assert read.ids == ("C1", "C2", "C3")
    assert read.id_lists == ("tags",)
    assert (read.batch_rows, read.shuffle_rows, read.missing_id) == (8, 100, -7)


def test_model_has_its_variables_once_built(dataset):
    # Two numerics; C1, C2 and row of dim 3, C3 and tags of dim 6.
    shapes = [v.shape.as_list() for v in StepModel(MIXED, dataset).variables]
    assert shapes == [[2 + 3 * 3 + 2 * 6, 1], [1]]


def test_model_with_a_layer_over_no_columns_is_refused(dataset):
    class OverNumerics(SumModel):
        def __init__(self):
            super().__init__()
            self.deep = tf.keras.layers.Dense(8, name="deep")

        def numbers(self, features):
            return self.deep(super().numbers(features))

    with pytest.raises(
        UsageError, match=r"deep/kernel:0' must have .* is of shape \[0, 8\]: leave"
    ):
        StepModel(Recommender(build=OverNumerics), dataclasses.replace(dataset, numeric=()))


class Answering(embedps.ClickModel):
    """Gives what a function makes of the sums of the rows, and says in which mode."""

    def __init__(self, answer: Callable[[tf.Tensor], Any]) -> None:
        super().__init__(label="label")
        self.embeddings = embedps.Embeddings({"C1": 3})
        self._answer = answer

    def logits(self, features: Mapping[str, Any], *, training: bool) -> Any:
        rows = self.embeddings(features)["C1"]
        return self._answer(tf.reduce_sum(rows, 1) + (100.0 if training else 0.0))


@pytest.mark.parametrize("training", [False, True])
def test_logits_are_of_their_mode(dataset, training):
    model = StepModel(Recommender(build=lambda: Answering(tf.identity)), dataset)
    batch = {"numerics": tf.zeros([4, 2]), "label": tf.zeros([4]), "C1": tf.zeros([4], tf.int64)}
    loss = model.loss(batch, {"C1": tf.ones([4, 3])}, training=training)
    assert float(loss) == pytest.approx(103.0 if training else 3.0, rel=0.02)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: None, "build must return a tf.keras.Model .* but returned a builtins.NoneType"),
        (lambda: lambda numerics, embeddings: numerics, "returned a builtins.function"),
        (lambda: Answering(lambda sums: None), "but returned a NoneType"),
        (lambda: Answering(lambda sums: {"logits": sums}), "but returned a dict"),
        (lambda: Answering(lambda sums: [sums]), "but returned a list"),
        (lambda: Answering(lambda sums: (sums, sums)), "but returned a tuple"),
        (lambda: Answering(tf.reduce_mean), r"but returned float32 \[\] for labels \[2\]: end it"),
        (lambda: Answering(lambda sums: sums[:1]), r"but returned float32 \[1\] for labels \[2\]"),
        (lambda: Answering(lambda sums: sums[:, None]), r"float32 \[2, 1\] for labels \[2\]"),
        (lambda: Answering(lambda sums: sums[None, :]), r"float32 \[1, 2\] for labels \[2\]"),
        (lambda: Answering(lambda sums: tf.cast(sums, tf.bfloat16)), r"returned bfloat16 \[2\]"),
        (lambda: Answering(lambda sums: tf.cast(sums, tf.int32)), r"returned int32 \[2\]"),
    ],
)
def test_model_that_gives_no_logits_is_refused(dataset, build, message):
    with pytest.raises(UsageError, match=message) as refused:
        StepModel(Recommender(build=build), dataset)
    assert "\n" not in str(refused.value)


def test_missing_id_must_be_an_id():
    with pytest.raises(UsageError, match="missing_id must be a signed 64-bit number but got 11805"):
        Recommender(build=SumModel, missing_id=2**70)
