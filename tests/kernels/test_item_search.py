"""The search among items gives the bits of TensorFlow's product and top_k; inputs are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps import kernels
from embedps.serving.server.item_index import ItemIndex

EMPTY = np.zeros(0, np.int64)


def unfiltered(rows: int) -> dict[str, Any]:
    lists = (EMPTY, np.zeros(rows, np.int64))
    return {"seen": lists, "allowed": lists, "is_limited": np.zeros(rows, np.bool_)}


@pytest.mark.parametrize("dim", [1, 20, 64])
def test_scores_are_those_of_tensorflow_and_do_not_depend_on_the_batch(dim: int) -> None:
    rng = np.random.default_rng(dim)
    vectors = rng.normal(size=(50_000, dim)).astype(np.float32)
    queries = tf.constant(rng.normal(size=(40, dim)).astype(np.float32))
    ids = np.arange(50_000) * 3
    index = ItemIndex(dim).changed(ids, vectors, EMPTY)
    assert index.num_items == 50_000
    assert index.num_bytes < 50_000 * (5 * dim + 34)  # a code of 8 bits beside each float
    scores, found = index.search(queries, k=30, **unfiltered(40))
    best, places = tf.math.top_k(tf.matmul(queries, vectors, transpose_b=True), k=30)
    np.testing.assert_array_equal(scores, best)
    np.testing.assert_array_equal(found, ids[places.numpy()])
    alone, _ = index.search(queries[7:8], k=30, **unfiltered(1))
    np.testing.assert_array_equal(alone[0], scores[7])


def test_an_index_without_items_finds_none() -> None:
    scores, found = ItemIndex(2).search(tf.zeros([1, 2]), k=2, **unfiltered(1))
    assert found.tolist() == [[-1, -1]]
    assert (scores == np.finfo(np.float32).min).all()


def test_an_unfit_input_is_refused_by_name() -> None:
    ops = kernels.load()
    index = ops.embedps_no_items(dim=2)
    none, splits = tf.constant(EMPTY), tf.zeros([2], tf.int64)
    limited = tf.zeros([1], tf.bool)

    def search(**change: Any) -> Any:
        given = {
            "index": index,
            "queries": tf.zeros([1, 2]),
            "seen": none,
            "seen_splits": splits,
            "allowed": none,
            "allowed_splits": splits,
            "is_limited": limited,
        }
        return ops.embedps_search_items(**(given | change), k=1)

    other = tf.raw_ops.EmptyTensorList(
        element_shape=tf.zeros([0], tf.int32), max_num_elements=0, element_dtype=tf.float32
    )
    for change, said in (
        ({"queries": tf.zeros([1, 3])}, r"queries must be \[queries, 2\]"),
        ({"index": other}, "index must be"),
        ({"seen": tf.zeros([1, 1], tf.int64)}, "seen must be of rank 1"),
        ({"seen_splits": tf.zeros([3], tf.int64)}, "splits of the lists must be"),
        ({"allowed_splits": tf.constant([0, 5], tf.int64)}, "allowed"),
        ({"is_limited": tf.zeros([2], tf.bool)}, "is_limited must be"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=said):
            search(**change)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"vectors must be \[1,2\]"):
        ops.embedps_change_items(index, tf.constant([4], tf.int64), tf.zeros([1, 3]), none)
    with pytest.raises(tf.errors.InvalidArgumentError, match="removed must be of rank 1"):
        ops.embedps_change_items(index, none, tf.zeros([0, 2]), tf.zeros([], tf.int64))
