"""Joins what a step of a stock program exchanges with servers for its network.

Each tensor sent to another task costs an RPC. Keras reads each variable by itself, and sends its
gradient by itself. Here a step gets one message of variables from each server, and sends one of
gradients.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from embedps.tables import message_ops

_SENT = (tf.float32, tf.bfloat16, tf.int32, tf.int64)  # what a message may hold
_strategies: weakref.WeakSet[tf.distribute.Strategy] = weakref.WeakSet()


def watch(strategy: tf.distribute.Strategy) -> None:
    """Makes Keras' optimizers join the messages of a strategy's programs."""
    _strategies.add(strategy)
    for kind, name in (
        (tf.keras.optimizers.Optimizer, "_distributed_apply_gradients_fn"),
        (tf.keras.optimizers.legacy.Optimizer, "_distributed_apply"),
    ):
        apply = getattr(kind, name)
        if getattr(apply, "is_watched", False):
            continue

        @functools.wraps(apply)
        def watched(
            self: Any, used: Any, pairs: Any, *args: Any, apply: Any = apply, **kwargs: Any
        ) -> Any:
            if used not in _strategies or tf.executing_eagerly():
                return apply(self, used, pairs, *args, **kwargs)
            pairs = _join(pairs)
            # Servers tell the one that counts the steps that they have updated, not the worker.
            with tf.device(self.iterations.device):
                return apply(self, used, pairs, *args, **kwargs)

        watched.is_watched = True  # type: ignore[attr-defined]
        setattr(kind, name, watched)


def _join(pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Joins the gradients of each server's variables, and the reads of these that came before.

    Args:
      pairs: of gradients and variables, which an optimizer applies next in the traced graph.

    Returns:
      The pairs. Their gradients are where their variables are.
    """
    joined = list(pairs)
    places: dict[str, list[int]] = {}
    for i, (_, variable) in enumerate(joined):
        if variable.device.startswith("/job:ps"):
            places.setdefault(variable.device, []).append(i)
    for device, indices in places.items():
        _join_reads(device, [joined[i][1] for i in indices])
        indices = [i for i in indices if _is_sent(joined[i][0])]
        if len(indices) > 1:
            sent = message_ops.send([joined[i][0] for i in indices], device)
            for i, gradient in zip(indices, sent, strict=True):
                joined[i] = (gradient, joined[i][1])
    return joined


def _join_reads(device: str, variables: Sequence[Any]) -> None:
    """Joins the first reads of a server's variables.

    None of these can wait for another one. A read after a change of its variable waits for that,
    so it stays as it is.
    """
    graph = tf.compat.v1.get_default_graph()
    found = [_first_reads(graph.capture(variable.handle), device) for variable in variables]
    reads = [each for each in found if each and _is_sent(each[0])]
    if len(reads) < 2:
        return
    users = [[(read, op) for read in each for op in _users(read, device)] for each in reads]
    # The first reads of a variable may all have one value: the step changes nothing between them.
    sent = message_ops.send([each[0] for each in reads], None, at=device)
    for value, of_variable in zip(sent, users, strict=True):
        for read, op in of_variable:
            for index, given in enumerate(op.inputs):
                if given is read:
                    op._update_input(index, value)


def _first_reads(handle: tf.Tensor, device: str) -> list[tf.Tensor]:
    """Lists what is read of a variable, and used elsewhere, before another op has its handle."""
    in_order = sorted(handle.consumers(), key=lambda op: op._id)
    reads = itertools.takewhile(lambda op: op.type == "ReadVariableOp", in_order)
    values = [op.outputs[0] for op in reads if not op.control_inputs]
    return [value for value in values if _users(value, device)]


def _users(value: tf.Tensor, device: str) -> list[tf.Operation]:
    return [op for op in value.consumers() if op.device != device]


def _is_sent(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype in _SENT
