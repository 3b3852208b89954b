"""Makes the network's optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from embedps.errors import UsageError

# The number of optimizer slots per trainable variable, by kind. An optimizer's variables are its
# step count, then its slots: the first slot of all variables in order, then the next.
NUM_OPTIMIZER_SLOTS = {"sgd": 0, "adagrad": 1, "adam": 2}

_legacy = tf.keras.optimizers.legacy
RAW_OPTIMIZERS = (_legacy.SGD, _legacy.Adagrad, _legacy.Adam)
"""The optimizers whose update is one op of TensorFlow; on servers they are the fastest."""

_RAW = {"sgd": _legacy.SGD, "adagrad": _legacy.Adagrad, "adam": _legacy.Adam}


def make_dense_optimizer(
    kind: str | Callable[[], Any],
    learning_rate: float,
    network: tf.keras.Model,
    *,
    weight_decay: float = 0.0,
) -> Any:
    """Makes a Keras optimizer and its variables; call it in the strategy's scope.

    Args:
      kind: "sgd", "adagrad" or "adam", the name of another Keras optimizer, or a function that
        makes one.
      learning_rate: the optimizer's; not of one that a function makes.
      network: the network whose variables it updates.
      weight_decay: as Keras has it; not of an optimizer that a function makes.

    Raises:
      UsageError: the function makes something else.
    """
    if kind in _RAW and not weight_decay:
        optimizer = _RAW[kind](learning_rate)
    elif callable(kind):
        optimizer = kind()
    else:
        by_name = {name.lower(): value for name, value in vars(tf.keras.optimizers).items()}
        decay = {"weight_decay": weight_decay} if weight_decay else {}
        optimizer = by_name[kind](learning_rate=learning_rate, **decay)
    if isinstance(optimizer, _legacy.Optimizer):
        if not isinstance(optimizer, RAW_OPTIMIZERS):
            raise UsageError(
                f"the optimizer {type(optimizer).__name__} of tf.keras.optimizers.legacy is not "
                "supported: use the one of tf.keras.optimizers"
            )
        optimizer._create_all_weights(network.trainable_variables)
    elif isinstance(optimizer, tf.keras.optimizers.Optimizer):
        optimizer.jit_compile = False
        optimizer.build(network.trainable_variables)
    else:
        kind = type(optimizer)
        raise UsageError(
            "a model's optimizer must be a tf.keras.optimizers.Optimizer (Keras 2) but is a "
            f"{kind.__module__}.{kind.__qualname__}"
        )
    return optimizer


def kind_of(optimizer: Any) -> str:
    """Returns the name of an optimizer's kind, as a manifest has it."""
    return type(optimizer).__name__.lower()


def has_schedule(optimizer: Any) -> bool:
    """Tells whether an optimizer's learning rate is a schedule over steps."""
    rate = getattr(optimizer, "_learning_rate", None)
    return isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule)


def variables_of(optimizer: Any) -> list[tf.Variable]:
    """Lists the variables that a checkpoint holds: the step count and the slots."""
    if isinstance(optimizer, RAW_OPTIMIZERS):
        return list(optimizer.variables())
    rate = optimizer.learning_rate
    return [v for v in optimizer.variables if v is not rate]


def rate_scaler(optimizer: Any) -> Callable[[float], None]:
    """Makes a function that sets the learning rate to a factor of what it is now.

    The function raises UsageError if the rate is a schedule and the factor is not 1.
    """
    if has_schedule(optimizer):

        def refuse(factor: float) -> None:
            if factor != 1.0:
                raise UsageError(
                    "the optimizer's learning rate is a schedule, which a callback cannot scale: "
                    "leave out --reduce-patience or the schedule"
                )

        return refuse
    rate = optimizer.learning_rate
    initial = float(rate.numpy())
    return lambda factor: rate.assign(factor * initial)
