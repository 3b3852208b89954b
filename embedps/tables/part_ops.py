"""Wraps the ops that merge the parts of a step, which several workers or replicas computed."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from embedps import kernels
from embedps.tables.ops import RowPart


def merge_rows(parts: Sequence[RowPart], num_examples: tf.Tensor) -> RowPart:
    """Merges the parts of a step, by rank.

    An id's gradient is the sum over the ranks that have it, in rank order and in float32, of the
    rank's share of the examples times its gradient. The counts of examples are summed; an id is
    absent if it is for a rank.

    Args:
      parts: by rank.
      num_examples: int64 [num parts]; a rank without examples is left out.

    Returns:
      All ids, by table in order of first appearance: rank after rank.
    """
    inputs = part_inputs(parts)
    out = kernels.load().embedps_merge_rows(
        num_examples=num_examples, num_counts=1 if inputs.pop("counted") else 0, **inputs
    )
    return RowPart(*out[:3], *(merged[0] for merged in out[3:] if merged))


def merge_dense(values: Sequence[tf.Tensor], num_examples: tf.Tensor) -> tf.Tensor:
    """Sums values over ranks as `merge_rows` sums gradients.

    Args:
      values: by rank, float32 of one shape.
      num_examples: int64 [num ranks]; a rank without examples is left out.
    """
    return kernels.load().embedps_merge_dense(num_examples=num_examples, values=list(values))


def part_inputs(parts: Sequence[RowPart]) -> dict[str, Any]:
    """Makes the inputs by which ops take the rows of parts; `counted` says which have counts."""
    counted = [i for i, part in enumerate(parts) if part.absent is not None]
    return {
        "ids": [part.ids for part in parts],
        "splits": [part.splits for part in parts],
        "gradients": [part.gradients for part in parts],
        "examples": [parts[i].examples for i in counted],
        "absent": [parts[i].absent for i in counted],
        "counted": counted,
    }


def merged_parts(found: Any, parts: Sequence[RowPart]) -> list[RowPart]:
    """Gives the merged rows of what `add_part` returned for these parts."""
    counts = iter(zip(found.merged_examples, found.merged_absent, strict=True))
    rows = zip(found.merged_ids, found.merged_splits, found.merged_gradients, strict=True)
    return [
        RowPart(*merged, *(() if part.absent is None else next(counts)))
        for merged, part in zip(rows, parts, strict=True)
    ]
