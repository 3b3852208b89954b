"""Wraps the ops of a server's step log: the steps that it applied, and those it has parts of."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from embedps import kernels
from embedps.tables.ops import RowPart
from embedps.tables.part_ops import part_inputs


def step_log(*, container: str, shared_name: str) -> tf.Tensor:
    """Finds or creates a log of applied steps on the current device."""
    return kernels.load().embedps_step_log(container=container, shared_name=shared_name)


def step_is_new(log: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Tells whether a step, int64 in [0, 2^32), is not in a log: a bool scalar."""
    return kernels.load().embedps_step_is_new(log, step)


def steps_seen(log: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Counts the steps in a log, an int64 scalar, as a step begins."""
    return kernels.load().embedps_steps_seen(log, step)


def step_applied(
    log: tf.Tensor, step: tf.Tensor, *, worker: tf.Tensor, seen: tf.Tensor
) -> tf.Operation:
    """Adds a step to a log.

    Args:
      log: as `step_log` returns it.
      step: int64 scalar in [0, 2^32).
      worker: the index of the worker's task, int64 scalar.
      seen: as `steps_seen` returned it when the worker's request was answered.
    """
    return kernels.load().embedps_step_applied(log, step, worker, seen)


def step_enter(log: tf.Tensor, worker: tf.Tensor, *, most: int) -> tf.Operation:
    """Waits until a worker's step may begin.

    Args:
      log: as `step_log` returns it.
      worker: the index of the worker's task, int64 scalar. A step that it left under way is
        forgotten.
      most: a step meets at most so many others: those under way when it begins, and those that
        begin before it leaves.
    """
    return kernels.load().embedps_step_enter(log, worker, most=most)


def step_leave(log: tf.Tensor, worker: tf.Tensor) -> tf.Operation:
    """Ends the step of a worker that entered."""
    return kernels.load().embedps_step_leave(log, worker)


def staleness(log: tf.Tensor) -> tf.Tensor:
    """Counts the steps in a log by worker and staleness.

    Returns:
      int64 [n, 3], sorted: the worker, the staleness (how many steps the log got between the step's
      `steps_seen` and its `step_applied`), and the number of steps.
    """
    return kernels.load().embedps_staleness(log)


def task_index() -> tf.Tensor:
    """Gives the index of the task that computes it, an int64 scalar."""
    return kernels.load().embedps_task_index()


def await_step(log: tf.Tensor, step: tf.Tensor, *, after: tf.Tensor) -> tf.Tensor:
    """Waits until a log has the step `after`, int64 scalar; not if that is negative.

    Args:
      log: as `step_log` returns it.
      step: int64 scalar in [0, 2^32). If the log has it, there is nothing to wait for.
      after: the number of the step to wait for, or -1.

    Returns:
      How many steps the log then has, an int64 scalar.
    """
    return kernels.load().embedps_await_step(log, step, after)


def add_part(
    log: tf.Tensor,
    number: tf.Tensor,
    *,
    num_parts: tf.Tensor,
    rank: tf.Tensor,
    num_rows: tf.Tensor,
    worker: tf.Tensor,
    seen: tf.Tensor,
    rows: Sequence[RowPart],
    dense: Sequence[tf.Tensor],
) -> Any:
    """Adds a part of a step that several workers take together.

    The first part of a number counts; that of a step in the log is ignored. The caller whose part
    completes the step gets the merged parts and applies them; then it calls `step_taken`.

    Args:
      log: as `step_log` returns it.
      number: the part's, int64 scalar in [0, 2^32); the step's number and the rank.
      num_parts: of the step, int64 scalar.
      rank: int64 scalar in [0, num_parts).
      num_rows: of the part's batch, int64 scalar; floats are weighted by it.
      worker: as in `step_applied`.
      seen: as in `step_applied`.
      rows: per store, those that have gradients.
      dense: float32, int32 or int64 of any shapes. Whole numbers are summed without weights.

    Returns:
      is_complete, a bool scalar; the turn to apply the step; what `merged_parts` takes; and
      `merged_dense`. If not is_complete, there are no ids, and the dense tensors are the caller's
      own.
    """
    return kernels.load().embedps_add_part(
        log=log,
        part=number,
        num_parts=num_parts,
        rank=rank,
        num_rows=num_rows,
        worker=worker,
        seen=seen,
        dense=list(dense),
        **part_inputs(rows),
    )


def step_taken(log: tf.Tensor, is_complete: tf.Tensor, turn: tf.Tensor) -> tf.Operation:
    """Logs all parts of a step that the caller has applied; nothing if not is_complete.

    Args:
      log: as `step_log` returns it.
      is_complete: as `add_part` returned it.
      turn: as `add_part` returned it.
    """
    return kernels.load().embedps_step_taken(log, is_complete, turn)


def open_steps(log: tf.Tensor) -> tf.Tensor:
    """Lists the parts of steps that lack some.

    Returns:
      int64 [n, 3], sorted: the step, the rank, and the worker that brought the part; -1 if none
      has.
    """
    return kernels.load().embedps_open_steps(log)
