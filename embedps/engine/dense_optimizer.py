"""Makes the network's optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# The number of optimizer slots per trainable variable, by kind. An optimizer's variables are its
# step count, then its slots: the first slot of all variables in order, then the next.
NUM_OPTIMIZER_SLOTS = {"sgd": 0, "adagrad": 1, "adam": 2}


def make_dense_optimizer(kind: str, learning_rate: float, network: tf.keras.Model) -> Any:
    """Makes a Keras optimizer and its variables; call it in the strategy's scope.

    Args:
      kind: "sgd", "adagrad" or "adam".
      learning_rate: the optimizer's.
      network: the network whose variables it updates.
    """
    # ParameterServerStrategy works with the legacy optimizers only.
    legacy = tf.keras.optimizers.legacy
    kinds = {"sgd": legacy.SGD, "adagrad": legacy.Adagrad, "adam": legacy.Adam}
    optimizer = kinds[kind](learning_rate)
    optimizer._create_all_weights(network.trainable_variables)
    return optimizer
