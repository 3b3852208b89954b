"""Ids of combinations of ids: the bits that ingestion gives them."""

import numpy as np
import pyarrow as pa
import tensorflow as tf

from embedps.data.dataset import MISSING_ID
from embedps.features.transforms import _cross
from embedps.layers.id_hash import crossed


def test_a_cross_has_the_id_that_a_schema_s_cross_gives() -> None:
    rng = np.random.default_rng(3)
    columns = [rng.integers(-(2**63), 2**63, 1000, np.int64) for _ in range(3)]
    columns[1][:100] = MISSING_ID
    wanted = _cross([pa.array(ids) for ids in columns])
    made = crossed([tf.constant(ids) for ids in columns]).numpy()
    np.testing.assert_array_equal(made, wanted)
    assert (made[:100] == MISSING_ID).all()
    assert made[100:].min() >= 0
