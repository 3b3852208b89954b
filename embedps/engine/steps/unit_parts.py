"""Divides a unit, and its steps, among the ranks that take each step together.

A step of N ranks has one batch of each. The batches of a unit are dealt to the ranks in turn, so
each rank has as many as the others, or one more, and only the last step may have fewer than N
parts or a short batch. A rank's batches are one range of the unit's rows: the ranges of the ranks
lie one after the other.

A unit of nb batches has nb numbers. Part `rank` of its step k has the number
first_step + k * num_ranks + rank; the step's number is that of its part 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from embedps.data.unit_reader import UnitInput


class StepPart(NamedTuple):
    """Says which part of a step a batch is. All are int64 scalars.

    Attributes:
      rank: which part, in [0, num_parts).
      num_parts: how many parts the step has.
      num_rows: of the batch.
      after: the number of the step that must be applied before this one begins; -1 for none.
    """

    rank: tf.Tensor
    num_parts: tf.Tensor
    num_rows: tf.Tensor
    after: tf.Tensor


class Step(NamedTuple):
    """Says what a batch is trained in.

    Attributes:
      number: of the step's part, int64 scalar in [0, 2^32); the same in every attempt.
      learning_rate: of the tables, float32 scalar.
      part: which part of the step the batch is.
    """

    number: tf.Tensor
    learning_rate: tf.Tensor
    part: StepPart


class RankOfUnit(NamedTuple):
    """Says which part of a unit a rank has. All are int64 scalars.

    Attributes:
      first_row: of its rows.
      num_rows: of all its batches.
      num_batches: how many steps it takes part in.
      unit_batches: how many batches all ranks have.
    """

    first_row: tf.Tensor
    num_rows: tf.Tensor
    num_batches: tf.Tensor
    unit_batches: tf.Tensor


def rank_of_unit(
    first_row: Any, num_rows: Any, *, batch_rows: int, rank: Any, num_ranks: Any
) -> RankOfUnit:
    """Gives the rows of a unit that a rank reads.

    Args:
      batch_rows: rows per batch.
      rank: in [0, num_ranks).
      num_ranks: how many ranks take each step.
    """
    first_row, num_rows, rank, num_ranks = (
        tf.convert_to_tensor(n, tf.int64) for n in (first_row, num_rows, rank, num_ranks)
    )
    unit_batches = -(-num_rows // batch_rows)
    fewest, more = unit_batches // num_ranks, unit_batches % num_ranks
    before = rank * fewest + tf.minimum(rank, more)
    own = fewest + tf.cast(rank < more, tf.int64)
    # The unit's last batch is of one rank; that rank's range and those after it are this shorter.
    short = unit_batches * batch_rows - num_rows
    last = (unit_batches - 1) % num_ranks
    zero = tf.zeros([], tf.int64)
    return RankOfUnit(
        first_row + before * batch_rows - tf.where(rank > last, short, zero),
        own * batch_rows - tf.where(rank == last, short, zero),
        own,
        unit_batches,
    )


def open_rank(
    unit_input: UnitInput,
    path: tf.Tensor,
    first_row: tf.Tensor,
    num_rows: tf.Tensor,
    seed: tf.Tensor,
    *,
    rank: Any,
    num_ranks: Any,
) -> tuple[RankOfUnit, tf.Tensor]:
    """Opens a rank's part of a unit; gives which part that is, and its reader."""
    own = rank_of_unit(
        first_row, num_rows, batch_rows=unit_input.batch_rows, rank=rank, num_ranks=num_ranks
    )
    return own, unit_input.open(path, own.first_row, own.num_rows, rank_seed(seed, rank))


def rank_seed(seed: Any, rank: Any) -> tf.Tensor:
    """Gives the seed of a rank's shuffle; that of rank 0 is the unit's."""
    # An odd constant, 2^64 / golden ratio; the product wraps.
    mix = tf.constant(0x9E3779B97F4A7C15 - 2**64, tf.int64)
    return tf.convert_to_tensor(seed, tf.int64) + tf.convert_to_tensor(rank, tf.int64) * mix


def last_step(first_step: int, num_rows: int, *, batch_rows: int, num_ranks: int) -> int:
    """Gives the number of a unit's last step: what the next unit's first step begins after."""
    num_batches = -(-num_rows // batch_rows)
    return first_step + (num_batches - 1) // num_ranks * num_ranks
