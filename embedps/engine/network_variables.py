"""Reads and updates a network's variables on parameter servers, one server at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from embedps.engine.variable_stand_ins import standing_in

_SENT = (tf.float32, tf.bfloat16, tf.int32, tf.int64)  # what a message may hold


class RemoteVariables:
    """Variables that are read and updated per server, with the results of the Keras optimizer.

    A server's values are those of its variables. The optimizer's step count and its learning rate
    are each read on the server that holds them; reading one on another server would cost two
    messages between servers per step. The optimizer's constants come from the worker, so that no
    op of a step starts on a server: that would cost a message too.
    """

    def __init__(
        self, network: tf.keras.Model, optimizer: Any, state: Sequence[tf.Variable] = ()
    ) -> None:
        """Finds the server of each variable.

        Args:
          network: built.
          optimizer: as `dense_optimizer.make_dense_optimizer` makes it, its variables made.
          state: variables that the network itself updates, such as moving averages.
        """
        self._variables = list(network.trainable_variables)
        self._optimizer = optimizer
        self._state = [v for v in state if v.dtype in _SENT]
        self._state_on: dict[str, list[int]] = {}
        for i, variable in enumerate(self._state):
            self._state_on.setdefault(variable.device, []).append(i)
        self._count_at = optimizer.iterations.device
        self._rate_at = optimizer.learning_rate.device
        self._on: dict[str, list[int]] = {self._count_at: [], self._rate_at: []}
        for i, variable in enumerate(self._variables):
            self._on.setdefault(variable.device, []).append(i)
        for device in self._state_on:
            self._on.setdefault(device, [])

    @property
    def devices(self) -> list[str]:
        """Lists the servers' devices."""
        return list(self._on)

    def specs(self, device: str) -> list[tf.TensorSpec]:
        """Returns the specs of the tensors that `read` returns."""
        at = [self._variables[i] for i in self._on.get(device, [])]
        specs = [tf.TensorSpec(v.shape, v.dtype) for v in at]
        if device == self._rate_at:
            specs.append(tf.TensorSpec([], tf.float32))
        if device == self._count_at:
            specs.append(tf.TensorSpec([], tf.int64))
        return specs + [tf.TensorSpec(v.shape, v.dtype) for v in self._state_at(device)]

    def num_exact(self, device: str) -> int:
        """Returns how many of the last tensors of a message must not be rounded."""
        return len(self._state_on.get(device, []))

    def read(self, device: str) -> list[tf.Tensor]:
        """Reads a server's values; that server must be the current device."""
        parts = [self._variables[i].read_value() for i in self._on.get(device, [])]
        if device == self._rate_at:
            parts.append(self._read_learning_rate())
        if device == self._count_at:
            parts.append(self._optimizer.iterations.read_value())
        return parts + [variable.read_value() for variable in self._state_at(device)]

    def weights(self, read: Mapping[str, Sequence[tf.Tensor]]) -> list[Any]:
        """Returns what to take gradients of: the values read from each server, and the variables.

        The variables are included because some ops, such as tf.gather, read a variable's handle
        on its server.
        """
        values: list[Any] = [None] * len(self._variables)
        for device, indices in self._on.items():
            for i, value in zip(indices, read[device][: len(indices)], strict=True):
                values[i] = value
        return [*values, *self._variables]

    @contextmanager
    def using(self, weights: Sequence[Any]) -> Iterator[None]:
        """Makes the network compute with the values of `weights` within the block."""
        # Keras layers read a variable's cached value if it has one.
        wrapped = [v.get() if hasattr(v, "get") else v for v in self._variables]
        for variable, value in zip(wrapped, weights, strict=False):
            variable._cached_value = value
        try:
            yield
        finally:
            for variable in wrapped:
                variable._cached_value = None

    @contextmanager
    def carrying(
        self, read: Mapping[str, Sequence[tf.Tensor]], changes: list[tf.Tensor | None]
    ) -> Iterator[None]:
        """Makes the network update its state in tensors within the block.

        Args:
          read: the argument of `weights`.
          changes: gets what was added to each variable of the state, for `updates`; None if it
            stayed the same.
        """
        values: list[Any] = [None] * len(self._state)
        for device, indices in self._state_on.items():
            for i, value in zip(indices, read[device][-len(indices) :], strict=True):
                values[i] = value
        with standing_in(self._state, values) as stand_ins:
            yield
        changes[:] = [
            None if new is old else new - old
            for new, old in zip(stand_ins.values, values, strict=True)
        ]

    def updates(
        self,
        gradients: Sequence[tf.Tensor | None],
        read: Mapping[str, Sequence[tf.Tensor]],
        changes: Sequence[tf.Tensor | None],
    ) -> dict[str, list[tf.Tensor | None]]:
        """Makes the argument of `update` for each server.

        Args:
          gradients: of the list that `weights` returned; None for a variable without a gradient.
          read: the argument of `weights`.
          changes: as `carrying` made them.
        """
        count = len(self._variables)
        sums = [_add(*both) for both in zip(gradients[:count], gradients[count:], strict=True)]
        learning_rate = read[self._rate_at][len(self._on[self._rate_at])]
        iterations = read[self._count_at][-1 - self.num_exact(self._count_at)]
        sums, settings = self._prepare(sums, learning_rate, iterations)
        updates: dict[str, list[tf.Tensor | None]] = {}
        for device, indices in self._on.items():
            of_state = [changes[i] for i in self._state_on.get(device, [])]
            updates[device] = [*(sums[i] for i in indices), *settings, *of_state]
        return updates

    def summed(self, device: str, update: Sequence[tf.Tensor | None]) -> dict[int, tf.Tensor]:
        """Gives what parts of a step add up, by its index in a server's part of `updates`.

        These are gradients and changes of the network's state. The rest are settings, of which all
        parts have the same.
        """
        first_of_state = len(update) - self.num_exact(device)
        num_gradients = len(self._on.get(device, []))
        return {
            i: each
            for i, each in enumerate(update)
            if each is not None and not num_gradients <= i < first_of_state
        }

    def update(
        self, device: str, update: Sequence[tf.Tensor | None], *, is_new: tf.Tensor
    ) -> list[tf.Operation]:
        """Applies gradients with the op that Keras would call; the server is the current device.

        Args:
          device: the server's.
          update: the server's part of `updates`.
          is_new: bool scalar on the server. If false, its variables stay unchanged. Then the op
            gets settings that change nothing; a condition would cost messages.

        Returns:
          The ops that apply the gradients.
        """
        indices = self._on.get(device, [])
        if not update:
            return []
        gradients, settings = update[: len(indices)], update[len(indices) :]
        state = self._state_at(device)
        first = len(settings) - len(state)
        settings, changes = settings[:first], settings[first:]
        pairs = [
            (self._variables[i], gradient)
            for i, gradient in zip(indices, gradients, strict=True)
            if gradient is not None
        ]
        applied = self._apply_all(device, pairs, settings, is_new=is_new)
        applied += [
            variable.assign_add(tf.where(is_new, change, tf.zeros_like(change)), read_value=False)
            for variable, change in zip(state, changes, strict=True)
            if change is not None
        ]
        if device == self._count_at:
            steps = tf.cast(is_new, tf.int64)
            applied.append(self._optimizer.iterations.assign_add(steps, read_value=False))
        return applied

    def _state_at(self, device: str) -> list[tf.Variable]:
        return [self._state[i] for i in self._state_on.get(device, [])]

    def _read_learning_rate(self) -> tf.Tensor:
        return self._optimizer._get_hyper("learning_rate", tf.float32)

    def _prepare(
        self, gradients: list[tf.Tensor | None], learning_rate: tf.Tensor, iterations: tf.Tensor
    ) -> tuple[list[tf.Tensor | None], Sequence[tf.Tensor]]:
        """Returns the gradients to send, and the settings that each server gets with them."""
        return gradients, self._settings(learning_rate, iterations)

    def _apply_all(
        self,
        device: str,
        pairs: Sequence[tuple[tf.Variable, tf.Tensor]],
        settings: Sequence[Any],
        *,
        is_new: tf.Tensor,
    ) -> list[tf.Operation]:
        """Applies gradients on the current device, a server's."""
        sent, none = settings
        scalars = tf.unstack(tf.where(is_new, sent, none))
        return [self._apply(variable, gradient, *scalars) for variable, gradient in pairs]

    def _settings(
        self, learning_rate: tf.Tensor, iterations: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns settings for `_apply`, and settings that change nothing: float32 [n]."""
        optimizer = self._optimizer
        legacy = tf.keras.optimizers.legacy
        if isinstance(optimizer, legacy.SGD):
            return tf.stack([learning_rate]), tf.zeros([1])
        if isinstance(optimizer, legacy.Adagrad):
            epsilon = optimizer.epsilon
            return tf.stack([1.0, learning_rate, epsilon]), tf.stack([0.0, 0.0, epsilon])
        step = tf.cast(iterations + 1, tf.float32)
        config = optimizer.get_config()
        betas = [tf.constant(config[beta], tf.float32) for beta in ("beta_1", "beta_2")]
        powers = [tf.pow(beta, step) for beta in betas]
        same = [*powers, optimizer.epsilon]
        return tf.stack([*same, learning_rate, *betas]), tf.stack([*same, 0.0, 1.0, 1.0])

    def _apply(
        self, variable: tf.Variable, gradient: tf.Tensor, *settings: tf.Tensor
    ) -> tf.Operation:
        optimizer, handle = self._optimizer, variable.handle
        legacy = tf.keras.optimizers.legacy
        if isinstance(optimizer, legacy.SGD):
            return tf.raw_ops.ResourceApplyGradientDescent(
                var=handle, alpha=settings[0], delta=gradient, use_locking=True
            )
        if isinstance(optimizer, legacy.Adagrad):
            return tf.raw_ops.ResourceApplyAdagradV2(
                var=handle,
                accum=optimizer.get_slot(variable, "accumulator").handle,
                lr=settings[1],
                epsilon=settings[2],
                grad=settings[0] * gradient,  # the accumulator adds it even if the rate is 0
                use_locking=True,
            )
        return tf.raw_ops.ResourceApplyAdam(
            var=handle,
            m=optimizer.get_slot(variable, "m").handle,
            v=optimizer.get_slot(variable, "v").handle,
            beta1_power=settings[0],
            beta2_power=settings[1],
            epsilon=settings[2],
            lr=settings[3],
            beta1=settings[4],
            beta2=settings[5],
            grad=gradient,
            use_locking=True,
        )


def _add(first: tf.Tensor | None, second: tf.Tensor | tf.IndexedSlices | None) -> tf.Tensor | None:
    known = [tf.convert_to_tensor(g) for g in (first, second) if g is not None]
    return tf.add_n(known) if known else None
