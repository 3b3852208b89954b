"""A recommender checks its declarations, and reads their columns of a dataset."""

from typing import Any

import pytest
import tensorflow as tf

from embedps.engine.recommender import Recommender
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.tables import FeatureSpec, TableSpec
from tests.builders import SumNetwork, make_mixed


def test_input_reads_each_feature_by_its_kind():
    read = StepModel(make_mixed(label="click", missing_id=-7)).input(batch_rows=8, shuffle_rows=100)
    assert read.labels == ("click",)
    assert read.numerics == ("I1", "I2")
    assert read.ids == ("C1", "C2", "C3", "row")
    assert read.id_lists == ("tags",)
    assert (read.batch_rows, read.shuffle_rows, read.missing_id) == (8, 100, -7)


def test_network_has_its_variables_once_built():
    network = StepModel(make_mixed()).network
    # Two numerics; C1, C2 and row of dim 3, C3 and tags of dim 6.
    assert [v.shape.as_list() for v in network.variables] == [[2 + 3 * 3 + 2 * 6, 1], [1]]


def test_network_with_a_layer_over_no_columns_is_refused():
    class OverNumerics(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self._dense = tf.keras.layers.Dense(8, name="deep")

        def call(self, numerics, embeddings):
            return self._dense(numerics)

    with pytest.raises(
        UsageError, match=r"deep/kernel:0' must have .* is of shape \[0, 8\]: leave"
    ):
        StepModel(make_mixed(numerics=(), build=OverNumerics))


class Answering(tf.keras.Model):
    """Gives what a function makes of the sums over the numerics, and says in which mode."""

    def __init__(self, answer) -> None:
        super().__init__()
        self._answer = answer

    def call(self, numerics: tf.Tensor, embeddings: dict[str, tf.Tensor], training=None) -> Any:
        return self._answer(tf.reduce_sum(numerics, 1) + (100.0 if training else 0.0))


@pytest.mark.parametrize("shape", [[-1], [-1, 1]])
@pytest.mark.parametrize("training", [False, True])
def test_logits_are_of_rank_1_and_of_their_mode(shape, training):
    network = Answering(lambda sums: tf.reshape(sums, shape))
    model = StepModel(make_mixed(build=lambda: network))
    assert model.network is network
    batch = {"numerics": tf.ones([4, 2]), "C1": tf.zeros([4], tf.int64)}
    with model.embeddings.providing({"C1": tf.zeros([4, 3])}):
        logits = model.model.logits(batch, training=training)
    assert logits.numpy().tolist() == [102.0 if training else 2.0] * 4


class Positional(tf.keras.Model):
    """Takes its mode without a default."""

    def call(self, numerics: tf.Tensor, embeddings: dict[str, tf.Tensor], training: bool) -> Any:
        return tf.reduce_sum(numerics, 1) + float(training)


class Masking(tf.keras.Model):
    """Takes a mask where the embeddings should be."""

    def call(self, inputs: tf.Tensor, mask=None) -> Any:
        return inputs


class Greedy(tf.keras.Model):
    """Needs more than there is."""

    def call(self, numerics: tf.Tensor, embeddings: dict[str, tf.Tensor], weights: Any) -> Any:
        return tf.reduce_sum(numerics, 1)


def test_mode_may_be_an_argument_without_a_default():
    network = Positional()
    assert StepModel(make_mixed(build=lambda: network)).network is network


def two_inputs() -> tf.keras.Model:
    numerics, rows = tf.keras.Input([2]), tf.keras.Input([3])
    out = tf.keras.layers.Dense(1)(tf.concat([numerics, rows], 1))
    return tf.keras.Model([numerics, {"C1": rows}], out)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: None, "build must return a tf.keras.Model .* but returned a builtins.NoneType"),
        (lambda: lambda numerics, embeddings: numerics, "returned a builtins.function"),
        (lambda: tf.keras.Sequential(), r"Sequential takes \(inputs, training=None, mask=None\)"),
        (two_inputs, r"take \(numerics, embeddings\) but that of Functional takes \(inputs, "),
        (Masking, r"that of Masking takes \(inputs: .*, mask=None\)"),
        (Greedy, r"that of Greedy takes \(numerics: .*, weights: "),
        (lambda: Answering(lambda sums: None), "logits, .* but returned None"),
        (lambda: Answering(lambda sums: {"logits": sums}), "but returned a dict"),
        (lambda: Answering(lambda sums: [sums]), "but returned a list"),
        (lambda: Answering(lambda sums: (sums, sums)), "but returned a tuple"),
        (lambda: Answering(tf.reduce_mean), r"but returned \[\] for a batch of 2"),
        (lambda: Answering(lambda sums: sums[:1]), r"but returned \[1\] for a batch of 2"),
        (lambda: Answering(lambda sums: tf.stack([sums] * 3, 1)), r"but returned \[2, 3\] for"),
        (lambda: Answering(lambda sums: sums[None, :]), r"but returned \[1, 2\] for"),
        (lambda: Answering(lambda sums: tf.cast(sums, tf.bfloat16)), "but returned bfloat16: end"),
        (lambda: Answering(lambda sums: tf.cast(sums, tf.int32)), "but returned int32: end its"),
        (lambda: Answering(lambda sums: tf.math.log(-sums)), r"returned \[nan, nan\] for numerics"),
    ],
)
def test_network_that_gives_no_logits_is_refused(build, message):
    with pytest.raises(UsageError, match=message) as refused:
        StepModel(make_mixed(build=build))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"label": ""}, "must name its label's column"),
        ({"features": (FeatureSpec(name="a", table="u"),)}, "table 'u', which is not among"),
        ({"features": ()}, "at least one feature"),
        ({"missing_id": 2**70}, "missing_id must be a signed 64-bit number but got 1180591620"),
    ],
)
def test_declaration_must_be_consistent(fields, message):
    valid = {
        "tables": (TableSpec(name="t", dim=2),),
        "features": (FeatureSpec(name="a", table="t"),),
        "build": SumNetwork,
    }
    with pytest.raises(UsageError, match=message):
        Recommender(**(valid | fields))
