"""The merge of a step's parts against NumPy: float32, in rank order, to the bit."""

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from embedps.tables import ops, part_ops

DIM = 5
TABLES = 3


def _part(random: np.random.Generator, *, most_ids: int, counted: bool) -> ops.RowPart:
    ids, splits = [], [0]
    for _ in range(TABLES):
        ids += random.permutation(np.arange(-5, most_ids - 5))[: most_ids // 2].tolist()
        splits.append(len(ids))
    n = len(ids)
    return ops.RowPart(
        tf.constant(ids, tf.int64),
        tf.constant(splits, tf.int32),
        tf.constant(random.normal(size=(n, DIM)), tf.float32),
        tf.constant(random.integers(0, 4, n), tf.int32) if counted else None,
        tf.constant(random.integers(0, 2, n), tf.uint8) if counted else None,
    )


def _merge(
    parts: Sequence[ops.RowPart], num_examples: Sequence[int]
) -> list[dict[int, list[np.ndarray]]]:
    """Merges by table: maps each id, in order of first appearance, to its sums."""
    total = np.float32(sum(num_examples))
    merged: list[dict[int, list[np.ndarray]]] = [{} for _ in range(TABLES)]
    for part, n in zip(parts, num_examples, strict=True):
        weight = np.float32(n) / total
        for t, of_table in enumerate(merged):
            for i in range(int(part.splits[t]), int(part.splits[t + 1])):
                more = [weight * part.gradients[i].numpy()]
                if part.examples is not None and part.absent is not None:
                    more += [part.examples[i].numpy(), part.absent[i].numpy()]
                key = int(part.ids[i])
                if key in of_table:
                    before = of_table[key]
                    more[0] = before[0] + more[0]
                    if part.examples is not None:
                        more[1:] = [before[1] + more[1], before[2] | more[2]]
                of_table[key] = more
    return merged


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("num_examples", [[64], [64, 64], [30, 7, 41, 5]])
def test_merged_parts_equal_numpy(num_examples: list[int], counted: bool) -> None:
    random = np.random.default_rng(len(num_examples))
    parts = [_part(random, most_ids=40, counted=counted) for _ in num_examples]
    merged = part_ops.merge_rows(parts, tf.constant(num_examples, tf.int64))
    expected = _merge(parts, num_examples)
    assert merged.splits.numpy().tolist() == [0, *np.cumsum([len(t) for t in expected])]
    assert merged.ids.numpy().tolist() == [i for t in expected for i in t]
    rows = [row for t in expected for row in t.values()]
    np.testing.assert_array_equal(merged.gradients.numpy(), [row[0] for row in rows])
    if merged.examples is not None and merged.absent is not None:
        assert counted
        np.testing.assert_array_equal(merged.examples.numpy(), [row[1] for row in rows])
        np.testing.assert_array_equal(merged.absent.numpy(), [row[2] for row in rows])
    else:
        assert not counted


def test_part_without_examples_is_left_out() -> None:
    random = np.random.default_rng(7)
    one = _part(random, most_ids=20, counted=False)
    nothing = one._replace(gradients=tf.fill(one.gradients.shape, float("nan")))
    merged = part_ops.merge_rows([nothing, one], tf.constant([0, 9], tf.int64))
    for found, expected in zip(merged[:3], one[:3], strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    values = tf.constant(random.normal(size=(3, 4)), tf.float32)
    merged_values = part_ops.merge_dense(
        [values * float("nan"), values], tf.constant([0, 9], tf.int64)
    )
    np.testing.assert_array_equal(merged_values.numpy(), values.numpy())


def test_merged_values_equal_numpy() -> None:
    random = np.random.default_rng(8)
    num_examples = [30, 7, 41]
    values = random.normal(size=(3, 4, 6)).astype(np.float32)
    merged = part_ops.merge_dense(list(values), tf.constant(num_examples, tf.int64))
    expected = np.zeros((4, 6), np.float32)
    for value, n in zip(values, num_examples, strict=True):
        expected += np.float32(n) / np.float32(78) * value
    np.testing.assert_array_equal(merged.numpy(), expected)


def test_parts_that_do_not_fit_are_refused() -> None:
    one = _part(np.random.default_rng(9), most_ids=20, counted=False)

    def refuses(part: ops.RowPart, what: str, num_examples: Sequence[int] = (1, 1)) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match=what):
            part_ops.merge_rows([one, part], tf.constant(num_examples, tf.int64))

    refuses(one._replace(gradients=one.gradients[1:]), r"rank 1: ids, splits and gradients must be")
    refuses(one._replace(gradients=one.gradients[:, 1:]), "must have 3 tables of dim 5")
    refuses(one._replace(splits=one.splits[:-1]), "must have 3 tables of dim 5.* has 2 of dim 5")
    refuses(one._replace(splits=one.splits[::-1]), "splits must rise from 0 to 30")
    refuses(one, "a step must have an example", [0, 0])
    refuses(one, "must be at least 0 but got -1", [-1, 1])
    refuses(one, r"num_examples must be \[2\]", [1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="those of rank 1 are"):
        part_ops.merge_dense([tf.zeros([2]), tf.zeros([3])], tf.constant([1, 1], tf.int64))
