"""Wraps the ops of steps that do not wait for their slowest workers; see engine/steps/grouped.py.

A group is the parts of steps that servers apply together. One server, the one with the groups,
decides which parts these are. The log of each server, as `step_ops.step_log` returns it, holds the
parts until they are applied. All ops run on the current device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from embedps import kernels
from embedps.tables import part_ops
from embedps.tables.ops import RowPart


class Group(NamedTuple):
    """Names a group.

    Attributes:
      index: groups are applied in this order, int64 scalar; -1 is no group.
      parts: the numbers of its parts, sorted, int64 [n]. If there are none, this call need not
        apply the group.
    """

    index: tf.Tensor
    parts: tf.Tensor


class LastGroups(NamedTuple):
    """Holds what a server knows of the last groups.

    Attributes:
      parts: by index the numbers of a group's parts. The last group is open.
      awaited: the workers without a fresh part in it, if others wait with theirs.
    """

    parts: dict[int, np.ndarray]
    awaited: list[int]


def enter_groups(
    log: tf.Tensor, worker: tf.Tensor, *, backup_workers: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Lets a worker take part in steps.

    Args:
      log: of the server with the groups.
      worker: the index of the worker's task, int64 scalar.
      backup_workers: how many of the workers that take part a group does not wait for, int64
        scalar.

    Returns:
      How many groups are closed, an int64 scalar; and the membership, a resource. The worker leaves
      when it is destroyed: at the latest when the function ends, whatever ends it.
    """
    found = kernels.load().embedps_enter_groups(log, worker, backup_workers)
    return found.num_closed, found.member


def await_groups(log: tf.Tensor, num_groups: tf.Tensor) -> tf.Tensor:
    """Waits until so many groups are applied; returns how many are, int64 scalar."""
    return kernels.load().embedps_await_groups(log, num_groups)


def hold_part(
    log: tf.Tensor,
    number: tf.Tensor,
    *,
    num_rows: tf.Tensor,
    worker: tf.Tensor,
    seen: tf.Tensor,
    learning_rate: tf.Tensor,
    rows: Sequence[RowPart],
    dense: Sequence[tf.Tensor],
) -> tf.Operation:
    """Keeps a part, unless the server has it or has applied it: the first attempt counts.

    Args:
      log: of the server.
      number: the part's, int64 scalar in [0, 2^32).
      num_rows: as in `step_ops.add_part`.
      worker: as in `step_ops.step_applied`.
      seen: as in `step_ops.step_applied`.
      learning_rate: of the tables, float32 scalar.
      rows: as in `step_ops.add_part`.
      dense: as in `step_ops.add_part`.
    """
    return kernels.load().embedps_hold_part(
        log=log,
        part=number,
        num_rows=num_rows,
        worker=worker,
        seen=seen,
        learning_rate=learning_rate,
        dense=list(dense),
        **part_ops.part_inputs(rows),
    )


def join_group(log: tf.Tensor, number: tf.Tensor, *, worker: tf.Tensor, seen: tf.Tensor) -> Group:
    """Adds a part, which all servers hold, to the open group.

    The part is fresh if its worker read the state with all groups that are closed.

    Args:
      log: of the server with the groups.
      number: the part's, int64 scalar in [0, 2^32).
      worker: as in `enter_groups`.
      seen: as in `step_ops.step_applied`.

    Returns:
      Of a fresh part its group, once that is closed. Of a late one, at once, the last group that
      closed, without its parts.
    """
    return Group(*kernels.load().embedps_join_group(log, number, worker, seen))


def leave_groups(log: tf.Tensor, number: tf.Tensor, member: tf.Tensor) -> Group:
    """Ends a worker's membership; returns the group of its last part, once that is closed."""
    return Group(*kernels.load().embedps_leave_groups(log, number, member))


def take_group(
    log: tf.Tensor, group: Group, *, rows: Sequence[RowPart], dense: Sequence[tf.Tensor]
) -> Any:
    """Waits until a group is applied, or until this call must apply it.

    Args:
      log: of the server.
      group: as `join_group` or `leave_groups` returned it.
      rows: as in `hold_part`; their values are used as of a part in `step_ops.add_part`.
      dense: as `rows`.

    Returns:
      As `step_ops.add_part`, and the `step` and the `learning_rate` of the group's first part.
    """
    return kernels.load().embedps_take_group(
        log=log,
        index=group.index,
        parts=group.parts,
        dense=list(dense),
        **part_ops.part_inputs(rows),
    )


def forget_worker(log: tf.Tensor, worker: int) -> tf.Operation:
    """Lets no group wait for a worker until it brings a part."""
    return kernels.load().embedps_forget_worker(log, tf.constant(worker, tf.int64))


def last_groups(log: tf.Tensor) -> LastGroups:
    """Reads the last groups, eagerly."""
    found = kernels.load().embedps_last_groups(log)
    ends = np.cumsum(found.sizes.numpy())[:-1]
    parts = np.split(found.parts.numpy(), ends)
    return LastGroups(
        dict(zip(found.indexes.numpy().tolist(), parts, strict=True)),
        found.awaited.numpy().tolist(),
    )
