"""What a recommender declares, and what it reads of a dataset."""

import pytest
import tensorflow as tf

from embedps.errors import UsageError
from embedps.recommender import Recommender
from embedps.tables import FeatureSpec, TableSpec
from tests.builders import SumNetwork, make_mixed


def test_input_reads_each_feature_by_its_kind():
    read = make_mixed(label="click", missing_id=-7).input(batch_rows=8, shuffle_rows=100)
    assert read.label == "click"
    assert read.numerics == ("I1", "I2")
    assert read.ids == ("C1", "C2", "C3", "row")
    assert read.id_lists == ("tags",)
    assert (read.batch_rows, read.shuffle_rows, read.missing_id) == (8, 100, -7)


def test_network_has_its_variables_once_built():
    network = make_mixed().build_network()
    # Two numerics; C1, C2 and row of dim 3, C3 and tags of dim 6.
    assert [v.shape.as_list() for v in network.variables] == [[2 + 3 * 3 + 2 * 6, 1], [1]]


@pytest.mark.parametrize("shape", [[4], [4, 1]])
def test_logits_are_float32_of_rank_1_whatever_the_network_returns(shape):
    def network(numerics, embeddings):
        return tf.reshape(tf.cast(tf.reduce_sum(numerics, 1), tf.float16), shape)

    logits = make_mixed().logits(network, tf.ones([4, 2]), {})
    assert logits.dtype == tf.float32
    assert logits.numpy().tolist() == [2.0] * 4


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
