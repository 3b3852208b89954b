"""Parts of a step on a server: their sum, who applies it, and what waits for it."""

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps.tables import ops, step_ops
from tests.kernels.cancelled import check_cancelled


def number(n: int) -> tf.Tensor:
    return tf.constant(n, tf.int64)


def add(
    log: tf.Tensor,
    step: int,
    rank: int,
    num_parts: int,
    *,
    ids: list[int],
    gradients: Any,
    num_rows: int = 1,
    counts: Any = None,
    dense: Any = (),
) -> Any:
    """A part of one table."""
    return step_ops.add_part(
        log,
        number(step + rank),
        num_parts=number(num_parts),
        rank=number(rank),
        num_rows=number(num_rows),
        worker=number(rank),
        seen=number(0),
        rows=[
            ops.RowPart(
                tf.constant(ids, tf.int64),
                tf.constant([0, len(ids)], tf.int32),
                tf.constant(gradients, tf.float32),
                *(counts or ()),
            )
        ],
        dense=[tf.constant(value) for value in dense],
    )


def counts_of(examples: list[int], absent: list[int]) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.constant(examples, tf.int32), tf.constant(absent, tf.uint8)


def test_the_last_part_gets_the_weighted_sums_in_order_of_rank():
    log = step_ops.step_log(container="test-sums", shared_name="sum")
    rng = np.random.default_rng(0)
    ids, rows = ([5, 7], [7, 9, 5], [8]), (4, 2, 3)
    gradients = [rng.standard_normal((len(each), 3)).astype(np.float32) for each in ids]
    dense = [rng.standard_normal((2, 2)).astype(np.float32) for _ in ids]
    found = {}
    for rank in (2, 0, 1):
        found[rank] = add(
            log,
            30,
            rank,
            3,
            ids=ids[rank],
            gradients=gradients[rank],
            num_rows=rows[rank],
            counts=counts_of([rank + 1] * len(ids[rank]), [int(rank == 1)] * len(ids[rank])),
            dense=(dense[rank], np.int64(10**rank)),
        )
    for rank in (2, 0):
        own = found[rank]
        assert not own.is_complete
        assert own.merged_ids[0].shape == own.merged_examples[0].shape == (0,)
        assert own.merged_gradients[0].shape == (0, 3)
        assert own.merged_splits[0].numpy().tolist() == [0, 0]
        np.testing.assert_array_equal(own.merged_dense[0], dense[rank])
    whole = found[1]
    assert whole.is_complete
    weights = [np.float32(n) / np.float32(sum(rows)) for n in rows]
    sums: dict[int, np.ndarray] = {}
    total = weights[0] * dense[0]
    for rank, weight in enumerate(weights):
        for each, gradient in zip(ids[rank], gradients[rank], strict=True):
            scaled = weight * gradient
            sums[each] = sums[each] + scaled if each in sums else scaled
        if rank:
            total = total + weight * dense[rank]
    assert whole.merged_ids[0].numpy().tolist() == [*sums] == [5, 7, 9, 8]
    assert whole.merged_splits[0].numpy().tolist() == [0, 4]
    np.testing.assert_array_equal(whole.merged_gradients[0], np.stack([*sums.values()]))
    np.testing.assert_array_equal(whole.merged_dense[0], total)
    assert int(whole.merged_dense[1]) == 111
    assert whole.merged_examples[0].numpy().tolist() == [3, 3, 2, 3]
    assert whole.merged_absent[0].numpy().tolist() == [1, 1, 1, 0]
    assert all(step_ops.step_is_new(log, number(n)) for n in (30, 31, 32))
    step_ops.step_taken(log, whole.is_complete, whole.turn)
    assert not any(step_ops.step_is_new(log, number(n)) for n in (30, 31, 32))
    assert step_ops.staleness(log).numpy().tolist() == [[0, 0, 1], [1, 0, 1], [2, 0, 1]]


def test_a_step_whose_attempt_fails_is_applied_by_the_next():
    log = step_ops.step_log(container="test-sums", shared_name="fails")
    add(log, 0, 0, 2, ids=[1], gradients=[[2.0]])

    @tf.function
    def fails() -> None:
        found = add(log, 0, 1, 2, ids=[1], gradients=[[4.0]])
        is_complete = tf.cast(found.is_complete, tf.int32)
        with tf.control_dependencies([tf.debugging.assert_less(is_complete, 0)]):
            step_ops.step_taken(log, found.is_complete, found.turn)

    with pytest.raises(tf.errors.InvalidArgumentError):
        fails()
    assert step_ops.step_is_new(log, number(0))
    found = add(log, 0, 1, 2, ids=[9], gradients=[[9.0]])  # another part than the first attempt's
    assert found.is_complete
    assert found.merged_gradients[0].numpy().tolist() == [[3.0]]
    waiting = threading.Thread(target=add, args=(log, 0, 0, 2), kwargs=PART)
    waiting.start()  # until the turn's end is known
    step_ops.step_taken(log, found.is_complete, found.turn)
    waiting.join()
    assert not step_ops.step_is_new(log, number(0))


PART: dict[str, Any] = {"ids": [1], "gradients": [[1.0]]}


def test_an_attempt_that_is_cancelled_as_it_waits_leaves_the_turn_to_another():
    log = step_ops.step_log(container="test-sums", shared_name="cancelled")
    holder = add(log, 0, 0, 1, **PART)
    assert holder.is_complete

    @tf.function
    def attempt() -> tf.Tensor:
        return add(log, 0, 0, 1, **PART).is_complete

    check_cancelled(attempt)
    del holder  # ends without having applied the step
    again = add(log, 0, 0, 1, **PART)
    assert again.is_complete
    step_ops.step_taken(log, again.is_complete, again.turn)
    assert not add(log, 0, 0, 1, **PART).is_complete


def test_a_step_begins_once_the_one_before_is_logged():
    log = step_ops.step_log(container="test-sums", shared_name="await")
    assert int(step_ops.await_step(log, number(0), after=number(-1))) == 0
    seen: list[int] = []
    begins = [
        threading.Thread(
            target=lambda: seen.append(int(step_ops.await_step(log, number(1), after=number(0))))
        )
        for _ in range(3)
    ]
    for thread in begins:
        thread.start()
    found = add(log, 0, 0, 1, **PART)
    assert seen == []
    step_ops.step_taken(log, found.is_complete, found.turn)
    for thread in begins:
        thread.join()
    assert seen == [1, 1, 1]
    # A step that is logged has nothing to wait for.
    assert int(step_ops.await_step(log, number(0), after=number(99))) == 1


def test_a_cancelled_wait_ends():
    log = step_ops.step_log(container="test-sums", shared_name="await-cancelled")

    @tf.function
    def wait() -> tf.Tensor:
        return step_ops.await_step(log, number(8), after=number(7))

    check_cancelled(wait)
    step_ops.step_applied(log, number(7), worker=number(0), seen=number(0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 2}, "cannot have rank 2 of 2"),
        ({"num_rows": 0}, "num_rows must be at least 1 but is 0"),
        ({"gradients": [[1.0], [1.0]]}, r"gradients must be \[1, dim\]"),
        ({"num_parts": 3}, "step 0 has 2 parts but got one of 3"),
        ({"gradients": [[1.0, 2.0]]}, "must have tensors of the same shapes"),
        ({"counts": counts_of([1, 1], [0, 0])}, r"must be \[1\], as many as ids"),
    ],
)
def test_parts_that_do_not_fit_are_refused(fields, message):
    log = step_ops.step_log(container="test-sums", shared_name=f"refuses-{message}")
    add(log, 0, 0, 2, **PART)
    fields = {"rank": 1, "num_parts": 2, **PART, **fields}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        add(log, 0, **fields)
    if "same shapes" not in message:  # then the step keeps its first parts
        assert add(log, 0, 1, 2, **PART).is_complete
