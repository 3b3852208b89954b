"""The network's optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# By kind, its slots of each trainable variable. Its variables are its count of steps, then the
# slots: each of all variables, in the variables' order.
NUM_OPTIMIZER_SLOTS = {"sgd": 0, "adagrad": 1, "adam": 2}


def make_dense_optimizer(kind: str, learning_rate: float, network: tf.keras.Model) -> Any:
    """A Keras optimizer with its variables made; call it in the strategy's scope.

    Args:
      kind: "sgd", "adagrad" or "adam".
      learning_rate: its rate.
      network: whose variables it updates.
    """
    # The legacy optimizers are those that ParameterServerStrategy works with.
    legacy = tf.keras.optimizers.legacy
    kinds = {"sgd": legacy.SGD, "adagrad": legacy.Adagrad, "adam": legacy.Adam}
    optimizer = kinds[kind](learning_rate)
    optimizer._create_all_weights(network.trainable_variables)
    return optimizer
