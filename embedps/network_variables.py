"""A network's variables as a step uses them: read at its start, updated at its end.

Where they are in this process, the network reads each and the Keras optimizer updates each. On
parameter servers each of these would be a message of its own, both ways and with the optimizer's
settings besides; there the variables of a server travel as one tensor, and so do their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import tensorflow as tf


class NetworkVariables(Protocol):
    """What a training step asks."""

    @contextmanager
    def read(self) -> Iterator[list[Any]]:
        """Gives what to take gradients of; within the block the network computes with these."""

    def update(self, gradients: Sequence[tf.Tensor | None]) -> None:
        """Applies the gradients of what `read` gave; None is of a variable without influence."""


def make_network_variables(network: tf.keras.Model, optimizer: Any) -> NetworkVariables:
    """Picks the way by where the variables are.

    Args:
      network: built.
      optimizer: as `units.make_dense_optimizer` makes it, its variables made.
    """
    if any("/job:ps" in v.device for v in network.trainable_variables):
        return RemoteVariables(network, optimizer)
    return LocalVariables(network, optimizer)


class LocalVariables:
    """Variables of this process."""

    def __init__(self, network: tf.keras.Model, optimizer: Any) -> None:
        self._network = network
        self._optimizer = optimizer

    @contextmanager
    def read(self) -> Iterator[list[Any]]:
        """The variables themselves."""
        yield list(self._network.trainable_variables)

    def update(self, gradients: Sequence[tf.Tensor | None]) -> None:
        """By Keras."""
        variables = self._network.trainable_variables
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))


class RemoteVariables:
    """Variables of parameter servers: a message a server each way.

    The optimizer's settings that change come with what is read from the server that counts its
    steps, and go to every server with the gradients.
    """

    def __init__(self, network: tf.keras.Model, optimizer: Any) -> None:
        self._variables = list(network.trainable_variables)
        self._optimizer = optimizer
        self._home = optimizer.iterations.device
        self._on: dict[str, list[int]] = {self._home: []}
        for i, variable in enumerate(self._variables):
            self._on.setdefault(variable.device, []).append(i)
        self._settings: tf.Tensor | None = None  # of the step that is traced

    @contextmanager
    def read(self) -> Iterator[list[Any]]:
        """Tensors on this device."""
        values: list[Any] = [None] * len(self._variables)
        for device, indices in self._on.items():
            with tf.device(device):
                parts = [tf.reshape(self._variables[i].read_value(), [-1]) for i in indices]
                if device == self._home:
                    # Last, so that the weights before it stay aligned and are not copied again.
                    parts.append(self._read_settings())
                packed = tf.concat(parts, axis=0)
            begin = 0
            for i in indices:
                shape = self._variables[i].shape
                values[i] = tf.reshape(tf.slice(packed, [begin], [shape.num_elements()]), shape)
                begin += shape.num_elements()
            if device == self._home:
                self._settings = packed[begin:]
        # What Keras' layers read of a variable is its cached value, where there is one.
        wrapped = [v.get() if hasattr(v, "get") else v for v in self._variables]
        for variable, value in zip(wrapped, values, strict=True):
            variable._cached_value = value
        try:
            # The variables too: what reads by the handle, as tf.gather does, reads it there.
            yield [*values, *self._variables]
        finally:
            for variable in wrapped:
                variable._cached_value = None

    def update(self, gradients: Sequence[tf.Tensor | None]) -> None:
        """By the op that Keras would call, on the variable's server."""
        count = len(self._variables)
        sums = [_add(*both) for both in zip(gradients[:count], gradients[count:], strict=True)]
        for device, indices in self._on.items():
            known = [i for i in indices if sums[i] is not None]
            if known:
                parts = [tf.reshape(sums[i], [-1]) for i in known]
                packed = tf.concat([*parts, self._settings], axis=0)
                with tf.device(device):
                    self._update(packed, known)
        with tf.device(self._home):
            self._optimizer.iterations.assign_add(1, read_value=False)

    def _update(self, packed: tf.Tensor, indices: Sequence[int]) -> None:
        begin = 0
        parts = []
        for i in indices:
            shape = self._variables[i].shape
            parts.append(tf.reshape(tf.slice(packed, [begin], [shape.num_elements()]), shape))
            begin += shape.num_elements()
        settings = tf.unstack(packed[begin:], num=self._num_settings)
        for i, gradient in zip(indices, parts, strict=True):
            self._apply(self._variables[i], gradient, *settings)

    @property
    def _num_settings(self) -> int:
        return 3 if isinstance(self._optimizer, tf.keras.optimizers.legacy.Adam) else 1

    def _read_settings(self) -> tf.Tensor:
        """The learning rate; for Adam also its two betas to the power of the step."""
        optimizer = self._optimizer
        learning_rate = optimizer._get_hyper("learning_rate", tf.float32)
        if self._num_settings == 1:
            return tf.stack([learning_rate])
        step = tf.cast(optimizer.iterations + 1, tf.float32)
        config = optimizer.get_config()
        powers = [tf.pow(tf.constant(config[beta]), step) for beta in ("beta_1", "beta_2")]
        return tf.stack([learning_rate, *powers])

    def _apply(self, variable: tf.Variable, gradient: tf.Tensor, *settings: tf.Tensor) -> None:
        optimizer, handle = self._optimizer, variable.handle
        legacy = tf.keras.optimizers.legacy
        if isinstance(optimizer, legacy.SGD):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=handle, alpha=settings[0], delta=gradient, use_locking=True
            )
        elif isinstance(optimizer, legacy.Adagrad):
            tf.raw_ops.ResourceApplyAdagradV2(
                var=handle,
                accum=optimizer.get_slot(variable, "accumulator").handle,
                lr=settings[0],
                epsilon=optimizer.epsilon,
                grad=gradient,
                use_locking=True,
            )
        else:
            config = optimizer.get_config()
            tf.raw_ops.ResourceApplyAdam(
                var=handle,
                m=optimizer.get_slot(variable, "m").handle,
                v=optimizer.get_slot(variable, "v").handle,
                lr=settings[0],
                beta1_power=settings[1],
                beta2_power=settings[2],
                beta1=config["beta_1"],
                beta2=config["beta_2"],
                epsilon=optimizer.epsilon,
                grad=gradient,
                use_locking=True,
            )


def _add(first: tf.Tensor | None, second: tf.Tensor | tf.IndexedSlices | None) -> tf.Tensor | None:
    known = [tf.convert_to_tensor(g) for g in (first, second) if g is not None]
    return tf.add_n(known) if known else None
