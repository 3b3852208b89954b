"""A server's log of applied steps, and updates of steps that are in the log."""

import numpy as np
import pytest
import tensorflow as tf

from embedps import kernels
from embedps.tables import ops
from tests.tables.builders import make_collection, make_table, rows_of


def step(number: int) -> tf.Tensor:
    return tf.constant(number, tf.int64)


def applied_by(log: tf.Tensor, number: int, *, worker: int = 0, seen: int = 0) -> None:
    ops.step_applied(log, step(number), worker=step(worker), seen=step(seen))


def test_step_is_new_until_it_was_applied():
    log = ops.step_log(container="test-steps", shared_name="a")
    applied = [0, 1, 4095, 4096, 2**31, 2**32 - 1]
    for number in applied:
        assert ops.step_is_new(log, step(number))
        applied_by(log, number)
        assert not ops.step_is_new(log, step(number))
    for number in (2, 4094, 4097, 8191, 2**31 - 1, 2**31 + 4096, 2**32 - 2):
        assert ops.step_is_new(log, step(number))
    assert not any(ops.step_is_new(log, step(number)) for number in applied)
    other = ops.step_log(container="test-steps", shared_name="b")
    assert ops.step_is_new(other, step(4095))


def test_log_goes_with_its_container():
    log = ops.step_log(container="test-steps-gone", shared_name="a")
    applied_by(log, 3)
    kernels.load().embedps_drop_stores(container="test-steps-gone")
    with pytest.raises(tf.errors.NotFoundError):
        ops.step_is_new(log, step(3))
    assert ops.step_is_new(ops.step_log(container="test-steps-gone", shared_name="a"), step(3))


@pytest.mark.parametrize("number", [-1, 2**32])
@pytest.mark.parametrize("call", [ops.step_is_new, ops.steps_seen])
def test_step_that_no_row_can_have_is_refused(call, number):
    log = ops.step_log(container="test-steps", shared_name="refuses")
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"2\^32\) but got {number}"):
        call(log, step(number))


def test_applied_step_must_be_one_that_a_row_can_have():
    log = ops.step_log(container="test-steps", shared_name="refuses")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"2\^32\) but got -1"):
        applied_by(log, -1)


def test_staleness_counts_the_steps_of_others_since_a_step_began():
    log = ops.step_log(container="test-steps", shared_name="stale")
    assert ops.staleness(log).shape == (0, 3)
    began = {number: int(ops.steps_seen(log, step(number))) for number in (5, 6, 7)}
    for number, worker in ((6, 1), (5, 0), (7, 2)):
        applied_by(log, number, worker=worker, seen=began[number])
    assert int(ops.steps_seen(log, step(8))) == 3
    applied_by(log, 8, worker=1, seen=3)
    applied_by(log, 8, worker=2, seen=3)  # another attempt at a step that was applied
    assert ops.staleness(log).numpy().tolist() == [[0, 1, 1], [1, 0, 2], [2, 2, 1]]


def test_update_of_a_step_that_is_not_new_leaves_rows_as_they_are(tmp_path):
    collection = make_collection([make_table("t", dim=3)])
    result = collection.lookup({"t": tf.constant([4, 5, 4], tf.int64)}, insert=True)
    (routed,) = result.routed
    before = rows_of(collection, tmp_path / "before")

    def update(*, is_new: bool) -> None:
        collection.update_shard(
            0,
            0,
            routed.shard_ids[0],
            routed.shard_splits[0],
            tf.ones([2, 3]),
            learning_rate=tf.constant(0.5),
            step=step(7),
            is_new=tf.constant(is_new),
        )

    update(is_new=False)
    assert rows_of(collection, tmp_path / "same") == before
    update(is_new=True)
    after = rows_of(collection, tmp_path / "after")
    assert after.keys() == before.keys()
    for key, row in after.items():
        assert (row.last_step, row.frequency) == (7, 1)
        assert np.all(np.array(row.embedding) < np.array(before[key].embedding))
