"""Runs any Keras optimizer on parameter servers, where the variables and its slots are."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from embedps.engine.dense_optimizer import RAW_OPTIMIZERS, has_schedule
from embedps.engine.network_variables import RemoteVariables
from embedps.engine.variable_stand_ins import standing_in
from embedps.errors import UsageError


def make_remote_variables(
    network: tf.keras.Model, optimizer: Any, state: Sequence[tf.Variable]
) -> RemoteVariables:
    """Makes the variables' reader and writer for an optimizer; see `RemoteVariables`.

    Raises:
      UsageError: the optimizer cannot run on servers.
    """
    if isinstance(optimizer, RAW_OPTIMIZERS):
        return RemoteVariables(network, optimizer, state)
    return KerasVariables(network, optimizer, state)


class KerasVariables(RemoteVariables):
    """Variables whose server runs the update step of a Keras optimizer.

    The worker clips the gradients, which may need all of them, and evaluates a schedule. A server
    computes new values from the present ones under a lock, so that no worker's update is lost: an
    optimizer assigns values that cannot be split into sums.
    """

    def __init__(
        self, network: tf.keras.Model, optimizer: Any, state: Sequence[tf.Variable] = ()
    ) -> None:
        super().__init__(network, optimizer, state)
        self._slots = _find_slots(optimizer, self._variables)
        self._lock_name = f"optimizer/{uuid.uuid4().hex}"

    def _read_learning_rate(self) -> tf.Tensor:
        return tf.cast(self._optimizer.learning_rate.read_value(), tf.float32)

    def _prepare(
        self, gradients: list[tf.Tensor | None], learning_rate: tf.Tensor, iterations: tf.Tensor
    ) -> tuple[list[tf.Tensor | None], Sequence[tf.Tensor]]:
        optimizer = self._optimizer
        if has_schedule(optimizer):
            learning_rate = tf.cast(optimizer._learning_rate(iterations), tf.float32)
        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        known = [g for g in dense if g is not None]
        clipped = iter(optimizer._clip_gradients(known) if known else [])
        return [None if g is None else next(clipped) for g in dense], [learning_rate, iterations]

    def _apply_all(
        self,
        device: str,
        pairs: Sequence[tuple[tf.Variable, tf.Tensor]],
        settings: Sequence[Any],
        *,
        is_new: tf.Tensor,
    ) -> list[tf.Operation]:
        if not pairs:
            return []
        learning_rate, iterations = settings
        optimizer = self._optimizer
        mutex = tf.raw_ops.MutexV2(shared_name=self._lock_name)
        # Once the gradients are there: nothing may be waited for with the lock held.
        with tf.control_dependencies([gradient for _, gradient in pairs]):
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        applied = []
        for variable, gradient in pairs:
            changed = [variable, *self._slots[id(variable)]]
            with tf.control_dependencies([lock]):
                values = [v.read_value() for v in changed]
            rate = optimizer.learning_rate
            given = [*values, iterations, tf.cast(learning_rate, rate.dtype)]
            with standing_in([*changed, optimizer.iterations, rate], given) as stand_ins:
                _decay_weights(optimizer, variable)
                optimizer.update_step(gradient, variable)
            for v, old, new in zip(changed, values, stand_ins.values, strict=False):
                if new is not old:
                    applied.append(v.assign(tf.where(is_new, new, old), read_value=False))
        with tf.control_dependencies(applied):
            tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        return applied


def _decay_weights(optimizer: Any, variable: tf.Variable) -> None:
    """Decays a variable as Keras' `apply_gradients` does before an update."""
    if optimizer.weight_decay is not None and optimizer._use_weight_decay(variable):
        rate = tf.cast(optimizer.learning_rate, variable.dtype)
        variable.assign_sub(variable * tf.cast(optimizer.weight_decay, variable.dtype) * rate)


def _find_slots(optimizer: Any, variables: Sequence[tf.Variable]) -> dict[int, list[tf.Variable]]:
    """Finds each variable's slots in an optimizer, by the lists that it keeps one entry each in.

    Raises:
      UsageError: the optimizer has other state, which a server cannot update by itself.
    """
    name = type(optimizer).__name__
    if getattr(optimizer, "use_ema", False):
        raise UsageError(
            f"{name}(use_ema=True) cannot run on parameter servers or with --replicas: leave out "
            "use_ema, or train in one process"
        )
    index = {id(v): optimizer._index_dict[optimizer._var_key(v)] for v in variables}
    own = {id(optimizer.iterations), id(optimizer.learning_rate)}
    slots: dict[int, list[tf.Variable]] = {id(v): [] for v in variables}
    for key, value in vars(optimizer).items():
        if isinstance(value, tf.Variable) and id(value) not in own:
            raise _has_other_state(name, key)
        if key == "_variables" or not isinstance(value, list | tuple):
            continue
        if value and all(isinstance(each, tf.Variable) for each in value):
            if len(value) != len(variables):
                raise _has_other_state(name, key)
            for variable in variables:
                slot = value[index[id(variable)]]
                if slot.device != variable.device:
                    raise _has_other_state(name, key)
                slots[id(variable)].append(slot)
    return slots


def _has_other_state(name: str, attribute: str) -> UsageError:
    return UsageError(
        f"optimizer {name} cannot run on parameter servers or with --replicas: its state "
        f"{attribute!r} is not one slot per variable; use another, such as adam or adamw, or train "
        "in one process"
    )
