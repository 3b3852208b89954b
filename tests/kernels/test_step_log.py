"""A server's log of applied steps, and updates of steps that are in the log."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from embedps import kernels
from embedps.tables import step_ops
from tests.kernels.cancelled import check_cancelled
from tests.tables.builders import make_collection, make_table, rows_of


def step(number: int) -> tf.Tensor:
    return tf.constant(number, tf.int64)


def applied_by(log: tf.Tensor, number: int, *, worker: int = 0, seen: int = 0) -> None:
    step_ops.step_applied(log, step(number), worker=step(worker), seen=step(seen))


def test_step_is_new_until_it_was_applied():
    log = step_ops.step_log(container="test-steps", shared_name="a")
    applied = [0, 1, 4095, 4096, 2**31, 2**32 - 1]
    for number in applied:
        assert step_ops.step_is_new(log, step(number))
        applied_by(log, number)
        assert not step_ops.step_is_new(log, step(number))
    for number in (2, 4094, 4097, 8191, 2**31 - 1, 2**31 + 4096, 2**32 - 2):
        assert step_ops.step_is_new(log, step(number))
    assert not any(step_ops.step_is_new(log, step(number)) for number in applied)
    other = step_ops.step_log(container="test-steps", shared_name="b")
    assert step_ops.step_is_new(other, step(4095))


def test_log_goes_with_its_container():
    log = step_ops.step_log(container="test-steps-gone", shared_name="a")
    applied_by(log, 3)
    kernels.load().embedps_drop_stores(container="test-steps-gone")
    with pytest.raises(tf.errors.NotFoundError):
        step_ops.step_is_new(log, step(3))
    assert step_ops.step_is_new(
        step_ops.step_log(container="test-steps-gone", shared_name="a"), step(3)
    )


@pytest.mark.parametrize("number", [-1, 2**32])
@pytest.mark.parametrize("call", [step_ops.step_is_new, step_ops.steps_seen])
def test_step_that_no_row_can_have_is_refused(call, number):
    log = step_ops.step_log(container="test-steps", shared_name="refuses")
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"2\^32\) but got {number}"):
        call(log, step(number))


def test_applied_step_must_be_one_that_a_row_can_have():
    log = step_ops.step_log(container="test-steps", shared_name="refuses")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"2\^32\) but got -1"):
        applied_by(log, -1)


def test_staleness_counts_the_steps_of_others_since_a_step_began():
    log = step_ops.step_log(container="test-steps", shared_name="stale")
    assert step_ops.staleness(log).shape == (0, 3)
    began = {number: int(step_ops.steps_seen(log, step(number))) for number in (5, 6, 7)}
    for number, worker in ((6, 1), (5, 0), (7, 2)):
        applied_by(log, number, worker=worker, seen=began[number])
    assert int(step_ops.steps_seen(log, step(8))) == 3
    applied_by(log, 8, worker=1, seen=3)
    applied_by(log, 8, worker=2, seen=3)  # another attempt at a step that was applied
    assert step_ops.staleness(log).numpy().tolist() == [[0, 1, 1], [1, 0, 2], [2, 2, 1]]


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_no_step_meets_more_others_than_the_gate_allows(most):
    """Workers on threads; one is slow, and its first step meets another's."""
    workers, steps = 4, 30
    log = step_ops.step_log(container="test-steps", shared_name=f"gate-{most}")
    numbers = iter(range(workers * steps))
    lock = threading.Lock()
    begun, met = threading.Event(), threading.Event()

    def work(worker: int, pause: float) -> None:
        if worker > 0:
            begun.wait(60)
        for _ in range(steps):
            step_ops.step_enter(log, step(worker), most=most)
            with lock:
                number = next(numbers)
            seen = int(step_ops.steps_seen(log, step(number)))
            time.sleep(pause)
            if worker == 0:
                begun.set()
                if most:
                    met.wait(60)
            applied_by(log, number, worker=worker, seen=seen)
            if worker > 0:
                met.set()
            step_ops.step_leave(log, step(worker))

    threads = [threading.Thread(target=work, args=(w, 0.005 * (w == 0))) for w in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = step_ops.staleness(log).numpy()
    assert found[:, 2].sum() == workers * steps
    assert found[:, 1].max() <= most
    if most:
        assert found[:, 1].max() > 0


def test_a_step_waits_until_one_leaves_and_a_new_attempt_replaces_the_workers_own():
    log = step_ops.step_log(container="test-steps", shared_name="gate")
    step_ops.step_enter(log, step(0), most=0)
    entered = threading.Event()

    def enter() -> None:
        step_ops.step_enter(log, step(1), most=0)
        entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    assert not entered.wait(0.2)
    step_ops.step_leave(log, step(7))  # has no step
    assert not entered.wait(0.2)
    step_ops.step_leave(log, step(0))
    waiting.join()
    assert entered.is_set()
    step_ops.step_enter(log, step(1), most=0)  # its process was started again
    step_ops.step_leave(log, step(1))
    step_ops.step_enter(log, step(0), most=0)


def test_a_step_that_is_cancelled_as_it_waits_lets_the_next_one_in():
    log = step_ops.step_log(container="test-steps", shared_name="cancelled")
    step_ops.step_enter(log, step(0), most=0)

    @tf.function
    def enter_and_leave() -> None:
        step_ops.step_enter(log, step(1), most=0)

    # After so long it most likely waits; it may also be cancelled before.
    check_cancelled(enter_and_leave, after_secs=0.2)
    step_ops.step_leave(log, step(0))
    step_ops.step_enter(log, step(2), most=0)


def test_update_of_a_step_that_is_not_new_leaves_rows_as_they_are(tmp_path):
    collection = make_collection([make_table("t", embedding_dim=3)])
    result = collection.lookup({"t": tf.constant([4, 5, 4], tf.int64)}, insert=True)
    ((asked,),) = result.asked
    before = rows_of(collection, tmp_path / "before")

    def update(*, is_new: bool) -> None:
        collection.update_shard(
            0,
            0,
            asked._replace(gradients=tf.ones([2, 3])),
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


def test_each_attempt_of_a_call_gives_its_steps_the_same_numbers():
    log = step_ops.step_log(container="test-steps", shared_name="calls")

    def take(call: int, attempt: int) -> int:
        return int(kernels.load().embedps_next_step(log, step(call), step(attempt)))

    kernels.load().embedps_number_steps(log, step(100))
    assert [take(7, 7), take(8, 8), take(7, 7), take(-1, -1)] == [100, 101, 102, 103]
    assert [take(7, 9), take(7, 9), take(7, 9)] == [100, 102, 104]
    assert take(-1, -1) == 105
    assert kernels.load().embedps_steps_numbered(log) == 106
