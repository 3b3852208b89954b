"""Tells whether ids that a model passes on are those of the batch's column."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_KEEPS_VALUES = {
    "EnsureShape", "ExpandDims", "Identity", "PreventGradient", "Reshape", "Squeeze", "StopGradient"
}  # fmt: skip


def are_of_column(ids: Any, column: Any) -> bool:
    """Tells whether ids are a column as it is, or as [batch, 1].

    Args:
      ids: what a model passes on.
      column: the ids of the batch.

    Returns:
      True if it cannot be told outside of a graph.
    """
    if tf.executing_eagerly():
        return True
    if isinstance(ids, tf.RaggedTensor) and isinstance(column, tf.RaggedTensor):
        parts = [(ids.values, column.values), (ids.row_splits, column.row_splits)]
        return all(_origin(ours) is _origin(theirs) for ours, theirs in parts)
    if not isinstance(ids, tf.Tensor) or not isinstance(column, tf.Tensor):
        return False
    if ids.shape.rank not in (None, 1) and ids.shape.as_list()[1:] != [1]:
        return False
    return _origin(ids) is _origin(column)


def _only_adds_axes(op: tf.Operation) -> bool:
    """Tells whether an op is a slice like `x[:, None]`."""
    if op.type != "StridedSlice":
        return False
    masks = {name: op.get_attr(name) for name in ("begin_mask", "end_mask", "new_axis_mask")}
    keeps = masks["begin_mask"] & masks["end_mask"]
    keeps |= masks["new_axis_mask"] | op.get_attr("ellipsis_mask")
    strides = tf.get_static_value(op.inputs[3])
    if strides is None:
        return False
    return all(stride == 1 and keeps >> i & 1 for i, stride in enumerate(strides))


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    """Finds the tensor whose values a tensor has unchanged, in the outermost graph that has it."""
    while isinstance(getattr(tensor, "graph", None), tf.Graph):
        op = tensor.op
        if op.type in _KEEPS_VALUES or _only_adds_axes(op):
            tensor = op.inputs[0]
        elif op.type == "IdentityN":
            tensor = op.inputs[tensor.value_index]
        else:
            outside = [
                outer for outer, inner in getattr(op.graph, "captures", ()) if inner is tensor
            ]
            if not outside:
                break
            tensor = outside[0]
    return tensor
